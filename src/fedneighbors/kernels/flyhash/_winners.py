"""FlyHash: for each row the units with the largest sums over their inputs.

This file checks, narrows and shares out the rows; it compiles nothing. The loops are in
``_lanes``.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedneighbors.kernels.flyhash._lanes import LEVELS, hash_rows

_EXACT_TYPES = (np.uint8, np.int8, np.int16, np.uint16, np.int32, np.int64, np.float32, np.float64)
_ROWS_PER_TASK = 1024
_BLOCK = 64  # rows that are hashed together
_SAMPLE = 4096  # units from which the first thresholds come
_MAX_STORED = 32768  # units whose sums are stored: 4 MiB for each thread


def winners(
    x: NDArray[Any],
    wiring: NDArray[np.uint16] | NDArray[np.uint32],
    n_active: int,
    *,
    n_threads: int = 1,
    ranked: bool = False,
) -> NDArray[np.int32]:
    """Units that are on for each row: the ``n_active`` largest sums, ties to the lower unit.

    Integer sums are exact. Float sums are float64 additions in ascending order of the feature
    index, from left to right, so that all parties agree to the last bit.

    Parameters
    ----------
    x : array of shape (n_rows, n_features)
        8, 16, 32 or 64 bit integers (unsigned up to 16) or 32 or 64 bit floats, finite.
    wiring : uint16 or uint32 array of shape (n_units, n_inputs)
        Features that each unit reads, ascending in each row.
    n_active : int
        Units that are on per row (rho).
    n_threads : int, default 1
        Rows are shared out over this many threads; the result does not depend on it.
    ranked : bool, default False
        Order each row by sum, largest first, then by unit, instead of by unit.

    Returns
    -------
    int32 array of shape (n_rows, n_active)
        Unit indices, ascending unless ``ranked``.

    Raises
    ------
    TypeError
        If ``x`` or ``wiring`` has a type that is not listed above.
    ValueError
        If shapes disagree, a unit reads a feature that ``x`` does not have, ``n_active`` is not
        between 1 and ``n_units``, ``x`` is not finite, or sums could leave the range of int64 or
        float64.

    Examples
    --------
    >>> x = np.array([[0, 5, 1, 1]])
    >>> winners(x, np.array([[0, 2], [1, 2], [0, 3], [1, 3]], np.uint16), n_active=2)
    array([[1, 3]], dtype=int32)
    """
    _check(x, wiring, n_active, n_threads)
    narrow_index = np.uint16 if x.shape[1] <= 2**13 else np.uint32
    inputs = np.ascontiguousarray(wiring, narrow_index)
    units = np.empty((x.shape[0], n_active), np.int32)

    def fill(rows: slice) -> None:
        block = _narrow(x[rows], inputs.shape[1])
        zero = block.dtype.type(0) if block.dtype == np.float64 else np.int64(0)
        n_stored = _choose_stored(block, inputs.shape[0], n_active)
        hash_rows(block, inputs, zero, n_stored, units[rows])
        units[rows].sort(axis=1)
        if ranked:
            _rank_rows(block, inputs, zero, units[rows])

    n_shares = 1 if n_threads == 1 else 4 * n_threads  # so that no thread waits long for the last
    size = min(_ROWS_PER_TASK, max(1, -(-x.shape[0] // (n_shares * _BLOCK))) * _BLOCK)
    over_row_blocks(fill, x.shape[0], n_threads, size=size)
    return units


def _check(x: NDArray[Any], wiring: NDArray[Any], n_active: int, n_threads: int) -> None:
    """Refuse what the loops would misread or could not sum exactly."""
    if x.dtype.type not in _EXACT_TYPES:
        names = ", ".join(np.dtype(exact).name for exact in _EXACT_TYPES)
        raise TypeError(f"x must be one of {names}; got {x.dtype}, convert it first")
    if wiring.dtype not in (np.uint16, np.uint32):
        raise TypeError(f"wiring must be uint16 or uint32, got {wiring.dtype}; convert it first")
    if x.ndim != 2 or wiring.ndim != 2 or wiring.size == 0:
        raise ValueError(
            f"x and wiring must be matrices and wiring not empty, got {x.shape} and {wiring.shape}"
        )
    if not 1 <= n_active <= wiring.shape[0]:
        raise ValueError(f"n_active={n_active} must lie between 1 and n_units={wiring.shape[0]}")
    if n_threads < 1:
        raise ValueError(f"n_threads must be at least 1, got {n_threads}")
    if wiring.max() >= x.shape[1]:
        raise ValueError(
            f"wiring reads feature {wiring.max()} but x has {x.shape[1]} columns; "
            "make the wiring for this many features"
        )
    if x.size:
        _check_sums(max(abs(x.max().item()), abs(x.min().item())), wiring.shape[1])


def _check_sums(largest: float, n_inputs: int) -> None:
    """Refuse values whose sums could leave the range of int64, or of float64 with all rounding."""
    if not abs(largest) < np.inf:
        raise ValueError("x must be finite; replace NaN and infinite values")
    limit = 2**63 - 1 if isinstance(largest, int) else np.finfo(np.float64).max / 2
    if largest > limit // n_inputs:
        raise ValueError(f"sums of {n_inputs} values up to {largest} overflow; scale x down")


def _narrow(rows: NDArray[Any], n_inputs: int) -> NDArray[Any]:
    """Rows in the smallest type that keeps the order of all sums.

    Whole numbers lose their minimum if that brings them into a byte: the sums, all exact, lose the
    same amount. int32 promises sums that float64 holds exactly.
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
    exact: type[np.signedinteger[Any]] = np.int32
    if largest >= 2**31 or not exact_as_float:
        exact = np.int64
    return np.ascontiguousarray(rows, exact)


