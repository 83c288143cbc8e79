import numpy as np
import pytest

from fedneighbors.federation._inprocess import run
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.protocol import FlyNNParty, coordinate


def parties(n):
    random = np.random.default_rng(n)
    result = []
    for k in range(n):
        x = random.normal(size=(20 + 7 * k, 6))
        result.append(FlyNNParty(f"party {k}", x, random.integers(0, 3, len(x))))
    return result


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("standardize", [True, False])
def test_masked_sums_give_a_byte_identical_model(n, standardize):
    settings = FlyNNSettings(n_units=128, seed=3, standardize=standardize)
    plain = run(coordinate(settings), parties(n)).result.to_bytes()

    trained = parties(n)
    outcome = run(coordinate(settings), trained, sums="masked")

    assert outcome.result.to_bytes() == plain
    assert [party.model.to_bytes() for party in trained] == [plain] * n
    assert [r.reduce for r in outcome.rounds] == ["gather", *["masked"] * 16, "gather"]
