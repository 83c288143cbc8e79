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


def test_a_missing_time_is_refused():
    with pytest.raises(ValueError, match="missing"):
        by_time([1.0, np.nan], 1)


def test_more_groups_than_parties_are_refused():
    with pytest.raises(ValueError, match="1 to 7 groups of parties, got 8"):
        groups(PARTIES, 8, seed=0)
