"""From novelties to probabilities: one temperature, fitted by leave-one-out in exact integers."""

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.methods.flynn.algorithm import Active, Counts, DecayTable, score_rows

SHARPNESS: tuple[float, ...] = tuple(2.0 ** (k / 2) for k in range(-4, 25))
"""Grid of factors beta in softmax(-beta novelty / rho)."""

ENOUGH_ROWS = 20_000
_UNIT = 1 << 20
_LARGEST_LOSS = 50.0


def leave_one_out(
    active: Active, labels: npt.NDArray[np.int64], counts: Counts, table: DecayTable
) -> Floats:
    """Return the novelty of training rows with each row's own contribution taken out.

    The constants of class normalization stay those of all rows.

    Returns
    -------
    float64 array of shape (n_rows, n_classes)
    """
    scores = score_rows(active, counts, table)
    others = counts[active, labels[:, None]] - 1
    own = np.zeros(len(active))
    for k in range(active.shape[1]):
        own += table.weights[table.offsets[labels] + others[:, k]]
    scores[np.arange(len(active)), labels] = own
    return scores


def calibration_rows(active: Active, n_rows: int) -> npt.NDArray[np.bool_]:
    """Return which rows take part in the calibration: all, or a part chosen by their hash.

    The choice depends on the row alone, so that it is the same for every partition.

    Parameters
    ----------
    active : int32 array of shape (n, n_active)
        Hashes of one party's rows.
    n_rows : int
        Rows of all parties together.
    """
    step = max(1, n_rows // ENOUGH_ROWS)
    return np.asarray(active.sum(axis=1, dtype=np.int64) % step == 0)


def log_losses(
    scores: Floats, labels: npt.NDArray[np.int64], n_active: int
) -> npt.NDArray[np.int64]:
    """Return the summed log-loss for each sharpness, as integers that add up in any order.

    Returns
    -------
    int64 array of shape (len(SHARPNESS),)
        In units of 2**-20 nats; each row's loss is rounded and cut at 50 nats.
    """
    result = np.zeros(len(SHARPNESS), np.int64)
    rows = np.arange(len(labels))
    for k, beta in enumerate(SHARPNESS):
        chosen = probabilities(scores, beta, n_active)[rows, labels]
        loss = np.minimum(-np.log(np.maximum(chosen, 1e-300)), _LARGEST_LOSS)
        result[k] = np.rint(loss * _UNIT).astype(np.int64).sum()
    return result


def choose_sharpness(losses: npt.NDArray[np.int64]) -> float:
    """Return the sharpness of least loss; ties go to the lower one."""
    return SHARPNESS[int(np.argmin(losses))]


def probabilities(scores: Floats, sharpness: float, n_active: int) -> Floats:
    """Return softmax(-sharpness * novelty / n_active) of each row.

    Examples
    --------
    >>> probabilities(np.array([[0.0, 0.0]]), 4.0, 8)
    array([[0.5, 0.5]])
    """
    logits = (scores.min(axis=1, keepdims=True) - scores) * (sharpness / n_active)
    weights = np.exp(logits)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
