"""Rows of numbers and categories under the Gower distance.

Rows are *coded* by a schema: a number becomes its place within the column's range, from 0 to 1, a
category its number; NaN marks a missing cell. Bounds from bytes select the rows whose distances are
computed, see :mod:`fedneighbors.kernels._gower`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._schema_columns import (
    CategoricalColumn,
    Cells,
    NumericColumn,
    cell_text,
)
from fedneighbors.datasets._table import check_names, join_names
from fedneighbors.errors import DataError
from fedneighbors.kernels._gower import (
    CODE_BLOCK,
    MAX_CODED_COLUMNS,
    MAX_LOSS,
    Codes,
    Kinds,
    bound_distances,
    encode_cells,
    gower_distances,
)
from fedneighbors.methods.fedknn.metrics._points import (
    BoundedSession,
    DistanceBounds,
    MinkowskiScale,
    ScanSession,
)
from fedneighbors.methods.fedknn.metrics._sessions import check_ranks

_MIN_CODED_ROWS = 1024  # all distances of fewer rows are computed
# Columns that the query and an average row have. To read fewer takes no longer than to read their
# codes, and among distances of one or two columns many are equal.
_MIN_COMMON_CELLS = 3
_SAMPLE_STEP, _MIN_SAMPLE = 64, 32  # blocks: 1.6 % of the rows, at least 2,048
# If bounds leave more than this fraction of the rows, every distance is computed. Measured for
# 1,000,000 rows of 20 columns: 5 ms for single rows, 1 % of all; 20 ms for 6 %, as long as for all.
_MAX_LEFT = 1 / 64


@dataclass(frozen=True, eq=False)
class CodedRows:
    """Coded rows with their schema, such as those of a saved model.

    Parameters
    ----------
    schema : Schema
        The columns.
    cells : float64 array of shape (n_rows, n_columns)
        Places of numbers, and numbers of categories.
    """

    schema: Schema
    cells: Floats


class TabularMetric:
    """Gower distance of rows: the mean difference over the columns that both rows have.

    The difference of two numbers is their distance relative to the range of the column; that of two
    categories is 0 or 1. A column in which one of the two cells is missing is left out, as in [1]_:
    a value that nobody measured makes patients neither alike nor different. The distance is 1 if
    no column remains. It is symmetric, and 0 between equal rows with at least one cell.

    Parameters
    ----------
    schema : Schema, optional
        Columns with the range of each number, and the categories. By default, `prepare` derives
        them from the rows of all parties. Missing cells that the schema fills are not missing.

    References
    ----------
    .. [1] Gower, "A General Coefficient of Similarity and Some of Its Properties", Biometrics 1971.
    """

    name = "tabular"

    def __init__(self, schema: Schema | None = None) -> None:
        self.schema = schema
        for column in schema.columns if schema is not None else ():
            if isinstance(column, NumericColumn) and not math.isfinite(column.high - column.low):
                raise ValueError(
                    f"expected a schema with low and high of column {column.name!r}: they are the "
                    "scale of its numbers"
                )

    def prepare(self, rows: Any, *, private: bool = False) -> tuple[Self, Floats]:
        """Return the metric with a schema, and the coded rows.

        Raises
        ------
        ValueError
            If ``private``, and there is no schema.
        DataError, TypeError
            As for `read`; also if a column has cells of several kinds.
        """
        if private and self.schema is None:
            raise ValueError(
                "metric='tabular' takes ranges and categories from the rows of all parties, which "
                "no privacy budget covers; give a Schema as metric"
            )
        if isinstance(rows, CodedRows):
            return type(self)(rows.schema), rows.cells
        columns = _columns_of(rows, None if self.schema is None else self.schema.column_names)
        schema = self.schema or Schema(tuple(_draft(name, columns[name]) for name in columns))
        metric = type(self)(schema)
        return metric, metric._encode(columns)

    def read(self, rows: Any) -> Floats:
        """Return coded rows.

        Parameters
        ----------
        rows : DataFrame, sequence of mappings, or table with the columns in order
            A column that a mapping leaves out is missing.

        Raises
        ------
        DataError
            If columns do not agree with the schema, or a row lacks a cell of a column that drops
            such rows.
        """
        schema = self._require_schema()
        return self._encode(_columns_of(rows, schema.column_names))

    def distance(self, first: Any, second: Any) -> float:
        """Return the distance of two coded rows."""
        index = self.index([first], ranks=np.zeros(1, np.int64))
        return float(index.open(second).next(1).distances[0])

    def index(self, objects: Sequence[Any], *, ranks: Integers) -> "_RowIndex":
        """Return an index of coded rows.

        Raises
        ------
        ValueError
            If a row has another number of cells than the schema has columns, or an infinite one;
            the error names its position.
        """
        n_columns = len(self._require_schema().columns)
        if isinstance(objects, np.ndarray) and objects.shape[1:] == (n_columns,):
            columns = np.array(objects.T, np.float64, order="C")
            for row in np.flatnonzero(np.isinf(columns).any(axis=0))[:1]:
                _check_row(columns[:, row], n_columns, f"object {row}")
        else:
            rows = [_check_row(row, n_columns, f"object {i}") for i, row in enumerate(objects)]
            columns = np.stack(rows, axis=1) if rows else np.empty((n_columns, 0))
        is_category = np.array(
            [isinstance(column, CategoricalColumn) for column in self._require_schema().columns]
        )
        return _RowIndex(columns, is_category, check_ranks(ranks, len(objects)))

    def _require_schema(self) -> Schema:
        if self.schema is None:
            raise ValueError(
                "the ranges of the columns are unknown: fit FederatedNeighbors with "
                "metric='tabular', or give a Schema as metric"
            )
        return self.schema

    def _encode(self, columns: Mapping[str, Cells]) -> Floats:
        schema = self._require_schema()
        return np.column_stack([_code(column, columns[column.name]) for column in schema.columns])


class _RowIndex:
    """Coded rows, and many of them as bytes."""

    def __init__(self, columns: Floats, is_category: Kinds, ranks: Integers) -> None:
        self.n_objects = len(ranks)
        self._columns, self._is_category, self._ranks = columns, is_category, ranks
        self._codes: Codes | None = None
        if self.n_objects >= _MIN_CODED_ROWS and len(columns) <= MAX_CODED_COLUMNS:
            self._codes = encode_cells(columns, is_category)
            self._coverage = np.mean(~np.isnan(columns), axis=1)
            n_full = max(self.n_objects // CODE_BLOCK, 1)  # blocks without padding
            step = max(min(n_full // _MIN_SAMPLE, _SAMPLE_STEP), 1)
            self._sample = np.ascontiguousarray(self._codes[:n_full:step])

    def open(self, query: Any) -> ScanSession:
        row = _check_row(query, len(self._columns), "the query")
        measure = partial(gower_distances, self._columns, self._is_category, row)
        width = len(self._columns)
        if self._codes is None or self._coverage[~np.isnan(row)].sum() < _MIN_COMMON_CELLS:
            return ScanSession(self._ranks, measure, width=width)
        bound = partial(self._bound, row)
        sample = _Sample(partial(bound, self._sample), self.n_objects)
        return BoundedSession(
            self._ranks,
            measure,
            partial(bound, self._codes),
            width=width,
            leaves_many=sample.leaves_many,
        )

    def _bound(self, row: Floats, codes: Codes) -> DistanceBounds:
        n_rows = min(self.n_objects, len(codes) * CODE_BLOCK)
        bounds = bound_distances(codes, self._is_category, row, n_rows)
        scale = MinkowskiScale(power=1, halved_square=False, n_columns=len(row))
        return DistanceBounds(bounds, scale, exponent=0)


class _Sample:
    """Bounds of a sample of the rows, which show whether bounds exclude most rows.

    Parameters
    ----------
    bound : callable
        Function that returns the bounds of the sample, not yet computed.
    n_objects : int
        Number of all rows.
    """

    def __init__(self, bound: Callable[[], DistanceBounds], n_objects: int) -> None:
        self._bound, self._n_objects = bound, n_objects

    @cached_property
    def _bounds(self) -> Floats:
        """Return the bounds, ascending."""
        bounds = self._bound()
        bounds.extend(self._n_objects)
        return np.sort(bounds.list_all(self._n_objects))

    def leaves_many(self, k: int, limit: float) -> bool:
        """Return whether many bounds are within the k-th distance and the limit."""
        n = len(self._bounds)
        nearest = self._bounds[min(k * n // self._n_objects, n - 1)] + MAX_LOSS
        return bool(self._bounds.searchsorted(min(nearest, limit), side="right") > _MAX_LEFT * n)


def _check_row(row: Any, n_columns: int, name: str) -> Floats:
    cells = np.array(row, np.float64)
    if cells.shape != (n_columns,):
        raise ValueError(f"{name}: expected {n_columns} coded cells, got shape {cells.shape}")
    if np.isinf(cells).any():
        raise ValueError(f"{name}: expected finite or missing cells, got an infinite one")
    return cells


def _code(column: NumericColumn | CategoricalColumn, cells: Cells) -> Floats:
    """Return the places of cells in a range, or their categories' numbers."""
    features, is_missing, _ = column.encode(cells)
    if column.missing == "drop" and is_missing.any():
        raise DataError(
            f"row {int(is_missing.argmax()) + 1} has no valid cell in column {column.name!r}; fill "
            "it, or declare missing='keep' in the schema"
        )
    if isinstance(column, NumericColumn):
        width = column.high - column.low
        return (features[:, 0] - column.low) / (width if width > 0 else 1.0)
    first = len(column.categories) - features.shape[1]  # two categories share a feature
    codes = features @ np.arange(first, len(column.categories))
    return np.where(is_missing, np.nan, codes) if column.missing == "keep" else codes


