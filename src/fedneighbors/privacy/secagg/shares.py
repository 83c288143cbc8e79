"""Shares of a secret: any threshold of them give it back, fewer say nothing (Shamir 1979)."""

from collections.abc import Mapping

from fedneighbors.errors import MissingExtraError

try:
    from Crypto.Protocol.SecretSharing import Shamir
except ModuleNotFoundError as error:
    raise MissingExtraError("pycryptodome", "privacy") from error

__all__ = ["SECRET_BYTES", "combine", "split"]

SECRET_BYTES = 32
_HALF = 16  # the field has 2**128 elements; a secret is two of them, shared one by one


def split(secret: bytes, *, threshold: int, n_shares: int) -> list[bytes]:
    """Return shares of a secret, random with the operating system's entropy.

    Parameters
    ----------
    secret : bytes
        32 bytes.
    threshold : int
        How many shares give the secret back.
    n_shares : int
        How many shares are made.

    Returns
    -------
    list of bytes
        Share k, from 0, is the point k + 1 of two polynomials over GF(2^128): 32 bytes.

    Raises
    ------
    ValueError
        If the secret is of another length or the numbers are out of order.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= n_shares:
        raise ValueError(
            f"expected a secret of {SECRET_BYTES} bytes and 1 <= threshold <= n_shares, got "
            f"{len(secret)} bytes, {threshold} and {n_shares}"
        )
    halves = [
        Shamir.split(threshold, n_shares, secret[at : at + _HALF], ssss=False) for at in (0, _HALF)
    ]
    return [first + second for (_, first), (_, second) in zip(*halves, strict=True)]


def combine(shares: Mapping[int, bytes], *, threshold: int) -> bytes:
    """Return the secret that shares stand for.

    Parameters
    ----------
    shares : mapping of int to bytes
        Position of each share, from 0, to its 32 bytes; those of the lowest positions are used.
    threshold : int
        The number with which the secret was split.

    Raises
    ------
    ValueError
        If there are fewer shares than the threshold, or one is of another length.
    """
    if len(shares) < threshold or any(len(share) != SECRET_BYTES for share in shares.values()):
        raise ValueError(f"expected {threshold} shares of {SECRET_BYTES} bytes, got {len(shares)}")
    used = [(position + 1, shares[position]) for position in sorted(shares)[:threshold]]
    first = Shamir.combine([(index, share[:_HALF]) for index, share in used], ssss=False)
    second = Shamir.combine([(index, share[_HALF:]) for index, share in used], ssss=False)
    return bytes(first) + bytes(second)
