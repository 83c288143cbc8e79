"""The training of a federation: one result over every way to its clients."""

import weakref

import numpy as np
import pytest

from fedneighbors.errors import PartyRefused
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import run_rounds
from fedneighbors.methods.knnper._client import KNNPerParty
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.methods.knnper._training import Cohort
from fedneighbors.methods.knnper.protocol import ClientSchemaRequest, TrainRequest
from fedneighbors.neural._blueprint import perceptron
from fedneighbors.neural._schedule import Regime
from tests.methods.knnper.federations import (
    DIGITS,
    N_ROWS,
    RecordingCohort,
    members,
    network,
    training,
)


def asked(coordinator, parties):
    """Return all requests of a coordinator, with the way to reduce the replies."""
    cohort = RecordingCohort(parties, method="reuse")
    run_rounds(coordinator, cohort)
    return [(requests, reduce) for requests, reduce, _ in cohort.seen]


@pytest.mark.parametrize("combine", ["paper", "pool"])
def test_stacked_clients_equal_frames_bit_for_bit(combine):
    settings = MemorySettings(combine=combine)
    apart, together = members(settings=settings), members(settings=settings)

    framed = run(training(apart), apart)
    direct = run_rounds(training(together), Cohort(together, method="reuse"))

    assert framed.result.weights.tobytes() == direct.result.weights.tobytes()
    if combine == "pool":
        assert framed.result.pool.tobytes() == direct.result.pool.tobytes()
    for one, other in zip(framed.rounds, direct.rounds, strict=True):
        assert one.upload_bytes == other.upload_bytes
        assert one.download_bytes == other.download_bytes
    for one, other in zip(apart, together, strict=True):
        assert one.personal.weight == other.personal.weight


def test_one_batched_product_gives_the_same_up_to_rounding():
    one, other = members(), members()

    stacked = run_rounds(training(one), Cohort(one, method="stacked"))
    reused = run_rounds(training(other), Cohort(other, method="reuse"))

    np.testing.assert_allclose(stacked.result.weights, reused.result.weights, atol=1e-5)


def test_the_order_of_clients_does_not_matter():
    ahead, behind = members(), members()[::-1]

    one = run_rounds(training(ahead), Cohort(ahead, method="reuse"))
    other = run_rounds(training(behind), Cohort(behind, method="reuse"))

    assert one.result.weights.tobytes() == other.result.weights.tobytes()


def test_weights_depend_on_sums_only():
    parties = members()

    asks = asked(training(parties), parties)

    kinds = {type(each) for requests, how in asks if how != "sum" for each in requests.values()}
    assert {kind.__name__ for kind in kinds} == {"ClientSchemaRequest", "ReleaseRequest"}
    for reply in (ClientSchemaRequest.reply, TrainRequest.reply):
        assert "personal" not in reply.__dataclass_fields__


def test_only_participants_get_requests():
    parties = members()
    rounds = RoundSettings(n_rounds=6, participation=0.4, regime=Regime(batch_size=64))

    asks = asked(training(parties, rounds=rounds), parties)

    trained = [
        tuple(requests)
        for requests, _ in asks
        if isinstance(next(iter(requests.values())), TrainRequest)
    ]
    assert len(trained) == 12
    assert {len(names) for names in trained} == {2}
    assert len(set(trained)) > 2


def test_held_out_rows_choose_and_do_not_train_at_first():
    parties = members()
    altered = members()
    for party in altered:
        party._x = party._x.copy()
        party._x[party.held_out] = 0.5  # would change the first training if it used these rows
    stages = {}

    run_rounds(
        training(parties, on_stage=lambda s: stages.setdefault("a", []).append(s)), Cohort(parties)
    )
    run_rounds(
        training(altered, on_stage=lambda s: stages.setdefault("b", []).append(s)), Cohort(altered)
    )

    first = [(a, b) for a, b in zip(stages["a"], stages["b"], strict=True) if a.held_out]
    assert len(first) == 3
    assert all(a.weights.tobytes() == b.weights.tobytes() for a, b in first)
    assert stages["a"][-1].weights.tobytes() != stages["b"][-1].weights.tobytes()


def test_a_resumed_training_is_bit_identical():
    whole, stages = members(settings=MemorySettings(combine="pool")), []
    expected = run_rounds(training(whole, on_stage=stages.append), Cohort(whole))

    for stage in stages[:-1]:
        again = members(settings=MemorySettings(combine="pool"))
        found = run_rounds(training(again, resumed=stage), Cohort(again))

        assert found.result.weights.tobytes() == expected.result.weights.tobytes()
        assert found.result.pool.tobytes() == expected.result.pool.tobytes()


def test_a_memory_has_exactly_its_clients_rows():
    parties = members()

    run_rounds(training(parties), Cohort(parties))

    for party in parties:
        assert len(party.personal.memory) == party.n_rows
        assert party.personal.memory.labels.tolist() == party._labels.tolist()


def test_a_client_with_another_network_is_named():
    parties = members()
    parties[2] = members(perceptron(64, 10, hidden=(16, 9)))[2]

    with pytest.raises(PartyRefused, match=r"party-2.*the network differs from"):
        run_rounds(training(parties), Cohort(parties))


def test_training_that_diverges_is_refused_with_the_way_out():
    parties = members()
    rounds = RoundSettings(n_rounds=3, regime=Regime(learning_rate=1e6))

    with pytest.raises(PartyRefused, match="lower the learning rate"):
        run_rounds(training(parties, rounds=rounds), Cohort(parties, method="reuse"))


def test_a_client_of_one_row_takes_part():
    owner = np.array(["big"] * 239 + ["tiny"])
    parties = members(network(), owner=owner)

    run_rounds(training(parties), Cohort(parties))

    tiny = next(party for party in parties if party.name == "tiny")
    assert len(tiny.personal.memory) == 1
    assert not tiny.held_out.any()


def test_standardized_columns_are_those_of_the_pooled_table():
    parties = members()

    outcome = run_rounds(training(parties, standardize=True), Cohort(parties))

    pooled = DIGITS[:240] / 16
    np.testing.assert_allclose(outcome.result.center, pooled.mean(axis=0), rtol=1e-12)
    spread = pooled.std(axis=0)
    np.testing.assert_allclose(outcome.result.scale, np.where(spread > 0, spread, 1.0), rtol=1e-9)


def test_memory_for_changes_does_not_grow_with_clients(monkeypatch):
    owner = np.array([f"c{i // 4:02d}" for i in range(N_ROWS)])
    parties = members(owner=owner)
    held, most = [], [0]
    update = KNNPerParty.make_update

    def counted(self, request, after):
        reply = update(self, request, after)
        held.append(weakref.ref(reply))
        most[0] = max(most[0], sum(one() is not None for one in held))
        return reply

    monkeypatch.setattr(KNNPerParty, "make_update", counted)
    run_rounds(training(parties), Cohort(parties))

    assert len(held) == 6 * len(parties) == 360
    assert most[0] <= 3  # the sum so far, the last change and the next
