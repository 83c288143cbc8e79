"""Exact counts, sums and products of rows by class, summed over parties.

Coordinates are rounded to multiples of 2**-16 before they are summed, so that the sums are integers
that do not depend on order or on the split into parties.
"""

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._messages import message

QUANTA = 1 << 16
"""Steps per unit of a coordinate; coordinates are rounded to multiples of a step."""

COORDINATE_LIMIT = 8.0
"""Limit of a coordinate, to which others are clipped: 2**19 steps, whose square is 2**38."""

BLOCK_ROWS = 1 << 14
"""Size of blocks of rows: sums of squares stay below 2**53, exact in float64."""


@message
class PointMomentsReply:
    """Sums over the rows of a party, to be added up over parties.

    Parameters
    ----------
    counts : int64 array of shape (n_classes,)
        Rows of each class.
    sums : int64 array of shape (n_classes, n_coordinates)
        Sum of each coordinate by class, in units of 2**-16.
    products : int64 array of shape (n_coordinates, n_coordinates)
        Sum of the product of each pair of coordinates over all classes, in units of 2**-32; or,
        with a first axis of length n_classes, over each class.
    """

    counts: Integers
    sums: Integers
    products: Integers


def class_moments(points: Floats, labels: Integers, n_classes: int) -> PointMomentsReply:
    """Return counts and sums by class, and products over all classes."""
    n_coordinates = points.shape[1]
    sums = np.zeros((n_classes, n_coordinates), np.int64)
    products = np.zeros((n_coordinates, n_coordinates), np.int64)
    for start in range(0, len(points), BLOCK_ROWS):
        block = quantize(points[start : start + BLOCK_ROWS])
        products += (block.T @ block).astype(np.int64)  # exact: below 2**53
        for label in np.unique(labels[start : start + BLOCK_ROWS]):
            sums[label] += (
                block[labels[start : start + BLOCK_ROWS] == label].sum(axis=0).astype(np.int64)
            )
    return PointMomentsReply(np.bincount(labels, minlength=n_classes), sums, products)


def quantize(points: Floats) -> Floats:
    """Return coordinates in steps of 2**-16, rounded to integers."""
    return np.asarray(np.rint(np.clip(points, -COORDINATE_LIMIT, COORDINATE_LIMIT) * QUANTA))


def covariance_within(moments: PointMomentsReply) -> tuple[Floats, Floats]:
    """Return class means and the covariance within classes.

    Parameters
    ----------
    moments : PointMomentsReply
        Moments of at least one row.

    Returns
    -------
    means : float64 array of shape (n_present, n_coordinates)
        Means of the classes that have rows, in the order of the classes.
    within : float64 array of shape (n_coordinates, n_coordinates)
        Symmetric covariance matrix.
    """
    counts = moments.counts
    present = counts > 0
    means = moments.sums[present] / (counts[present, None] * float(QUANTA))
    between = (means * counts[present, None]).T @ means
    within = (moments.products / float(QUANTA) ** 2 - between) / int(counts.sum())
    return means, (within + within.T) / 2
