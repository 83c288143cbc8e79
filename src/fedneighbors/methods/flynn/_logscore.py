"""The score for noised counts: clipped, logarithmic, centred between classes by the noise itself.

Under noise of standard deviation sigma a count tells little below sigma, so that
``log(max(c, 0) + sigma / 2 + 1 / 2)`` replaces the weight gamma ** c of the paper. All of it is
post-processing of the released counts: it costs no privacy.
"""

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.methods.flynn.algorithm import Counts, DecayTable

FLOOR = 0.5  # of sigma, added to each count
CLEAR = 3.0  # standard deviations that a class must stand out of the noise


def log_table(counts: npt.NDArray[np.int32], *, variance: float, n_active: int) -> DecayTable:
    """Return the novelty that each clipped count contributes, laid out as for gamma ** c.

    A row that is active in units i has score sum of log(c_i + floor) + offset for a class. The
    offsets put, for each pair of classes, the border half-way between what rows of either class
    score on average, so that a frequent class does not win by its size. The averages are taken
    from the counts themselves; the part of them that is noise meeting itself is taken out by
    Stein's identity, E[noise g(c + noise)] = sigma ** 2 E[g'(c + noise)].

    Parameters
    ----------
    counts : int32 array of shape (n_units, n_classes)
        As they were released; cells may be negative.
    variance : float
        Of the noise on each cell, above 0.
    n_active : int
        Active units of each row (rho).

    Returns
    -------
    DecayTable
        For counts cut at 0 from below. The lowest sum over the active units is the prediction.
        Classes that do not stand out of the noise by three standard deviations are never
        predicted, unless none stands out.
    """
    noisy = counts.astype(np.float64)
    floor = FLOOR * np.sqrt(variance) + 0.5
    rows = noisy.sum(axis=0) / n_active
    clear = rows > CLEAR * np.sqrt(len(noisy) * variance) / n_active
    offsets = np.zeros(len(rows))
    if clear.any():
        offsets[clear] = _offsets(noisy[:, clear], rows[clear], floor, variance) / n_active
    return _laid_out(np.maximum(counts, 0).max(axis=0), floor, offsets, unclear=~clear)


def _offsets(noisy: Floats, rows: Floats, floor: float, variance: float) -> Floats:
    """Return for each class what its rows' scores lack to meet the other classes half-way."""
    logs = np.log(np.maximum(noisy, 0.0) + floor)
    slopes = np.where(noisy > 0, 1.0 / (np.maximum(noisy, 0.0) + floor), 0.0)
    mean = (noisy.T @ logs) / rows[:, None]  # [k, l]: score of class l on a row of class k
    mean[np.diag_indices(len(rows))] -= variance * slopes.sum(axis=0) / rows
    own = np.diag(mean)
    lacking = (own[None, :] - mean.T - own[:, None] + mean) / 2
    return np.asarray(lacking.mean(axis=1))


def _laid_out(
    largest: npt.NDArray[np.int32], floor: float, offsets: Floats, *, unclear: npt.NDArray[np.bool_]
) -> DecayTable:
    ends = np.cumsum(largest.astype(np.int64) + 1)
    starts = ends - largest - 1
    values = np.arange(ends[-1], dtype=np.float64) - np.repeat(starts, largest + 1)
    scores = np.log(values + floor) + np.repeat(offsets, largest + 1)
    novelty = scores.max() - scores
    if unclear.any() and not unclear.all():
        novelty[np.repeat(unclear, largest + 1)] += novelty.max() + 1.0
    return DecayTable(novelty, starts)


def clipped(counts: npt.NDArray[np.int32]) -> Counts:
    """Return the counts cut at 0 from below, which is where the table begins."""
    return np.ascontiguousarray(np.maximum(counts, 0))
