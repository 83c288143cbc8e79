import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import AggregationError
from fedneighbors.secure_sum._masks import Secrets, lift, mask, new_private, public_of

CONTEXT = b"c" * 32


def secrets_of(n):
    return [Secrets(f"p{k}", new_private(), new_private()) for k in range(n)]


def masked(values, owners, publics, context=CONTEXT):
    cells = values.copy()
    mask(cells, owners, publics, context=context)
    return cells


@given(
    n=st.integers(2, 6),
    n_gone=st.integers(0, 3),
    length=st.integers(0, 300),
    dtype=st.sampled_from(["<u4", "<u8"]),
)
@settings(max_examples=80, deadline=None)
def test_lifted_sum_is_that_of_the_parties_that_stayed(n, n_gone, length, dtype):
    random = np.random.default_rng(length)
    values = random.integers(0, np.iinfo(dtype).max, (n, length), dtype, endpoint=True)
    owners = secrets_of(n)
    publics = {owner.name: public_of(owner.private) for owner in owners}
    stay = max(1, n - n_gone)

    cells = np.zeros(length, dtype)
    for value, owner in zip(values[:stay], owners[:stay], strict=True):
        cells += masked(value, owner, publics)
    lift(
        cells,
        seeds={owner.name: owner.seed for owner in owners[:stay]},
        dropped={owner.name: owner.private for owner in owners[stay:]},
        publics=publics,
        context=CONTEXT,
    )

    assert np.array_equal(cells, values[:stay].sum(axis=0, dtype=dtype))


@pytest.mark.parametrize("length", [65_535, 65_536, 65_537, 200_001])
def test_streams_longer_than_one_chunk_cancel(length):
    owners = secrets_of(2)
    publics = {owner.name: public_of(owner.private) for owner in owners}

    cells = sum(masked(np.zeros(length, "<u4"), owner, publics) for owner in owners)
    lift(
        cells,
        seeds={owner.name: owner.seed for owner in owners},
        dropped={},
        publics=publics,
        context=CONTEXT,
    )

    assert not cells.any()


def test_pieces_of_a_stream_do_not_repeat():
    (owner, other) = secrets_of(2)
    cells = masked(np.zeros(300_000, "<u4"), owner, {"p1": public_of(other.private)})

    assert len(set(cells.reshape(-1, 10).view("V40").ravel().tolist())) == 30_000


def test_masks_of_another_context_do_not_cancel():
    owners = secrets_of(2)
    publics = {owner.name: public_of(owner.private) for owner in owners}

    cells = masked(np.zeros(100, "<u4"), owners[0], publics)
    cells += masked(np.zeros(100, "<u4"), owners[1], publics, b"d" * 32)
    lift(
        cells,
        seeds={owner.name: owner.seed for owner in owners},
        dropped={},
        publics=publics,
        context=CONTEXT,
    )

    assert np.count_nonzero(cells) > 90


def test_a_key_of_small_order_is_refused_with_its_party():
    (owner,) = secrets_of(1)

    with pytest.raises(
        AggregationError, match="party 'eve': its mask key is not a valid"
    ) as caught:
        masked(np.zeros(4, "<u4"), owner, {"eve": bytes(32)})

    assert caught.value.party == "eve"


def test_secrets_are_not_shown():
    assert "private" not in repr(secrets_of(1)[0])
    assert "seed" not in repr(secrets_of(1)[0])
