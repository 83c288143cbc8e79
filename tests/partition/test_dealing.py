"""Splits that ignore labels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import DataError, PartitionError
from fedneighbors.partition import iid, natural, quantity_skew


def sizes(parties):
    names, counts = np.unique(parties, return_counts=True)
    by_name = dict(zip(names.tolist(), counts.tolist(), strict=True))
    return [by_name[f"party-{i}"] for i in range(len(names))]


@given(n_parties=st.integers(1, 50), extra=st.integers(0, 200), seed=st.integers(0, 99))
@settings(deadline=None)
def test_equal_shares_differ_by_at_most_one_row_and_the_first_are_larger(n_parties, extra, seed):
    n_rows = n_parties + extra

    found = sizes(iid(n_rows, n_parties, seed=seed))

    small, larger = divmod(n_rows, n_parties)
    assert found == [small + 1] * larger + [small] * (n_parties - larger)


def test_zipf_sizes_follow_the_power_of_the_rank():
    # 1 + 1/2 + 1/3 + 1/4 = 25/12, and 1200 * 12/25 = 576
    assert sizes(quantity_skew(1200, 4, factor=1.0, seed=0)) == [576, 288, 192, 144]


def test_zipf_fractions_are_rounded_by_largest_remainder():
    # shares of 10: 10 * 6/11 = 5.45, 10 * 3/11 = 2.73, 10 * 2/11 = 1.82
    assert sizes(quantity_skew(10, 3, factor=1.0, seed=0)) == [5, 3, 2]


def test_parties_below_the_minimum_get_it_and_the_rest_keep_their_proportion():
    # Shares 1 : 1/4 : 1/9 : 1/16 of 1,000 are 702, 176, 78 and 44; the first two divide 800.
    found = sizes(quantity_skew(1000, 4, factor=2.0, min_rows=100, seed=0))

    assert found == [640, 160, 100, 100]


@given(
    n_parties=st.integers(1, 40),
    min_rows=st.integers(1, 5),
    extra=st.integers(0, 300),
    factor=st.floats(0, 500),
)
@settings(deadline=None)
def test_zipf_sizes_fall_with_the_rank_and_keep_the_minimum(n_parties, min_rows, extra, factor):
    n_rows = n_parties * min_rows + extra

    found = sizes(quantity_skew(n_rows, n_parties, factor=factor, min_rows=min_rows, seed=1))

    assert sum(found) == n_rows
    assert found == sorted(found, reverse=True)
    assert min(found) >= min_rows


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf")])
def test_a_factor_that_is_no_exponent_is_refused(factor):
    with pytest.raises(ValueError, match="factor must be a finite number, not negative"):
        quantity_skew(10, 2, factor=factor, seed=0)


def test_a_minimum_that_the_rows_cannot_give_is_refused():
    with pytest.raises(PartitionError, match=r"4 parties with at least 3 rows .* only 10 rows"):
        quantity_skew(10, 4, min_rows=3, seed=0)


def test_recorded_partition_is_found_again():
    found = iid(12, 3, seed=7)

    assert "".join(name[-1] for name in found) == "012102011202"


def test_natural_ids_are_the_parties_as_they_are():
    assert natural(["b", "a", "b"]).tolist() == ["b", "a", "b"]
    assert natural(np.array([3, 10, 3])).tolist() == ["3", "10", "3"]
    assert natural([3.0, 10.0]).tolist() == ["3", "10"]


@pytest.mark.parametrize("gone", [None, float("nan"), ""])
def test_a_row_without_an_id_is_refused(gone):
    with pytest.raises(DataError, match="missing in 1 rows, first in row 1"):
        natural(np.array(["a", gone, "b"], dtype=object))


@pytest.mark.parametrize("ids", [[], [["a"], ["b"]]])
def test_ids_that_are_no_column_are_refused(ids):
    with pytest.raises(DataError, match="one id per row"):
        natural(ids)
