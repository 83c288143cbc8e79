"""Sensitivity of the three released vectors, and the cost of their noise."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import PrivacyError
from fedneighbors.methods.fedpnn.private._release import (
    N_CELLS,
    allot_budget,
    cell_counts,
    cell_sensitivity,
    cells_release,
    class_sums,
    class_sums_release,
    class_sums_sensitivity,
    count_weight,
    directions,
    max_row_length,
    origin_release,
    origin_sensitivity,
    origin_sums,
    project_onto,
    public_bounds,
    scale_to_cube,
)
from fedneighbors.privacy._accounting import fits
from fedneighbors.privacy._guarantees import ApproxDP, PureDP
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.noise._calibration import mechanism, shares

RELATIONS = st.sampled_from(["add_remove", "replace_one"])
SEEDS = st.integers(0, 2**32 - 1)
LEVELS = st.sampled_from([16, 100, 1024])


def draw_table(rng, n_rows, n_columns):
    """Draw values of all sizes, out of bounds, infinite and missing."""
    x = rng.normal(size=(n_rows, n_columns)) * 10.0 ** rng.integers(-9, 9, size=(n_rows, 1))
    is_unusual = rng.random(x.shape) < 0.2
    x[is_unusual] = rng.choice(
        [np.nan, np.inf, -np.inf, -1.0, 1.0, 0.0, 1.7e308], int(is_unusual.sum())
    )
    return x, rng.integers(0, 3, n_rows)


def draw_neighbor(rng, relation, x, y):
    """Remove the first row, or replace it with another one."""
    if relation == "add_remove":
        return x[1:], y[1:]
    other_x, other_y = x.copy(), y.copy()
    fresh, label = draw_table(rng, 1, x.shape[1])
    other_x[0], other_y[0] = (-x[0] if rng.random() < 0.5 else fresh[0]), label[0]
    return other_x, other_y


def clip_to_cube(x):
    n = x.shape[1]
    return scale_to_cube(x, (np.full(n, -1.0), np.full(n, 1.0)))


def assert_within_sensitivity(change, sensitivity):
    change = np.abs(change)
    assert change.sum() <= sensitivity.l1
    assert (change**2).sum() <= sensitivity.l2_squared
    assert change.max() <= sensitivity.linf


@settings(max_examples=300, deadline=None)
@given(SEEDS, RELATIONS, LEVELS, st.integers(1, 30))
def test_origin_sensitivity_bounds_every_row(seed, relation, levels, n_columns):
    rng = np.random.default_rng(seed)
    x, y = draw_table(rng, 5, n_columns)
    neighbor_x, _ = draw_neighbor(rng, relation, x, y)

    change = origin_sums(clip_to_cube(x), levels) - origin_sums(clip_to_cube(neighbor_x), levels)

    assert_within_sensitivity(change, origin_sensitivity(n_columns, levels, relation))


@settings(max_examples=300, deadline=None)
@given(SEEDS, RELATIONS, LEVELS, st.integers(1, 30))
def test_class_sums_sensitivity_bounds_every_row(seed, relation, levels, n_columns):
    rng = np.random.default_rng(seed)
    x, y = draw_table(rng, 5, n_columns)
    origin = np.clip(rng.normal(size=n_columns), -1, 1) * rng.integers(0, 2)

    before, after = (
        class_sums(directions(clip_to_cube(rows), origin), labels, 3, levels)
        for rows, labels in ((x, y), draw_neighbor(rng, relation, x, y))
    )

    assert_within_sensitivity(before - after, class_sums_sensitivity(n_columns, levels, relation))


@settings(max_examples=300, deadline=None)
@given(SEEDS, RELATIONS, st.integers(1, 30))
def test_cell_sensitivity_bounds_every_row(seed, relation, n_columns):
    rng = np.random.default_rng(seed)
    x, y = draw_table(rng, 5, n_columns)
    origin, axis = rng.uniform(-1, 1, n_columns), rng.normal(size=n_columns)
    axis /= np.sqrt((axis**2).sum())

    before, after = (
        cell_counts(directions(clip_to_cube(rows), origin), labels % 2, axis)
        for rows, labels in ((x, y), draw_neighbor(rng, relation, x, y))
    )

    assert_within_sensitivity(before - after, cell_sensitivity(relation))
    if relation == "add_remove":
        assert np.abs(before - after).sum() == 1  # the bound is always reached


@pytest.mark.parametrize("n_columns", [2, 3, 9, 29, 64, 200])
def test_projection_of_a_row_does_not_depend_on_other_rows(n_columns):
    rng = np.random.default_rng(n_columns)
    cube, origin = clip_to_cube(rng.normal(size=(257, n_columns))), np.full(n_columns, 0.1)
    axis = rng.normal(size=n_columns)

    together = project_onto(directions(cube, origin), axis)

    one_by_one = [project_onto(directions(cube[[row]], origin), axis)[0] for row in range(257)]
    without_first = project_onto(directions(cube[1:], origin), axis)
    assert together.tolist() == one_by_one
    assert together[1:].tolist() == without_first.tolist()


# These rows reach the sensitivity exactly: a smaller one would be wrong.


@pytest.mark.parametrize(
    ("row", "norm"),
    [
        (np.r_[np.ones(16), np.zeros(9)], "l2_squared"),  # as long as the radius, in 25 columns
        (np.ones(25), "l1"),  # clipped to the ball
        (np.ones(25), "linf"),
    ],
)
def test_origin_sensitivity_is_reached(row, norm):
    change = np.abs(origin_sums(row[None, :], 1000))

    sensitivity = origin_sensitivity(25, 1000, "add_remove")
    reached = {"l1": change.sum(), "l2_squared": (change**2).sum(), "linf": change.max()}
    assert reached[norm] == getattr(sensitivity, norm)


def test_origin_sensitivity_is_reached_by_a_replacement():
    row = np.r_[np.ones(16), np.zeros(9)][None, :]

    change = np.abs(origin_sums(row, 1000) - origin_sums(-row, 1000))

    sensitivity = origin_sensitivity(25, 1000, "replace_one")
    assert (change**2).sum() == sensitivity.l2_squared
    assert change.max() == sensitivity.linf
    assert 2 * np.abs(origin_sums(np.ones((1, 25)), 1000)[1:]).sum() == sensitivity.l1


@pytest.mark.parametrize(
    ("unit", "norms"), [([1.0, 0, 0, 0], ("l2_squared", "linf")), ([0.5] * 4, ("l2_squared", "l1"))]
)
def test_class_sums_sensitivity_is_reached(unit, norms):
    change = np.abs(class_sums(np.array([unit]), np.array([1]), 3, 1024))

    sensitivity = class_sums_sensitivity(4, 1024, "add_remove")
    reached = {"l1": change.sum(), "l2_squared": (change**2).sum(), "linf": change.max()}
    assert [reached[norm] for norm in norms] == [getattr(sensitivity, norm) for norm in norms]


@pytest.mark.parametrize(
    ("units", "labels", "norms"),
    [
        ([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]], (0, 0), ("l2_squared", "linf")),
        ([[0.5] * 4, [-0.5] * 4], (0, 1), ("l1",)),
    ],
)
def test_class_sums_sensitivity_is_reached_by_a_replacement(units, labels, norms):
    first, second = (
        class_sums(np.array([unit]), np.array([label]), 3, 1024)
        for unit, label in zip(units, labels, strict=True)
    )
    change = np.abs(first - second)

    sensitivity = class_sums_sensitivity(4, 1024, "replace_one")
    reached = {"l1": change.sum(), "l2_squared": (change**2).sum(), "linf": change.max()}
    assert [reached[norm] for norm in norms] == [getattr(sensitivity, norm) for norm in norms]


def test_replacement_changes_two_cells():
    axis = np.array([1.0, 0.0])
    first, second = (
        cell_counts(np.array([[side, 0.0]]), np.array([0]), axis) for side in (0.9, -0.9)
    )

    assert np.abs(first - second).sum() == cell_sensitivity("replace_one").l1 == 2


def compute_vectors(x, y):
    """Compute all three vectors for a fixed origin and axis."""
    n = x.shape[1]
    origin, axis = np.linspace(-0.5, 0.5, n), np.full(n, n**-0.5)
    units = directions(clip_to_cube(x), origin)
    return np.concatenate(
        [
            origin_sums(clip_to_cube(x), 64),
            class_sums(units, y, 3, 64),
            cell_counts(units, y % 2, axis),
        ]
    )


def compute_data_dependent_cells(x, y):
    """Compute cells on a grid that ends at the farthest row."""
    units = directions(clip_to_cube(x), np.zeros(x.shape[1]))
    positions = units.sum(axis=1)
    axis = np.full(x.shape[1], 1 / max(np.abs(positions).max(), 1e-9))
    return cell_counts(units, y % 2, axis)


def is_additive(vectors, seed):
    rng = np.random.default_rng(seed)
    x, y = draw_table(rng, 8, 6)
    return (vectors(x, y) == vectors(x[:3], y[:3]) + vectors(x[3:], y[3:])).all()


def test_vectors_are_additive_over_rows():
    assert all(is_additive(compute_vectors, seed) for seed in range(200))


def test_data_dependent_cells_are_not_additive():
    assert not all(is_additive(compute_data_dependent_cells, seed) for seed in range(200))


def test_cells_cover_the_whole_axis():
    positions = np.array([-1.0, -0.76, -0.74, -1e-9, 0.0, 0.99, 1.0])
    units = np.stack([positions, np.sqrt(1 - positions**2)], axis=1)

    counts = cell_counts(units, np.zeros(7, int), np.array([1.0, 0.0]))

    assert counts.tolist() == [2, 1, 0, 1, 1, 0, 0, 2, *[0] * N_CELLS]


def test_row_at_the_origin_has_no_direction():
    origin = np.array([0.25, -0.5])

    assert directions(origin[None, :], origin).tolist() == [[0.0, 0.0]]


def test_values_are_clipped_and_missing_ones_become_the_middle():
    bounds = (np.array([0.0, 5.0, 2.0]), np.array([10.0, 6.0, 2.0]))  # the last range is empty
    x = np.array([[2.5, 5.25, 7.0], [np.inf, -np.inf, np.nan], [np.nan, 99.0, 2.0]])

    assert scale_to_cube(x, bounds).tolist() == [
        [-0.5, -0.5, 0.0],
        [1.0, -1.0, 0.0],
        [0.0, 1.0, 0.0],
    ]


@given(st.integers(1, 200), LEVELS)
def test_weights_and_lengths_are_integer_steps(n_columns, levels):
    max_length = max_row_length(n_columns, levels)

    assert max_length == int((16 * levels**2 * n_columns // 25) ** 0.5)
    assert count_weight(max_length) == max(1, 2 * max_length // 5)


@given(st.fractions(Fraction(1, 50), 8, max_denominator=100))
def test_parts_of_a_pure_budget_add_up_to_it(epsilon):
    privacy = Privacy(epsilon=epsilon)
    of_two_classes = [
        allot_budget(privacy, release=name, n_classes=2)
        for name in ("origin", "class sums", "cells")
    ]
    of_three_classes = [
        allot_budget(privacy, release=name, n_classes=3) for name in ("origin", "class sums")
    ]

    assert (
        sum(part.epsilon for part in of_two_classes)
        == sum(part.epsilon for part in of_three_classes)
        == epsilon
    )


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("epsilon", [Fraction(1, 10), 1, 8])
def test_parts_of_an_approximate_budget_fit_into_it(epsilon, n_classes):
    privacy = Privacy(epsilon=epsilon, delta="1e-5")
    kinds = ["origin", "class sums", "cells"][: 3 if n_classes == 2 else 2]

    parts = [allot_budget(privacy, release=name, n_classes=n_classes) for name in kinds]

    assert fits(parts, ApproxDP(epsilon, Fraction(1, 10**5)))
    assert not fits([*parts, parts[0]], ApproxDP(epsilon, Fraction(1, 10**5)))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([Fraction(1, 2), 1, 8]),  # few values: conversions of (epsilon, delta) are slow
    st.sampled_from([0, "1e-5"]),
    st.sampled_from(["add_remove", "replace_one"]),
    st.integers(1, 9),
    st.sampled_from([1, 9, 30]),
)
def test_noise_and_noise_shares_stay_within_their_budget(
    epsilon, delta, relation, n_shares, n_columns
):
    privacy = Privacy(epsilon=epsilon, delta=delta, neighbors=relation)
    releases = [
        origin_release(privacy, n_columns, 2),
        class_sums_release(privacy, n_columns, 2),
        cells_release(privacy),
    ]

    for release in releases:
        central = mechanism(release.budget, release.sensitivity).guarantee(release.sensitivity)
        in_shares = shares(
            release.budget, release.sensitivity, n_shares=n_shares, n_cells=release.n_cells
        )
        if delta:
            assert central.rho <= release.budget.rho
            assert (
                in_shares.guarantee(release.sensitivity, release.n_cells).rho <= release.budget.rho
            )
        else:
            assert central == in_shares.guarantee(release.sensitivity) == release.budget


@pytest.mark.parametrize(
    ("policy", "n_columns", "levels"),
    [
        (Privacy(epsilon=1, delta="1e-5"), 30, 1024),
        (Privacy(epsilon=1), 9, 256),
        (Privacy(epsilon="1/10"), 30, 0),
    ],
)
def test_number_of_steps_is_the_largest_that_samplers_support(policy, n_columns, levels):
    if levels:
        assert origin_release(policy, n_columns, 2).levels == levels
    else:
        with pytest.raises(PrivacyError, match=r"noise .* is too large for sums"):
            origin_release(policy, n_columns, 2)


def test_class_sums_of_many_classes_get_the_budget_of_cells():
    privacy = Privacy(epsilon=1)

    assert allot_budget(privacy, release="class sums", n_classes=2) == PureDP(Fraction(1, 2))
    assert allot_budget(privacy, release="class sums", n_classes=3) == PureDP(Fraction(4, 5))


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (None, "computed from the rows would disclose single rows"),
        (((0.0, 0.0), (1.0, 1.0)), "one or 3 of them"),
        ((0.0, np.inf), "finite numbers"),
        ((1.0, 0.0), "low bounds below the high ones"),
        ((-1.7e308, 1.7e308), "within a finite range"),
    ],
)
def test_missing_or_wrong_bounds_are_rejected(bounds, words):
    with pytest.raises(ValueError, match=words):
        public_bounds(Privacy(epsilon=1, bounds=bounds), 3)
