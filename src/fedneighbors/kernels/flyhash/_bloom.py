"""Fly Bloom filters: counts of active units by class, novelty, and a grid search."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, uint64
from numpy.typing import NDArray

from fedneighbors.kernels.flyhash._hash import map_row_blocks


def accumulate(active: NDArray[np.int32], labels: NDArray[Any], counts: NDArray[np.int32]) -> None:
    """Add rows to the counts, in place.

    Executes ``counts[u, labels[i]] += 1`` for every unit ``u`` in ``active[i]``. Integer sums do
    not depend on the order of rows.

    Parameters
    ----------
    active : int32 array of shape (n_rows, n_active)
        Active units of each row.
    labels : integer array of shape (n_rows,)
        Class index of each row.
    counts : int32 array of shape (n_units, n_classes), C order
        Changed in place.

    Raises
    ------
    TypeError
        If ``counts`` is not an int32 array in C order, or an index array does not hold integers.
    ValueError
        If shapes disagree, or an index is out of range.
    """
    _check_counts(active, counts)
    if not np.issubdtype(labels.dtype, np.integer):
        raise TypeError(f"labels must be integers, got {labels.dtype}; pass class indices")
    if labels.shape != active.shape[:1]:
        raise ValueError(f"expected labels of shape {active.shape[:1]}, got {labels.shape}")
    _check_range("labels", labels, counts.shape[1])
    _accumulate(np.ascontiguousarray(active), labels.astype(np.int64), counts)


def novelty(
    active: NDArray[np.int32],
    counts: NDArray[np.int32],
    weights: NDArray[np.float64],
    offsets: NDArray[np.int64],
    *,
    n_threads: int = 1,
) -> NDArray[np.float64]:
    """Return the novelty of each row for each class.

    The class with the lowest novelty is the prediction.

    The novelty of row ``i`` for class ``l`` is the sum of ``weights[offsets[l] + counts[u, l]]``
    over the units ``u`` of ``active[i]``, in the order given [1]_.

    Parameters
    ----------
    active : int32 array of shape (n_rows, n_active)
        Active units of each row.
    counts : int32 array of shape (n_units, n_classes), C order
        Number of training rows of each class that activate each unit, non-negative.
    weights : float64 array of shape (n_weights,)
        Weights of a unit, indexed by its count. Classes may share a section of this table or have
        their own.
    offsets : int64 array of shape (n_classes,)
        Start of each class's section of ``weights``.
    n_threads : int, default 1
        Number of threads. Does not affect the result.

    Returns
    -------
    float64 array of shape (n_rows, n_classes)

    Raises
    ------
    TypeError
        If ``counts`` is not an int32 array in C order.
    ValueError
        If shapes disagree, a unit is out of range, or a count has no entry in ``weights``.

    References
    ----------
    .. [1] Ram and Sinha, "Federated Nearest Neighbor Classification with a Colony of
       Fruit-Flies", AAAI 2022, Algorithm 1, lines 11-12.
    """
    _check_counts(active, counts)
    if offsets.shape != counts.shape[1:]:
        raise ValueError(f"expected offsets of shape {counts.shape[1:]}, got {offsets.shape}")
    if weights.ndim != 1:
        raise ValueError(f"weights must be one-dimensional, got shape {weights.shape}")
    units = np.ascontiguousarray(active)
    table = np.ascontiguousarray(weights, np.float64)
    starts = np.ascontiguousarray(offsets, np.int64)
    result = np.zeros((active.shape[0], counts.shape[1]))

    def fill(rows: slice) -> bool:
        return bool(_add_weights(units[rows], counts, table, starts, result[rows]))

    if n_threads < 1:
        raise ValueError(f"n_threads must be at least 1, got {n_threads}")
    if not all(map_row_blocks(fill, active.shape[0], n_threads)):
        raise ValueError(
            f"a count is outside the table of {weights.size} weights; "
            "counts must be non-negative and the table must cover the largest"
        )
    return result


def _check_counts(active: NDArray[Any], counts: NDArray[Any]) -> None:
    """Check the arrays that the loops read without checks."""
    if counts.dtype != np.int32 or counts.ndim != 2 or not counts.flags.c_contiguous:
        raise TypeError(
            f"counts must be an int32 array of two dimensions in C order, got {counts.dtype} "
            f"with {counts.ndim} dimensions; copy it with np.ascontiguousarray(counts, np.int32)"
        )
    if not np.issubdtype(active.dtype, np.integer):
        raise TypeError(f"active must hold integers, got {active.dtype}; pass unit indices")
    if active.ndim != 2:
        raise ValueError(f"active must have two dimensions, got shape {active.shape}")
    _check_range("active", active, counts.shape[0])


def _check_range(name: str, indices: NDArray[Any], size: int) -> None:
    """Check that indices are in [0, size)."""
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        raise ValueError(f"{name} must lie in [0, {size}), got {indices.min()} to {indices.max()}")


@njit(cache=True, nogil=True)
def _accumulate(active, labels, counts):  # type: ignore[no-untyped-def]
    """Add 1 to the counts of active units, by class."""
    for row in range(active.shape[0]):
        label = labels[row]
        for position in range(active.shape[1]):
            counts[active[row, position], label] += 1


@njit(cache=True, nogil=True)
def _add_weights(active, counts, weights, offsets, result):  # type: ignore[no-untyped-def]
    """Add the weights of all active units to ``result``.

    Stops and returns False if a count is outside ``weights``.
    """
    n_classes = counts.shape[1]
    for row in range(active.shape[0]):
        total = result[row]
        for position in range(active.shape[1]):
            unit_counts = counts[active[row, position]]
            largest_index = uint64(0)  # as uint64, a negative index becomes huge
            for label in range(n_classes):
                largest_index = max(largest_index, uint64(offsets[label] + unit_counts[label]))
            if largest_index >= uint64(weights.size):
                return False
            for label in range(n_classes):
                total[label] += weights[offsets[label] + unit_counts[label]]
    return True


@njit(cache=True, nogil=True)
def _add_hits(
    active: Any,
    labels: Any,
    counts: Any,
    held_out: Any,
    weights: Any,
    offsets: Any,
    n_own: int,
    hits: Any,
) -> bool:
    """Count correct predictions in ``hits``.

    Stops and returns False if a count is outside ``weights``. ``n_own`` is 1 to leave each row
    out of the counts of its own class, else 0.
    """
    n_rows, n_active = active.shape
    n_classes = counts.shape[1]
    n_settings = weights.shape[1]
    novelty: Any = np.empty((n_classes, n_settings))
    for i in range(n_rows):
        label = labels[i]
        novelty[:] = 0.0
        for k in range(n_active):
            unit = active[i, k]
            for c in range(n_classes):
                if offsets[c] < 0:
                    continue
                count = np.int64(counts[unit, c]) - np.int64(held_out[unit, c])
                if c == label:
                    count -= n_own
                index = offsets[c] + count
                if count < 0 or index >= weights.shape[0]:
                    return False
                for t in range(n_settings):
                    novelty[c, t] += weights[index, t]
        for t in range(n_settings):
            best = -1
            for c in range(n_classes):
                if offsets[c] >= 0 and (best < 0 or novelty[c, t] < novelty[best, t]):
                    best = c
            if best == label:
                hits[t, label] += 1
    return True


def grid_hits(
    active: npt.NDArray[np.int32],
    labels: npt.NDArray[np.int64],
    counts: npt.NDArray[np.integer[Any]],
    held_out: npt.NDArray[np.integer[Any]],
    weights: npt.NDArray[np.float64],
    offsets: npt.NDArray[np.int64],
    *,
    leave_one_out: bool = False,
) -> npt.NDArray[np.int64]:
    """Count the correctly predicted rows by setting and class.

    The novelty of a row for class l under setting t is the sum, over its active units u in the
    order given, of ``weights[offsets[l] + counts[u, l] - held_out[u, l], t]``. The class with the
    lowest novelty is predicted; ties go to the class with the lower index.

    Parameters
    ----------
    active : int32 array of shape (n_rows, n_active)
        Active units of each row, below ``n_units``.
    labels : int64 array of shape (n_rows,)
        Class of each row.
    counts : integer array of shape (n_units, n_classes)
        Number of rows of each class that activate each unit, including held-out rows.
    held_out : integer array of shape (n_units, n_classes)
        Number of held-out rows of each class that activate each unit.
    weights : float64 array of shape (n_weights, n_settings)
        Weight of each count under each setting.
    offsets : int64 array of shape (n_classes,)
        Start of each class's weights; -1 for a class that cannot be predicted.
    leave_one_out : bool
        If true, exclude each row itself: subtract 1 from its class's counts of its units.

    Returns
    -------
    int64 array of shape (n_settings, n_classes)
        Number of correctly predicted rows.

    Raises
    ------
    ValueError
        If shapes disagree, an index is out of range or a count is outside the weights.
    """
    if active.ndim != 2 or labels.shape != active.shape[:1] or offsets.shape != counts.shape[1:]:
        raise ValueError(
            f"shapes disagree: active {active.shape}, labels {labels.shape}, "
            f"counts {counts.shape}, offsets {offsets.shape}"
        )
    if held_out.shape != counts.shape:
        raise ValueError(f"expected held_out of shape {counts.shape}, got {held_out.shape}")
    _check_range("active", active, counts.shape[0])
    _check_range("labels", labels, counts.shape[1])
    n_own, n_correct = int(leave_one_out), np.zeros((weights.shape[1], counts.shape[1]), np.int64)
    if not _add_hits(active, labels, counts, held_out, weights, offsets, n_own, n_correct):
        raise ValueError("a count is outside the weights; the table must cover the largest count")
    return n_correct
