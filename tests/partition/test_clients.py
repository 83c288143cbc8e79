import datetime as dt
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.errors import PartitionError
from fedneighbors.partition import (
    by_time,
    dirichlet,
    groups,
    ordered_roles,
    permute_labels,
    row_roles,
    shift_features,
    unseen_parties,
)

PARTIES = np.array([f"p{i % 7}" for i in range(210)])
LABELS = np.arange(210) % 10


def test_groups_are_balanced_and_keep_parties_whole():
    group = groups(PARTIES, 3, seed=0)

    party_groups = {name: set(group[name == PARTIES]) for name in np.unique(PARTIES)}
    assert all(len(values) == 1 for values in party_groups.values())
    sizes = np.bincount([values.pop() for values in party_groups.values()])
    assert sorted(sizes) == [2, 2, 3]


def test_labels_are_permuted_except_in_the_first_group():
    group = groups(PARTIES, 4, seed=5)

    permuted = permute_labels(LABELS, PARTIES, n_groups=4, seed=5)

    assert (permuted[group == 0] == LABELS[group == 0]).all()
    for number in range(1, 4):
        pairs = set(zip(LABELS[group == number], permuted[group == number], strict=True))
        assert len(pairs) == len({new for _, new in pairs}) == 10
        assert any(old != new for old, new in pairs)


def test_text_labels_stay_text():
    permuted = permute_labels(np.array(["a", "b"] * 4), ["x", "y"] * 4, n_groups=2, seed=1)

    assert set(permuted) <= {"a", "b"}


def test_parties_of_a_group_have_the_same_column_shift():
    x = np.random.default_rng(0).normal(size=(210, 3))
    group = groups(PARTIES, 3, seed=2)

    shifts = shift_features(x, PARTIES, n_groups=3, size=2.0, seed=2) - x

    assert (shifts[group == 0] == 0).all()
    for number in (1, 2):
        assert np.ptp(shifts[group == number], axis=0).max() < 1e-9
        assert abs(shifts[group == number][0]).min() > 0


def test_images_are_rotated_by_quarter_turns():
    images = np.arange(210 * 9).reshape(210, 1, 3, 3)
    group = groups(PARTIES, 4, seed=2)

    rotated = shift_features(images, PARTIES, n_groups=4, seed=2)

    for row in range(210):
        assert (rotated[row, 0] == np.rot90(images[row, 0], group[row])).all()


def test_unsupported_images_are_refused():
    with pytest.raises(ValueError, match="square images"):
        shift_features(np.zeros((210, 3, 4)), PARTIES, n_groups=2, seed=0)
    with pytest.raises(ValueError, match="at most 4 groups"):
        shift_features(np.zeros((210, 3, 3)), PARTIES, n_groups=5, seed=0)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.integers(1, 30))
def test_parties_are_consecutive_periods(times, n_parties):
    if n_parties > len(times):
        with pytest.raises(PartitionError):
            by_time(times, n_parties)
        return

    parties = by_time(times, n_parties)

    values = np.array(times)
    sizes = []
    for number in range(n_parties):
        period = values[parties == f"party-{number}"]
        next_period = values[parties == f"party-{number + 1}"]
        sizes.append(len(period))
        assert not len(next_period) or period.max() <= next_period.min()
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "times",
    [
        [2, 1.0, np.nan],
        [1, 2, None],
        ["b", "a", ""],
        ["b", "a", None],
        np.array(["2020-02-01", "2020-01-01", "NaT"], "datetime64[D]"),
        np.array(["2020-02-01", "2020-01-01", "NaT"], "datetime64[ns]"),
    ],
    ids=["NaN", "None", "empty text", "None among text", "no day", "no nanosecond"],
)
def test_a_missing_time_is_refused_with_its_row(times):
    with pytest.raises(ValueError, match="the time is missing in 1 rows, first in row 2"):
        by_time(times, 1)


def test_unordered_times_are_refused():
    with pytest.raises(TypeError, match="times that can be ordered"):
        by_time([1, dt.date(2020, 1, 1)], 1)
    with pytest.raises(ValueError, match=r"a time for each row, got shape \(1, 2\)"):
        by_time([[1, 2]], 1)


@pytest.mark.parametrize("size", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(210, 3), (210, 3, 3)], ids=["table", "images"])
def test_non_finite_shift_size_is_refused(size, shape):
    with pytest.raises(ValueError, match="a finite size"):
        shift_features(np.ones(shape), PARTIES, n_groups=2, size=size, seed=0)


@pytest.mark.parametrize("shape", [(210,), (209, 3), (211, 3, 3), ()])
def test_features_of_wrong_shape_are_refused(shape):
    with pytest.raises(ValueError, match=re.escape(f"got shape {shape}")):
        shift_features(np.ones(shape), PARTIES, n_groups=2, seed=0)


def test_column_with_a_missing_cell_is_refused():
    x = np.ones((210, 2))
    x[7, 1] = np.nan

    with pytest.raises(ValueError, match="expected finite columns"):
        shift_features(x, PARTIES, n_groups=2, seed=0)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=60), st.integers(0, 10), st.data())
def test_label_permutation_depends_only_on_label_and_party(parties, seed, data):
    n_groups = data.draw(st.integers(1, len(set(parties))))
    n_rows = len(parties)
    y = data.draw(st.lists(st.integers(-3, 3), min_size=n_rows, max_size=n_rows))

    permuted = permute_labels(y, parties, n_groups=n_groups, seed=seed).tolist()

    mappings = set(zip(parties, y, permuted, strict=True))
    assert len(mappings) == len({(party, label) for party, label, _ in mappings})
    assert len(mappings) == len({(party, new) for party, _, new in mappings})
    assert set(permuted) <= set(y)


