"""FlyHash: random input features of each unit, and the units with the largest sums.

A unit sums some features of a row, its inputs; the wiring lists the inputs of all units. It is a
public function of seed and sizes, identical on all machines. Its generator is Philox4x32-10 [1]_:
the ``b``-th block of four random words of unit ``i`` is a pure function of (seed, i, b), so that
units share no state and library versions have no influence. The loops in ``_lanes`` compute
the sums; this module checks the rows, converts them to a narrower type and divides them among
threads.

References
----------
.. [1] Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

# mypy: allow-untyped-defs
# (the untyped functions are compiled; Numba infers their types)

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import njit, uint64
from numpy.typing import NDArray

from fedneighbors.kernels._emission import lowest_bit
from fedneighbors.kernels.flyhash._lanes import LEVELS, hash_rows

# Digests of the kernel files used here; Numba's cache does not notice edits in other files.
USES = {"emission": "5e83461cfaba370e"}

_LOW_32_BITS = uint64(0xFFFFFFFF)
_MULTIPLIER_0, _MULTIPLIER_1 = uint64(0xD2511F53), uint64(0xCD9E8D57)
_KEY_STEP_0, _KEY_STEP_1 = uint64(0x9E3779B9), uint64(0xBB67AE85)
_N_ROUNDS = 10  # Philox4x32-10
_MAX_FEATURES = 2**32 - 1  # each draw uses a random word of 32 bits


def draw_wiring(
    n_features: int, n_units: int, n_inputs: int, seed: int
) -> NDArray[np.uint16] | NDArray[np.uint32]:
    """Draw the inputs of every unit.

    Inputs are uniform subsets of the features, drawn independently. The inputs of unit ``i`` depend
    on ``(seed, i, n_inputs, n_features)`` alone; parties that agree on these numbers get identical
    wiring on any machine.

    Parameters
    ----------
    n_features : int
        Number of features to choose from (d).
    n_units : int
        Number of units (m).
    n_inputs : int
        Number of features per unit (s), at most ``n_features``.
    seed : int
        Public seed (R), 64 bits.

    Returns
    -------
    uint16 or uint32 array of shape (n_units, n_inputs)
        Feature indices, ascending in each row; uint16 up to 65536 features.

    Raises
    ------
    ValueError
        If a size is below 1, ``n_inputs`` exceeds ``n_features``, there are more than ``2**32 - 1``
        features, or the seed is negative or has more than 64 bits.

    Examples
    --------
    >>> draw_wiring(n_features=10, n_units=3, n_inputs=4, seed=7)
    array([[0, 1, 6, 7],
           [1, 5, 7, 8],
           [0, 2, 7, 8]], dtype=uint16)
    """
    for name, value in (("n_features", n_features), ("n_units", n_units), ("n_inputs", n_inputs)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if n_inputs > n_features:
        raise ValueError(f"n_inputs={n_inputs} exceeds n_features={n_features}; lower n_inputs")
    if n_features > _MAX_FEATURES:
        raise ValueError(f"n_features={n_features} exceeds {_MAX_FEATURES}; use fewer features")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must lie in [0, 2**64), got {seed}")
    dtype = np.uint16 if n_features <= 2**16 else np.uint32
    inputs = np.empty((n_units, n_inputs), dtype)
    draw = _draw_dense if _is_bitmap_cheaper(n_features, n_inputs) else _draw_sparse
    draw(inputs, n_features, np.uint64(seed))
    return inputs


def _is_bitmap_cheaper(n_features: int, n_inputs: int) -> bool:
    """Return whether scanning a bitmap is cheaper than sorted insertion."""
    return n_features <= 16 * n_inputs * n_inputs


@njit(cache=True, nogil=True)
def _philox(c0, c1, c2, c3, k0, k1):
    """Return four random words for a counter and a key.

    The counter has four 32-bit words, the key two.
    """
    for _ in range(_N_ROUNDS):
        product_0, product_1 = _MULTIPLIER_0 * c0, _MULTIPLIER_1 * c2
        c0, c2 = (product_1 >> uint64(32)) ^ c1 ^ k0, (product_0 >> uint64(32)) ^ c3 ^ k1
        c1, c3 = product_1 & _LOW_32_BITS, product_0 & _LOW_32_BITS
        k0, k1 = (k0 + _KEY_STEP_0) & _LOW_32_BITS, (k1 + _KEY_STEP_1) & _LOW_32_BITS
    return c0, c1, c2, c3


@njit(cache=True, nogil=True)
def _draw(draws, n_features, unit, seed):
    """Fill ``draws`` with uniform integers below growing bounds.

    The bounds are ``n_features - size + 1, ..., n_features``. Lemire's method [1]_ takes the high
    half of word * bound and rejects the draw for the few low halves that would bias the result.

    References
    ----------
    .. [1] Lemire, "Fast random integer generation in an interval", TOMACS 29(1), 2019.
    """
    low_unit, high_unit = uint64(unit) & _LOW_32_BITS, uint64(unit) >> uint64(32)
    low_key, high_key = seed & _LOW_32_BITS, seed >> uint64(32)
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
            low = product & _LOW_32_BITS
            if low >= bound or low >= (_LOW_32_BITS + uint64(1) - bound) % bound:
                break
        draws[k] = product >> uint64(32)


@njit(cache=True, nogil=True)
def _draw_dense(inputs, n_features, seed):
    """Fill ``inputs`` by Floyd's subset sampling with a bitmap.

    If a draw below ``bound`` is already in the set, Floyd's method inserts ``bound - 1``, which
    cannot be in it yet. Scanning the bitmap yields the set in ascending order.
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
    """Fill ``inputs`` with the same subsets as ``_draw_dense``, by sorted insertion."""
    n_units, n_inputs = inputs.shape
    draws = np.empty(n_inputs, np.uint64)
    for unit in range(n_units):
        _draw(draws, n_features, unit, seed)
        for k in range(n_inputs):
            feature = draws[k]
            slot = k
            while slot > 0 and inputs[unit, slot - 1] > feature:
                slot -= 1
            if slot > 0 and inputs[unit, slot - 1] == feature:
                slot, feature = k, uint64(n_features - n_inputs + k)  # larger than all others
            for position in range(k, slot, -1):
                inputs[unit, position] = inputs[unit, position - 1]
            inputs[unit, slot] = feature


