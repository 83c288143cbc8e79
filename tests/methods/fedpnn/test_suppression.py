"""Suppression of differences of sums that describe few cells."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedneighbors.methods.fedpnn._scaling import group_values
from fedneighbors.methods.fedpnn._suppression import join_parts, share_clipped, share_means
from tests.naive import cuts as naive


def draw_partitions(seed, n_cells, n_parts, n_kinds, n_others):
    """Return parts, kinds and others of cells; groups and kinds differ by no few cells."""
    rng = np.random.default_rng(seed)
    parts = np.sort(rng.integers(0, n_parts, n_cells))
    kinds = parts % n_kinds if rng.random() < 0.7 else rng.integers(0, n_kinds, n_cells)
    others = np.clip(parts * n_others // n_parts + (rng.random(n_cells) < 0.2), 0, n_others - 1)
    return parts, np.asarray(kinds), np.unique(others, return_inverse=True)[1]


def smallest_after(into, parts, kinds, others):
    """Return the fewest cells in a difference of sums of joined parts by kind and of others."""
    return naive.smallest_difference(
        list(zip(into[parts].tolist(), kinds.tolist(), strict=True)), others.tolist()
    )


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(8, 40),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_joined_parts_have_no_small_differences(
    seed, n_cells, n_parts, n_kinds, n_others, min_count
):
    parts, kinds, others = draw_partitions(seed, n_cells, n_parts, n_kinds, n_others)
    by_kind = naive.smallest_difference(kinds.tolist(), others.tolist())
    assume(by_kind >= min_count and np.bincount(others).min() >= min_count)
    positions = np.random.default_rng(seed).normal(size=n_parts)
    apart = np.arange(n_parts)

    into = join_parts(parts, kinds, others, positions, min_count=min_count)

    assert smallest_after(into, parts, kinds, others) >= min_count
    assert (into <= apart).all()
    assert (into[into] == into).all()
    if smallest_after(apart, parts, kinds, others) >= min_count:
        assert (into == apart).all()  # nothing is joined without need


def test_closest_parts_of_one_kind_are_joined():
    parts = np.repeat([0, 1, 2, 3], 6)
    others = np.append(np.repeat([0, 1], [7, 16]), 1)  # the first cell of part 1 is in set 0

    into = join_parts(parts, np.zeros(24, int), others, np.array([0.0, 9.0, 4.0, 3.0]), min_count=2)

    assert into.tolist() == [0, 1, 2, 0]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(5, 30))
def test_groups_and_classes_have_no_small_differences(seed, min_count, n_rows):
    rng = np.random.default_rng(seed)
    classes = np.sort(rng.integers(0, 3, n_rows))
    assume(np.bincount(classes)[np.unique(classes)].min() >= min_count)
    column = 2.0 * classes + rng.normal(size=n_rows).round(1)

    groups = group_values(column, classes, n_knots=5, min_count=min_count)

    assert naive.smallest_difference(groups.tolist(), classes.tolist()) >= min_count
    assert (np.diff(groups[np.argsort(column, kind="stable")]) >= 0).all()
    assert np.bincount(groups).min() >= min_count


def test_clusters_that_differ_from_groups_in_a_cell_share_their_mean():
    values = np.arange(20.0)
    clusters = np.repeat([0, 1, 2], [6, 4, 10])
    partition = {"clusters": clusters, "classes": np.zeros(20, int), "groups": np.arange(20) // 5}

    shared = share_means(values, values, np.ones(20, bool), **partition, min_count=2)
    unchanged = share_means(values, values, np.ones(20, bool), **partition, min_count=1)

    assert shared.tolist() == [4.5] * 10 + list(range(10, 20))
    assert unchanged.tolist() == values.tolist()


@pytest.mark.parametrize("outlier", [8.0, 8.5])
def test_clipped_coordinates_become_means_of_classes(outlier):
    points, labels = np.array([[outlier], [1.0], [2.0], [9.0]]), np.array([0, 0, 1, 1])

    expected = [outlier, 1.0] if outlier == 8.0 else [4.75, 4.75]
    assert share_clipped(points, labels)[:, 0].tolist() == [*expected, 5.5, 5.5]


def test_cells_are_isolated_by_exact_combinations_of_sums():
    sums = [[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]]

    assert naive.isolated_cells(sums) == [2, 3]
    assert naive.isolated_cells(sums[:1]) == []
