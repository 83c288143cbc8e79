"""Secret sharing: any ``threshold`` shares give the secret, fewer reveal nothing (Shamir 1979)."""

from collections.abc import Mapping
from typing import Any

from fedneighbors.errors import AggregationError, MissingExtraError

SECRET_BYTES = 32  # an X25519 private key or a seed
_HALF_BYTES = 16  # an element of GF(2^128); the two halves of a secret are shared separately


def split(secret: bytes, *, threshold: int, n_shares: int) -> list[bytes]:
    """Split a secret into random shares.

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
        Share k, counted from 0, has 32 bytes: the values of two polynomials over GF(2^128) at
        k + 1.

    Raises
    ------
    ValueError
        If the secret does not have 32 bytes, or not ``1 <= threshold <= n_shares``.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= n_shares:
        raise ValueError(
            f"expected a secret of {SECRET_BYTES} bytes and 1 <= threshold <= n_shares, got "
            f"{len(secret)} bytes, {threshold} and {n_shares}"
        )
    halves = secret[:_HALF_BYTES], secret[_HALF_BYTES:]
    shamir = _load_shamir()
    shares = [shamir.split(threshold, n_shares, half, ssss=False) for half in halves]
    return [first + second for (_, first), (_, second) in zip(*shares, strict=True)]


def combine(shares: Mapping[int, bytes], *, threshold: int) -> bytes:
    """Reconstruct a secret from its shares.

    Parameters
    ----------
    shares : mapping of int to bytes
        The 32 bytes of each share by its position in :func:`split`, counted from 0. The
        ``threshold`` shares of the lowest positions are used.
    threshold : int
        Number of shares that reconstruct the secret.

    Raises
    ------
    ValueError
        If there are fewer shares than the threshold, or a share does not have 32 bytes.
    """
    if len(shares) < threshold or any(len(share) != SECRET_BYTES for share in shares.values()):
        raise ValueError(f"expected {threshold} shares of {SECRET_BYTES} bytes, got {len(shares)}")
    used = [(position + 1, shares[position]) for position in sorted(shares)[:threshold]]
    shamir = _load_shamir()
    first = shamir.combine([(index, share[:_HALF_BYTES]) for index, share in used], ssss=False)
    second = shamir.combine([(index, share[_HALF_BYTES:]) for index, share in used], ssss=False)
    return bytes(first) + bytes(second)


def _load_shamir() -> Any:
    """Import the scheme of pycryptodome; sums without masks do not need it."""
    try:
        from Crypto.Protocol.SecretSharing import Shamir
    except ModuleNotFoundError as error:
        raise MissingExtraError("pycryptodome", "privacy") from error
    return Shamir


MIN_PARTIES_WITHOUT_NOISE = 3
"""Minimum number of parties in an exact sum: of two, each could subtract its part."""

MAX_PARTIES = 128
"""Maximum number of parties: combining the shares of all seeds takes cubic time, minutes at 128."""


def default_threshold(n_parties: int) -> int:
    """Return the default threshold floor(2 n / 3) + 1.

    It protects each part from a coordinator that colludes with up to a third of the parties: they
    cannot obtain shares for two different lists of survivors, each from a threshold of parties.

    Examples
    --------
    >>> [default_threshold(n) for n in (2, 3, 4, 8)]
    [2, 3, 3, 6]
    """
    return 2 * n_parties // 3 + 1


def check_threshold(n_parties: int, threshold: int, *, noised: bool) -> None:
    """Raise unless a sum and its threshold are safe.

    Otherwise the sum could reveal a party's part, or too few parties could remove the masks.

    Parameters
    ----------
    n_parties : int
        Number of parties with which the sum is opened.
    threshold : int
        Minimum number of parties in the sum.
    noised : bool
        True if each part contains noise, so that even a sum of two reveals neither part exactly.

    Raises
    ------
    AggregationError
        If there are too few or too many parties, or the threshold is out of range.
    """
    min_parties = 2 if noised else MIN_PARTIES_WITHOUT_NOISE
    if not min_parties <= n_parties <= MAX_PARTIES:
        raise AggregationError(
            f"a masked sum {'with' if noised else 'without'} noise needs {min_parties} to "
            f"{MAX_PARTIES} parties, got {n_parties}; with fewer, the others could compute a "
            "party's part from the sum"
        )
    # two thirds, rounded up: resists fewer than a third of colluders, see `default_threshold`
    min_threshold = max(min_parties, -(-2 * n_parties // 3))
    if not min_threshold <= threshold <= n_parties:
        raise AggregationError(
            f"expected a threshold of {min_threshold} to {n_parties} for {n_parties} parties, got "
            f"{threshold}"
        )
