from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.partition import ordered_roles, row_roles, unseen_parties


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=80),
    st.sampled_from([0.0, 0.1, 0.25, 0.4]),
    st.sampled_from([0.0, 0.2, 0.5]),
)
def test_every_row_is_for_one_thing_and_every_party_can_train(parties, validation, test):
    roles = row_roles(parties, validation=validation, test=test, seed=1)

    together = roles.train.astype(int) + roles.validation + roles.test
    assert (together == 1).all()
    for party in set(parties):
        own = np.array(parties) == party
        n = own.sum()
        assert roles.train[own].any()
        assert roles.test[own].sum() == min(int(test * n + 0.5), n - 1)
        held = roles.test[own].sum() + roles.validation[own].sum()
        assert held == max(min(int((validation + test) * n + 0.5), n - 1), roles.test[own].sum())


def test_the_same_seed_gives_the_same_roles():
    parties = ["a"] * 20

    once, again, other = (row_roles(parties, seed=seed).test.tolist() for seed in (1, 1, 2))

    assert once == again != other


NO_NUMBERS = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize(
    ("validation", "test"),
    [
        (0.5, 0.5),
        (-0.1, 0.2),
        (0.0, 1.0),
        *((share, 0.2) for share in NO_NUMBERS),
        *((0.2, share) for share in NO_NUMBERS),
    ],
)
def test_shares_are_numbers_that_leave_rows_to_train_on(validation, test):
    with pytest.raises(ValueError, match="leave rows to train on"):
        row_roles(["a"], validation=validation, test=test, seed=0)
    with pytest.raises(ValueError, match="leave rows to train on"):
        ordered_roles(["a"], validation=validation, test=test)


@pytest.mark.parametrize("share", [-0.1, 1.0, *NO_NUMBERS])
def test_a_share_of_parties_is_a_number_below_one(share):
    with pytest.raises(ValueError, match="share of parties"):
        unseen_parties(["a", "b"], share, seed=0)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=60),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 10),
)
def test_unseen_parties_are_some_of_all_each_once(parties, share, seed):
    unseen = unseen_parties(parties, share, seed=seed)

    names = {str(party) for party in parties}
    assert list(unseen) == sorted(set(unseen))
    assert set(unseen) < names
    assert len(unseen) == min(int(share * len(names) + 0.5), len(names) - 1)


def test_roles_and_unseen_parties_want_the_party_of_each_row():
    table = [["a"], ["b"]]

    for refused in (
        lambda: row_roles(table, seed=0),
        lambda: ordered_roles(table),
        lambda: unseen_parties(table, 0.5, seed=0),
    ):
        with pytest.raises(ValueError, match="the party of each row"):
            refused()


def test_a_share_of_parties_comes_later_and_one_is_always_seen():
    parties = [f"p{i}" for i in range(10)] * 3

    assert len(unseen_parties(parties, 0.2, seed=0)) == 2
    assert unseen_parties(["only"] * 4, 0.9, seed=0) == ()


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.2, 0.4]),
    st.sampled_from([0.0, 0.2, 0.5]),
    st.integers(0, 4),
)
def test_what_comes_later_is_tested_and_a_gap_lies_between(parties, validation, test, gap):
    drawn = row_roles(parties, validation=validation, test=test, seed=1)

    roles = ordered_roles(parties, validation=validation, test=test, gap=gap)

    for party in set(parties):
        own = np.flatnonzero(np.array(parties) == party)
        n_test, n_validation = drawn.test[own].sum(), drawn.validation[own].sum()
        kinds = ["train"] * (len(own) - n_test - n_validation)
        kinds += ["validation"] * n_validation + ["test"] * n_test
        for begin, (one, next_one) in enumerate(pairwise(list(kinds))):
            if one != next_one:
                for place in range(max(begin + 1 - gap, 0), begin + 1):
                    kinds[place] = "nothing"
        assert [kind == "train" for kind in kinds] == roles.train[own].tolist()
        assert [kind == "validation" for kind in kinds] == roles.validation[own].tolist()
        assert [kind == "test" for kind in kinds] == roles.test[own].tolist()


@pytest.mark.parametrize("gap", [-1, 1.5, *NO_NUMBERS])
def test_a_gap_is_a_whole_number_from_zero_up(gap):
    with pytest.raises(ValueError, match="gap of 0 rows or more"):
        ordered_roles(["a"], gap=gap)
