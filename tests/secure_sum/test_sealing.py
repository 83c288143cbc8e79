import pytest

from fedneighbors.errors import AggregationError
from fedneighbors.secure_sum._key_agreement import OVERHEAD_BYTES, seal, unseal
from fedneighbors.secure_sum._masks import new_private, public_of


def test_a_seal_is_opened_by_its_receiver():
    private = new_private()

    sealed = seal(b"content", public_of(private), info=b"round 1")

    assert len(sealed) == len(b"content") + OVERHEAD_BYTES
    assert b"content" not in sealed
    assert unseal(sealed, private, info=b"round 1") == b"content"
    assert seal(b"content", public_of(private), info=b"round 1") != sealed


@pytest.mark.parametrize("change", ["bit", "cut", "info", "key", "empty"])
def test_a_seal_for_another_purpose_is_not_opened(change):
    private = new_private()
    sealed = seal(b"content", public_of(private), info=b"round 1")
    if change == "bit":
        sealed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    sealed = {"cut": sealed[:-1], "empty": b""}.get(change, sealed)
    key = new_private() if change == "key" else private

    with pytest.raises(AggregationError, match="cannot be opened"):
        unseal(sealed, key, info=b"round 2" if change == "info" else b"round 1")


def test_key_of_small_order_cannot_be_sealed_to():
    with pytest.raises(AggregationError, match="not a valid X25519 key"):
        seal(b"content", bytes(32), info=b"")
