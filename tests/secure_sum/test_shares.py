from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.secure_sum._shares import combine, split


@given(secret=st.binary(min_size=32, max_size=32), n=st.integers(1, 12), data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_threshold_of_shares_gives_the_secret_back(secret, n, data):
    threshold = data.draw(st.integers(1, n))
    kept = data.draw(st.permutations(range(n))).copy()[: data.draw(st.integers(threshold, n))]

    shares = split(secret, threshold=threshold, n_shares=n)

    assert combine({k: shares[k] for k in kept}, threshold=threshold) == secret


def test_fewer_shares_than_the_threshold_do_not_give_it_back():
    secret = bytes(range(32))
    shares = split(secret, threshold=4, n_shares=6)

    for kept in combinations(range(6), 3):
        with pytest.raises(ValueError, match="expected 4 shares"):
            combine({k: shares[k] for k in kept}, threshold=4)
        assert combine({k: shares[k] for k in kept}, threshold=3) != secret


def test_three_shares_of_four_fit_every_secret():
    """For any secret, some fourth share completes the three; so three reveal nothing."""
    shares = split(bytes(32), threshold=4, n_shares=6)
    known = {k: shares[k] for k in range(3)}

    found = {combine({**known, 3: bytes([guess]) * 32}, threshold=4) for guess in range(200)}

    assert len(found) == 200


def test_same_secret_is_shared_differently_each_time():
    first, second = (split(bytes(32), threshold=3, n_shares=4) for _ in range(2))

    assert set(first) & set(second) == set()


@pytest.mark.parametrize(
    ("secret", "threshold", "n"), [(b"short", 2, 3), (bytes(32), 4, 3), (bytes(32), 0, 3)]
)
def test_numbers_out_of_order_are_refused(secret, threshold, n):
    with pytest.raises(ValueError, match="1 <= threshold <= n_shares"):
        split(secret, threshold=threshold, n_shares=n)


def test_share_of_another_length_is_refused():
    with pytest.raises(ValueError, match="of 32 bytes"):
        combine({0: b"x", 1: bytes(32)}, threshold=2)
