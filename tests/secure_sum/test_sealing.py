import pytest

from fedneighbors.errors import AggregationError
from fedneighbors.secure_sum._keys import SEAL_OVERHEAD_BYTES, seal, unseal
from fedneighbors.secure_sum._masks import derive_public_key, generate_secret


def test_sealed_content_is_decrypted_by_its_key():
    private = generate_secret()

    sealed = seal(b"content", derive_public_key(private), info=b"round 1")

    assert len(sealed) == len(b"content") + SEAL_OVERHEAD_BYTES
    assert b"content" not in sealed
    assert unseal(sealed, private, info=b"round 1") == b"content"
    assert seal(b"content", derive_public_key(private), info=b"round 1") != sealed


@pytest.mark.parametrize("change", ["flipped bit", "truncated", "empty", "other info", "other key"])
def test_altered_or_misdirected_seal_is_not_decrypted(change):
    private = generate_secret()
    sealed = seal(b"content", derive_public_key(private), info=b"round 1")
    if change == "flipped bit":
        sealed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    sealed = {"truncated": sealed[:-1], "empty": b""}.get(change, sealed)
    key = generate_secret() if change == "other key" else private

    with pytest.raises(AggregationError, match="cannot be decrypted"):
        unseal(sealed, key, info=b"round 2" if change == "other info" else b"round 1")


def test_public_key_of_small_order_is_refused():
    with pytest.raises(AggregationError, match="not a valid X25519 key"):
        seal(b"content", bytes(32), info=b"")
