"""Rows of numbers, categories and sets under the Gower distance.

Rows are *coded* by a schema: a number becomes its place within the column's range, from 0 to 1, a
category its number; NaN marks a missing cell. Bounds from bytes select the rows whose distances are
computed, see :mod:`fedneighbors.kernels._gower`. Rows with sets or weights have no bounds: all
distances are computed. The Jaccard distances of a query's sets, from an inverted index, are then
numbers of a column in which the query has 0.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.datasets._cell_faults import check_row
from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._schema_columns import (
    CategoricalColumn,
    Cells,
    Column,
    NumericColumn,
    SetColumn,
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
    Measure,
    MinkowskiScale,
    ScanSession,
)
from fedneighbors.methods.fedknn.metrics._sessions import check_ranks
from fedneighbors.methods.fedknn.metrics._sets import WIDTH, JaccardMetric, _SetSession

_MIN_CODED_ROWS = 1024  # all distances of fewer rows are computed
# Columns that the query and an average row have. To read fewer takes no longer than to read their
# codes, and among distances of one or two columns many are equal.
_MIN_COMMON_CELLS = 3
_SAMPLE_STEP, _MIN_SAMPLE = 64, 32  # blocks: 1.6 % of the rows, at least 2,048
# If bounds leave more than this fraction of the rows, every distance is computed. Measured for
# 1,000,000 rows of 20 columns: 5 ms for single rows, 1 % of all; 20 ms for 6 %, as long as for all.
_MAX_LEFT = 1 / 64


class SetRow(NamedTuple):
    """Coded row with sets.

    Parameters
    ----------
    cells : float64 array of shape (n_columns,)
        Places of numbers, numbers of categories, and 0 for sets; NaN if missing.
    sets : tuple of frozenset of str
        The sets in the order of their columns; empty if missing.
    """

    cells: Floats
    sets: tuple[frozenset[str], ...]


CodedCells = Floats | list[SetRow]
"""Coded rows: a table, or a list if there are sets."""


@dataclass(frozen=True, eq=False)
class CodedRows:
    """Coded rows with their schema, such as those of a saved model.

    Parameters
    ----------
    schema : Schema
        The columns.
    cells : float64 array of shape (n_rows, n_columns), or list of SetRow
        Places of numbers, and numbers of categories.
    """

    schema: Schema
    cells: CodedCells


class TabularMetric:
    """Gower distance of rows: the weighted mean difference over the columns that both rows have.

    The difference of two numbers is their distance relative to the range of the column; that of two
    categories is 0 or 1; that of two sets is their Jaccard distance, 0 if both are empty. A column
    in which one of the two cells is missing is left out, as in [1]_: a value that nobody measured
    makes patients neither alike nor different. The distance is 1 if no column with a weight
    remains. It is symmetric, and 0 between equal rows with at least one such cell.

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
        if schema is not None and not any(column.weight for column in schema.columns):
            raise ValueError("expected a schema with a column whose weight is not 0")

    @property
    def set_names(self) -> list[str]:
        """Return the names of the columns with sets."""
        return [self._require_schema().columns[j].name for j in self._set_columns]

    @property
    def _set_columns(self) -> list[int]:
        """Return the positions of the columns with sets."""
        columns = enumerate(self._require_schema().columns)
        return [j for j, column in columns if isinstance(column, SetColumn)]

    def prepare(self, rows: Any, *, private: bool = False) -> tuple[Self, CodedCells]:
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
        columns = columns_of(rows, None if self.schema is None else self.schema.column_names)
        schema = self.schema or Schema(tuple(_draft(name, columns[name]) for name in columns))
        metric = type(self)(schema)
        return metric, metric._encode(columns)

    def read(self, rows: Any) -> CodedCells:
        """Return coded rows; a list of SetRow if a column has sets.

        Parameters
        ----------
        rows : DataFrame, sequence of mappings, or table with the columns in order
            A column that a mapping leaves out is missing.

        Raises
        ------
        DataError
            If columns do not agree with the schema, a row lacks a cell of a column that drops such
            rows, or a cell is no set.
        """
        schema = self._require_schema()
        return self._encode(columns_of(rows, schema.column_names))

    def read_queries(self, rows: Any) -> CodedCells:
        """Return coded rows to search for.

        Raises
        ------
        DataError
            As for `read`; also if a row has no cell to compare: all distances would be 1.
        """
        columns, coded = self._require_schema().columns, self.read(rows)
        compared = [j for j, column in enumerate(columns) if column.weight]
        for number, row in enumerate(coded, start=1):
            cells = row.cells if isinstance(row, SetRow) else row
            if np.isnan(cells[compared]).all():
                names = join_names([columns[j].name for j in compared])
                raise DataError(
                    f"row {number} of the query has no value to compare: all objects would be "
                    f"equally far; give at least one of {names}"
                )
        return coded

    def read_query(self, row: Mapping[str, Any]) -> Any:
        """Return a coded row; refuse cells outside of the schema.

        Raises
        ------
        DataError
            As for `read_queries`; also if a cell is outside of the schema: the error names what is
            allowed.
        """
        check_row(self._require_schema().columns, row)
        return self.read_queries([row])[0]

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
        schema, places = self._require_schema(), self._set_columns
        n_columns, sets = len(schema.columns), []
        if places:
            rows = [
                _check_set_row(row, n_columns, places, f"object {i}")
                for i, row in enumerate(objects)
            ]
            objects = [row.cells for row in rows]
            sets = [[row.sets[k] for row in rows] for k in range(len(places))]
        if isinstance(objects, np.ndarray) and objects.shape[1:] == (n_columns,):
            columns = np.array(objects.T, np.float64, order="C")
            for row in np.flatnonzero(np.isinf(columns).any(axis=0))[:1]:
                _check_row(columns[:, row], n_columns, f"object {row}")
        else:
            checked = [_check_row(row, n_columns, f"object {i}") for i, row in enumerate(objects)]
            columns = np.stack(checked, axis=1) if checked else np.empty((n_columns, 0))
        is_category = np.array([isinstance(one, CategoricalColumn) for one in schema.columns])
        weights = np.array([column.weight for column in schema.columns], np.float64)
        index = _RowIndex(columns, is_category, weights, check_ranks(ranks, len(objects)))
        order = np.arange(len(objects))  # a set has the number of its row
        index.sets = {
            place: JaccardMetric().index(column, ranks=order)
            for place, column in zip(places, sets, strict=True)
        }
        return index

    def _require_schema(self) -> Schema:
        if self.schema is None:
            raise ValueError(
                "the ranges of the columns are unknown: fit FederatedNeighbors with "
                "metric='tabular', or give a Schema as metric"
            )
        return self.schema

    def _encode(self, columns: Mapping[str, Cells]) -> CodedCells:
        coded, sets = [], []
        for column in self._require_schema().columns:
            cells = columns[column.name]
            if isinstance(column, SetColumn):
                sets.append([column.read(cell) for cell in cells])
                cells = sets[-1]
            coded.append(_code(column, cells))
        table = np.column_stack(coded)
        if not sets:
            return table
        rows = zip(table, zip(*sets, strict=True), strict=True)
        return [SetRow(cells, tuple(one or frozenset() for one in found)) for cells, found in rows]


