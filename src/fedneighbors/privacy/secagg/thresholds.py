"""How many parties must stay until the end of a masked sum.

To learn one party's part, a lying coordinator needs ``t`` shares of its seed and ``t`` shares of
its mask key. An honest party reveals one of the two, a colluding one both, so ``c`` colluders among
``n`` parties suffice only if ``2 t <= n + c``. With ``t = floor(2 n / 3) + 1`` that takes more than
a third of the parties (the bound is that of Bonawitz et al., CCS 2017, Theorem 6.5).
"""

from fedneighbors.errors import AggregationError

__all__ = ["LEAST_WITHOUT_NOISE", "MAX_PARTIES", "check_threshold", "default_threshold"]

LEAST_WITHOUT_NOISE = 3
"""In an exact sum of two, each reads the other's part off by subtracting its own."""

MAX_PARTIES = 128
"""Shares are combined in plain Python in quadratic time; a consortium is smaller than this."""


def default_threshold(n_parties: int) -> int:
    """Return floor(2 n / 3) + 1, which holds against up to a third of colluding parties.

    Examples
    --------
    >>> [default_threshold(n) for n in (2, 3, 4, 8)]
    [2, 3, 3, 6]
    """
    return 2 * n_parties // 3 + 1


def check_threshold(n_parties: int, threshold: int, *, noised: bool) -> None:
    """Refuse a sum whose result would show a part, or whose masks too few parties could lift.

    Parameters
    ----------
    n_parties : int
        Parties that are asked.
    threshold : int
        Least number of parties whose sum is unmasked.
    noised : bool
        Whether each part carries noise, so that even a sum of two shows neither part.

    Raises
    ------
    AggregationError
        If there are too few or too many parties, or the threshold is out of range.
    """
    least_parties = 2 if noised else LEAST_WITHOUT_NOISE
    if not least_parties <= n_parties <= MAX_PARTIES:
        raise AggregationError(
            f"a masked sum {'with' if noised else 'without'} noise needs {least_parties} to "
            f"{MAX_PARTIES} parties, got {n_parties}; with fewer, the others could read a party's "
            "part off the sum"
        )
    least = max(least_parties, -(-2 * n_parties // 3))
    if not least <= threshold <= n_parties:
        raise AggregationError(
            f"expected a threshold of {least} to {n_parties} for {n_parties} parties, got "
            f"{threshold}"
        )
