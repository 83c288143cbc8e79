"""Scaled columns, exact moments and the linear map of the supervised metric."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from fedneighbors.methods.fedpnn._scaling import (
    MAX_SCORE,
    ScalingReply,
    column_constants,
    make_scaling,
)
from fedneighbors.methods.fedpnn.protocol import derive_linear_map
from fedneighbors.tabular._schema import (
    PointMomentsReply,
    class_moments,
    covariance_within,
)


def make_columns(seed, n=300, missing=0.1):
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=n), rng.lognormal(size=n), rng.integers(0, 4, n)])
    x[rng.random(x.shape) < missing] = np.nan
    return x


@given(st.integers(0, 99), st.integers(1, 40), st.integers(1, 20))
def test_knots_are_means_of_groups_of_neighboring_values(seed, n_knots, min_count):
    x = make_columns(seed, n=int(np.random.default_rng(seed).integers(0, 60)))

    constants = column_constants(x, n_knots=n_knots, min_count=min_count)

    for j in range(3):
        values = np.sort(x[~np.isnan(x[:, j]), j])
        sizes = constants.sizes[j][constants.sizes[j] > 0]
        n_few_missing = len(x) - len(values) if len(x) - len(values) < min_count else 0
        assert sizes.sum() == (len(values) + n_few_missing if len(values) >= min_count else 0)
        assert (sizes >= min_count).all()
        if len(sizes):
            sizes[0] -= n_few_missing
        ends = np.concatenate([[0], sizes.cumsum()])
        means = [np.clip(values[a:b].mean(), values[a], values[b - 1]) for a, b in pairwise(ends)]
        assert constants.knots[j, : len(sizes)].tolist() == means
        assert np.isnan(constants.knots[j, len(sizes) :]).all()


def test_normal_scores_match_the_ranks():
    x = np.arange(100.0)[:, None]

    scaling = make_scaling("quantile", [column_constants(x, n_knots=100, min_count=1)], min_count=1)

    scores = np.clip(ndtri((np.arange(100) + 0.5) / 100), -MAX_SCORE, MAX_SCORE)
    np.testing.assert_allclose(scaling.apply(x)[:, 0], scores, rtol=1e-12)
    assert scaling.apply(np.array([[-50.0], [500.0]]))[:, 0].tolist() == [scores[0], scores[-1]]


@pytest.mark.parametrize("kind", ["quantile", "minmax", "none"])
@pytest.mark.parametrize("seed", range(3))
def test_scaling_of_parties_approximates_the_pooled_one(kind, seed):
    x = make_columns(seed)
    owner = np.random.default_rng(seed).integers(0, 3, len(x))
    parts = [column_constants(x[owner == k], n_knots=50, min_count=2) for k in range(3)]
    pooled_constants = column_constants(x, n_knots=50, min_count=2)

    federated, pooled = (
        make_scaling(kind, constants, min_count=2) for constants in (parts, [pooled_constants])
    )
    reversed_order = make_scaling(kind, parts[::-1], min_count=2)

    assert np.abs(federated.apply(x) - pooled.apply(x)).max() < 0.5
    assert (federated.apply(x) == reversed_order.apply(x)).all()


def test_many_missing_cells_get_an_indicator():
    x = np.column_stack([np.arange(20.0), np.arange(20.0)])
    x[:6, 0], x[:2, 1] = np.nan, np.nan

    scaling = make_scaling("quantile", [column_constants(x, n_knots=20, min_count=3)], min_count=3)
    points = scaling.apply(x)

    assert points.shape == (20, 3)
    assert points[:, 2].tolist() == [1.0] * 6 + [0.0] * 14
    assert np.abs(points[:6, 0]).max() < 0.1
    assert not np.isnan(points).any()
    assert scaling.without_indicators().apply(x).shape == (20, 2)


@pytest.mark.parametrize("kind", ["quantile", "minmax", "none"])
def test_constant_and_empty_columns_give_finite_points(kind):
    x = np.column_stack([np.full(30, 7.0), np.full(30, np.nan), np.arange(30.0)])

    scaling = make_scaling(kind, [column_constants(x, n_knots=5, min_count=5)], min_count=5)

    assert np.isfinite(scaling.apply(x)).all()
    assert len(set(scaling.apply(x)[:, 0])) == 1


def test_undisclosed_column_maps_to_zero():
    zeros = np.zeros((1, 4), np.int64)
    undisclosed = ScalingReply(np.full((1, 4), np.nan), zeros, zeros[:, 0], np.array([False]))

    scaling = make_scaling("quantile", [undisclosed], min_count=5)

    assert scaling.apply(np.array([[3.0], [np.nan]])).tolist() == [[0.0], [0.0]]


def test_columns_with_few_missing_cells_share_an_indicator():
    labels = np.repeat([0, 1], 20)
    x = np.tile(np.arange(40.0)[:, None], 4)
    x[:9, 0], x[20:26, 0] = np.nan, np.nan  # many in both classes
    x[:9, 1] = np.nan  # none in the other class
    x[:9, 2], x[20:22, 2] = np.nan, np.nan  # few in the other class
    x[10:19, 3], x[39:, 3] = np.nan, np.nan
    other = ScalingReply(
        np.full((4, 20), np.nan),
        np.zeros((4, 20), np.int64),
        np.zeros(4, np.int64),
        np.ones(4, bool),
    )

    constants = column_constants(x, n_knots=20, min_count=5, labels=labels)
    scaling = make_scaling("quantile", [other, constants], min_count=5)
    points = scaling.apply(x)

    assert constants.is_complete.tolist() == [True, True, False, False]
    assert constants.n_missing.tolist() == [15, 9, 9, 9]
    assert constants.sizes.sum(axis=1).tolist() == [25, 31, 31, 31]
    assert scaling.indicators.tolist() == [0, 1]
    assert scaling.pooled.tolist() == [2, 3]
    assert points[:, 6].tolist() == np.isnan(x[:, 2:]).any(axis=1).astype(float).tolist()
    assert scaling.n_coordinates == points.shape[1] == 7


def test_few_cells_of_a_class_count_as_missing_in_constants():
    labels = np.repeat([0, 1], [20, 10])
    x = np.arange(30.0)[:, None].copy()
    x[22:] = np.nan  # the rarer class has two cells left

    constants = column_constants(x, n_knots=4, min_count=5, labels=labels)

    assert constants.n_missing.tolist() == [10]
    assert constants.sizes.sum() == 20
    assert constants.knots[0].max() < 20


def make_rows(seed, n=400, d=4):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) / 2 + y[:, None] * 0.3, y


@given(st.integers(0, 99), st.integers(1, 6))
def test_moments_of_parts_add_up_to_the_whole(seed, n_parts):
    x, y = make_rows(seed, n=60)
    owner = np.random.default_rng(seed).integers(0, n_parts, len(y))

    pooled = class_moments(x, y, 3)
    parts = [class_moments(x[owner == k], y[owner == k], 3) for k in range(n_parts)]

    for name in ("counts", "sums", "products"):
        added = np.sum([getattr(part, name) for part in parts], axis=0)
        assert (added == getattr(pooled, name)).all()


def test_products_are_exact_integers():
    x, y = make_rows(0, n=40_000)
    integer_steps = np.rint(np.clip(x, -8, 8) * 2**16).astype(np.int64)

    moments = class_moments(x, y, 3)

    assert (moments.products == integer_steps.T @ integer_steps).all()
    assert (moments.sums == [integer_steps[y == c].sum(axis=0) for c in range(3)]).all()
    assert moments.counts.tolist() == np.bincount(y).tolist()


def test_coordinates_are_clipped_at_eight():
    moments = class_moments(np.array([[1e300, -np.inf]]), np.array([0]), 1)

    assert moments.sums.tolist() == [[8 << 16, -8 << 16]]


@pytest.mark.parametrize("seed", range(3))
def test_covariance_is_that_within_classes(seed):
    x, y = make_rows(seed)

    means, within = covariance_within(class_moments(x, y, 3))

    expected = sum((y == c).mean() * np.cov(x[y == c].T, bias=True) for c in range(3))
    np.testing.assert_allclose(means, [x[y == c].mean(axis=0) for c in range(3)], atol=1e-4)
    np.testing.assert_allclose(within, expected, atol=1e-4)


def test_linear_map_without_ridge_and_boost_whitens_classes():
    x, y = make_rows(1)

    linear_map = derive_linear_map(class_moments(x, y, 3), ridge=1e-9, boost=1.0)

    _, within = covariance_within(class_moments(x @ linear_map, y, 3))
    np.testing.assert_allclose(within, np.eye(4), atol=1e-3)


def test_boost_stretches_only_directions_between_means():
    x, y = make_rows(2)
    moments = class_moments(x, y, 3)

    plain, boosted = (derive_linear_map(moments, ridge=0.1, boost=b) for b in (1.0, 3.0))

    means, _ = covariance_within(moments)
    centered = means - means.mean(axis=0)
    np.testing.assert_allclose(centered @ boosted, 3 * centered @ plain, atol=1e-8)
    values = np.linalg.svd(np.linalg.solve(plain, boosted), compute_uv=False)
    np.testing.assert_allclose(values, [3, 3, 1, 1], atol=1e-6)


def test_one_class_and_constant_coordinates_have_a_linear_map():
    moments = class_moments(np.ones((9, 3)), np.zeros(9, np.int64), 2)

    linear_map = derive_linear_map(moments, ridge=0.03, boost=3.0)

    assert isinstance(moments, PointMomentsReply)
    assert np.isfinite(linear_map).all()
