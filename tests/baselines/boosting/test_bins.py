"""Bins from summed counts: order of keys, sizes, distinct values, held-out rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedneighbors.baselines.boosting._bins import (
    Holdout,
    agree_bins,
    bin_rows,
    keys_of,
    numbers_of,
)
from fedneighbors.baselines.boosting._party import BoostingParty
from fedneighbors.federation._inprocess import run

FINITE = st.floats(allow_nan=False, allow_infinity=False)
EXTREMES = [0.0, -0.0, 5e-324, -5e-324, 1.7976931348623157e308, -1.7976931348623157e308, 1.0]


def agree(x, max_bins=255, holdout=Holdout(0.0, 0)):  # noqa: B008 - immutable
    parties = [BoostingParty(name, x[k::2], np.zeros(len(x[k::2]))) for k, name in enumerate("ab")]
    return run(agree_bins(x.shape[1], max_bins=max_bins, holdout=holdout), parties)


@settings(max_examples=100, deadline=None)
@given(arrays(np.float64, st.integers(0, 20), elements=FINITE | st.sampled_from(EXTREMES)))
def test_keys_have_the_order_of_numbers(x):
    keys = keys_of(x)

    assert np.array_equal(keys[:, None] < keys, x[:, None] < x)
    assert np.array_equal(keys[:, None] == keys, x[:, None] == x)
    assert numbers_of(keys).tolist() == (x + 0.0).tolist()


@settings(max_examples=30, deadline=None)
@given(
    arrays(
        np.float64,
        st.tuples(st.integers(0, 30), st.just(1)),
        elements=FINITE | st.sampled_from([*EXTREMES, np.nan, 0.1, 0.3]),
    )
)
def test_few_distinct_values_have_a_bin_each(x):
    (edges,) = agree(x).result

    values = np.unique(x[~np.isnan(x)])
    bins = bin_rows(values[:, None], [edges])[0]
    assert bins.tolist() == list(range(len(values)))
    assert len(edges) == max(len(values) - 1, 0)


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e300])
def test_bins_have_about_equal_numbers_of_rows(scale):
    x = np.random.default_rng(0).normal(size=(20_000, 1)) * scale

    (edges,) = agree(x).result

    sizes = np.bincount(bin_rows(x, [edges])[0])
    assert len(sizes) == 255
    assert (np.abs(sizes - 20_000 / 255) <= 0.5 * 20_000 / 255).all()


def test_frequent_values_have_bins_of_their_own():
    rng = np.random.default_rng(0)
    x = np.where(rng.random(9_000) < 0.5, rng.choice([0.1, 0.2], 9_000), rng.normal(size=9_000))

    (edges,) = agree(x[:, None], max_bins=16).result

    bins = bin_rows(x[:, None], [edges])[0]
    assert len(edges) <= 15
    for value in (0.1, 0.2):
        size = np.count_nonzero(bins == bins[x == value][0])
        assert size < np.count_nonzero(x == value) + 9_000 / 16


def test_bins_take_few_exchanges():
    rng = np.random.default_rng(0)
    columns = [rng.normal(size=5_000), rng.integers(0, 99, 5_000), rng.integers(0, 300, 5_000) / 7]

    assert len(agree(np.column_stack(columns)).rounds) <= 20


def test_missing_cells_have_the_last_bin():
    x = np.array([[1.0], [np.nan], [3.0]])

    assert bin_rows(x, [np.array([2.0])]).tolist() == [[0, 2, 1]]


def test_a_fraction_of_rows_is_held_out_wherever_they_are():
    x = np.random.default_rng(0).normal(size=(20_000, 3))
    x[::7, 1] = np.nan

    held_out = Holdout(0.1, 5).select(x)

    assert abs(held_out.mean() - 0.1) < 0.01
    assert np.array_equal(Holdout(0.1, 5).select(x[::-1]), held_out[::-1])
    assert not np.array_equal(Holdout(0.1, 6).select(x), held_out)
    assert not Holdout(0.0, 5).select(x).any()


def test_held_out_rows_do_not_count():
    x = np.random.default_rng(0).normal(size=(400, 1))
    holdout = Holdout(0.5, 1)
    training = x[~holdout.select(x)]

    (edges,), (expected,) = (
        agree(part, holdout=h).result for part, h in [(x, holdout), (training, Holdout(0, 1))]
    )

    assert edges.tolist() == expected.tolist()
