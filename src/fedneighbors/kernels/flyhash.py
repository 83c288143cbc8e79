"""FlyHash: for each row the units with the largest sums over their inputs."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["winners"]

_EXACT_TYPES = (np.uint8, np.int8, np.int16, np.uint16, np.int32, np.int64, np.float32, np.float64)
_ROWS_PER_TASK = 256


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
    """
    _check(x, wiring, n_active, n_threads)
    x_exact_type = np.float64 if x.dtype.kind == "f" else np.int64
    units = np.empty((x.shape[0], n_active), np.int32)
    inputs = np.ascontiguousarray(wiring)

    def fill(rows: slice) -> None:
        block = np.ascontiguousarray(x[rows], x_exact_type)
        sums = np.empty((block.shape[0], n_active), x_exact_type)
        _scan_rows(block, inputs, units[rows], sums)
        _order(units[rows], sums, ranked)

    _over_row_blocks(fill, x.shape[0], n_threads)
    return units


def _check(x: NDArray[Any], wiring: NDArray[Any], n_active: int, n_threads: int) -> None:
    """Refuse what the loops would misread or could not sum exactly."""
    if x.dtype.type not in _EXACT_TYPES:
        names = ", ".join(np.dtype(exact).name for exact in _EXACT_TYPES)
        raise TypeError(f"x must be one of {names}; got {x.dtype}, convert it first")
    if wiring.dtype not in (np.uint16, np.uint32):
        raise TypeError(f"wiring must be uint16 or uint32, got {wiring.dtype}")
    if x.ndim != 2 or wiring.ndim != 2:
        raise ValueError(f"x and wiring must be matrices, got shapes {x.shape}, {wiring.shape}")
    n_units, n_inputs = wiring.shape
    if n_units < 1 or n_inputs < 1:
        raise ValueError(f"wiring must have at least one unit and input, got {wiring.shape}")
    if not 1 <= n_active <= n_units:
        raise ValueError(f"n_active={n_active} must lie between 1 and n_units={n_units}")
    if n_threads < 1:
        raise ValueError(f"n_threads must be at least 1, got {n_threads}")
    if wiring.max() >= x.shape[1]:
        raise ValueError(
            f"wiring reads feature {wiring.max()} but x has {x.shape[1]} columns; "
            "make the wiring for this many features"
        )
    _check_sums(x, n_inputs)


def _check_sums(x: NDArray[Any], n_inputs: int) -> None:
    """Refuse values whose sums could leave the range of int64 or float64."""
    if x.size == 0:
        return
    largest = max(abs(x.max().item()), abs(x.min().item()))
    if x.dtype.kind == "f":
        if not np.isfinite(largest):
            raise ValueError("x must be finite; replace NaN and infinite values")
        if not np.isfinite(largest * n_inputs):
            raise ValueError(f"sums of {n_inputs} values up to {largest} overflow; scale x down")
    elif largest * n_inputs >= 2**63:
        raise ValueError(f"sums of {n_inputs} values up to {largest} overflow; scale x down")


def _order(units: NDArray[np.int32], sums: NDArray[Any], ranked: bool) -> None:
    """Sort each row of ``units`` in place: by unit, or by sum descending and then by unit."""
    if not ranked:
        units.sort(axis=1)
        return
    by_unit = np.argsort(units, axis=1)
    by_sum = np.argsort(-np.take_along_axis(sums, by_unit, 1), axis=1, kind="stable")
    units[:] = np.take_along_axis(units, np.take_along_axis(by_unit, by_sum, 1), 1)


def _over_row_blocks(task: Callable[[slice], None], n_rows: int, n_threads: int) -> None:
    """Run ``task`` on consecutive blocks of rows."""
    blocks = [slice(start, start + _ROWS_PER_TASK) for start in range(0, n_rows, _ROWS_PER_TASK)]
    if n_threads == 1 or len(blocks) < 2:
        for block in blocks:
            task(block)
        return
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in pool.map(task, blocks):
            pass


@njit(cache=True, nogil=True)
def _precedes(sum_a, unit_a, sum_b, unit_b):  # type: ignore[no-untyped-def]
    """Whether a comes before b in the total order: larger sum first, then lower unit."""
    return sum_a > sum_b or (sum_a == sum_b and unit_a < unit_b)


@njit(cache=True, nogil=True)
def _keep_best(sums, units, n_held, n_keep):  # type: ignore[no-untyped-def]
    """Move the ``n_keep`` first of ``n_held`` candidates to the front; return their least sum."""
    low, high = 0, n_held - 1
    while low < high:
        pivot_sum, pivot_unit = sums[(low + high) >> 1], units[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while _precedes(sums[i], units[i], pivot_sum, pivot_unit):
                i += 1
            while _precedes(pivot_sum, pivot_unit, sums[j], units[j]):
                j -= 1
            if i <= j:
                sums[i], sums[j] = sums[j], sums[i]
                units[i], units[j] = units[j], units[i]
                i += 1
                j -= 1
        if n_keep - 1 <= j:
            high = j
        elif n_keep - 1 >= i:
            low = i
        else:
            break
    least = sums[0]
    for k in range(1, n_keep):
        least = min(least, sums[k])
    return least


@njit(cache=True, nogil=True)
def _sum_inputs(row, inputs):  # type: ignore[no-untyped-def]
    """Sum of a row over a unit's inputs, from left to right."""
    total = row[inputs[0]]
    for k in range(1, inputs.size):
        total += row[inputs[k]]
    return total


@njit(cache=True, nogil=True)
def _scan_rows(x, wiring, units, sums):  # type: ignore[no-untyped-def]
    """Write the winners of each row and their sums, in no particular order."""
    n_units, n_active = wiring.shape[0], units.shape[1]
    capacity = 4 * n_active
    held_sums = np.empty(capacity, x.dtype)
    held_units = np.empty(capacity, np.int32)
    for row in range(x.shape[0]):
        n_held = 0
        full = False
        least = x[row, 0]
        for unit in range(n_units):
            total = _sum_inputs(x[row], wiring[unit])
            if full and total <= least:
                continue
            held_sums[n_held] = total
            held_units[n_held] = unit
            n_held += 1
            if n_held == capacity:
                least = _keep_best(held_sums, held_units, n_held, n_active)
                n_held = n_active
                full = True
        _keep_best(held_sums, held_units, n_held, n_active)
        units[row] = held_units[:n_active]
        sums[row] = held_sums[:n_active]
