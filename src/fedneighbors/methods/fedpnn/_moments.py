"""Request for the moments of scaled rows, from which the supervised metric is derived."""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import ClassVar

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._messages import message
from fedneighbors.methods.fedpnn._scaling import (
    MAX_COORDINATES,
    Booleans,
    ScalingReply,
    ScalingRequest,
    TableScaling,
    check_columns,
    check_scaling,
    constants_request,
)
from fedneighbors.tabular._schema import (
    CLASS_BLOCK_ROWS,
    QUANTA,
    PointMomentsReply,
    check_n_classes,
    quantize,
)


@message
class PointMomentsRequest:
    """Request for the moments of the rows in the agreed scaling.

    Rows of classes with fewer than ``min_count`` rows at the party are left out.
    ``constants`` are the signed constants from which the scaling follows; empty if the parties do
    not sign.
    """

    reply: ClassVar[type] = PointMomentsReply
    single_use: ClassVar[str] = "always"
    scaling: TableScaling
    classes: tuple[str | int | float | bool, ...]
    min_count: int
    columns: Integers | None = None
    constants: Mapping[str, ScalingReply] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_columns(self.columns)
        if self.scaling.n_coordinates > MAX_COORDINATES:
            raise ValueError(f"expected at most {MAX_COORDINATES} coordinates")
        check_n_classes(len(self.classes))

    @property
    def quoted(self) -> Mapping[str, ScalingReply]:
        """Return the replies on which the request depends, by party."""
        return self.constants

    @property
    def quoted_request(self) -> ScalingRequest:
        """Return the request to which these are replies."""
        return constants_request(self.constants, min_count=self.min_count, columns=self.columns)

    def check_quoted(self) -> None:
        """Raise ValueError if the request does not follow from the quoted replies."""
        check_scaling(self.scaling, self.constants, min_count=self.min_count)


def suppress_few_pairs(
    moments: PointMomentsReply,
    points: Floats,
    base: Floats,
    known: Booleans,
    *,
    n_columns: int,
    min_count: int,
) -> PointMomentsReply:
    """Suppress products of moments that disclose few rows.

    Where two coordinates are both known for fewer than ``min_count`` rows, the products of their
    offsets from ``base`` are subtracted, so that only sums of single coordinates remain. Counts of
    rows that lack the cells of two columns are rounded to multiples of ``min_count``, because their
    differences would disclose few rows.

    Parameters
    ----------
    moments : PointMomentsReply
        Moments of ``points``.
    points : float64 array of shape (n_rows, n_coordinates)
        Scaled rows.
    base : float64 array of shape (n_coordinates,)
        Point of an all-missing row, see :meth:`TableScaling.empty_point`.
    known : bool array of shape (n_rows, n_coordinates)
        True where a coordinate carries information; elsewhere it equals ``base``.
    n_columns : int
        Number of coordinates before the missing-cell indicators.
    min_count : int
        Minimum number of rows that a disclosed number describes.
    """
    n_both, offset_products = np.zeros((2, *moments.products.shape), np.int64)
    for start in range(0, len(points), CLASS_BLOCK_ROWS):
        rows = slice(start, start + CLASS_BLOCK_ROWS)
        block = known[rows].astype(np.float32)  # sums of a block are below 2**24, exact in float32
        n_both += (block.T @ block).astype(np.int64)
        offsets = quantize(points[rows]) - quantize(base)
        # exact where it is used: few rows, at most 2**40 each
        offset_products += (offsets.T @ offsets).astype(np.int64)
    products = moments.products - np.where(n_both < min_count, offset_products, 0)
    missing = products[n_columns:, n_columns:]
    counts = min_count * np.rint(missing / (float(QUANTA) ** 2 * min_count)).astype(np.int64)
    np.fill_diagonal(counts, np.diag(n_both)[n_columns:])
    products[n_columns:, n_columns:] = counts * QUANTA**2
    return replace(moments, products=products)