class _RowIndex:
    """Coded rows, and many of them as bytes; ``sets`` has an index of each column with sets."""

    def __init__(
        self, columns: Floats, is_category: Kinds, weights: Floats, ranks: Integers
    ) -> None:
        self.n_objects = len(ranks)
        self._columns, self._is_category, self._ranks = columns, is_category, ranks
        self._weights, self.sets = weights, dict[int, Any]()
        self._codes: Codes | None = None
        is_coded = len(columns) <= MAX_CODED_COLUMNS and bool((weights == 1).all())
        if self.n_objects >= _MIN_CODED_ROWS and is_coded:
            self._codes = encode_cells(columns, is_category)
            self._coverage = np.mean(~np.isnan(columns), axis=1)
            n_full = max(self.n_objects // CODE_BLOCK, 1)  # blocks without padding
            step = max(min(n_full // _MIN_SAMPLE, _SAMPLE_STEP), 1)
            self._sample = np.ascontiguousarray(self._codes[:n_full:step])

    def open(self, query: Any) -> ScanSession:
        width = len(self._columns)
        if self.sets:
            row, own_sets = _check_set_row(query, width, list(self.sets), "the query")
            pairs = zip(self.sets.items(), own_sets, strict=True)
            sets = {j: one.open(own) for (j, one), own in pairs if not np.isnan(row[j])}
            measure = partial(self._measure_sets, row, sets)
            width += WIDTH * len(sets)
            return _SetRowSession(self._ranks, measure, sets.values(), width=width)
        row = _check_row(query, width, "the query")
        measure = partial(
            gower_distances, self._columns, self._is_category, row, weights=self._weights
        )
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

    def _measure_sets(
        self, row: Floats, sets: Mapping[int, _SetSession], rows: slice | Integers
    ) -> Floats:
        columns = self._columns[:, rows].copy()
        for j, session in sets.items():
            columns[j] += session._measure(np.arange(self.n_objects)[rows])  # 0, or missing
        return gower_distances(columns, self._is_category, row, weights=self._weights)

    def _bound(self, row: Floats, codes: Codes) -> DistanceBounds:
        n_rows = min(self.n_objects, len(codes) * CODE_BLOCK)
        bounds = bound_distances(codes, self._is_category, row, n_rows)
        scale = MinkowskiScale(power=1, halved_square=False, n_columns=len(row))
        return DistanceBounds(bounds, scale, exponent=0)


class _SetRowSession(ScanSession):
    """A query session that counts the common elements of all sets first.

    Parameters
    ----------
    ranks, measure, width
        As for `ScanSession`.
    sets : iterable of _SetSession
        Sessions of the query's sets.
    """

    def __init__(
        self, ranks: Integers, measure: Measure, sets: Iterable[_SetSession], *, width: int
    ) -> None:
        super().__init__(ranks, measure, width=width)
        self._sets = tuple(sets)

    def _scan(self) -> None:
        if all(session.count_more() for session in self._sets):
            super()._scan()


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


def _check_set_row(row: Any, n_columns: int, places: Sequence[int], name: str) -> SetRow:
    """Return a checked row, which may come from a frame."""
    if not isinstance(row, SetRow) or len(row.sets) != len(places):
        raise ValueError(f"{name}: expected a coded row with {len(places)} sets")
    cells = _check_row(row.cells, n_columns, name)
    if np.nan_to_num(cells[places]).any():
        raise ValueError(f"{name}: expected 0 as the cell of a set, or a missing one")
    return SetRow(cells, row.sets)


def _code(column: Column, cells: Cells) -> Floats:
    """Return places in a range, numbers of categories, or 0 for sets."""
    codes = code_cells(column, cells)
    if not isinstance(column, NumericColumn):
        return codes
    width = column.high - column.low
    return (codes - column.low) / (width if width > 0 else 1.0)


def code_cells(column: Column, cells: Cells) -> Floats:
    """Return numbers, numbers of categories, or 0 for sets; NaN if missing.

    Raises
    ------
    DataError
        If a cell is missing in a column that drops such rows.
    """
    features, is_missing, _ = column.encode(cells)
    if column.missing == "drop" and is_missing.any():
        raise DataError(
            f"row {int(is_missing.argmax()) + 1} has no valid cell in column {column.name!r}; fill "
            "it, or declare missing='keep' in the schema"
        )
    if isinstance(column, NumericColumn):
        return features[:, 0]
    if isinstance(column, SetColumn):
        return np.where(is_missing, np.nan, 0.0)
    first = len(column.categories) - features.shape[1]  # two categories share a feature
    codes = features @ np.arange(first, len(column.categories))
    return np.where(is_missing, np.nan, codes) if column.missing == "keep" else codes


def columns_of(rows: Any, names: Sequence[str] | None) -> dict[str, Cells]:
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
    if not all(_is_row(row) and len(row) == len(names) for row in listed):
        raise DataError(f"expected rows with the {len(names)} cells {join_names(names)}")
    return {name: [row[j] for row in listed] for j, name in enumerate(names)}


def _is_row(row: Any) -> bool:
    return getattr(row, "ndim", 1) == 1 and hasattr(row, "__len__") and not isinstance(row, str)


def _cells(series: Any) -> Cells:
    """Return the cells of a column; missing ones are None or NaN."""
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iuf":
        return np.asarray(series, np.float64)
    pairs = zip(series.tolist(), series.isna().tolist(), strict=True)
    return [None if is_missing else cell for cell, is_missing in pairs]


def _draft(name: str, cells: Cells) -> Column:
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
    if kinds <= {list, tuple, set, frozenset}:
        return SetColumn(name, missing="keep")
    raise DataError(
        f"expected numbers, text, booleans or sets in column {name!r}, one of them, got "
        f"{', '.join(sorted(kind.__name__ for kind in kinds))}"
    )
