"""Leave-one-out losses of the FedPNN model."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.methods.fedpnn._model import (
    MAX_LOSS,
    assign_centers,
    best_sigma,
    leave_one_out_losses,
)
from fedneighbors.methods.fedpnn.algorithm import SIGMAS, evolve_rows
from tests.naive.clustering.kerneldensity import log_kernel, log_sum_exp


def compute_loss(x, y, centers, counts, assigned, sigma, activation):
    """Sum the losses row by row, from the counts without the row."""
    total = 0.0
    n_classes = len(counts[0])
    for row, label, position in zip(x, y, assigned, strict=True):
        remaining = [list(freq) for freq in counts]
        remaining[position][label] -= 1
        terms = [[] for _ in range(n_classes)]
        for center, freq in zip(centers, remaining, strict=True):
            if sum(freq):
                square = sum((a - b) ** 2 for a, b in zip(row, center, strict=True)) / len(row)
                terms[freq.index(max(freq))].append(log_kernel(square, sigma, activation))
        logs = [log_sum_exp(t) - math.log(max(len(t), 1)) for t in terms]
        total += min(log_sum_exp(logs) - logs[label], MAX_LOSS)
    return total


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**64 - 1), st.sampled_from(["gaussian", "logistic", "cauchy"]))
def test_losses_match_a_network_without_the_row(seed, activation):
    rng = np.random.default_rng(seed)
    x, y = rng.random((15, 2)), rng.integers(0, 3, 15)
    clusters = evolve_rows(x, y, 3, threshold=float(rng.choice([0.05, 0.2])))
    sigmas = np.array([0.05, 0.3])

    losses = leave_one_out_losses(
        x,
        y,
        clusters.centers,
        clusters.counts,
        assigned=clusters.rows,
        sigmas=sigmas,
        activation=activation,
    )

    expected = [
        compute_loss(
            x, y, clusters.centers, clusters.counts.tolist(), clusters.rows, sigma, activation
        )
        for sigma in sigmas
    ]
    np.testing.assert_allclose(losses, expected, rtol=1e-10, atol=1e-12)


def test_losses_of_parties_add_up():
    rng = np.random.default_rng(1)
    x, y = rng.random((40, 3)), rng.integers(0, 2, 40)
    clusters = evolve_rows(x, y, 2, threshold=0.2)
    arguments = clusters.centers, clusters.counts

    whole = leave_one_out_losses(x, y, *arguments, assigned=clusters.rows)

    parts = [
        leave_one_out_losses(x[part], y[part], *arguments, assigned=clusters.rows[part])
        for part in (slice(None, 13), slice(13, None))
    ]
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-12)


def test_row_without_centers_of_its_class_has_the_maximum_loss():
    x, y = np.array([[0.0], [1.0], [1.1]]), np.array([0, 1, 1])

    losses = leave_one_out_losses(x, y, x, np.eye(2, dtype=np.int64)[y], assigned=np.arange(3))

    assert (losses >= MAX_LOSS).all()
    assert (losses <= 3 * MAX_LOSS).all()


def test_row_without_a_center_is_scored_by_all_centers():
    x, y = np.array([[0.2]]), np.array([0])
    centers, counts = np.array([[0.0], [1.0]]), np.array([[3, 0], [0, 3]])

    losses = leave_one_out_losses(
        x, y, centers, counts, assigned=np.array([-1]), sigmas=np.array([1.0])
    )

    expected = math.log(1 + math.exp(0.5 * 0.2**2 - 0.5 * 0.8**2))
    np.testing.assert_allclose(losses, [expected], rtol=1e-14)


def test_rows_belong_to_the_nearest_center_of_their_class():
    centers, counts = np.array([[0.0], [0.3], [1.0]]), np.array([[2, 0, 0], [0, 5, 0], [1, 1, 0]])

    assigned = assign_centers(
        np.array([[0.25], [0.25], [0.7], [0.1]]), np.array([0, 1, 0, 2]), centers, counts
    )

    assert assigned.tolist() == [0, 1, 2, -1]


def test_ties_of_smoothings_go_to_the_largest():
    losses = np.full(20, 7)
    losses[[4, 9]] = 3

    assert best_sigma(losses) == SIGMAS[9]


def test_there_are_twenty_ascending_smoothings():
    assert SIGMAS.shape == (20,)
    assert (np.diff(SIGMAS) > 0).all()
    assert SIGMAS[[0, -1]] == pytest.approx([1e-3, 10.0])
