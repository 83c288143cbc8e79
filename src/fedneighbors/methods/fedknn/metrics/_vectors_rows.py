"""Rows of numbers as objects: what is taken for a vector, and the refusals that name a position."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats

RowCheck = Callable[[Floats], tuple[npt.NDArray[np.bool_], str]]
"""Takes rows; returns which of them are bad and what was expected instead."""

_NUMBERS = "buif"


def as_rows(objects: Sequence[Any], check: RowCheck, *, n_columns: int | None = None) -> Floats:
    """Return objects as the rows of one table.

    Parameters
    ----------
    objects : array of shape (n_objects, n_columns) or sequence of sequences of numbers
        May be empty.
    check : callable
        What the metric asks of rows of finite numbers.
    n_columns : int, optional
        Length that each object must have; by default that of the first one.

    Returns
    -------
    float64 array of shape (n_objects, n_columns), C order
        A copy.

    Raises
    ------
    ValueError
        If an object is no vector of finite numbers, differs in length, or fails the check; its
        position is named.
    """
    if isinstance(objects, np.ndarray) and objects.ndim == 2 and objects.dtype.kind in _NUMBERS:
        rows = np.array(objects, np.float64, order="C")
    else:
        vectors = [_vector(item, f"object {i}") for i, item in enumerate(objects)]
        wanted = n_columns or (len(vectors[0]) if vectors else 1)
        for i, vector in enumerate(vectors):
            _expect_length(vector, wanted, f"object {i}")
        rows = np.array(vectors, np.float64).reshape(len(vectors), wanted)
    if len(rows):
        _expect_length(rows[0], n_columns or max(1, rows.shape[1]), "object 0")
    _expect_good(rows, check, "object {}")
    return rows


def as_row(query: Any, check: RowCheck, *, n_columns: int | None = None) -> Floats:
    """Return a query as a vector.

    Raises
    ------
    ValueError
        If it is no vector of finite numbers, differs in length, or fails the check.
    """
    row = _vector(query, "the query").astype(np.float64)
    _expect_length(row, n_columns or max(1, len(row)), "the query")
    _expect_good(row[np.newaxis], check, "the query")
    return row


def _vector(item: Any, who: str) -> npt.NDArray[Any]:
    try:
        vector = np.asarray(item)
    except ValueError:  # a ragged list
        vector = np.asarray(None)
    if vector.ndim != 1 or vector.dtype.kind not in _NUMBERS:
        raise ValueError(
            f"{who}: expected a one-dimensional vector of real numbers, got {type(item).__name__} "
            f"of dtype {vector.dtype} with {vector.ndim} dimensions"
        )
    return vector


def _expect_length(vector: npt.NDArray[Any], n_columns: int, who: str) -> None:
    if len(vector) != n_columns:
        raise ValueError(f"{who}: expected {n_columns} numbers, got {len(vector)}")


def _expect_good(rows: Floats, check: RowCheck, who: str) -> None:
    infinite = ~np.isfinite(rows).all(axis=1)
    if infinite.any():
        where = who.format(int(infinite.argmax()))
        raise ValueError(f"{where}: expected finite numbers, got NaN or infinity")
    bad, expected = check(rows)
    if bad.any():
        raise ValueError(f"{who.format(int(bad.argmax()))}: expected {expected}")
