"""Seals: bytes that only their receiver can open (HPKE, RFC 9180)."""

from fedneighbors.errors import AggregationError, MissingExtraError

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
except ModuleNotFoundError as error:  # an older cryptography has no hpke
    raise MissingExtraError("cryptography", "privacy") from error

__all__ = ["OVERHEAD_BYTES", "seal", "unseal"]

OVERHEAD_BYTES = 48  # the sender's ephemeral key and the tag
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def seal(content: bytes, public: bytes, *, info: bytes) -> bytes:
    """Return the content sealed to an X25519 public key of 32 bytes and bound to ``info``.

    Raises
    ------
    AggregationError
        If the key is not one with which a secret can be agreed.
    """
    try:
        return _SUITE.encrypt(content, X25519PublicKey.from_public_bytes(public), info)
    except ValueError:
        raise AggregationError("a sealing key is not a valid X25519 key") from None


def unseal(sealed: bytes, private: bytes, *, info: bytes) -> bytes:
    """Return the content of a seal.

    Raises
    ------
    AggregationError
        If it was altered, or sealed to another key or for another purpose.
    """
    try:
        return _SUITE.decrypt(sealed, X25519PrivateKey.from_private_bytes(private), info)
    except (InvalidTag, ValueError):
        raise AggregationError("a sealed share cannot be opened") from None
