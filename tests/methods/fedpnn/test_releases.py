"""Small clusters go into the nearest of their class; a threshold is chosen by what it leaves."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.methods.fedpnn._releases import merge_small, release_centers
from fedneighbors.methods.fedpnn._thresholds import CENTERS_PER_ROOT, chosen_threshold
from fedneighbors.methods.fedpnn.algorithm import evolve_rows


def slowly_merged(centers, counts, min_count):
    """Merge one at a time over plain lists."""
    balls = [(list(c), list(n)) for c, n in zip(centers.tolist(), counts.tolist(), strict=True)]
    while len(balls) > 1:
        sizes = [sum(n) for _, n in balls]
        small = sizes.index(min(sizes))
        if sizes[small] >= min_count:
            break
        label = [n.index(max(n)) for _, n in balls]
        same = [j for j in range(len(balls)) if j != small and label[j] == label[small]]
        near = same or [j for j in range(len(balls)) if j != small]
        gap = [math.dist(balls[j][0], balls[small][0]) for j in near]
        into = near[gap.index(min(gap))]
        share = sizes[small] / (sizes[small] + sizes[into])
        moved = [a + (b - a) * share for a, b in zip(balls[into][0], balls[small][0], strict=True)]
        added = [a + b for a, b in zip(balls[into][1], balls[small][1], strict=True)]
        balls[into] = moved, added
        del balls[small]
    return balls


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 9))
def test_merging_is_that_of_a_plain_loop(seed, n, min_count):
    rng = np.random.default_rng(seed)
    centers = rng.integers(-9, 10, (n, 2)) + rng.random((n, 2))
    counts = rng.integers(0, 4, (n, 3))
    counts[np.arange(n), rng.integers(0, 3, n)] += 1

    merged, added, into = merge_small(centers, counts, min_count=min_count)

    expected = slowly_merged(centers, counts, min_count)
    assert added.tolist() == [n for _, n in expected]
    np.testing.assert_allclose(merged, [c for c, _ in expected], rtol=1e-12)
    assert (added.sum(axis=1) >= min_count).all() or len(added) == 1
    sums = [counts[into == j].sum(axis=0).tolist() for j in range(len(merged))]
    assert sums == added.tolist()


def test_merging_leaves_its_input_alone():
    centers, counts = np.arange(6.0).reshape(3, 2), np.ones((3, 1), np.int64)

    merge_small(centers, counts, min_count=2)

    assert centers.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert counts.tolist() == [[1], [1], [1]]


@pytest.mark.parametrize("n", [1, 2, 40, 300])
def test_a_chosen_threshold_leaves_few_centers_and_a_lower_one_leaves_more(n):
    points = np.random.default_rng(n).normal(size=(n, 3))
    most = CENTERS_PER_ROOT * math.sqrt(n)

    threshold = chosen_threshold(points, factor=2.0)

    def n_centers(at):
        labels = np.zeros(n, np.int64)
        return len(evolve_rows(points, labels, 1, threshold=at, factor=2.0).centers)

    assert n_centers(threshold) <= most
    assert n <= most or n_centers(threshold * 0.8) > most


def test_rows_that_are_all_the_same_are_one_center():
    found = release_centers(
        np.ones((9, 2)), np.zeros(9, np.int64), 1,
        threshold=None, factor=2.0, classwise=True, min_count=5,
    )  # fmt: skip

    assert found.centers.tolist() == [[1, 1]]
    assert found.counts.tolist() == [[9]]


@pytest.mark.parametrize("classwise", [True, False])
def test_rows_of_classes_that_are_told_are_all_counted(classwise):
    rng = np.random.default_rng(5)
    labels = np.repeat([0, 1, 2], [30, 3, 20])

    found = release_centers(
        rng.normal(size=(53, 2)), labels, 4,
        threshold=0.3, factor=2.0, classwise=classwise, min_count=5,
    )  # fmt: skip

    assert found.counts.sum() == 50
    assert not found.counts[:, [1, 3]].any()
    assert found.silent.tolist() == [False, True, False, True]
    if classwise:
        assert found.counts.sum(axis=0).tolist() == [30, 0, 20, 0]
        assert ((found.counts > 0).sum(axis=1) == 1).all()


def test_a_release_says_how_exposed_single_records_are():
    points = np.array([[0.0], [0.01], [0.02], [5.0], [9.0], [9.01]])
    labels = np.array([0, 0, 0, 0, 1, 1])
    how = {"threshold": 0.1, "factor": 2.0, "classwise": True}

    merged = release_centers(points, labels, 2, min_count=3, **how).exposure
    bare = release_centers(points, labels, 2, min_count=1, **how).exposure

    assert (merged.n_clusters, merged.n_single, merged.n_small) == (2, 1, 1)
    assert (merged.n_centers, merged.fewest, merged.n_withheld) == (1, 4, 2)
    assert merged.largest_risk == 0.25
    assert (bare.n_clusters, bare.n_single, bare.n_centers, bare.fewest) == (3, 1, 3, 1)
    assert "stand for 4 records or more" in str(merged)
    assert "2 records of rare classes are withheld" in str(merged)


def test_a_party_that_sends_nothing_says_so():
    none = release_centers(
        np.zeros((3, 1)), np.zeros(3, np.int64), 1,
        threshold=None, factor=2.0, classwise=True, min_count=5,
    ).exposure  # fmt: skip

    assert (none.n_centers, none.fewest, none.largest_risk, none.n_withheld) == (0, 0, 0.0, 3)
    assert str(none).startswith("Nothing is sent")


def test_centers_are_the_means_of_records_unless_they_are_to_lie_where_they_came():
    rng = np.random.default_rng(3)
    points, labels = rng.normal(size=(40, 2)), np.zeros(40, np.int64)
    how = {"threshold": 0.5, "factor": 2.0, "classwise": True, "min_count": 1}

    means = release_centers(points, labels, 1, **how)
    evolved = release_centers(points, labels, 1, means=False, **how)

    grown = evolve_rows(points, labels, 1, threshold=0.5, factor=2.0)
    assert evolved.centers.tolist() == grown.centers.tolist()
    expected = [points[grown.rows == j].mean(axis=0) for j in range(len(grown.centers))]
    np.testing.assert_allclose(means.centers, expected, rtol=1e-12)
    assert means.counts.tolist() == evolved.counts.tolist() == grown.counts.tolist()


def test_counts_do_not_tell_of_few_records_of_a_class():
    rng = np.random.default_rng(4)
    labels = np.repeat([0, 1], [40, 6])

    found = release_centers(
        rng.normal(size=(46, 2)), labels, 2,
        threshold=0.6, factor=2.0, classwise=False, min_count=5,
    )  # fmt: skip

    assert ((found.counts == 0) | (found.counts >= 5)).all()
    assert found.counts.sum() == 46
