"""Rare values of real rows stay out of synthetic rows."""

import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.datasets import Table
from fedneighbors.errors import DataError
from fedneighbors.methods.fedpnn.synthesis import TabularSynthesizer, quality_record, rare_values
from fedneighbors.methods.fedpnn.synthesis._encoding import NumericCoding, fit_transform
from fedneighbors.methods.fedpnn.synthesis._rare_values import (
    merge_categories,
    replace_rare_numbers,
)

SMALL = {"generator": (16,), "critic": (16,), "epochs": 3, "embedding": 8}
OUTLIER = 98_765.4321


def sample(rows, y=None, *, n=5_000, **options):
    return TabularSynthesizer(**{**SMALL, **options}).fit(rows, y).sample(n)


def make_text(*cells):
    column = np.empty(len(cells), np.object_)
    column[:] = cells
    return column


def merge(*cells, min_count=5, coded=()):
    return merge_categories(Table({"w": make_text(*cells)}, "t"), min_count, coded).columns["w"]


def clip(*cells, min_count, share=None):
    table = Table({"x": np.array(cells, np.float64)}, "t")
    return replace_rare_numbers(table, min_count, share).columns["x"]


@pytest.mark.parametrize("repeated_share", [0.05, None])
def test_an_outlier_among_500_rows_is_not_generated(repeated_share):
    x = np.random.default_rng(0).normal(50.0, 10.0, (500, 1))
    x[123] = OUTLIER
    options = {"repeated_share": repeated_share}

    exposed, hidden = (sample(x, min_count=k, **options).ravel() for k in (None, 5))

    assert np.sum(np.abs(exposed / OUTLIER - 1) < 1e-8) > 0
    assert hidden.max() < 120.0


def test_an_isolated_value_between_modes_is_not_generated():
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(0, 1, 250), [543.21], rng.normal(1_000, 1, 250)])[:, None]

    synthetic = sample(x).ravel()

    assert np.sum(np.abs(synthetic - 543.21) < 100) == 0


def test_unique_names_are_merged_with_a_warning():
    x = pd.DataFrame({"name": [f"Person {k}" for k in range(100)], "size": np.arange(100.0)})

    with pytest.warns(UserWarning, match="the columns 'name' have too many distinct texts"):
        synthetic = sample(x, n=200)

    assert set(synthetic["name"]) == {"other"}


def test_account_numbers_raise_a_warning():
    rng = np.random.default_rng(2)
    x = pd.DataFrame({"account": rng.integers(10**8, 10**12, 200), "size": rng.normal(size=200)})

    with pytest.warns(UserWarning, match="the columns 'account' have another integer in each"):
        synthetic = sample(x, n=400)

    assert set(synthetic["account"]).isdisjoint(x["account"])


def test_rare_integers_in_gaps_are_not_generated():
    x = np.repeat([100.0, 200.0, 300.0, 1_000.0], 100)
    x[:3], x[150], x[399] = 150.0, 700.0, 5_000.0

    synthetic = sample(x[:, None]).ravel()

    assert set(synthetic) == {100.0, 200.0, 300.0, 1_000.0}


def test_dates_in_frames_are_merged_with_a_warning():
    x = pd.DataFrame({"day": pd.date_range("2001-01-01", periods=60), "size": np.arange(60.0)})

    with pytest.warns(UserWarning, match="convert dates to numbers"):
        synthetic = sample(x, n=50)

    assert set(synthetic["day"]) == {"other"}


def test_numeric_categories_become_missing():
    x = np.c_[np.repeat([3.0, 8.0, 977.0], [40, 55, 5]), np.arange(100.0)]
    x[97:, 0] = [978.0, 979.0, 980.0]  # 977 is left to two rows

    synthetic = sample(x, n=400, categorical_features=[0])[:, 0]

    assert set(synthetic[~np.isnan(synthetic)]) == {3.0, 8.0}
    assert np.isnan(synthetic).any()


def test_classes_of_too_few_rows_are_rejected():
    x, y = np.random.default_rng(0).normal(size=(50, 2)), np.repeat(["many", "few"], [46, 4])

    with pytest.raises(DataError, match=r"class 'few' has 4 rows, expected 10 or more: twice"):
        sample(x, y)
    with pytest.raises(DataError, match=r"class 'few' has 4 rows, fewer than min_count=5"):
        sample(x, y, per_class=False)


@pytest.mark.parametrize("value", [0, -1])
def test_min_count_must_be_positive(value):
    with pytest.raises(ValueError, match="min_count must be at least 1"):
        sample(np.zeros((20, 1)), min_count=value)


