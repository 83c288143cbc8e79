"""Exact integer noise: uniform random bits, inverted lazily, so that no rounding enters the law.

Let U be uniform on [0, 1), an endless string of random bits, and k(U) the least k with U < F(k),
F being the cumulative law. Then k(U) has the law exactly. The first n bits of U, read as an integer
``prefix``, place U in [prefix, prefix + 1) * 2**-n. Where that whole interval lies between two
neighboring thresholds, k(U) is the same for every continuation, and is returned. Otherwise more
bits are drawn *behind the same prefix* and the thresholds are computed more finely; a threshold is
one point, so this ends with probability 1. What is returned is therefore always k(U): thresholds
are only ever compared through integers known to enclose them, and how closely they do decides how
many bits are drawn, never which value comes out.

One word of 64 bits per cell decides all but about one in 2**50 cells (a sign bit and 63 bits of U).
"""

import os
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedneighbors.kernels._inversion import UNDECIDED, invert_words
from fedneighbors.privacy.noise._distributions import LaplaceLaw, Law, cumulative

BitSource = Callable[[int], bytes]
"""Gives so many random bytes; the operating system's, unless a test passes a generator."""

WORD_BITS = 63
CHUNK = 1 << 16
"""Words drawn at once: half a megabyte."""

_GUIDE_BITS = (8, 16)


class Table(NamedTuple):
    """Thresholds of a law, rounded to integers of ``n_bits`` bits; see ``kernels.inversion``."""

    limits: npt.NDArray[np.uint64]
    guide: npt.NDArray[np.int32]
    n_bits: int
    symmetric: bool


@lru_cache(maxsize=16)
def table(law: Law, n_bits: int = WORD_BITS) -> Table:
    """Build the table of a law; the same law gives the same table.

    Parameters
    ----------
    law : Law
        What to tabulate.
    n_bits : int
        Bits of U that one word carries; fewer than 63 only in proofs by exhaustion.
    """
    limits = np.array(_limits(law, n_bits), np.uint64)
    guide_bits = min(max(_GUIDE_BITS[0], len(limits).bit_length() + 1), _GUIDE_BITS[1], n_bits)
    starts = np.arange(1 << guide_bits, dtype=np.uint64) << np.uint64(n_bits - guide_bits)
    guide = np.searchsorted(limits, starts).astype(np.int32)
    return Table(limits, guide, n_bits, law.symmetric)


def _limits(law: Law, n_bits: int) -> list[int]:
    """For each k an integer with limit - 1 <= F(k) * 2**n_bits <= limit + 1."""
    guard = 64
    while True:
        sums = cumulative(law, n_bits, guard)
        lows = [(low << n_bits) // sums.total.high for low in sums.lows]
        highs = [-(-(high << n_bits) // sums.total.low) for high in sums.highs]
        if all(high <= low + 2 for low, high in zip(lows, highs, strict=True)):
            last = bisect_left(lows, (1 << n_bits) - 1)  # later thresholds decide nothing
            return [low + 1 for low in lows[: last + 1]]
        guard *= 2


def locate(law: Law, prefix: int, n_bits: int) -> int | None:
    """Find k(U) for all U that begin with a prefix; None if they do not agree.

    Parameters
    ----------
    law : Law
        Whose cumulative probabilities are the thresholds.
    prefix : int
        First bits of U.
    n_bits : int
        How many they are.
    """
    sums = cumulative(law, n_bits)
    k = bisect_left(sums.highs, True, key=lambda high: high << n_bits > prefix * sums.total.low)
    if k < len(sums.lows) and (prefix + 1) * sums.total.high <= sums.lows[k] << n_bits:
        return k
    return None


def draw_words(n_words: int, bits: BitSource) -> npt.NDArray[np.uint64]:
    """Draw words of 64 random bits.

    Raises
    ------
    ValueError
        If the source gives another number of bytes.
    """
    drawn = bits(8 * n_words)
    if len(drawn) != 8 * n_words:
        raise ValueError(
            f"expected {8 * n_words} random bytes, got {len(drawn)}; "
            "a source of bits must give as many bytes as it is asked for"
        )
    return np.frombuffer(drawn, "<u8").astype(np.uint64, copy=False)


def sample(law: Law, size: int, bits: BitSource = os.urandom) -> npt.NDArray[np.int64]:
    """Draw independent values of exactly a law.

    Parameters
    ----------
    law : Law
        What to draw from.
    size : int
        How many values.
    bits : callable
        Source of random bytes.

    Returns
    -------
    int64 array of shape (size,)
    """
    known = table(law)
    values = np.empty(size, np.int64)
    for start in range(0, size, CHUNK):
        part = values[start : start + CHUNK]
        words = draw_words(len(part), bits)
        if _invert(known, words, part):
            for i in np.flatnonzero(part == UNDECIDED):
                part[i] = _refine(law, int(words[i]), bits)
    return values


def warmup() -> None:
    """Compile what a draw needs; the result is kept on disk."""
    sample(LaplaceLaw(Fraction(1)), 1)


def _invert(known: Table, words: npt.NDArray[np.uint64], values: npt.NDArray[np.int64]) -> int:
    return invert_words(
        words,
        known.limits,
        known.guide,
        n_bits=known.n_bits,
        symmetric=known.symmetric,
        values=values,
    )


def _refine(law: Law, word: int, bits: BitSource) -> int:
    """Decide an undecided word by drawing more bits behind it."""
    prefix, n_bits = word >> 1, WORD_BITS
    magnitude = None
    while magnitude is None:
        prefix, n_bits = prefix << 64 | int(draw_words(1, bits)[0]), n_bits + 64
        magnitude = locate(law, prefix, n_bits)
    return -magnitude if law.symmetric and word & 1 else magnitude
