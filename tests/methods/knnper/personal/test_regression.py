"""Regression in a federation: mixtures, pools, the same result over every transport."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.errors import PartyRefused, ProtocolError, SchemaMismatch
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import run_rounds
from fedneighbors.federation._messages import encode
from fedneighbors.methods.knnper._client import KNNPerParty
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.methods.knnper._task import REGRESSION
from fedneighbors.methods.knnper._training import Cohort
from fedneighbors.methods.knnper.algorithm import (
    MEMORY_WEIGHTS,
    Neighbors,
    least_squares_weight,
    local_means,
)
from fedneighbors.methods.knnper.personal._pool import linear_terms, pool_steps
from fedneighbors.methods.knnper.protocol import CountsRequest, UnitsRequest
from fedneighbors.neural._blueprint import perceptron
from fedneighbors.neural._network import Network, state_of
from fedneighbors.neural._schedule import Regime
from fedneighbors.neural._trainer import squared_error
from tests.methods.knnper.federations import (
    DIGITS,
    LABELS,
    N_ROWS,
    OWNER,
    RecordingCohort,
    build_coordinator,
)
from tests.naive import knnper as naive

ROUNDS = RoundSettings(n_rounds=2, regime=Regime(batch_size=32))

VALUES = st.one_of(st.floats(-1e3, 1e3), st.sampled_from([0.0, 1.0, -1.0, 1e6]))


def make_table(data, n_rows, n_outputs):
    row = st.lists(VALUES, min_size=n_outputs, max_size=n_outputs)
    rows = data.draw(st.lists(row, min_size=n_rows, max_size=n_rows))
    return np.array(rows).reshape(n_rows, n_outputs)


@given(
    st.lists(
        st.one_of(st.floats(0, 50), st.sampled_from([0.0, 1.0, 1e6, 1e300])), min_size=1, max_size=8
    ).map(sorted),
    st.data(),
    st.sampled_from([0.01, 1.0, 100.0]),
)
def test_means_are_those_of_equation_6_with_targets_for_labels(distances, data, sigma):
    targets = make_table(data, len(distances), 2)
    neighbors = Neighbors(np.arange(len(distances))[None], np.array([distances]))

    means = local_means(neighbors, targets, sigma=sigma)

    expected = naive.target_means(targets.tolist(), distances, sigma)
    np.testing.assert_allclose(means[0], expected, rtol=1e-9, atol=1e-9)


@given(st.integers(0, 6), st.integers(1, 3), st.data())
def test_the_least_squares_weight_is_the_middle_of_equals(n_rows, n_outputs, data):
    local, shared, targets = (make_table(data, n_rows, n_outputs) for _ in range(3))

    weight = least_squares_weight(local, shared, targets)

    errors = naive.mixture_errors(local.tolist(), shared.tolist(), targets.tolist(), MEMORY_WEIGHTS)
    least = min(errors)
    assert errors[MEMORY_WEIGHTS.index(weight)] <= least * (1 + 1e-9) + 1e-9


def test_equal_memory_and_model_give_the_middle_weight():
    same = np.array([[1.0], [2.0]])

    assert least_squares_weight(same, same, np.zeros((2, 1))) == 0.5
    assert least_squares_weight(np.empty((0, 1)), np.empty((0, 1)), np.empty((0, 1))) == 0.5


def solve_pool(experts, targets):
    """Return the weights that the coordinator finds for the rows of one client."""
    steps = pool_steps(np.ones(5, bool), tolerance=0)
    weights = next(steps)
    while True:
        try:
            weights = steps.send(linear_terms(experts, targets, weights))
        except StopIteration as stop:
            return stop.value[0]


@given(st.integers(0, 6), st.integers(1, 3), st.data())
def test_the_pool_solves_the_non_negative_normal_equations(n_rows, n_outputs, data):
    experts = np.stack([make_table(data, n_rows, n_outputs) for _ in range(5)], axis=2)
    targets = make_table(data, n_rows, n_outputs)
    weights = solve_pool(experts / 1e3, targets / 1e3)

    gradient, size = naive.stacking_gradient(
        (experts / 1e3).tolist(),
        (targets / 1e3).tolist(),
        weights.tolist(),
        (1, 0, 0, 0, 0),
    )
    assert (weights >= 0).all()
    assert min(gradient) >= -1e-9 * size
    assert all(abs(slope) <= 1e-9 * size for slope, w in zip(gradient, weights, strict=True) if w)


def test_without_rows_a_pool_keeps_its_initial_weights():
    weights = solve_pool(np.empty((0, 2, 5)), np.empty((0, 2)))

    assert weights.tolist() == [1, 0, 0, 0, 0]


def test_terms_are_derivatives_of_the_loss():
    random = np.random.default_rng(0)
    experts, targets = random.normal(size=(9, 2, 5)), random.normal(size=(9, 2))
    weights, step = random.normal(size=5), 1e-6

    terms = linear_terms(experts, targets, weights)

    for place in range(5):
        shift = step * np.eye(5)[place]
        after = linear_terms(experts, targets, weights + shift)
        before = linear_terms(experts, targets, weights - shift)
        slope = (after.loss - before.loss) / (2 * step)
        curvature = (after.gradient - before.gradient) / (2 * step)
        np.testing.assert_allclose(terms.gradient[place], slope, rtol=1e-6)
        np.testing.assert_allclose(terms.hessian[place], curvature, rtol=1e-6)


TARGETS = np.column_stack([LABELS[:N_ROWS] * 1.0, DIGITS[:N_ROWS, 20] - 3])


def make_members(*, settings=None, y=TARGETS):
    """Return clients that predict a digit as a number, and the brightness of a pixel."""
    net = perceptron(64, 2, hidden=(16, 8), seed=1)
    x, settings = DIGITS[:N_ROWS] / 16, settings or MemorySettings()
    return [
        KNNPerParty(
            name, x[name == OWNER], y[name == OWNER], net, settings=settings, task=REGRESSION
        )
        for name in np.unique(OWNER).tolist()
    ]


def build_number_coordinator(parties, **options):
    """Return a coordinator for clients that predict numbers."""
    return build_coordinator(parties, rounds=ROUNDS, **options)


def record_exchanges(parties):
    """Return all requests of a coordinator and the replies."""
    cohort = RecordingCohort(parties)
    run_rounds(build_number_coordinator(parties), cohort)
    return [(next(iter(requests.values())), replies) for requests, _, replies in cohort.exchanges]


def test_stacked_clients_equal_frames_and_masks_bit_for_bit():
    settings = MemorySettings(combine="pool")
    framed_clients, masked_clients, direct_clients = (
        make_members(settings=settings) for _ in "abc"
    )

    framed = run(build_number_coordinator(framed_clients, standardize=True), framed_clients)
    masked = run(
        build_number_coordinator(masked_clients, standardize=True), masked_clients, sums="masked"
    )
    direct = run_rounds(
        build_number_coordinator(direct_clients, standardize=True),
        Cohort(direct_clients, method="reuse"),
    )

    for other in (framed, masked):
        assert other.result.weights.tobytes() == direct.result.weights.tobytes()
        assert other.result.overall.tobytes() == direct.result.overall.tobytes()
        assert encode(other.result.pool) == encode(direct.result.pool)
    for first, other in zip(framed.rounds, direct.rounds, strict=True):
        assert first.upload_bytes == other.upload_bytes
        assert first.download_bytes == other.download_bytes
    for first, other in zip(framed_clients, direct_clients, strict=True):
        assert first.client_state.weight == other.client_state.weight
        assert (
            first.client_state.memory.labels.tobytes() == other.client_state.memory.labels.tobytes()
        )


def test_one_batched_product_gives_the_same_up_to_rounding():
    stacked_clients, reused_clients = make_members(), make_members()

    stacked = run_rounds(
        build_number_coordinator(stacked_clients), Cohort(stacked_clients, method="stacked")
    )
    reused = run_rounds(
        build_number_coordinator(reused_clients), Cohort(reused_clients, method="reuse")
    )

    np.testing.assert_allclose(stacked.result.weights, reused.result.weights, atol=1e-5)


def test_units_are_computed_from_training_rows():
    parties = make_members()

    units = [
        (request.target_center, request.target_scale)
        for request, _ in record_exchanges(parties)
        if isinstance(request, UnitsRequest)
    ]

    training_rows = np.concatenate([TARGETS[p.name == OWNER][~p.held_out] for p in parties])
    for (center, scale), rows in zip(units, (training_rows, TARGETS), strict=True):
        np.testing.assert_allclose(center, rows.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(scale, rows.std(axis=0), rtol=1e-12)
    assert parties[0].client_state.overall.tolist() == np.stack(units[-1]).tolist()


def test_pool_weights_are_fitted_on_all_held_out_rows():
    parties = make_members(settings=MemorySettings(combine="pool"))

    outcome = run_rounds(build_number_coordinator(parties), Cohort(parties))

    experts = np.concatenate([party._expert_outputs.experts for party in parties])
    targets = np.concatenate([party._expert_outputs.values for party in parties])
    np.testing.assert_allclose(
        outcome.result.pool.weights, solve_pool(experts, targets), rtol=1e-6, atol=1e-8
    )


def test_gathered_replies_reveal_no_targets():
    parties = make_members(settings=MemorySettings(combine="pool"))

    gathered = [
        reply for _, replies in record_exchanges(parties) for reply in replies.each.values()
    ]

    assert {type(reply).__name__ for reply in gathered} == {"SchemaReply", "Receipt"}
    assert all(reply.labels == () for reply in gathered if hasattr(reply, "labels"))


def test_a_resumed_training_is_bit_identical():
    settings, stages = MemorySettings(combine="pool"), []
    parties = make_members(settings=settings)
    expected = run_rounds(
        build_number_coordinator(parties, on_stage=stages.append), Cohort(parties)
    )

    for stage in stages[1:-1:2]:
        resumed_parties = make_members(settings=settings)
        outcome = run_rounds(
            build_number_coordinator(resumed_parties, resumed=stage), Cohort(resumed_parties)
        )

        assert outcome.result.weights.tobytes() == expected.result.weights.tobytes()
        assert encode(outcome.result.pool) == encode(expected.result.pool)


def test_a_client_with_missing_targets_is_named():
    broken = TARGETS.copy()
    broken[np.flatnonzero(OWNER == "party-3")[0], 1] = np.nan
    parties = make_members(y=broken)

    with pytest.raises(PartyRefused, match=r"party-3.*a target is missing or not a finite number"):
        run_rounds(build_number_coordinator(parties), Cohort(parties))


def test_clients_of_different_outputs_or_columns_are_named():
    parties, narrow = make_members(), make_members(y=TARGETS[:, :1])
    with pytest.raises(ProtocolError, match="'party-1' is"):
        run_rounds(
            build_number_coordinator([parties[0], narrow[1]]), Cohort([parties[0], narrow[1]])
        )

    parties[1]._x = parties[1]._x[:, :60]
    with pytest.raises(SchemaMismatch, match="party-1"):
        run_rounds(build_number_coordinator(parties), Cohort(parties))


def test_a_regression_client_refuses_class_counts():
    party = make_members()[0]
    request = CountsRequest((0, 1), False, np.empty(0), np.empty(0))

    assert CountsRequest not in party.accepts
    with pytest.raises(Exception, match="unknown request"):
        party.answer(request)


def test_a_network_with_other_outputs_is_refused():
    net = Network(perceptron(3, 4, hidden=(2,)).module, "body")

    with pytest.raises(ValueError, match=r"with 2 outputs, got .*\(5, 4\).*change its last layer"):
        squared_error(net, state_of(net.module), torch.ones(5, 3), torch.ones(5, 2), torch.ones(5))
