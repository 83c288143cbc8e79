import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import AggregationError
from fedneighbors.secure_sum._masks import Secrets, derive_public_key, generate_secret, mask, unmask

CONTEXT = b"c" * 32


def make_secrets(n):
    return [Secrets(f"p{k}", generate_secret(), generate_secret()) for k in range(n)]


def mask_copy(values, secrets, public_keys, context=CONTEXT):
    vector = values.copy()
    mask(vector, secrets, public_keys, context=context)
    return vector


@given(
    n=st.integers(2, 6),
    n_dropped=st.integers(0, 3),
    length=st.integers(0, 300),
    dtype=st.sampled_from(["<u4", "<u8"]),
)
@settings(max_examples=80, deadline=None)
def test_unmasked_sum_is_that_of_the_survivors(n, n_dropped, length, dtype):
    random = np.random.default_rng(length)
    values = random.integers(0, np.iinfo(dtype).max, (n, length), dtype, endpoint=True)
    parties = make_secrets(n)
    public_keys = {party.name: derive_public_key(party.private) for party in parties}
    n_survivors = max(1, n - n_dropped)

    vector = np.zeros(length, dtype)
    for value, party in zip(values[:n_survivors], parties[:n_survivors], strict=True):
        vector += mask_copy(value, party, public_keys)
    unmask(
        vector,
        seeds={party.name: party.seed for party in parties[:n_survivors]},
        dropped={party.name: party.private for party in parties[n_survivors:]},
        public_keys=public_keys,
        context=CONTEXT,
    )

    assert np.array_equal(vector, values[:n_survivors].sum(axis=0, dtype=dtype))


@pytest.mark.parametrize("length", [65_535, 65_536, 65_537, 200_001])
def test_streams_longer_than_one_chunk_cancel(length):
    parties = make_secrets(2)
    public_keys = {party.name: derive_public_key(party.private) for party in parties}

    vector = sum(mask_copy(np.zeros(length, "<u4"), party, public_keys) for party in parties)
    unmask(
        vector,
        seeds={party.name: party.seed for party in parties},
        dropped={},
        public_keys=public_keys,
        context=CONTEXT,
    )

    assert not vector.any()


def test_chunks_of_a_stream_do_not_repeat():
    (party, other) = make_secrets(2)
    vector = mask_copy(np.zeros(300_000, "<u4"), party, {"p1": derive_public_key(other.private)})

    # no block of ten values (40 bytes) occurs twice
    assert len(set(vector.reshape(-1, 10).view("V40").ravel().tolist())) == 30_000


def test_masks_of_another_context_do_not_cancel():
    parties = make_secrets(2)
    public_keys = {party.name: derive_public_key(party.private) for party in parties}

    vector = mask_copy(np.zeros(100, "<u4"), parties[0], public_keys)
    vector += mask_copy(np.zeros(100, "<u4"), parties[1], public_keys, b"d" * 32)
    unmask(
        vector,
        seeds={party.name: party.seed for party in parties},
        dropped={},
        public_keys=public_keys,
        context=CONTEXT,
    )

    assert np.count_nonzero(vector) > 90


def test_party_with_a_key_of_small_order_is_named():
    (party,) = make_secrets(1)

    with pytest.raises(
        AggregationError, match="party 'eve': its mask key is not a valid"
    ) as caught:
        mask_copy(np.zeros(4, "<u4"), party, {"eve": bytes(32)})

    assert caught.value.party == "eve"


def test_repr_hides_secrets():
    assert "private" not in repr(make_secrets(1)[0])
    assert "seed" not in repr(make_secrets(1)[0])
