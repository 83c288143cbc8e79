"""Inputs of each hash unit: a public function of seed and sizes, the same everywhere.

The generator is Philox4x32-10 [1]_: the words of draw block ``b`` of unit ``i`` are a pure function
of (seed, i, b), so no state passes from one unit to the next and no library version matters.

References
----------
.. [1] Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

# mypy: allow-untyped-defs
# (functions below the public one are compiled, or emit code: numba infers their types)

import numpy as np
from numba import njit, uint64
from numpy.typing import NDArray

from fedneighbors.kernels._emission import lowest_bit

USES = {"emission": "ea0f1a462cc765c8"}

_WORD = uint64(0xFFFFFFFF)
_MULTIPLIER_0, _MULTIPLIER_1 = uint64(0xD2511F53), uint64(0xCD9E8D57)
_KEY_STEP_0, _KEY_STEP_1 = uint64(0x9E3779B9), uint64(0xBB67AE85)
_N_ROUNDS = 10
_MAX_FEATURES = 2**32 - 1  # a bounded draw takes one 32-bit word


def wiring(
    n_features: int, n_units: int, n_inputs: int, seed: int
) -> NDArray[np.uint16] | NDArray[np.uint32]:
    """Choose the inputs of every unit: uniform subsets of the features, drawn independently.

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
    """Return whether scanning all bits is cheaper than inserting the inputs in order."""
    return n_features <= 16 * n_inputs * n_inputs


@njit(cache=True, nogil=True)
def _philox(c0, c1, c2, c3, k0, k1):
    """Four 32-bit words for a counter of four words and a key of two."""
    for _ in range(_N_ROUNDS):
        product_0, product_1 = _MULTIPLIER_0 * c0, _MULTIPLIER_1 * c2
        c0, c2 = (product_1 >> uint64(32)) ^ c1 ^ k0, (product_0 >> uint64(32)) ^ c3 ^ k1
        c1, c3 = product_1 & _WORD, product_0 & _WORD
        k0, k1 = (k0 + _KEY_STEP_0) & _WORD, (k1 + _KEY_STEP_1) & _WORD
    return c0, c1, c2, c3


@njit(cache=True, nogil=True)
def _draw(draws, n_features, unit, seed):
    """Fill ``draws`` with uniform integers below n_features - size + 1, ..., n_features.

    Lemire's method [1]_: the high half of word * bound, rejecting the few low halves that would
    make some results likelier than others.

    References
    ----------
    .. [1] Lemire, "Fast random integer generation in an interval", TOMACS 29(1), 2019.
    """
    low_unit, high_unit = uint64(unit) & _WORD, uint64(unit) >> uint64(32)
    low_key, high_key = seed & _WORD, seed >> uint64(32)
    block, n_left = uint64(0), 0
    w0, w1, w2, w3 = uint64(0), uint64(0), uint64(0), uint64(0)
    for k in range(draws.size):
        bound = uint64(n_features - draws.size + 1 + k)
        while True:
            if n_left == 0:
                w0, w1, w2, w3 = _philox(block, low_unit, high_unit, uint64(0), low_key, high_key)
                block, n_left = block + uint64(1), 4
            product = w0 * bound
            w0, w1, w2, n_left = w1, w2, w3, n_left - 1
            low = product & _WORD
            if low >= bound or low >= (_WORD + uint64(1) - bound) % bound:
                break
        draws[k] = product >> uint64(32)


@njit(cache=True, nogil=True)
def _draw_dense(inputs, n_features, seed):
    """Fill ``inputs`` by Floyd's subset sampling; a bitmap holds the set and sorts it.

    Floyd: where a draw below ``bound`` is already in the set, ``bound - 1`` cannot be and goes in.
    """
    n_units, n_inputs = inputs.shape
    draws = np.empty(n_inputs, np.uint64)
    taken = np.zeros((n_features + 63) // 64, np.uint64)
    for unit in range(n_units):
        _draw(draws, n_features, unit, seed)
        for k in range(n_inputs):
            feature = draws[k]
            if taken[feature >> uint64(6)] >> (feature & uint64(63)) & uint64(1):
                feature = uint64(n_features - n_inputs + k)
            taken[feature >> uint64(6)] |= uint64(1) << (feature & uint64(63))
        position = 0
        for word in range(taken.size):
            bits = taken[word]
            taken[word] = uint64(0)
            while bits != uint64(0):
                inputs[unit, position] = word * 64 + lowest_bit(bits)
                bits &= bits - uint64(1)
                position += 1


@njit(cache=True, nogil=True)
def _draw_sparse(inputs, n_features, seed):
    """Fill ``inputs`` like ``_draw_dense``, with a sorted list in place of the bitmap."""
    n_units, n_inputs = inputs.shape
    draws = np.empty(n_inputs, np.uint64)
    for unit in range(n_units):
        _draw(draws, n_features, unit, seed)
        for k in range(n_inputs):
            feature = draws[k]
            place = k
            while place > 0 and inputs[unit, place - 1] > feature:
                place -= 1
            if place > 0 and inputs[unit, place - 1] == feature:
                place, feature = k, uint64(n_features - n_inputs + k)  # larger than all before it
            for position in range(k, place, -1):
                inputs[unit, position] = inputs[unit, position - 1]
            inputs[unit, place] = feature
