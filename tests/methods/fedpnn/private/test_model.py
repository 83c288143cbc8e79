"""Neurons from noised sums: lower limits, and results without noise."""

import numpy as np
import pytest

from fedneighbors.methods.fedpnn.private._model import (
    CELL_SIGMA,
    ClassMeans,
    axis_between,
    cell_neurons,
    estimate_means,
    estimate_origin,
    mean_neurons,
)
from fedneighbors.methods.fedpnn.private._release import N_CELLS, class_sums, origin_sums


def compute_log_densities(neurons, units, *, floor_of_noise=0.5):
    """Compute densities row by row, class by class."""
    result = np.zeros((len(units), len(neurons.totals)))
    for i, unit in enumerate(units):
        point = unit @ neurons.axes
        kernel = [
            np.exp(-((point - position) ** 2).sum() / (2 * neurons.sigma**2))
            for position in neurons.positions
        ]
        noise = np.sqrt(sum((k * s) ** 2 for k, s in zip(kernel, neurons.noise, strict=True)))
        for c, records in enumerate(neurons.totals):
            density = sum(k * w for k, w in zip(kernel, neurons.weights[:, c], strict=True))
            result[i, c] = np.log(
                max(density, floor_of_noise * noise, neurons.density_floor) / records
            )
    return result


def make_units(n_rows, n_columns, seed=0):
    x = np.random.default_rng(seed).normal(size=(n_rows, n_columns))
    return x / np.sqrt((x**2).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("seed", range(5))
def test_densities_match_a_loop_over_rows_and_neurons(seed):
    rng = np.random.default_rng(seed)
    units = make_units(20, 5, seed)
    axis = make_units(1, 5, seed + 100)[0]
    means = ClassMeans(np.array([50.0, 20.0]), 4.0, units[:2])
    cells = rng.integers(-5, 40, 2 * N_CELLS)

    for neurons in (cell_neurons(cells, axis, means, variance=9.0), mean_neurons(units[:3])):
        np.testing.assert_allclose(
            neurons.log_densities(units),
            compute_log_densities(neurons, units),
            rtol=1e-9,
            atol=1e-9,
        )


def test_origin_and_means_without_noise_match_the_rows():
    rng = np.random.default_rng(1)
    cube, labels = rng.uniform(-0.5, 0.5, (400, 6)), np.arange(400) % 3
    units = make_units(400, 6)

    origin = estimate_origin(origin_sums(cube, 1024), n_features=6, levels=1024, variance=1e-9)
    means = estimate_means(
        class_sums(units, labels, 3, 1024), n_classes=3, levels=1024, variance=1e-9
    )

    np.testing.assert_allclose(origin, cube.mean(axis=0), atol=2e-3)
    for c in range(3):
        np.testing.assert_allclose(means.means[c], units[labels == c].mean(axis=0), atol=2e-3)
    assert np.round(means.counts).tolist() == [134, 133, 133]


def test_counts_have_a_lower_limit_set_by_their_noise():
    values = np.array([-900, 3, *[50] * 8])

    means = estimate_means(values, n_classes=2, levels=1024, variance=409.0**2)

    assert means.counts.tolist() == [3.0, 3.0]  # two deviations of one record, and one record
    assert (np.sqrt((means.means**2).sum(axis=1)) <= 1 + 1e-12).all()


def test_origin_of_pure_noise_stays_within_the_cube():
    origin = estimate_origin(
        np.array([-70, 10**9, -(10**9)]), n_features=2, levels=64, variance=1.0
    )

    assert origin.tolist() == [1.0, -1.0]


def test_axis_points_from_the_first_mean_to_the_second():
    axis = axis_between(np.array([[0.1, 0.2], [0.4, 0.6]]))

    np.testing.assert_allclose(axis, [0.6, 0.8])


def test_equal_means_have_a_default_axis():
    assert axis_between(np.zeros((2, 3))).tolist() == [1.0, 0.0, 0.0]


def test_no_class_is_preferred_where_cells_are_noise():
    axis = np.array([1.0, 0.0])
    means = ClassMeans(np.array([100.0, 100.0]), 1.0, np.zeros((2, 2)))
    cells = np.zeros(2 * N_CELLS, int)
    cells[0] = cells[N_CELLS] = 100  # all records at one end, equally many of both classes

    densities = cell_neurons(cells, axis, means, variance=25.0).log_densities(
        np.array([[1.0, 0.0]])
    )

    assert densities[0, 0] == densities[0, 1]


def test_class_totals_are_precision_weighted_means():
    cells = np.concatenate([np.full(N_CELLS, 10), np.full(N_CELLS, 5)])
    means = ClassMeans(np.array([120.0, 60.0]), 4.0, np.zeros((2, 2)))

    totals = cell_neurons(cells, np.array([1.0, 0.0]), means, variance=2.0).totals

    assert totals.tolist() == [100.0, 50.0]  # 80 and 120, both with a variance of 16


def test_weights_of_a_class_keep_its_number_of_records():
    cells = np.random.default_rng(0).integers(0, 50, 2 * N_CELLS)
    means = ClassMeans(np.array([100.0, 100.0]), 1.0, np.zeros((2, 1)))
    neurons = cell_neurons(cells, np.array([1.0]), means, variance=1e-6)

    records = np.exp(neurons.log_densities(neurons.positions)) * neurons.totals

    np.testing.assert_allclose(records.sum(axis=0), cells.reshape(2, -1).sum(axis=1), rtol=1e-3)
    assert neurons.sigma == CELL_SIGMA