def _columns_of(rows: Any, names: Sequence[str] | None) -> dict[str, Cells]:
    """Return the cells of each column, those of a schema if given."""
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):
        found = [str(name) for name in rows.columns]
        check_names(found, source="the data frame")
        cells = {name: _cells(rows.iloc[:, i]) for i, name in enumerate(found)}
        absent = [name for name in names or () if name not in cells]
        if absent:
            raise DataError(
                f"the rows have no column {join_names(absent)}; their columns are "
                f"{join_names(found)}"
            )
        return {name: cells[name] for name in names or found}
    listed = list(rows)
    if listed and all(isinstance(row, Mapping) for row in listed):
        found = list(dict.fromkeys(str(name) for row in listed for name in row))
        unknown = [name for name in found if names is not None and name not in names]
        if unknown:
            raise DataError(
                f"expected the columns {join_names(names or ())}, got {join_names(unknown)}"
            )
        return {name: [row.get(name) for row in listed] for name in names or found}
    if names is None:
        raise TypeError(
            "expected a data frame or a list of mappings for metric='tabular'; for rows without "
            "column names give a Schema as metric"
        )
    if not all(np.ndim(row) == 1 and len(row) == len(names) for row in listed):
        raise DataError(f"expected rows with the {len(names)} cells {join_names(names)}")
    return {name: [row[j] for row in listed] for j, name in enumerate(names)}


