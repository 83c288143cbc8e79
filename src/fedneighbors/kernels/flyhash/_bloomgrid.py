"""Score rows under many weightings of the same counts at once, for hyper-parameter search."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit


@njit(cache=True, nogil=True)
def _hits(
    active: Any,
    labels: Any,
    counts: Any,
    held_out: Any,
    weights: Any,
    offsets: Any,
    own: int,
    hits: Any,
) -> bool:
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
                    count -= own
                place = offsets[c] + count
                if count < 0 or place >= weights.shape[0]:
                    return False
                for t in range(n_settings):
                    novelty[c, t] += weights[place, t]
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
    """Return how many rows of each class are predicted right under each setting.

    The novelty of a row for class l under setting t is the sum, over its active units u in the
    order given, of ``weights[offsets[l] + counts[u, l] - held_out[u, l], t]``; the lowest wins,
    ties go to the lower class.

    Parameters
    ----------
    active : int32 array of shape (n_rows, n_active)
        Active units of each row, within ``counts``.
    labels : int64 array of shape (n_rows,)
        Class of each row.
    counts : integer array of shape (n_units, n_classes)
        Activations of all rows.
    held_out : integer array of shape (n_units, n_classes)
        Activations of the rows that were not trained on.
    weights : float64 array of shape (n_weights, n_settings)
        Weight of each count under each setting.
    offsets : int64 array of shape (n_classes,)
        Where the weights of each class begin; -1 for a class that cannot be predicted.
    leave_one_out : bool
        Take each row's own activation out of the counts of its class.

    Returns
    -------
    int64 array of shape (n_settings, n_classes)

    Raises
    ------
    ValueError
        If shapes do not fit or a count lies outside the weights.
    """
    if active.ndim != 2 or labels.shape != active.shape[:1] or offsets.shape != counts.shape[1:]:
        raise ValueError(
            f"shapes do not fit: active {active.shape}, labels {labels.shape}, "
            f"counts {counts.shape}, offsets {offsets.shape}"
        )
    if held_out.shape != counts.shape:
        raise ValueError(f"expected held_out of shape {counts.shape}, got {held_out.shape}")
    for name, values, size in (
        ("active", active, counts.shape[0]),
        ("labels", labels, counts.shape[1]),
    ):
        if values.size and not 0 <= values.min() <= values.max() < size:
            raise ValueError(f"{name} reach outside [0, {size})")
    hits = np.zeros((weights.shape[1], counts.shape[1]), np.int64)
    if not _hits(active, labels, counts, held_out, weights, offsets, int(leave_one_out), hits):
        raise ValueError("a count lies outside the weights; draw the table for the largest count")
    return hits
