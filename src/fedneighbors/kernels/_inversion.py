"""Inverse transform sampling of integers from random words and a table of thresholds.

The table contains the cumulative probabilities F(k) of a distribution over 0, 1, 2, ..., rounded to
integers. Only the first bits of a uniform number U in [0, 1) are known, as ``prefix``; the value is
the least k with U < F(k). A word whose prefix does not determine the value is marked as undecided.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

UNDECIDED = np.iinfo(np.int64).min
"""Value of a word whose prefix does not determine it."""


@njit(cache=True, nogil=True)
def _invert(
    words: Any, thresholds: Any, guide: Any, shift: Any, symmetric: Any, undecided: Any, values: Any
) -> Any:
    n_undecided = 0
    n_thresholds = thresholds.size
    for i in range(words.size):
        prefix = words[i] >> uint64(1)
        k = np.int64(guide[prefix >> uint64(shift)])
        while k < n_thresholds and thresholds[k] < prefix:
            k += 1
        if k == n_thresholds or thresholds[k] - prefix <= uint64(1):
            values[i] = undecided
            n_undecided += 1
        elif symmetric and words[i] & uint64(1):
            values[i] = -k
        else:
            values[i] = k
    return n_undecided


def invert_words(
    words: npt.NDArray[np.uint64],
    thresholds: npt.NDArray[np.uint64],
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
        Bit 0 is the sign; the ``n_bits`` bits above it are the first bits of U (``prefix``).
    thresholds : uint64 array of shape (n_thresholds,)
        Ascending; ``thresholds[k] - 1 <= F(k) * 2**n_bits <= thresholds[k] + 1``. A word is
        undecided if its prefix is ``thresholds[k] - 1`` or ``thresholds[k]`` for any k, or beyond
        the last threshold.
    guide : int32 array of shape (2**g,)
        ``guide[b]`` is the first k with ``thresholds[k] >= b << (n_bits - g)``. The search for a
        prefix with leading bits b begins there.
    n_bits : int
        Length of a prefix, at most 63.
    symmetric : bool
        If true, a word with bit 0 set has the value -k.
    values : int64 array of shape (n,)
        Output: the value of each word, or :data:`UNDECIDED`.

    Returns
    -------
    int
        Number of undecided words.
    """
    shift = n_bits - (guide.size.bit_length() - 1)
    return int(_invert(words, thresholds, guide, shift, symmetric, UNDECIDED, values))
