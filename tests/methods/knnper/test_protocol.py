"""Federated training: the same result over every transport."""

import weakref

import numpy as np
import pytest

from fedneighbors.errors import PartyRefused
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import run_rounds
from fedneighbors.federation._messages import encode
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
    build_coordinator,
    make_members,
    make_network,
)


def record_requests(coordinator, parties):
    """Return all requests of a coordinator, with the reduction of the replies."""
    cohort = RecordingCohort(parties, method="reuse")
    run_rounds(coordinator, cohort)
    return [(requests, reduce) for requests, reduce, _ in cohort.exchanges]


@pytest.mark.parametrize("combine", ["paper", "pool"])
def test_stacked_clients_equal_frames_bit_for_bit(combine):
    settings = MemorySettings(combine=combine)
    framed_clients, direct_clients = (
        make_members(settings=settings),
        make_members(settings=settings),
    )

    framed = run(build_coordinator(framed_clients), framed_clients)
    direct = run_rounds(build_coordinator(direct_clients), Cohort(direct_clients, method="reuse"))

    assert framed.result.weights.tobytes() == direct.result.weights.tobytes()
    if combine == "pool":
        assert encode(framed.result.pool) == encode(direct.result.pool)
    for first, second in zip(framed.rounds, direct.rounds, strict=True):
        assert first.upload_bytes == second.upload_bytes
        assert first.download_bytes == second.download_bytes
    for first, second in zip(framed_clients, direct_clients, strict=True):
        assert first.client_state.weight == second.client_state.weight


def test_one_batched_product_gives_the_same_up_to_rounding():
    stacked_clients, reused_clients = make_members(), make_members()

    stacked = run_rounds(
        build_coordinator(stacked_clients), Cohort(stacked_clients, method="stacked")
    )
    reused = run_rounds(build_coordinator(reused_clients), Cohort(reused_clients, method="reuse"))

    np.testing.assert_allclose(stacked.result.weights, reused.result.weights, atol=1e-5)


def test_the_order_of_clients_does_not_matter():
    clients, reversed_clients = make_members(), make_members()[::-1]

    first = run_rounds(build_coordinator(clients), Cohort(clients, method="reuse"))
    second = run_rounds(
        build_coordinator(reversed_clients), Cohort(reversed_clients, method="reuse")
    )

    assert first.result.weights.tobytes() == second.result.weights.tobytes()


def test_weights_depend_on_sums_only():
    parties = make_members()

    exchanges = record_requests(build_coordinator(parties), parties)

    kinds = {
        type(request)
        for requests, reduce in exchanges
        if reduce != "sum"
        for request in requests.values()
    }
    assert {kind.__name__ for kind in kinds} == {"ClientSchemaRequest", "ReleaseRequest"}
    for reply in (ClientSchemaRequest.reply, TrainRequest.reply):
        assert "client_state" not in reply.__dataclass_fields__


def test_only_participants_get_requests():
    parties = make_members()
    rounds = RoundSettings(n_rounds=6, participation=0.4, regime=Regime(batch_size=64))

    exchanges = record_requests(build_coordinator(parties, rounds=rounds), parties)

    trained = [
        tuple(requests)
        for requests, _ in exchanges
        if isinstance(next(iter(requests.values())), TrainRequest)
    ]
    assert len(trained) == 12
    assert {len(names) for names in trained} == {2}
    assert len(set(trained)) > 2


def test_held_out_rows_do_not_affect_the_first_training():
    parties = make_members()
    changed = make_members()
    for party in changed:
        party._x = party._x.copy()
        party._x[party.held_out] = 0.5  # would change the first training if it used these rows
    stages = {}

    run_rounds(
        build_coordinator(parties, on_stage=lambda s: stages.setdefault("a", []).append(s)),
        Cohort(parties),
    )
    run_rounds(
        build_coordinator(changed, on_stage=lambda s: stages.setdefault("b", []).append(s)),
        Cohort(changed),
    )

    first = [(a, b) for a, b in zip(stages["a"], stages["b"], strict=True) if a.held_out]
    assert len(first) == 3
    assert all(a.weights.tobytes() == b.weights.tobytes() for a, b in first)
    assert stages["a"][-1].weights.tobytes() != stages["b"][-1].weights.tobytes()


def test_a_resumed_training_is_bit_identical():
    clients, stages = make_members(settings=MemorySettings(combine="pool")), []
    expected = run_rounds(build_coordinator(clients, on_stage=stages.append), Cohort(clients))

    for stage in stages[:-1]:
        resumed_clients = make_members(settings=MemorySettings(combine="pool"))
        outcome = run_rounds(
            build_coordinator(resumed_clients, resumed=stage), Cohort(resumed_clients)
        )

        assert outcome.result.weights.tobytes() == expected.result.weights.tobytes()
        assert encode(outcome.result.pool) == encode(expected.result.pool)


def test_a_memory_has_exactly_its_clients_rows():
    parties = make_members()

    run_rounds(build_coordinator(parties), Cohort(parties))

    for party in parties:
        assert len(party.client_state.memory) == party.n_rows
        assert party.client_state.memory.labels.tolist() == party._labels.tolist()


def test_a_client_with_another_network_is_named():
    parties = make_members()
    parties[2] = make_members(perceptron(64, 10, hidden=(16, 9)))[2]

    with pytest.raises(PartyRefused, match=r"party-2.*the network differs from"):
        run_rounds(build_coordinator(parties), Cohort(parties))


def test_diverging_training_suggests_a_lower_learning_rate():
    parties = make_members()
    rounds = RoundSettings(n_rounds=3, regime=Regime(learning_rate=1e6))

    with pytest.raises(PartyRefused, match="lower the learning rate"):
        run_rounds(build_coordinator(parties, rounds=rounds), Cohort(parties, method="reuse"))


def test_a_client_of_one_row_takes_part():
    owner = np.array(["big"] * 239 + ["tiny"])
    parties = make_members(make_network(), owner=owner)

    run_rounds(build_coordinator(parties), Cohort(parties))

    tiny = next(party for party in parties if party.name == "tiny")
    assert len(tiny.client_state.memory) == 1
    assert not tiny.held_out.any()


def test_standardized_columns_are_those_of_the_pooled_table():
    parties = make_members()

    outcome = run_rounds(build_coordinator(parties, standardize=True), Cohort(parties))

    pooled = DIGITS[:240] / 16
    np.testing.assert_allclose(outcome.result.center, pooled.mean(axis=0), rtol=1e-12)
    deviation = pooled.std(axis=0)
    np.testing.assert_allclose(
        outcome.result.scale, np.where(deviation > 0, deviation, 1.0), rtol=1e-9
    )


def test_memory_for_changes_does_not_grow_with_clients(monkeypatch):
    owner = np.array([f"c{i // 4:02d}" for i in range(N_ROWS)])
    parties = make_members(owner=owner)
    references, n_alive = [], [0]
    update = KNNPerParty.make_update

    def count_alive(self, request, after):
        reply = update(self, request, after)
        references.append(weakref.ref(reply))
        n_alive[0] = max(n_alive[0], sum(reference() is not None for reference in references))
        return reply

    monkeypatch.setattr(KNNPerParty, "make_update", count_alive)
    run_rounds(build_coordinator(parties), Cohort(parties))

    assert len(references) == 6 * len(parties) == 360
    assert n_alive[0] <= 3  # the sum so far, the last change and the next
