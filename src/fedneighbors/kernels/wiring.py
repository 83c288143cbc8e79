"""Which features each hash unit reads: a public function of seed and sizes, the same everywhere.

The generator is Philox4x32-10 [1]_: the words of draw block ``b`` of unit ``i`` are a pure function
of (seed, i, b), so no state passes from one unit to the next and no library version matters.

References
----------
.. [1] Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types, uint32, uint64
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = ["wiring"]

_WORD = uint64(0xFFFFFFFF)
_MULTIPLIER_0, _MULTIPLIER_1 = uint64(0xD2511F53), uint64(0xCD9E8D57)
_KEY_STEP_0, _KEY_STEP_1 = uint64(0x9E3779B9), uint64(0xBB67AE85)
_N_ROUNDS = 10
_MAX_FEATURES = 2**32 - 1  # a bounded draw takes one 32-bit word


def wiring(
    n_features: int, n_units: int, n_inputs: int, seed: int
) -> NDArray[np.uint16] | NDArray[np.uint32]:
    """Inputs of every unit: uniform random subsets of the features, independent of one another.

    Row ``i`` depends on ``(seed, i, n_inputs, n_features)`` alone; two parties that agree on these
    numbers agree on every bit, whatever their machine.

    Parameters
    ----------
    n_features : int
        Features to choose from (d).
    n_units : int
        Rows to make (m).
    n_inputs : int
        Features per unit (s), at most ``n_features``.
    seed : int
        Public seed (R), 64 bits.

    Returns
    -------
    uint16 or uint32 array of shape (n_units, n_inputs)
        Feature indices, ascending in each row; uint16 up to 65536 features.

    Raises
    ------
    ValueError
        If a size is below 1, ``n_inputs`` exceeds ``n_features`` or the seed has more than 64 bits.

    Examples
    --------
    >>> wiring(n_features=10, n_units=3, n_inputs=4, seed=7)
    array([[0, 1, 6, 7],
           [1, 5, 7, 8],
           [0, 2, 7, 8]], dtype=uint16)
    """
    for name, value in (("n_features", n_features), ("n_units", n_units), ("n_inputs", n_inputs)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if n_inputs > n_features:
        raise ValueError(f"n_inputs={n_inputs} is more than n_features={n_features}; lower it")
    if n_features > _MAX_FEATURES:
        raise ValueError(f"n_features={n_features} is more than {_MAX_FEATURES}; reduce the data")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must lie in [0, 2**64), got {seed}")
    dtype = np.uint16 if n_features <= 2**16 else np.uint32
    inputs = np.empty((n_units, n_inputs), dtype)
    draw = _draw_dense if _bitmap_pays(n_features, n_inputs) else _draw_sparse
    draw(inputs, n_features, np.uint64(seed))
    return inputs


def _bitmap_pays(n_features: int, n_inputs: int) -> bool:
    """Whether scanning n_features bits costs less than inserting n_inputs values in order."""
    return n_features <= 16 * n_inputs * n_inputs


@intrinsic  # type: ignore[misc]
def _trailing_zeros(_typing: Any, _word: Any) -> Any:
    """Index of the lowest bit that is set; the argument is not 0."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@njit(cache=True, nogil=True)
def _philox(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """Four 32-bit words for a counter of four words and a key of two."""
    for _ in range(_N_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0, c2 = (
            (product_1 >> uint64(32)) ^ c1 ^ k0,
            (product_0 >> uint64(32)) ^ c3 ^ k1,
        )
        c1, c3 = product_1 & _WORD, product_0 & _WORD
        k0 = (k0 + _KEY_STEP_0) & _WORD
        k1 = (k1 + _KEY_STEP_1) & _WORD
    return c0, c1, c2, c3


@njit(cache=True, nogil=True)
def _refill(words, unit, block, seed):  # type: ignore[no-untyped-def]
    """Overwrite ``words`` with draw block ``block`` of ``unit``."""
    words[0], words[1], words[2], words[3] = _philox(
        uint64(block) & _WORD,
        uint64(unit) & _WORD,
        uint64(unit) >> uint64(32),
        uint64(block) >> uint64(32),
        seed & _WORD,
        seed >> uint64(32),
    )


@njit(cache=True, nogil=True)
def _draw_below(bound, words, drawn, unit, seed):  # type: ignore[no-untyped-def]
    """Uniform integer in [0, bound) and the number of words drawn so far for this unit.

    Lemire's method [1]_: the high half of word * bound, rejecting the few low halves that would
    make some results likelier than others.

    References
    ----------
    .. [1] Lemire, "Fast random integer generation in an interval", TOMACS 29(1), 2019.
    """
    while True:
        if drawn % 4 == 0:
            _refill(words, unit, drawn // 4, seed)
        product = words[drawn % 4] * bound
        drawn += 1
        low = product & _WORD
        if low >= bound or low >= (_WORD + uint64(1) - bound) % bound:
            return product >> uint64(32), drawn


@njit(cache=True, nogil=True)
def _draw_dense(inputs, n_features, seed):  # type: ignore[no-untyped-def]
    """Fill ``inputs`` by Floyd's subset sampling; a bitmap holds the set and sorts it."""
    n_units, n_inputs = inputs.shape
    words = np.empty(4, np.uint64)
    taken = np.zeros((n_features + 63) // 64, np.uint64)
    for unit in range(n_units):
        drawn = 0
        for last in range(n_features - n_inputs, n_features):
            draw, drawn = _draw_below(uint64(last + 1), words, drawn, unit, seed)
            if taken[draw >> uint64(6)] >> (draw & uint64(63)) & uint64(1):
                draw = uint64(last)
            taken[draw >> uint64(6)] |= uint64(1) << (draw & uint64(63))
        position = 0
        for word in range(taken.size):
            bits = taken[word]
            taken[word] = uint64(0)
            while bits != uint64(0):
                inputs[unit, position] = uint32(word * 64) + uint32(_trailing_zeros(bits))
                bits &= bits - uint64(1)
                position += 1


@njit(cache=True, nogil=True)
def _draw_sparse(inputs, n_features, seed):  # type: ignore[no-untyped-def]
    """Fill ``inputs`` like ``_draw_dense``, keeping the set as a sorted list instead of a bitmap."""
    n_units, n_inputs = inputs.shape
    words = np.empty(4, np.uint64)
    for unit in range(n_units):
        row = inputs[unit]
        drawn = 0
        for size in range(n_inputs):
            last = n_features - n_inputs + size
            draw, drawn = _draw_below(uint64(last + 1), words, drawn, unit, seed)
            place = np.searchsorted(row[:size], draw)
            if place < size and uint64(row[place]) == draw:
                place, draw = size, uint64(last)  # larger than all before it
            for position in range(size, place, -1):
                row[position] = row[position - 1]
            row[place] = draw
