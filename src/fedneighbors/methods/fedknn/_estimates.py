"""How many objects DANN asks of each provider at first, from the lower bounds of all.

Algorithm 1 counts whose bounds are among the k lowest
(:func:`~fedneighbors.methods.fedknn.algorithm.expected_counts`), and DANN* must do so, as its proof
of privacy says how far such counts can move. DANN is free to guess better.
"""

from collections.abc import Mapping

import numpy as np

from fedneighbors._typing import Floats, Integers

SURPLUS = 0.25
"""Objects asked beyond a provider's share, in units of the share's square root.

What a provider really has among the nearest scatters about its share by about that root. Too few
in all are dear: without k objects there is no place at which a second round may stop. Chosen on
titles, places and molecules, see ``benchmarks/counts.py``.
"""


_ROUNDING = 1e-9


def shared_counts(
    bounds: Mapping[str, Floats], k: int, *, surplus: float = SURPLUS
) -> dict[str, int]:
    """Return how many objects to ask of each provider at first.

    A provider's share of the k nearest is the number of its bounds below the k-th lowest of all;
    what is left of k is divided among the bounds that equal it, in proportion to how many each
    provider has. To the shares a surplus is added that grows with their square roots.

    Parameters
    ----------
    bounds : mapping of str to float64 array
        The k lowest bounds of each provider, ascending; fewer if it has fewer objects.
    k : int
        Neighbours wanted, 1 or more.
    surplus : float
        0 for none.

    Returns
    -------
    dict of str to int
        Between 1 and k. Before these limits they add up to k and the surplus, rounded down.

    Examples
    --------
    >>> tied = {"north": np.full(8, 3.0), "south": np.array([1.0] + [3.0] * 7)}
    >>> shared_counts(tied, 8, surplus=0.0)
    {'north': 4, 'south': 4}
    """
    names = sorted(bounds)
    shares = _shares([bounds[name] for name in names], k)
    wanted = shares + surplus * np.sqrt(shares)
    counts = _rounded(wanted, int(wanted.sum() + _ROUNDING))
    return {
        name: min(max(count, 1), max(k, 1))
        for name, count in zip(names, counts.tolist(), strict=True)
    }


def _shares(bounds: list[Floats], k: int) -> Floats:
    """Return each provider's part of the k lowest bounds; ties at the last are divided."""
    lowest = np.sort(np.concatenate(bounds))
    if len(lowest) <= k:
        return np.array([len(own) for own in bounds], np.float64)
    last = lowest[k - 1]
    below = np.array([np.searchsorted(own, last, side="left") for own in bounds], np.float64)
    tied = np.array([np.searchsorted(own, last, side="right") for own in bounds]) - below
    return np.asarray(below + tied * ((k - below.sum()) / tied.sum()))


def _rounded(wanted: Floats, total: int) -> Integers:
    """Return whole numbers of that total, by largest remainder; ties go to the first."""
    whole = np.floor(wanted + _ROUNDING).astype(np.int64)
    order = np.argsort(whole - wanted, kind="stable")
    whole[order[: max(total - int(whole.sum()), 0)]] += 1
    return whole
