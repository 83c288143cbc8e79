"""Moments add up to the last bit, and the metric they make whitens and stretches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.methods.fedpnn._metric import (
    ClassMoments,
    class_moments,
    covariance_within,
    supervised_metric,
)


def rows(seed, n=400, d=4):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) / 2 + y[:, None] * 0.3, y


@given(st.integers(0, 99), st.integers(1, 6))
def test_moments_of_parts_add_up_to_those_of_the_whole(seed, n_parts):
    x, y = rows(seed, n=60)
    owner = np.random.default_rng(seed).integers(0, n_parts, len(y))

    whole = class_moments(x, y, 3)
    parts = [class_moments(x[owner == k], y[owner == k], 3) for k in range(n_parts)]

    for name in ("counts", "sums", "products"):
        added = np.sum([getattr(part, name) for part in parts], axis=0)
        assert (added == getattr(whole, name)).all()


def test_products_are_those_of_whole_numbers():
    x, y = rows(0, n=40_000)
    quanta = np.rint(np.clip(x, -8, 8) * 2**16).astype(np.int64)

    found = class_moments(x, y, 3)

    assert (found.products == quanta.T @ quanta).all()
    assert (found.sums == [quanta[y == c].sum(axis=0) for c in range(3)]).all()
    assert found.counts.tolist() == np.bincount(y).tolist()


def test_values_beyond_eight_count_as_eight():
    moments = class_moments(np.array([[1e300, -np.inf]]), np.array([0]), 1)

    assert moments.sums.tolist() == [[8 << 16, -8 << 16]]


@pytest.mark.parametrize("seed", range(3))
def test_the_covariance_is_that_within_classes(seed):
    x, y = rows(seed)

    means, within = covariance_within(class_moments(x, y, 3))

    expected = sum((y == c).mean() * np.cov(x[y == c].T, bias=True) for c in range(3))
    np.testing.assert_allclose(means, [x[y == c].mean(axis=0) for c in range(3)], atol=1e-4)
    np.testing.assert_allclose(within, expected, atol=1e-4)


def test_without_ridge_and_boost_rows_are_white_within_classes():
    x, y = rows(1)

    metric = supervised_metric(class_moments(x, y, 3), ridge=1e-9, boost=1.0)

    _, within = covariance_within(class_moments(x @ metric, y, 3))
    np.testing.assert_allclose(within, np.eye(4), atol=1e-3)


def test_only_directions_between_means_are_stretched():
    x, y = rows(2)
    moments = class_moments(x, y, 3)

    plain, boosted = (supervised_metric(moments, ridge=0.1, boost=b) for b in (1.0, 3.0))

    means, _ = covariance_within(moments)
    apart = means - means.mean(axis=0)
    np.testing.assert_allclose(apart @ boosted, 3 * apart @ plain, atol=1e-8)
    values = np.linalg.svd(np.linalg.solve(plain, boosted), compute_uv=False)
    np.testing.assert_allclose(values, [3, 3, 1, 1], atol=1e-6)


def test_one_class_and_constant_coordinates_have_a_metric():
    one = class_moments(np.ones((9, 3)), np.zeros(9, np.int64), 2)

    metric = supervised_metric(one, ridge=0.03, boost=3.0)

    assert isinstance(one, ClassMoments)
    assert np.isfinite(metric).all()
