"""A supervised metric from moments that parties add up: directions that tell classes count more.

Coordinates are rounded to multiples of 2**-16 before they are summed, so that the sums are integers
and the same in whatever order and however split.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers

_QUANTA = 1 << 16
_REACH = 8.0  # coordinates are cut here: 2**19 quanta, squares 2**38
_ROWS = 1 << 14  # whose sums of squares stay below 2**53, exact in float64


@dataclass(frozen=True)
class ClassMoments:
    """Sums over rows, in units of 2**-16 and 2**-32, which parties add up.

    Parameters
    ----------
    counts : int64 array of shape (n_classes,)
        Rows of each class.
    sums : int64 array of shape (n_classes, n_coordinates)
        Of the coordinates, by class.
    products : int64 array of shape (n_coordinates, n_coordinates)
        Of the products of two coordinates, over all classes.
    """

    counts: Integers
    sums: Integers
    products: Integers


def class_moments(points: Floats, labels: Integers, n_classes: int) -> ClassMoments:
    """Return the moments of points.

    Parameters
    ----------
    points : float64 array of shape (n_rows, n_coordinates)
        Cut at 8 in either direction.
    labels : int64 array of shape (n_rows,)
        Positions of the classes.
    n_classes : int
        Classes of the federation.
    """
    n_coordinates = points.shape[1]
    sums = np.zeros((n_classes, n_coordinates), np.int64)
    products = np.zeros((n_coordinates, n_coordinates), np.int64)
    for start in range(0, len(points), _ROWS):
        block = _quanta(points[start : start + _ROWS])
        products += (block.T @ block).astype(np.int64)  # below 2**53: no bit is lost
        for label in np.unique(labels[start : start + _ROWS]):
            sums[label] += (
                block[labels[start : start + _ROWS] == label].sum(axis=0).astype(np.int64)
            )
    return ClassMoments(np.bincount(labels, minlength=n_classes), sums, products)


def _quanta(points: Floats) -> Floats:
    """Return coordinates as whole multiples of 2**-16."""
    return np.asarray(np.rint(np.clip(points, -_REACH, _REACH) * _QUANTA))


def without_few_pairs(
    moments: ClassMoments,
    points: Floats,
    base: Floats,
    known: npt.NDArray[np.bool_],
    *,
    n_columns: int,
    min_count: int,
) -> ClassMoments:
    """Return moments whose products tell of few rows nowhere.

    Where two coordinates say something of the same row for fewer than ``min_count`` rows, those
    rows count in their product as if they said nothing. Numbers of rows that lack the cells of two
    columns are rounded to multiples of ``min_count``: their differences would tell of few.

    Parameters
    ----------
    moments : ClassMoments
        Of these points.
    points : float64 array of shape (n_rows, n_coordinates)
        Rows in the frame.
    base : float64 array of shape (n_coordinates,)
        Where a row lies of which nothing is known.
    known : bool array of shape (n_rows, n_coordinates)
        Whether a coordinate says something of a row: elsewhere it lies at the base.
    n_columns : int
        Coordinates before those that tell missing cells.
    min_count : int
        Fewer rows are few.
    """
    together, beyond = np.zeros((2, *moments.products.shape), np.int64)
    for start in range(0, len(points), _ROWS):
        some = slice(start, start + _ROWS)
        said = known[some].astype(np.float32)  # whose sums are below 2**24, exact in float32
        together += (said.T @ said).astype(np.int64)
        gap = _quanta(points[some]) - _quanta(base)
        beyond += (gap.T @ gap).astype(np.int64)  # of few rows below 2**40 each: exact
    products = moments.products - np.where(together < min_count, beyond, 0)
    told = products[n_columns:, n_columns:]
    counts = min_count * np.rint(told / (float(_QUANTA) ** 2 * min_count)).astype(np.int64)
    np.fill_diagonal(counts, np.diag(together)[n_columns:])
    products[n_columns:, n_columns:] = counts * _QUANTA**2
    return replace(moments, products=products)


def covariance_within(moments: ClassMoments) -> tuple[Floats, Floats]:
    """Return the means of the classes that have rows, and the covariance within classes.

    Parameters
    ----------
    moments : ClassMoments
        Of at least one row.

    Returns
    -------
    means : float64 array of shape (n_present, n_coordinates)
        In the order of the classes.
    within : float64 array of shape (n_coordinates, n_coordinates)
        Symmetric.
    """
    counts = moments.counts
    present = counts > 0
    means = moments.sums[present] / (counts[present, None] * float(_QUANTA))
    between = (means * counts[present, None]).T @ means
    within = (moments.products / float(_QUANTA) ** 2 - between) / int(counts.sum())
    return means, (within + within.T) / 2


def supervised_metric(moments: ClassMoments, *, ridge: float, boost: float) -> Floats:
    """Return a linear map after which Euclidean distance tells classes apart.

    Coordinates are whitened by the covariance within classes; the directions between the means of
    the classes are then stretched.

    Parameters
    ----------
    moments : ClassMoments
        Of all parties.
    ridge : float
        Added to every variance within classes, in units of the mean variance.
    boost : float
        Factor of the directions between class means; 1 for none.

    Returns
    -------
    float64 array of shape (n_coordinates, n_coordinates)
        To multiply points with from the right.
    """
    means, within = covariance_within(moments)
    spread, directions = np.linalg.eigh(within)
    unit = float(np.trace(within)) / len(within) or 1.0  # where nothing varies within classes
    whiten = directions / np.sqrt(np.maximum(spread, 0.0) + ridge * unit)
    apart = (means - means.mean(axis=0)) @ whiten
    _, sizes, rows = np.linalg.svd(apart, full_matrices=False)
    told = rows[sizes > 1e-9 * max(float(sizes.max(initial=0.0)), 1.0)]
    stretched: Floats = whiten + (boost - 1.0) * (whiten @ told.T) @ told
    return stretched
