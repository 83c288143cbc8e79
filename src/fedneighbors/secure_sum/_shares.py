"""Secret sharing: a threshold of shares reveals the secret, fewer reveal nothing (Shamir 1979)."""

from collections.abc import Mapping

from fedneighbors.errors import AggregationError, MissingExtraError

try:
    from Crypto.Protocol.SecretSharing import Shamir
except ModuleNotFoundError as error:
    raise MissingExtraError("pycryptodome", "privacy") from error


SECRET_BYTES = 32  # an X25519 private key or a seed
_HALF = 16  # the field has 2**128 elements; a secret consists of two, shared separately


def split(secret: bytes, *, threshold: int, n_shares: int) -> list[bytes]:
    """Return shares of a secret, with the operating system's entropy.

    Parameters
    ----------
    secret : bytes
        Secret of 32 bytes.
    threshold : int
        Number of shares that reconstruct the secret.
    n_shares : int
        Number of shares.

    Returns
    -------
    list of bytes
        Share k, from 0, is the point k + 1 on two polynomials over GF(2^128): 32 bytes.

    Raises
    ------
    ValueError
        If the secret has another length or the numbers are out of order.
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
    """Return the secret of some shares.

    Parameters
    ----------
    shares : mapping of int to bytes
        Position of each share, from 0, and its 32 bytes; the lowest positions are used.
    threshold : int
        Number of shares that reconstruct the secret.

    Raises
    ------
    ValueError
        If there are fewer shares than the threshold, or one has another length.
    """
    if len(shares) < threshold or any(len(share) != SECRET_BYTES for share in shares.values()):
        raise ValueError(f"expected {threshold} shares of {SECRET_BYTES} bytes, got {len(shares)}")
    used = [(position + 1, shares[position]) for position in sorted(shares)[:threshold]]
    first = Shamir.combine([(index, share[:_HALF]) for index, share in used], ssss=False)
    second = Shamir.combine([(index, share[_HALF:]) for index, share in used], ssss=False)
    return bytes(first) + bytes(second)


MIN_WITHOUT_NOISE = 3
"""Minimum number of parties: in an exact sum of two, each can subtract its own part."""

MAX_PARTIES = 128
"""Maximum number of parties: shares are combined in plain Python in quadratic time."""


def default_threshold(n_parties: int) -> int:
    """Return the default threshold floor(2 n / 3) + 1.

    It resists up to a third of colluding parties.

    Examples
    --------
    >>> [default_threshold(n) for n in (2, 3, 4, 8)]
    [2, 3, 3, 6]
    """
    return 2 * n_parties // 3 + 1


def check_threshold(n_parties: int, threshold: int, *, noised: bool) -> None:
    """Raise for a sum that is not safe.

    Its result would reveal a part, or too few parties could remove its masks.

    Parameters
    ----------
    n_parties : int
        Number of invited parties.
    threshold : int
        Minimum number of parties whose sum is unmasked.
    noised : bool
        True if each part has noise, so that even a sum of two reveals neither part.

    Raises
    ------
    AggregationError
        If there are too few or too many parties, or the threshold is out of range.
    """
    least_parties = 2 if noised else MIN_WITHOUT_NOISE
    if not least_parties <= n_parties <= MAX_PARTIES:
        raise AggregationError(
            f"a masked sum {'with' if noised else 'without'} noise needs {least_parties} to "
            f"{MAX_PARTIES} parties, got {n_parties}; with fewer, the others could compute a "
            "party's part from the sum"
        )
    least = max(least_parties, -(-2 * n_parties // 3))
    if not least <= threshold <= n_parties:
        raise AggregationError(
            f"expected a threshold of {least} to {n_parties} for {n_parties} parties, got "
            f"{threshold}"
        )
