"""Integers as residues: arrays become a vector modulo 2^32 or 2^64, and a sum becomes arrays.

The bound that rules out wrapping: with ``n`` parties each number ``x`` must satisfy
``|x| * n < modulus / 2``. The sum then lies within half the modulus and reads back as it is,
negative sums included.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import AggregationError
from fedneighbors.secure_sum._masks import Cells

Layout = tuple[tuple[str, tuple[int, ...]], ...]
"""Dtype and shape of each array, such as ``(("<u2", (10, 4)), ("<i8", ()))``."""

_CODES = ("|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8")
MAX_ARRAYS = 64
MAX_DIMS = 4
MAX_CELLS = (1 << 32) // 8 - 1024  # so that a vector fits a frame


def layout_of(arrays: Sequence[npt.NDArray[np.integer[Any]]]) -> Layout:
    """Return dtype and shape of each array."""
    return tuple((array.dtype.newbyteorder("<").str, array.shape) for array in arrays)


def check_layout(layout: Layout) -> None:
    """Refuse a layout that came over a wire and that no arrays could have.

    Raises
    ------
    ValueError
        If a dtype is unknown or the arrays are too many or too large.
    """
    if len(layout) > MAX_ARRAYS:
        raise ValueError(f"a masked sum has {MAX_ARRAYS} arrays at most, got {len(layout)}")
    for code, shape in layout:
        if code not in _CODES or len(shape) > MAX_DIMS or min(shape, default=0) < 0:
            raise ValueError("an array of a masked sum is not of integers or has a wrong shape")
    if n_cells(layout) > MAX_CELLS:
        raise ValueError(f"a masked sum has {MAX_CELLS} numbers at most")


def n_cells(layout: Layout) -> int:
    """Return how many numbers the arrays hold."""
    return sum(math.prod(shape) for _, shape in layout)


def width(layout: Layout) -> int:
    """Return the bits of the modulus: 32 where every dtype has 32 bits at most, else 64."""
    return 32 if all(np.dtype(code).itemsize <= 4 for code, _ in layout) else 64


def to_cells(arrays: Sequence[npt.NDArray[np.integer[Any]]], *, n_parties: int) -> Cells:
    """Return the numbers of integer arrays as one vector of residues.

    Parameters
    ----------
    arrays : sequence of integer arrays
        One party's numbers, any shapes.
    n_parties : int
        How many such vectors may be added up.

    Returns
    -------
    uint32 or uint64 array of shape (n_cells,)
        A fresh array, little-endian.

    Raises
    ------
    AggregationError
        If a number is so large that the sum could wrap.
    """
    layout = layout_of(arrays)
    check_layout(layout)
    bits = width(layout)
    cells = np.empty(n_cells(layout), f"<u{bits // 8}")
    at = 0
    for array in arrays:
        extremes = int(np.min(array, initial=0)), int(np.max(array, initial=0))
        if max(map(abs, extremes)) * n_parties >= 1 << (bits - 1):
            raise AggregationError(
                f"a number is too large for a masked sum of {n_parties} parties modulo 2^{bits}; "
                "use a wider dtype or smaller numbers"
            )
        cells[at : at + array.size] = array.ravel().astype(cells.dtype)  # negative ones wrap
        at += array.size
    return cells


def from_cells(cells: Cells, layout: Layout) -> list[npt.NDArray[np.integer[Any]]]:
    """Return the arrays that a summed vector stands for.

    Parameters
    ----------
    cells : uint32 or uint64 array of shape (n_cells,)
        The sum, without masks.
    layout : tuple
        Dtype and shape of each array.

    Raises
    ------
    AggregationError
        If a sum does not fit the dtype of its array.
    """
    numbers = cells.view(f"<i{cells.itemsize}")  # half the modulus is negative
    arrays: list[npt.NDArray[np.integer[Any]]] = []
    at = 0
    for code, shape in layout:
        dtype = np.dtype(code)
        part = numbers[at : at + math.prod(shape)]
        low, high = int(np.min(part, initial=0)), int(np.max(part, initial=0))
        limits = np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            raise AggregationError(
                f"a sum does not fit {dtype.name}; a party sent numbers that cannot be, or the "
                "parties need a wider dtype"
            )
        arrays.append(part.astype(dtype).reshape(shape))
        at += len(part)
    return arrays
