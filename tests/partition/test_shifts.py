import datetime as dt
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.errors import PartitionError
from fedneighbors.partition import by_time, groups, permute_labels, shift_features

PARTIES = np.array([f"p{i % 7}" for i in range(210)])
LABELS = np.arange(210) % 10


def test_groups_differ_by_one_party_at_most_and_keep_parties_whole():
    group = groups(PARTIES, 3, seed=0)

    each = {name: set(group[name == PARTIES]) for name in np.unique(PARTIES)}
    assert all(len(found) == 1 for found in each.values())
    sizes = np.bincount([found.pop() for found in each.values()])
    assert sorted(sizes) == [2, 2, 3]


def test_the_first_group_keeps_its_labels_and_others_swap_theirs_one_for_one():
    group = groups(PARTIES, 4, seed=5)

    shifted = permute_labels(LABELS, PARTIES, n_groups=4, seed=5)

    assert (shifted[group == 0] == LABELS[group == 0]).all()
    for number in range(1, 4):
        pairs = set(zip(LABELS[group == number], shifted[group == number], strict=True))
        assert len(pairs) == len({b for _, b in pairs}) == 10
        assert any(a != b for a, b in pairs)


def test_text_labels_stay_text():
    shifted = permute_labels(np.array(["a", "b"] * 4), ["x", "y"] * 4, n_groups=2, seed=1)

    assert set(shifted) <= {"a", "b"}


def test_columns_move_by_the_same_for_all_parties_of_a_group():
    x = np.random.default_rng(0).normal(size=(210, 3))
    group = groups(PARTIES, 3, seed=2)

    moved = shift_features(x, PARTIES, n_groups=3, size=2.0, seed=2) - x

    assert (moved[group == 0] == 0).all()
    for number in (1, 2):
        assert np.ptp(moved[group == number], axis=0).max() < 1e-9
        assert abs(moved[group == number][0]).min() > 0


def test_images_are_turned_by_quarters():
    images = np.arange(210 * 9).reshape(210, 1, 3, 3)
    group = groups(PARTIES, 4, seed=2)

    turned = shift_features(images, PARTIES, n_groups=4, seed=2)

    for row in range(210):
        assert (turned[row, 0] == np.rot90(images[row, 0], group[row])).all()


def test_images_that_cannot_be_turned_are_refused():
    with pytest.raises(ValueError, match="square images"):
        shift_features(np.zeros((210, 3, 4)), PARTIES, n_groups=2, seed=0)
    with pytest.raises(ValueError, match="at most 4 groups"):
        shift_features(np.zeros((210, 3, 3)), PARTIES, n_groups=5, seed=0)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.integers(1, 30))
def test_parties_are_stretches_of_time(times, n_parties):
    if n_parties > len(times):
        with pytest.raises(PartitionError):
            by_time(times, n_parties)
        return

    parties = by_time(times, n_parties)

    when = np.array(times)
    sizes = []
    for number in range(n_parties):
        own = when[parties == f"party-{number}"]
        later = when[parties == f"party-{number + 1}"]
        sizes.append(len(own))
        assert not len(later) or own.max() <= later.min()
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


def test_times_that_have_no_order_are_refused():
    with pytest.raises(TypeError, match="times that can be put in order"):
        by_time([1, dt.date(2020, 1, 1)], 1)
    with pytest.raises(ValueError, match=r"a time for each row, got shape \(1, 2\)"):
        by_time([[1, 2]], 1)


@pytest.mark.parametrize("size", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(210, 3), (210, 3, 3)], ids=["table", "images"])
def test_a_shift_of_no_finite_size_is_refused(size, shape):
    with pytest.raises(ValueError, match="a finite size of the shifts"):
        shift_features(np.ones(shape), PARTIES, n_groups=2, size=size, seed=0)


@pytest.mark.parametrize("shape", [(210,), (209, 3), (211, 3, 3), ()])
def test_features_of_another_shape_are_refused_with_it(shape):
    with pytest.raises(ValueError, match=re.escape(f"got shape {shape}")):
        shift_features(np.ones(shape), PARTIES, n_groups=2, seed=0)


def test_a_column_with_a_missing_cell_is_not_moved_to_nothing():
    x = np.ones((210, 2))
    x[7, 1] = np.nan

    with pytest.raises(ValueError, match="expected finite columns"):
        shift_features(x, PARTIES, n_groups=2, seed=0)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=60), st.integers(0, 10), st.data())
def test_rows_that_share_label_and_party_share_their_new_label(parties, seed, data):
    n_groups = data.draw(st.integers(1, len(set(parties))))
    n_rows = len(parties)
    y = data.draw(st.lists(st.integers(-3, 3), min_size=n_rows, max_size=n_rows))

    shifted = permute_labels(y, parties, n_groups=n_groups, seed=seed).tolist()

    meant = set(zip(parties, y, shifted, strict=True))
    assert len(meant) == len({(party, label) for party, label, _ in meant})
    assert len(meant) == len({(party, new) for party, _, new in meant})
    assert set(shifted) <= set(y)


def test_labels_are_one_for_each_row():
    with pytest.raises(ValueError, match="expected 210 labels, one for each row"):
        permute_labels(LABELS[:9], PARTIES, n_groups=2, seed=0)


def test_more_groups_than_parties_are_refused():
    with pytest.raises(ValueError, match="1 to 7 groups of parties, got 8"):
        groups(PARTIES, 8, seed=0)
