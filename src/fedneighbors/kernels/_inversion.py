"""Inversion of a table of thresholds: random words become integers, or are marked as undecided.

The table belongs to a law over 0, 1, 2, ... with cumulative probabilities F(k). A uniform number U
in [0, 1) is known by its first bits only, as ``prefix``; the value is the least k with U < F(k).
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
    """Write each word's decided value; return the number of undecided words.

    Parameters
    ----------
    words : uint64 array of shape (n,)
        Bit 0 is the sign, the ``n_bits`` above it are the first bits of U (``prefix``).
    limits : uint64 array of shape (n_limits,)
        Ascending; ``limits[k] - 1 <= F(k) * 2**n_bits <= limits[k] + 1``. A prefix that comes
        within that margin of a threshold is undecided, as is one beyond the last limit.
    guide : int32 array of shape (2**g,)
        ``guide[b]`` is the first k with ``limits[k] >= b << (n_bits - g)``: where the search for
        a prefix with the leading bits b begins.
    n_bits : int
        Length of a prefix, at most 63.
    symmetric : bool
        Whether bit 0 turns k into -k.
    values : int64 array of shape (n,)
        Written: the value, or :data:`UNDECIDED`.
    """
    shift = n_bits - (guide.size.bit_length() - 1)
    return int(_invert(words, limits, guide, shift, symmetric, UNDECIDED, values))
