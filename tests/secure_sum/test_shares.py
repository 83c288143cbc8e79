from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.secure_sum._shares import combine, split


@given(secret=st.binary(min_size=32, max_size=32), n=st.integers(1, 12), data=st.data())
@settings(max_examples=60, deadline=None)
def test_enough_shares_reconstruct_the_secret(secret, n, data):
    threshold = data.draw(st.integers(1, n))
    n_used = data.draw(st.integers(threshold, n))
    positions = data.draw(st.permutations(range(n)))[:n_used]

    shares = split(secret, threshold=threshold, n_shares=n)

    assert combine({k: shares[k] for k in positions}, threshold=threshold) == secret


def test_too_few_shares_do_not_reconstruct_the_secret():
    secret = bytes(range(32))
    shares = split(secret, threshold=4, n_shares=6)

    for positions in combinations(range(6), 3):
        with pytest.raises(ValueError, match="expected 4 shares"):
            combine({k: shares[k] for k in positions}, threshold=4)
        assert combine({k: shares[k] for k in positions}, threshold=3) != secret


def test_too_few_shares_are_consistent_with_any_secret():
    """Each fourth share gives another secret, so that three shares exclude none."""
    shares = split(bytes(32), threshold=4, n_shares=6)
    known = {k: shares[k] for k in range(3)}

    secrets = {combine({**known, 3: bytes([byte]) * 32}, threshold=4) for byte in range(200)}

    assert len(secrets) == 200


def test_shares_of_one_secret_differ_each_time():
    first, second = (split(bytes(32), threshold=3, n_shares=4) for _ in range(2))

    assert set(first) & set(second) == set()


@pytest.mark.parametrize(
    ("secret", "threshold", "n"), [(b"short", 2, 3), (bytes(32), 4, 3), (bytes(32), 0, 3)]
)
def test_invalid_secret_or_threshold_is_refused(secret, threshold, n):
    with pytest.raises(ValueError, match="1 <= threshold <= n_shares"):
        split(secret, threshold=threshold, n_shares=n)


def test_share_of_wrong_length_is_refused():
    with pytest.raises(ValueError, match="of 32 bytes"):
        combine({0: b"x", 1: bytes(32)}, threshold=2)