_INPUT_TYPES = (np.uint8, np.int8, np.int16, np.uint16, np.int32, np.int64, np.float32, np.float64)
_ROWS_PER_TASK = 1024  # maximum number of rows in a task
_PASS_ROWS = 64  # rows that ``hash_rows`` hashes together
_SAMPLE = 4096  # minimum number of units in the sample that gives the first thresholds
_MAX_STORED = 32768  # maximum number of units with stored sums: 4 MiB for each thread


def winners(
    x: NDArray[Any],
    wiring: NDArray[np.uint16] | NDArray[np.uint32],
    n_active: int,
    *,
    n_threads: int = 1,
    ranked: bool = False,
    narrow: bool = True,
) -> NDArray[np.int32]:
    """Return the active units of each row (winners).

    These are the ``n_active`` units with the largest sums; ties go to the lower unit. Integer sums
    are exact. Floats are added one after another in float64, in ascending order of the feature
    index, so that all parties agree bit for bit.

    Parameters
    ----------
    x : array of shape (n_rows, n_features)
        int8, int16, int32, int64, uint8, uint16, float32 or float64; floats must be finite.
    wiring : uint16 or uint32 array of shape (n_units, n_inputs)
        Input features of each unit, ascending in each row.
    n_active : int
        Number of active units per row (rho).
    n_threads : int, default 1
        Number of threads. Does not affect the result.
    ranked : bool, default False
        If true, order each row by sum, largest first, then by unit; otherwise by unit.
    narrow : bool, default True
        Convert rows of small whole numbers to a narrow type, which is faster. If false, all rows
        are float64, so that the code that runs does not depend on their values. Sums of integers
        beyond 2**53 are then rounded.

    Returns
    -------
    int32 array of shape (n_rows, n_active)
        Unit indices, ascending unless ``ranked``.

    Raises
    ------
    TypeError
        If ``x`` or ``wiring`` has a type that is not listed above.
    ValueError
        If shapes disagree, the wiring is empty or has a feature that ``x`` does not have,
        ``n_active`` is not between 1 and ``n_units``, ``n_threads`` is below 1, ``x`` is not
        finite, or sums could leave the range of int64 or float64.

    Examples
    --------
    >>> x = np.array([[0, 5, 1, 1]])
    >>> winners(x, np.array([[0, 2], [1, 2], [0, 3], [1, 3]], np.uint16), n_active=2)
    array([[1, 3]], dtype=int32)
    """
    _check_arguments(x, wiring, n_active, n_threads)
    # up to 2**13 features, an index times 8 fits into 16 bits: ``_lanes`` shifts four at once
    index_type = np.uint16 if x.shape[1] <= 2**13 else np.uint32
    inputs = np.ascontiguousarray(wiring, index_type)
    units = np.empty((x.shape[0], n_active), np.int32)

    def fill(rows: slice) -> None:
        block = (
            _narrow_rows(x[rows], inputs.shape[1])
            if narrow
            else np.ascontiguousarray(x[rows], np.float64)
        )
        # zero of the type of the exact sums
        zero = block.dtype.type(0) if block.dtype == np.float64 else np.int64(0)
        n_stored = _choose_stored(block, inputs.shape[0], n_active)
        hash_rows(block, inputs, zero, n_stored, units[rows])
        units[rows].sort(axis=1)
        if ranked:
            _rank_rows(block, inputs, zero, units[rows])

    # four tasks for each thread, so that threads finish at about the same time
    n_tasks = 1 if n_threads == 1 else 4 * n_threads
    size = min(_ROWS_PER_TASK, max(1, -(-x.shape[0] // (n_tasks * _PASS_ROWS))) * _PASS_ROWS)
    map_row_blocks(fill, x.shape[0], n_threads, size=size)
    return units


def _check_arguments(x: NDArray[Any], wiring: NDArray[Any], n_active: int, n_threads: int) -> None:
    """Check the arguments, and that no sum overflows."""
    if x.dtype.type not in _INPUT_TYPES:
        names = ", ".join(np.dtype(kind).name for kind in _INPUT_TYPES)
        raise TypeError(f"x must be one of {names}; got {x.dtype}, convert it first")
    if wiring.dtype not in (np.uint16, np.uint32):
        raise TypeError(f"wiring must be uint16 or uint32, got {wiring.dtype}; convert it first")
    if x.ndim != 2 or wiring.ndim != 2 or wiring.size == 0:
        raise ValueError(
            f"x and wiring must be two-dimensional, wiring not empty, got {x.shape}, {wiring.shape}"
        )
    if not 1 <= n_active <= wiring.shape[0]:
        raise ValueError(f"n_active={n_active} must lie between 1 and n_units={wiring.shape[0]}")
    if n_threads < 1:
        raise ValueError(f"n_threads must be at least 1, got {n_threads}")
    if wiring.max() >= x.shape[1]:
        raise ValueError(
            f"wiring reads feature {wiring.max()} but x has {x.shape[1]} columns; "
            "draw the wiring for the number of columns"
        )
    if x.size:
        _check_sums(max(abs(x.max().item()), abs(x.min().item())), wiring.shape[1])


def _check_sums(largest: float, n_inputs: int) -> None:
    """Check that sums stay in the range of int64 or float64.

    For floats the limit is half the largest float64, which leaves room for rounding errors.
    """
    if not abs(largest) < np.inf:
        raise ValueError("x must be finite; replace NaN and infinite values")
    limit = 2**63 - 1 if isinstance(largest, int) else np.finfo(np.float64).max / 2
    if largest > limit // n_inputs:
        raise ValueError(f"sums of {n_inputs} values up to {largest} overflow; scale x down")


def _narrow_rows(rows: NDArray[Any], n_inputs: int) -> NDArray[Any]:
    """Convert rows to a narrow type, keeping the order of sums.

    The minimum is subtracted from whole numbers if the differences then fit into a byte: all sums
    are exact and decrease by the same amount. ``_quantize`` assumes that sums of types of up to
    four bytes are exact in float64; int32 is therefore used only if they are.
    """
    if rows.dtype == np.uint8:
        return np.ascontiguousarray(rows)
    low, high = rows.min().item(), rows.max().item()
    largest = max(abs(low), abs(high))
    exact_as_float = largest * n_inputs < 2**53
    if exact_as_float and high - low <= 255 and (rows.dtype.kind != "f" or _are_whole(rows)):
        shifted: NDArray[np.float64] = rows.astype(np.float64) - low
        return shifted.astype(np.uint8)
    if rows.dtype.kind == "f":
        return np.ascontiguousarray(rows, np.float64)
    dtype: type[np.signedinteger[Any]] = np.int32
    if largest >= 2**31 or not exact_as_float:
        dtype = np.int64
    return np.ascontiguousarray(rows, dtype)


def _are_whole(rows: NDArray[Any]) -> bool:
    """Return whether all values are whole numbers."""
    # The first row is tested separately, because most float data fail there.
    return all(bool((np.rint(part) == part).all()) for part in (rows[:1], rows))


def _choose_stored(rows: NDArray[Any], n_units: int, n_active: int) -> int:
    """Return the number of units whose quantized sums are stored.

    Stored sums give good initial thresholds. The number is 0 if more than a quarter of the units
    is active, so that most units would pass the filter anyway, or if a sample would exceed
    ``_MAX_STORED``. It is all units, if these are few, or if at least one in 100 is active (one in
    200 if quantized sums are exact): the threshold that ``n_active`` quantized sums reach is then
    close to the final one, or equal to it. Otherwise it is a sample.
    """
    if 4 * n_active > n_units or 4 * n_active > _MAX_STORED:
        return 0
    exact = rows.dtype == np.uint8 and int(rows.max()) - int(rows.min()) <= LEVELS
    stores_all = n_active * (200 if exact else 100) >= n_units or (exact and n_units <= 2 * _SAMPLE)
    if stores_all and n_units <= _MAX_STORED:
        return n_units
    return min(n_units, max(_SAMPLE, 4 * n_active))


def map_row_blocks(
    task: Callable[[slice], Any], n_rows: int, n_threads: int, *, size: int = _ROWS_PER_TASK
) -> list[Any]:
    """Run a task on consecutive blocks of rows, in threads.

    Parameters
    ----------
    task : callable
        Function of a slice of rows.
    n_rows : int
        Number of rows in all blocks.
    n_threads : int
        Number of threads, at least 1.
    size : int
        Number of rows in a block.

    Returns
    -------
    list
        Results of the task, in the order of the blocks.
    """
    blocks = [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]
    if n_threads == 1 or len(blocks) < 2:
        return list(map(task, blocks))
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(task, blocks))


@njit(cache=True, nogil=True)
def _rank_rows(rows, inputs, zero, units):
    """Sort the winners of each row by descending sum.

    On entry, the winners are in ascending order. The sort is stable, so ties go to the lower unit.
    """
    n_rows, n_active = units.shape
    negated = np.empty(n_active, np.asarray(zero).dtype)
    for i in range(n_rows):
        for k in range(n_active):
            total = zero + rows[i, inputs[units[i, k], 0]]
            for j in range(1, inputs.shape[1]):
                total += rows[i, inputs[units[i, k], j]]
            negated[k] = -total
        units[i] = units[i][np.argsort(negated, kind="mergesort")]
