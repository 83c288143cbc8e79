"""Discriminants in model files: read back equal, or refused."""

import numpy as np
import pytest

from fedneighbors.errors import ModelFileError
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper._model import KNNPerModel
from tests.methods.knnper.tampering import alter_file


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    x = np.random.default_rng(0).normal(size=(40, 3))
    y, owner = np.arange(40) % 3, np.repeat(["a", "b"], 20)
    model = KNNPerClassifier(hidden=(4,), n_rounds=1, combine="pool").fit(x, y, parties=owner)
    file = tmp_path_factory.mktemp("pool") / "model"
    model.save(file)
    return file


def test_discriminants_are_read_back_equal(path):
    model = KNNPerModel.load(path)

    assert model.shared.seen.features.n_features == len(model.shared.seen.directions)
    assert model.to_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"features.seed": -1}, "seed or rate"),
        ({"features.rate": -0.5}, "seed or rate"),
        ({"directions": np.ones(3)}, "not a table"),
        ({"directions": np.empty((3, 0))}, "not a table"),
        ({"directions": np.ones((2, 3))}, "not a table"),
        ({"directions": np.array([[np.nan]])}, "not finite"),
        ({"features.n_features": 3}, "do not cover all random features"),
        ({"directions": np.ones((1025, 1)), "features.n_features": 1025}, "more than 1024"),
    ],
)
def test_invalid_discriminants_are_refused(path, changed, words, tmp_path):
    changed = {f"shared.seen.{name}": value for name, value in changed.items()}
    (tmp_path / "model").write_bytes(alter_file(path.read_bytes(), changed))

    with pytest.raises(ModelFileError, match=words):
        KNNPerModel.load(tmp_path / "model")


@pytest.mark.parametrize("rate", [np.inf, np.nan])
def test_an_invalid_rate_is_not_written(path, rate):
    with pytest.raises(ValueError, match="is not finite"):
        alter_file(path.read_bytes(), {"shared.seen.features.rate": rate})
