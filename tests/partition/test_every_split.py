"""What holds for every way of splitting."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedneighbors.errors import PartitionError
from fedneighbors.partition import (
    KINDS,
    dirichlet,
    iid,
    pachinko,
    pathological,
    pathological_v2,
    quantity_skew,
    split,
)

labels = st.lists(st.integers(0, 6), min_size=30, max_size=120)
seeds = st.integers(0, 2**63)


def dealt(kind, y, n_parties, *, seed):
    """The split of that name; two labels that follow one another share their coarse one."""
    coarse = np.unique(y, return_inverse=True)[1] // 2 if kind == "pachinko" else None
    return split(kind, y, n_parties, seed=seed, coarse=coarse)


def split_where_possible(kind, y, n_parties, seed):
    """A split, or none where too few shards or draws exist: dirichlet and pathological may fail."""
    try:
        return dealt(kind, y, n_parties, seed=seed)
    except PartitionError:
        assume(kind in {"iid", "pachinko", "quantity_skew"})
        raise


@given(kind=st.sampled_from(KINDS), y=labels, n_parties=st.integers(1, 12), seed=seeds)
@settings(max_examples=200, deadline=None)
def test_every_row_has_one_party_and_every_party_a_row(kind, y, n_parties, seed):
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

    first, second = dealt(kind, y, 8, seed=1), dealt(kind, y, 8, seed=2)

    assert not np.array_equal(first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_more_parties_than_rows_are_refused(kind):
    with pytest.raises(PartitionError, match="only 3 rows; ask for fewer parties"):
        dealt(kind, [0, 1, 2], 4, seed=0)


@pytest.mark.parametrize("kind", ["iid", "pachinko", "quantity_skew", "dirichlet"])
def test_one_row_goes_to_the_one_party(kind):
    assert dealt(kind, ["a"], 1, seed=0).tolist() == ["party-0"]


def test_one_row_goes_to_the_one_party_of_one_class():
    assert pathological(["a"], 1, classes_per_party=1, seed=0).tolist() == ["party-0"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_class_is_split_like_any_other(kind):
    parties = dealt(kind, ["a"] * 60, 3, seed=5)

    assert set(parties.tolist()) == {"party-0", "party-1", "party-2"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_parties_share_a_hundred_thousand_rows(kind):
    y = np.arange(100_000) % 10

    parties = dealt(kind, y, 1000, seed=0)

    assert len(np.unique(parties)) == 1000


@pytest.mark.parametrize("kind", KINDS)
def test_no_parties_no_rows_and_a_negative_seed_are_refused(kind):
    with pytest.raises(ValueError, match="n_parties must be at least 1, got 0"):
        dealt(kind, [0, 1], 0, seed=0)
    with pytest.raises(ValueError, match="at least one"):
        dealt(kind, [], 1, seed=0)
    with pytest.raises(ValueError, match="seed must not be negative, got -1"):
        dealt(kind, [0] * 10, 2, seed=-1)


def test_numbers_that_are_none_are_refused():
    with pytest.raises(ValueError, match="n_parties must be at least 1, got nan"):
        iid(5, float("nan"), seed=0)
    with pytest.raises(ValueError, match="min_rows must not be negative, got nan"):
        quantity_skew(5, 2, min_rows=float("nan"), seed=0)


def test_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="no split 'random'; choose one of dirichlet, iid"):
        split("random", [0, 1], 2, seed=0)


def test_parameter_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="alpha"):
        split("iid", [0, 1], 2, seed=0, alpha=1.0)


def test_split_by_name_equals_the_function_of_that_name():
    y = np.repeat([0, 1, 2], 40)

    named = [
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
    assert len(named) == len(KINDS)
    for one, other in zip(named, direct, strict=True):
        assert one.tolist() == other.tolist()


def test_coarse_labels_are_for_pachinko_and_pachinko_needs_them():
    with pytest.raises(ValueError, match="needs the coarse label of each row"):
        split("pachinko", [0, 1], 2, seed=0)
    with pytest.raises(TypeError, match="'iid' takes no coarse labels"):
        split("iid", [0, 1], 2, seed=0, coarse=[0, 0])