def _cells(series: Any) -> Cells:
    """Return the cells of a column; missing ones are None or NaN."""
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iuf":
        return np.asarray(series, np.float64)
    pairs = zip(series.tolist(), series.isna().tolist(), strict=True)
    return [None if is_missing else cell for cell, is_missing in pairs]


def _draft(name: str, cells: Cells) -> NumericColumn | CategoricalColumn:
    """Derive a column from all its cells."""
    present: Any = (
        cells[~np.isnan(cells)]
        if isinstance(cells, np.ndarray)
        else [cell for cell in cells if cell_text(cell) is not None]
    )
    kinds = {float} if isinstance(cells, np.ndarray) else {type(cell) for cell in present}
    if all(issubclass(kind, int | float | np.number) and kind is not bool for kind in kinds):
        numbers = np.asarray(present, np.float64)
        if not np.isfinite(numbers).all():
            raise DataError(f"column {name!r} has an infinite number; remove it")
        low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 0.0)
        return NumericColumn(name, low, high, missing="keep")
    if kinds <= {str} or kinds <= {bool, np.bool_}:
        categories = sorted({str(cell_text(cell)) for cell in present})
        return CategoricalColumn(name, tuple(categories), missing="keep")
    raise DataError(
        f"expected numbers, text or booleans in column {name!r}, one of them, got "
        f"{', '.join(sorted(kind.__name__ for kind in kinds))}"
    )