def _are_whole(rows: NDArray[Any]) -> bool:
    """Return whether all values are whole numbers; most float data fail in the first row."""
    return all(bool((np.rint(part) == part).all()) for part in (rows[:1], rows))


def _choose_stored(rows: NDArray[Any], n_units: int, n_active: int) -> int:
    """Choose how many units have their quantized sums stored, to start with good thresholds.

    None where most units would pass anyway. All where a large part wins, since counting bounds the
    winners closely, or gives them, where quantized sums are exact. Otherwise a sample.
    """
    if 4 * n_active > n_units or 4 * n_active > _MAX_STORED:
        return 0
    exact = rows.dtype == np.uint8 and int(rows.max()) - int(rows.min()) <= LEVELS
    few = n_active * (200 if exact else 100) >= n_units or (exact and n_units <= 2 * _SAMPLE)
    if few and n_units <= _MAX_STORED:
        return n_units
    return min(n_units, max(_SAMPLE, 4 * n_active))


def over_row_blocks(
    task: Callable[[slice], Any], n_rows: int, n_threads: int, *, size: int = _ROWS_PER_TASK
) -> list[Any]:
    """Return the results of a task for consecutive blocks of rows, in order.

    Parameters
    ----------
    task : callable
        Takes a slice of rows.
    n_rows : int
        Of all blocks.
    n_threads : int
        1 or more.
    size : int
        Rows of a block.
    """
    blocks = [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]
    if n_threads == 1 or len(blocks) < 2:
        return list(map(task, blocks))
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(task, blocks))


@njit(cache=True, nogil=True)
def _rank_rows(rows, inputs, zero, units):  # type: ignore[no-untyped-def]
    """Order the winners of each row, ascending so far, by sum; ties stay as they are."""
    n_rows, n_active = units.shape
    lost = np.empty(n_active, np.asarray(zero).dtype)
    for i in range(n_rows):
        for k in range(n_active):
            total = zero + rows[i, inputs[units[i, k], 0]]
            for j in range(1, inputs.shape[1]):
                total += rows[i, inputs[units[i, k], j]]
            lost[k] = -total
        units[i] = units[i][np.argsort(lost, kind="mergesort")]
