"""Evidence of a released cell that a record was counted, for each distribution of the noise.

Evidence is a log-likelihood ratio in nats: the record raised the cell by ``step``, against it did
not. The noise of cells is independent, so the evidence for a record is the sum over the cells that
it would have raised. No test is better than a threshold on this sum (Neyman and Pearson).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats

Cells = npt.NDArray[Any]


def exact_evidence(excess: Cells) -> Floats:
    """Return the evidence of cells without noise.

    A cell below 1 excludes the record.

    Parameters
    ----------
    excess : array
        Released cells, minus known contributions of other records.

    Returns
    -------
    float64 array of the same shape
        0 if the record is possible, otherwise minus infinity.
    """
    return np.where(np.asarray(excess) >= 1, 0.0, -np.inf)


def laplace_evidence(excess: Cells, scale: float, step: int = 1) -> Floats:
    """Return the evidence of cells under discrete Laplace noise.

    Parameters
    ----------
    excess : array
        Released cells, minus known contributions of other records.
    scale : float
        Scale of the noise.
    step : int
        Contribution of the record; 1 for a count.

    Examples
    --------
    >>> laplace_evidence(np.array([-7, 0, 1, 9]), scale=2.0).tolist()
    [-0.5, -0.5, 0.5, 0.5]
    """
    excess = np.asarray(excess, np.float64)
    return np.asarray((np.abs(excess) - np.abs(excess - step)) / scale)


def gaussian_evidence(excess: Cells, variance: float | Floats, step: int = 1) -> Floats:
    """Return the evidence of cells under Gaussian noise, discrete or not.

    Parameters
    ----------
    excess : array
        Released cells, minus known or expected contributions of other records.
    variance : float or array that broadcasts
        Variance of the noise and of the unknown part of the other records.
    step : int
        Contribution of the record; 1 for a count.

    Examples
    --------
    >>> gaussian_evidence(np.array([0, 1, 3]), variance=2.0).tolist()
    [-0.25, 0.25, 1.25]
    """
    excess = np.asarray(excess, np.float64)
    return np.asarray(step * (2 * excess - step) / (2 * np.asarray(variance)))
