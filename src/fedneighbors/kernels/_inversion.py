"""Inverse transform sampling of integers from random words and a table of thresholds.

The table represents a distribution over 0, 1, 2, ... with cumulative probabilities F(k). Only the
first bits of a uniform number U in [0, 1) are known, as ``prefix``; the value is the least k with
U < F(k). A word whose prefix does not determine the value is marked as undecided.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

UNDECIDED = np.iinfo(np.int64).min


@njit(cache=True, nogil=True)
def _invert(
    words: Any, limits: Any, guide: Any, shift: Any, symmetric: Any, undecided: Any, values: Any
) -> Any:
    n_undecided = 0
    n_limits = limits.size
    for i in range(words.size):
        prefix = words[i] >> uint64(1)
        k = np.int64(guide[prefix >> uint64(shift)])
        while k < n_limits and limits[k] < prefix:
            k += 1
        if k == n_limits or limits[k] - prefix <= uint64(1):
            values[i] = undecided
            n_undecided += 1
        elif symmetric and words[i] & uint64(1):
            values[i] = -k
        else:
            values[i] = k
    return n_undecided


def invert_words(
    words: npt.NDArray[np.uint64],
    limits: npt.NDArray[np.uint64],
    guide: npt.NDArray[np.int32],
    *,
    n_bits: int,
    symmetric: bool,
    values: npt.NDArray[np.int64],
) -> int:
    """Write each word's value and return the number of undecided words.

    Parameters
    ----------
    words : uint64 array of shape (n,)
        Bit 0 is the sign; the ``n_bits`` above it are the first bits of U (``prefix``).
    limits : uint64 array of shape (n_limits,)
        Ascending; ``limits[k] - 1 <= F(k) * 2**n_bits <= limits[k] + 1``. A prefix within that
        margin of a threshold is undecided, and so is one beyond the last limit.
    guide : int32 array of shape (2**g,)
        ``guide[b]`` is the first k with ``limits[k] >= b << (n_bits - g)``. The search for a
        prefix with leading bits b begins there.
    n_bits : int
        Length of a prefix, at most 63.
    symmetric : bool
        If true, a set bit 0 turns k into -k.
    values : int64 array of shape (n,)
        Output: the value of each word, or :data:`UNDECIDED`.

    Returns
    -------
    int
        Number of undecided words.
    """
    shift = n_bits - (guide.size.bit_length() - 1)
    return int(_invert(words, limits, guide, shift, symmetric, UNDECIDED, values))
