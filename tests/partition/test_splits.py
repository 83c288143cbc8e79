"""Properties of all splits."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedneighbors.errors import DataError, PartitionError
from fedneighbors.partition import (
    KINDS,
    dirichlet,
    iid,
    natural,
    pachinko,
    pathological,
    pathological_v2,
    quantity_skew,
    split,
)
from tests.seeds import cases

labels = st.lists(st.integers(0, 6), min_size=30, max_size=120)
seeds = st.integers(0, 2**63)


def split_by_name(kind, y, n_parties, *, seed):
    """Split by name; consecutive pairs of labels share a coarse label."""
    coarse = np.unique(y, return_inverse=True)[1] // 2 if kind == "pachinko" else None
    return split(kind, y, n_parties, seed=seed, coarse=coarse)


def split_where_possible(kind, y, n_parties, seed):
    """Split by name; skip the example if no such partition exists."""
    try:
        return split_by_name(kind, y, n_parties, seed=seed)
    except PartitionError:
        assume(kind in {"iid", "pachinko", "quantity_skew"})
        raise


@given(kind=st.sampled_from(KINDS), y=labels, n_parties=st.integers(1, 12), seed=seeds)
@settings(max_examples=cases(200), deadline=None)
def test_every_row_has_a_party_and_every_party_a_row(kind, y, n_parties, seed):
    parties = split_where_possible(kind, y, n_parties, seed)

    assert parties.shape == (len(y),)
    assert set(parties.tolist()) == {f"party-{i}" for i in range(n_parties)}


@given(kind=st.sampled_from(KINDS), y=labels, n_parties=st.integers(1, 12), seed=seeds)
@settings(max_examples=100, deadline=None)
def test_same_seed_gives_the_same_partition(kind, y, n_parties, seed):
    first = split_where_possible(kind, y, n_parties, seed)

    second = split_where_possible(kind, y, n_parties, seed)

    assert np.array_equal(first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_another_partition(kind):
    y = np.repeat(np.arange(10), 50)

    first, second = split_by_name(kind, y, 8, seed=1), split_by_name(kind, y, 8, seed=2)

    assert not np.array_equal(first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_more_parties_than_rows_are_refused(kind):
    with pytest.raises(PartitionError, match="only 3 rows; lower n_parties"):
        split_by_name(kind, [0, 1, 2], 4, seed=0)


@pytest.mark.parametrize("kind", ["iid", "pachinko", "quantity_skew", "dirichlet"])
def test_single_row_goes_to_the_single_party(kind):
    assert split_by_name(kind, ["a"], 1, seed=0).tolist() == ["party-0"]


def test_single_row_of_one_class_goes_to_its_party():
    assert pathological(["a"], 1, classes_per_party=1, seed=0).tolist() == ["party-0"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_class_is_split_like_any_other(kind):
    parties = split_by_name(kind, ["a"] * 60, 3, seed=5)

    assert set(parties.tolist()) == {"party-0", "party-1", "party-2"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_parties_share_a_hundred_thousand_rows(kind):
    y = np.arange(100_000) % 10

    parties = split_by_name(kind, y, 1000, seed=0)

    assert len(np.unique(parties)) == 1000


@pytest.mark.parametrize("kind", KINDS)
def test_zero_parties_or_rows_and_negative_seed_are_refused(kind):
    with pytest.raises(ValueError, match="n_parties must be at least 1, got 0"):
        split_by_name(kind, [0, 1], 0, seed=0)
    with pytest.raises(ValueError, match="at least one"):
        split_by_name(kind, [], 1, seed=0)
    with pytest.raises(ValueError, match="seed must not be negative, got -1"):
        split_by_name(kind, [0] * 10, 2, seed=-1)


def test_nan_arguments_are_refused():
    with pytest.raises(ValueError, match="n_parties must be at least 1, got nan"):
        iid(5, float("nan"), seed=0)
    with pytest.raises(ValueError, match="min_rows must not be negative, got nan"):
        quantity_skew(5, 2, min_rows=float("nan"), seed=0)


def test_unknown_kind_error_lists_the_kinds():
    with pytest.raises(ValueError, match="no split 'random'; choose one of dirichlet, iid"):
        split("random", [0, 1], 2, seed=0)


def test_parameter_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="alpha"):
        split("iid", [0, 1], 2, seed=0, alpha=1.0)


def test_split_by_name_equals_the_named_function():
    y = np.repeat([0, 1, 2], 40)

    by_name = [
        split("iid", y, 4, seed=3),
        split("quantity_skew", y, 4, seed=3, factor=2.0),
        split("dirichlet", y, 4, seed=3, alpha=0.7),
        split("pathological", y, 4, seed=3, classes_per_party=1),
        split("pathological_v2", y, 4, seed=3, classes_per_party=1),
        split("pachinko", y, 4, seed=3, coarse=y // 2, alpha=0.3, beta=2.0),
    ]

    direct = [
        iid(120, 4, seed=3),
        quantity_skew(120, 4, seed=3, factor=2.0),
        dirichlet(y, 4, seed=3, alpha=0.7),
        pathological(y, 4, seed=3, classes_per_party=1),
        pathological_v2(y, 4, seed=3, classes_per_party=1),
        pachinko(y // 2, y, 4, seed=3, alpha=0.3, beta=2.0),
    ]
    assert len(by_name) == len(KINDS)
    for actual, expected in zip(by_name, direct, strict=True):
        assert actual.tolist() == expected.tolist()


def test_only_pachinko_takes_coarse_labels():
    with pytest.raises(ValueError, match="needs coarse labels; pass coarse="):
        split("pachinko", [0, 1], 2, seed=0)
    with pytest.raises(TypeError, match="'iid' takes no coarse labels"):
        split("iid", [0, 1], 2, seed=0, coarse=[0, 0])


def party_sizes(parties):
    names, counts = np.unique(parties, return_counts=True)
    by_name = dict(zip(names.tolist(), counts.tolist(), strict=True))
    return [by_name[f"party-{i}"] for i in range(len(names))]


@given(n_parties=st.integers(1, 50), extra=st.integers(0, 200), seed=st.integers(0, 99))
@settings(deadline=None)
def test_equal_shares_differ_by_at_most_one_row(n_parties, extra, seed):
    n_rows = n_parties + extra

    sizes = party_sizes(iid(n_rows, n_parties, seed=seed))

    size, n_larger = divmod(n_rows, n_parties)
    assert sizes == [size + 1] * n_larger + [size] * (n_parties - n_larger)


def test_zipf_sizes_follow_the_power_of_the_rank():
    # 1 + 1/2 + 1/3 + 1/4 = 25/12, and 1200 * 12/25 = 576
    assert party_sizes(quantity_skew(1200, 4, factor=1.0, seed=0)) == [576, 288, 192, 144]


def test_zipf_fractions_are_rounded_by_largest_remainder():
    # shares of 10: 10 * 6/11 = 5.45, 10 * 3/11 = 2.73, 10 * 2/11 = 1.82
    assert party_sizes(quantity_skew(10, 3, factor=1.0, seed=0)) == [5, 3, 2]


def test_minimum_is_met_and_the_rest_is_proportional():
    # Shares 1 : 1/4 : 1/9 : 1/16 of 1,000 are 702, 176, 78 and 44; the first two divide 800.
    sizes = party_sizes(quantity_skew(1000, 4, factor=2.0, min_rows=100, seed=0))

    assert sizes == [640, 160, 100, 100]


@given(
    n_parties=st.integers(1, 40),
    min_rows=st.integers(1, 5),
    extra=st.integers(0, 300),
    factor=st.floats(0, 500),
)
@settings(deadline=None)
def test_zipf_sizes_decrease_and_keep_the_minimum(n_parties, min_rows, extra, factor):
    n_rows = n_parties * min_rows + extra

    sizes = party_sizes(quantity_skew(n_rows, n_parties, factor=factor, min_rows=min_rows, seed=1))

    assert sum(sizes) == n_rows
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) >= min_rows


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf")])
def test_invalid_factor_is_refused(factor):
    with pytest.raises(ValueError, match="factor must be finite and non-negative"):
        quantity_skew(10, 2, factor=factor, seed=0)


def test_minimum_beyond_the_rows_is_refused():
    with pytest.raises(PartitionError, match=r"4 parties with at least 3 rows .* only 10 rows"):
        quantity_skew(10, 4, min_rows=3, seed=0)


def test_recorded_partition_is_reproduced():
    parties = iid(12, 3, seed=7)

    assert "".join(name[-1] for name in parties) == "012102011202"


def test_natural_uses_the_ids_as_party_names():
    assert natural(["b", "a", "b"]).tolist() == ["b", "a", "b"]
    assert natural(np.array([3, 10, 3])).tolist() == ["3", "10", "3"]
    assert natural([3.0, 10.0]).tolist() == ["3", "10"]


@pytest.mark.parametrize("missing", [None, float("nan"), ""])
def test_a_row_without_an_id_is_refused(missing):
    with pytest.raises(DataError, match="missing in 1 rows, first in row 1"):
        natural(np.array(["a", missing, "b"], dtype=object))


@pytest.mark.parametrize("ids", [[], [["a"], ["b"]]])
def test_ids_must_be_one_dimensional(ids):
    with pytest.raises(DataError, match="one id per row"):
        natural(ids)