def test_number_of_labels_must_match_rows():
    with pytest.raises(ValueError, match="expected 210 labels, one for each row"):
        permute_labels(LABELS[:9], PARTIES, n_groups=2, seed=0)


def test_more_groups_than_parties_are_refused():
    with pytest.raises(ValueError, match="1 to 7 groups of parties, got 8"):
        groups(PARTIES, 8, seed=0)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=80),
    st.sampled_from([0.0, 0.1, 0.25, 0.4]),
    st.sampled_from([0.0, 0.2, 0.5]),
)
def test_roles_are_disjoint_and_every_party_trains(parties, validation, test):
    roles = row_roles(parties, validation=validation, test=test, seed=1)

    counts = roles.train.astype(int) + roles.validation + roles.test
    assert (counts == 1).all()
    for party in set(parties):
        rows = np.array(parties) == party
        n = rows.sum()
        assert roles.train[rows].any()
        assert roles.test[rows].sum() == min(int(test * n + 0.5), n - 1)
        n_held_out = roles.test[rows].sum() + roles.validation[rows].sum()
        assert n_held_out == max(
            min(int((validation + test) * n + 0.5), n - 1), roles.test[rows].sum()
        )


def test_the_same_seed_gives_the_same_roles():
    parties = ["a"] * 20

    first, repeated, other = (row_roles(parties, seed=seed).test.tolist() for seed in (1, 1, 2))

    assert first == repeated != other


@pytest.mark.parametrize("seed", range(5))
def test_roles_do_not_depend_on_a_partition_of_the_same_seed(seed):
    y = np.random.default_rng(9).integers(2, size=4000)
    parties = dirichlet(y, 8, alpha=1.0, min_rows=100, seed=seed)

    test = row_roles(parties, test=0.3, seed=seed).test

    for party in np.unique(parties):
        rows = parties == party
        gap = y[rows & test].mean() - y[rows & ~test].mean()
        deviation = y[rows].std() / np.sqrt(0.3 * 0.7 * rows.sum())
        assert abs(gap) <= 4 * deviation


NOT_FINITE = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize(
    ("validation", "test"),
    [
        (0.5, 0.5),
        (-0.1, 0.2),
        (0.0, 1.0),
        *((share, 0.2) for share in NOT_FINITE),
        *((0.2, share) for share in NOT_FINITE),
    ],
)
def test_invalid_role_shares_are_refused(validation, test):
    with pytest.raises(ValueError, match="non-negative shares with a sum below 1"):
        row_roles(["a"], validation=validation, test=test, seed=0)
    with pytest.raises(ValueError, match="non-negative shares with a sum below 1"):
        ordered_roles(["a"], validation=validation, test=test)


@pytest.mark.parametrize("share", [-0.1, 1.0, *NOT_FINITE])
def test_invalid_share_of_unseen_parties_is_refused(share):
    with pytest.raises(ValueError, match="share of parties"):
        unseen_parties(["a", "b"], share, seed=0)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=60),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 10),
)
def test_unseen_parties_are_distinct_parties(parties, share, seed):
    unseen = unseen_parties(parties, share, seed=seed)

    names = {str(party) for party in parties}
    assert list(unseen) == sorted(set(unseen))
    assert set(unseen) < names
    assert len(unseen) == min(int(share * len(names) + 0.5), len(names) - 1)


def test_roles_and_unseen_need_one_party_per_row():
    table = [["a"], ["b"]]

    for call in (
        lambda: row_roles(table, seed=0),
        lambda: ordered_roles(table),
        lambda: unseen_parties(table, 0.5, seed=0),
    ):
        with pytest.raises(ValueError, match="one party for each row"):
            call()


def test_at_least_one_party_takes_part_in_training():
    parties = [f"p{i}" for i in range(10)] * 3

    assert len(unseen_parties(parties, 0.2, seed=0)) == 2
    assert unseen_parties(["only"] * 4, 0.9, seed=0) == ()


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.2, 0.4]),
    st.sampled_from([0.0, 0.2, 0.5]),
    st.integers(0, 4),
)
def test_later_rows_are_tested_after_a_gap(parties, validation, test, gap):
    shuffled = row_roles(parties, validation=validation, test=test, seed=1)

    roles = ordered_roles(parties, validation=validation, test=test, gap=gap)

    for party in set(parties):
        rows = np.flatnonzero(np.array(parties) == party)
        n_test, n_validation = shuffled.test[rows].sum(), shuffled.validation[rows].sum()
        expected = ["train"] * (len(rows) - n_test - n_validation)
        expected += ["validation"] * n_validation + ["test"] * n_test
        for position, (role, next_role) in enumerate(pairwise(list(expected))):
            if role != next_role:
                for index in range(max(position + 1 - gap, 0), position + 1):
                    expected[index] = "nothing"
        assert [role == "train" for role in expected] == roles.train[rows].tolist()
        assert [role == "validation" for role in expected] == roles.validation[rows].tolist()
        assert [role == "test" for role in expected] == roles.test[rows].tolist()


@pytest.mark.parametrize("gap", [-1, 1.5, *NOT_FINITE])
def test_gap_must_be_a_non_negative_integer(gap):
    with pytest.raises(ValueError, match="gap of 0 rows or more"):
        ordered_roles(["a"], gap=gap)