def test_rare_categories_are_merged_until_they_are_enough():
    assert merge(*"aaaaaabbbbbbbcd").tolist() == [*["other"] * 6, *"bbbbbbb", *["other"] * 2]
    assert merge(*"aaaaaabbbbbccddd").tolist() == list("aaaaaabbbbb") + ["other"] * 5
    assert merge(*["a"] * 6, *["other"] * 3, "b", "c").tolist() == ["a"] * 6 + ["other"] * 5
    assert merge(*["a"] * 7, *["b"] * 5, None).tolist() == ["a"] * 7 + ["other"] * 6
    assert merge(*["a"] * 7, *[None] * 5).tolist() == ["a"] * 7 + [None] * 5
    assert merge(*"aaaaaaabc", min_count=1).tolist() == list("aaaaaaabc")
    assert merge(*"abcdef", min_count=0).tolist() == list("abcdef")


def test_tails_are_clipped_between_ranks():
    values = [-900.5, 1.25, 2.0, 3.5, 4.0, 5.0, 6.25, 7e9]

    assert clip(*values, min_count=2).tolist() == [1.625, 1.625, 2.0, 3.5, 4.0, 5.0, 5.625, 5.625]
    assert clip(*range(8), min_count=2).tolist() == [2, 2, 2, 3, 4, 5, 5, 5]
    assert clip(*values, min_count=0).tolist() == values


def test_few_other_numbers_take_the_nearest_repeated_one():
    column = [*[0.0] * 9, 1.5, 8.0, *[9.0] * 9]

    assert clip(*column, min_count=3, share=0.2).tolist() == [0.0] * 10 + [9.0] * 10
    assert clip(*column, min_count=2, share=0.2).tolist() == column


def test_columns_of_few_numbers_become_missing():
    with pytest.warns(UserWarning, match="the columns 'x' have fewer than 10 numbers"):
        emptied = clip(*[1.0] * 9, *[np.nan] * 11, min_count=5)

    assert np.isnan(emptied).all()


cells = st.sampled_from(["a", "b", "c", "other", None])


@given(st.lists(cells, min_size=1, max_size=60), st.integers(1, 7))
def test_any_merged_category_has_enough_records(column, min_count):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        merged = merge(*column, min_count=min_count)

    counts = Counter(merged.tolist())
    assert min(counts.values()) >= min(min_count, len(column))
    for before, after in zip(column, merged, strict=True):
        assert after in (before, "other")


numbers = st.one_of(st.sampled_from([0.0, 1.0, 7.0, 1e9]), st.floats(-1e6, 1e6))


@settings(max_examples=60)
@given(st.lists(numbers, min_size=1, max_size=60), st.integers(1, 6), st.sampled_from([0.05, None]))
def test_any_number_category_has_enough_records(values, min_count, repeated_share):
    column = np.array(values * 2 * min_count)[: max(len(values), 2 * min_count)]
    table = replace_rare_numbers(Table({"x": column}, "t"), min_count, repeated_share)

    (coding,) = fit_transform(table, repeated_share=repeated_share, min_count=min_count).codings

    assert isinstance(coding, NumericCoding)
    clipped = table.columns["x"]
    low, high = clipped.min(), clipped.max()
    assert np.sum(column <= low) >= min_count
    assert np.sum(column >= high) >= min_count
    n_repeated = [np.sum(clipped == value) for value in coding.repeated]
    assert min(n_repeated, default=min_count) >= min_count
    if coding.modes is not None:
        n_values = len(column) - sum(n_repeated)
        assert n_values >= min_count
        assert len(coding.modes.means) <= max(n_values // min_count, 1)


def test_rare_values_are_counted_with_six_digits():
    real = pd.DataFrame({"x": [1.0] * 5 + [123_456.7, np.nan], "w": ["a"] * 6 + ["b"]})
    synthetic = pd.DataFrame({"x": [1.0, 123_456.9, np.nan, 2.0], "w": ["a", "b", "b", "c"]})

    assert rare_values(real, synthetic) == {"x": 0.25, "w": 0.5}
    assert rare_values(real, synthetic, min_count=1) == {"x": 0.0, "w": 0.0}


def test_report_warns_of_rare_values_beyond_chance():
    rng = np.random.default_rng(3)
    train, test = ((rng.normal(size=(200, 2)).round(2), None) for _ in range(2))
    copied = (np.c_[train[0][:, 0], rng.normal(size=200).round(2)], None)

    (note,) = quality_record(train, copied, test=test).notes[1:]

    assert note.startswith("The columns 'x0' repeat rare real values more often than held-out")
    assert quality_record(train, test, test=test).notes[1:] == ()
