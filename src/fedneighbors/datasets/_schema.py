"""`Schema`: declared columns and labels; converts rows one by one."""

import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedneighbors._typing import Array, Booleans, Floats
from fedneighbors.datasets._cell_faults import CellFaults, find_faults, note_cells
from fedneighbors.datasets._files import explain_errors
from fedneighbors.datasets._ontology import Ontology
from fedneighbors.datasets._schema_columns import (
    Cells,
    Column,
    NumericColumn,
    SetColumn,
    draft_categories,
    draft_numbers,
    kind_of,
    read_column,
    read_labels,
)
from fedneighbors.datasets._table import Table, check_names, join_names, missing_cells, suggest
from fedneighbors.errors import DataError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """Rows converted by a schema.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Features of the kept rows.
    y : int64 or str array of shape (n_rows,), or None
        Labels of the kept rows; None if the schema has no label or the source no label column.
    kept : bool array of shape (n_source_rows,)
        True for kept rows; unreadable rows are not included.
    missing, clipped : mapping of str to int
        Number of missing and of clipped cells in each column, over all readable rows.
    n_unreadable : int
        Number of rows that could not be split into cells.
    n_unlabelled : int
        Number of rows with a missing label or one that is not among the classes.
    faults : mapping of str to CellFaults
        Cells of each column that are not empty, but outside of the schema.
    """

    x: Floats
    y: Array | None
    kept: Booleans
    missing: Mapping[str, int]
    clipped: Mapping[str, int]
    n_unreadable: int = 0
    n_unlabelled: int = 0
    faults: Mapping[str, CellFaults] = field(default_factory=dict)


@dataclass(frozen=True)
class Schema:
    """Declared columns of a table, and its labels.

    A schema converts each row by itself: the result for a row never depends on other rows. A
    privacy budget requires this, and it makes rows of several parties comparable. Write the schema
    from public knowledge, such as a code book; one derived from private rows discloses facts about
    them.

    Parameters
    ----------
    columns : tuple of NumericColumn, CategoricalColumn or SetColumn
        Columns, in the order of their features. Other columns of a source are ignored.
    label : str
        Label column; empty for none.
    classes : tuple of str, or tuple of int
        Allowed labels; empty for any. A row with another label is dropped.
    name : str
        Public name of the data.

    Raises
    ------
    DataError
        If there are no columns, a name repeats, or classes are of different types.

    Examples
    --------
    >>> schema = Schema.from_toml('''
    ... label = "died"
    ... classes = ["no", "yes"]
    ... [columns.age]
    ... kind = "number"
    ... low = 0
    ... high = 110
    ... [columns.sex]
    ... kind = "category"
    ... categories = ["f", "m", "x"]
    ... missing = "x"
    ... ''')
    >>> schema.feature_names
    ('age', 'sex=f', 'sex=m', 'sex=x')
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": [50, None, 1e9], "sex": ["f", "m", None]})
    >>> rows = schema.encode(frame)
    >>> rows.x
    array([[ 50.,   1.,   0.,   0.],
           [110.,   0.,   0.,   1.]])
    >>> rows.kept
    array([ True, False,  True])
    """

    columns: tuple[Column, ...]
    label: str = ""
    classes: tuple[Any, ...] = ()
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.columns:
            raise DataError("the schema has no columns; declare at least one")
        labels = (self.label,) if self.label else ()
        check_names((*self.column_names, *labels), source="the schema")
        if {type(label) for label in self.classes} not in ({str}, {int}, set()):
            raise DataError(
                f"expected classes as all texts or all integers, got {self.classes!r:.200}"
            )
        if any(type(label) is int and not -(2**63) <= label < 2**63 for label in self.classes):
            raise DataError("expected classes that fit into 64 bits; declare them as texts")
        if len(set(self.classes)) < len(self.classes):
            raise DataError("the schema repeats a class")
        if len(self.classes) == 1 or bool(self.classes) > bool(self.label):
            raise DataError("classes need a label column and at least two labels")

    @property
    def column_names(self) -> tuple[str, ...]:
        """Return the names of the declared columns."""
        return tuple(column.name for column in self.columns)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the features, in order."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the lowest and the highest value of each feature.

        Raises
        ------
        DataError
            If a range is infinite.
        """
        pairs = [pair for column in self.columns for pair in column.bounds]
        low, high = (tuple(bound) for bound in zip(*pairs, strict=True))
        unbounded = [c.name for c in self.columns if not np.isfinite(c.bounds).all()]
        if unbounded:
            raise DataError(
                f"the schema declares no range for column {join_names(unbounded)}; a privacy "
                "budget needs low and high of every column"
            )
        return low, high

    @property
    def digest(self) -> str:
        """Return a hash of the columns, ontologies and labels."""
        terms = [c.terms.digest for c in self.columns if isinstance(c, SetColumn) and c.terms]
        rules = [(column.name, kind_of(column), _fields(column)) for column in self.columns]
        content = json.dumps([_fields(self), rules, terms])
        return hashlib.sha256(content.encode("utf-8")).hexdigest()[:16]

    @property
    def nominal_names(self) -> tuple[str, ...]:
        """Return the names of the columns of categories or sets."""
        return tuple(c.name for c in self.columns if not isinstance(c, NumericColumn))

    def encode(self, rows: Any, y: Any = None) -> EncodedRows:
        """Convert labelled rows; drop those that the schema does not allow.

        Parameters
        ----------
        rows : Table, DataFrame, mapping of str to cells, or array of shape (n_rows, n_columns)
            Columns are matched by name, those of an array by position.
        y : array of shape (n_rows,), optional
            Labels; by default the label column of ``rows``, if present.

        Returns
        -------
        EncodedRows

        Raises
        ------
        DataError
            If a column is missing or has sets, or an array has another number of columns.
        """
        self._refuse_sets()
        return self.check_rows(rows, y)

    def check_rows(self, rows: Any, y: Any = None) -> EncodedRows:
        """Convert labelled rows like :meth:`encode`; sets have no features."""
        cells = self._cells_of(rows)
        features = self.check_cells(cells)
        labels = cells.get(self.label) if y is None else y
        if labels is None:
            return features
        found, known = read_labels(labels, self.classes)
        kept = features.kept & known
        return replace(
            features,
            x=features.x[kept[features.kept]],
            y=found[kept],
            kept=kept,
            n_unlabelled=int((~known).sum()),
        )

    def encode_all(self, rows: Any) -> Floats:
        """Convert rows for prediction.

        Parameters
        ----------
        rows : Table, DataFrame, mapping of str to cells, or array of shape (n_rows, n_columns)
            As for :meth:`encode`; labels are ignored.

        Returns
        -------
        float64 array of shape (n_rows, n_features)

        Raises
        ------
        DataError
            If a column is missing or has sets, or a row would be dropped; the message gives the
            first such row.
        """
        self._refuse_sets()
        encoded = self.check_cells(self._cells_of(rows))
        self.check_complete(encoded)
        return encoded.x

    def check_complete(self, rows: EncodedRows) -> None:
        """Raise if a row was dropped or is unreadable.

        Parameters
        ----------
        rows : EncodedRows
            Rows that this schema converted.

        Raises
        ------
        DataError
            With the number of such rows, the first one, and the columns.
        """
        if rows.n_unreadable:
            raise DataError(
                f"{rows.n_unreadable} rows have another number of cells than the header"
            )
        if not rows.kept.all():
            columns = [c.name for c in self.columns if c.missing == "drop" and rows.missing[c.name]]
            raise DataError(
                f"{(~rows.kept).sum()} rows, first row {rows.kept.argmin() + 1}, have no valid "
                f"cell in column {join_names(columns)}; fill these cells, or declare a value for "
                "missing ones in the schema"
            )

    def notes(self, rows: EncodedRows, *, are_rows: bool = False) -> tuple[str, ...]:
        """Return sentences about missing, clipped and joined cells; none has a value.

        Parameters
        ----------
        rows : EncodedRows
            Rows that this schema converted.
        are_rows : bool
            Cells that the schema keeps missing stay so, in place of features of 0.
        """
        notes = []
        for column in self.columns:
            n_cells = rows.missing[column.name], rows.clipped[column.name]
            faults = rows.faults.get(column.name, CellFaults())
            notes += note_cells(column, *n_cells, faults, is_row=are_rows)
        if rows.n_unlabelled:
            notes.append(f"{rows.n_unlabelled} rows have no declared label and are dropped")
        if (n_rows := rows.n_unreadable) > 0:
            notes.append(f"{n_rows} rows have another number of cells than the header; dropped")
        return tuple(notes)

    def _refuse_sets(self) -> None:
        if names := [c.name for c in self.columns if isinstance(c, SetColumn)]:
            raise DataError(
                f"column {join_names(names)} has sets, which only a search with metric='tabular' "
                "compares; omit it"
            )

    def check_cells(self, cells: Mapping[str, Cells]) -> EncodedRows:
        """Return the features, and the rows that are kept; sets have none.

        Parameters
        ----------
        cells : mapping of str to sequence
            All declared columns; labels are ignored.
        """
        n_rows = len(cells[self.columns[0].name])
        kept, missing, clipped, faults = np.ones(n_rows, bool), {}, {}, {}
        features = []
        for column in self.columns:
            part, is_missing, is_clipped = column.encode(cells[column.name])
            features.append(part)
            missing[column.name] = int(is_missing.sum())
            clipped[column.name] = int(is_clipped.sum())
            faults[column.name] = find_faults(
                column, cells[column.name], missing=is_missing, clipped=is_clipped
            )
            if column.missing == "drop":
                kept &= ~is_missing
        x = np.hstack(features)[kept]
        return EncodedRows(x, None, kept, missing, clipped, faults=faults)

    def _cells_of(self, rows: Any) -> Mapping[str, Cells]:
        """Return the cells of each column."""
        if isinstance(rows, Table):
            columns: Mapping[str, Cells] = rows.columns
        elif isinstance(rows, Mapping):
            columns = rows
        elif hasattr(rows, "columns"):
            names = [str(name) for name in rows.columns]
            check_names(names, source="the data frame")
            columns = {name: _frame_cells(rows.iloc[:, i]) for i, name in enumerate(names)}
        else:
            array = np.asarray(rows)
            if array.ndim != 2 or array.shape[1] != len(self.columns):
                raise DataError(
                    f"expected an array with the {len(self.columns)} columns of the schema, got "
                    f"shape {array.shape}"
                )
            columns = {name: array[:, i] for i, name in enumerate(self.column_names)}
        absent = [name for name in self.column_names if name not in columns]
        if absent:
            raise DataError(
                f"the rows have no column {join_names(absent)}; their columns are "
                f"{join_names(columns)}"
            )
        return columns

    @classmethod
    def draft(
        cls,
        table: Table,
        label: str = "",
        *,
        with_ranges: bool = True,
        keep_missing: bool = False,
        max_categories: int = 256,
    ) -> "Schema":
        """Derive a schema from given rows: ranges, categories and labels.

        A draft from private rows discloses facts about them.

        Parameters
        ----------
        table : Table
            Public or synthetic rows.
        label : str
            Label column; empty for none.
        with_ranges : bool
            Declare the lowest and highest number of each numeric column as its range.
        keep_missing : bool
            Leave missing cells of numeric columns NaN and declare no ranges. By default missing
            cells become the median; with ranges, a column without missing cells declares "drop".
        max_categories : int
            Maximum number of categories of a column.

        Raises
        ------
        DataError
            If ``table`` has no column ``label``, a column has missing cells only, or a column has
            more categories than allowed.
        """
        features = table.without([label]) if label else table
        empty = [name for name, cells in features.columns.items() if missing_cells(cells).all()]
        if empty:
            raise DataError(
                f"{table.source} has missing cells only in column {join_names(empty)}; "
                "remove it, or drop it when reading"
            )
        columns = tuple(
            draft_categories(name, cells, source=table.source, max_categories=max_categories)
            if cells.dtype == np.object_
            else draft_numbers(name, cells, with_range=with_ranges, keep_missing=keep_missing)
            for name, cells in features.columns.items()
        )
        classes: tuple[Any, ...] = ()
        if label:
            labels, known = read_labels(table.columns[label], ())
            classes = tuple(np.unique(labels[known]).tolist())
        return cls(columns, label, classes)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Schema":
        """Read a schema from a TOML file.

        Parameters
        ----------
        path : str or path
            The file.

        Raises
        ------
        MissingDataError
            If there is no such file, or that of an ontology.
        DataError
            If the file is not a schema; the message names the key.
        """
        with explain_errors(Path(path)):
            text = Path(path).read_text("utf-8")
        try:
            schema = cls.from_toml(text)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        columns = [
            replace(column, terms=Ontology.read(Path(path).parent / column.ontology))
            if isinstance(column, SetColumn) and column.ontology
            else column
            for column in schema.columns
        ]
        return replace(schema, columns=tuple(columns))

    @classmethod
    def from_toml(cls, text: str) -> "Schema":
        """Return the schema of a TOML text.

        Parameters
        ----------
        text : str
            Keys ``name``, ``label``, ``classes``, and a table ``columns.NAME`` for each column with
            ``kind`` ``"number"`` (``low``, ``high``, ``missing``), ``"category"``
            (``categories``, ``missing``) or ``"set"`` (``missing``, ``ontology``), and ``weight``.

        Raises
        ------
        DataError
            If a key is unknown or missing, or a value is invalid.
        """
        try:
            content = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"the schema is not valid TOML: {error}") from None
        unknown = sorted(content.keys() - (known := {"name", "label", "classes", "columns"}))
        if unknown:
            raise DataError(f"unknown schema key {join_names(unknown)}{suggest(unknown, known)}")
        name, label = content.get("name", ""), content.get("label", "")
        classes, columns = content.get("classes", []), content.get("columns", {})
        if not (isinstance(name, str) and isinstance(label, str)):
            raise DataError("expected name and label of the schema as texts")
        if not (isinstance(classes, list) and isinstance(columns, dict)):
            raise DataError("expected classes of the schema as a list, and a table for each column")
        rules = tuple(read_column(column, rule) for column, rule in columns.items())
        return cls(rules, label, tuple(classes), name)

    def to_toml(self) -> str:
        """Return the schema as TOML text for :meth:`from_toml`."""
        lines = [f"{key} = {_toml(value)}" for key, value in _fields(self) if value]
        for column in self.columns:
            key = column.name if _BARE_KEY.fullmatch(column.name) else _toml(column.name)
            lines += ["", f"[columns.{key}]"]
            lines.append(f'kind = "{kind_of(column)}"')
            lines += [f"{key} = {_toml(value)}" for key, value in _fields(column)]
        return "\n".join(lines) + "\n"


def _fields(entry: Any) -> list[tuple[str, Any]]:
    """Return the fields of a schema or column that are not implied."""
    names = [f.name for f in fields(entry) if f.name not in ("columns", "terms")]
    if not isinstance(entry, Schema):
        names.remove("name")
    pairs = [(name, getattr(entry, name)) for name in names]
    omitted = {("weight", 1.0), ("ontology", "")}
    return [p for p in pairs if p[1] not in (math.inf, -math.inf) and p not in omitted]


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):  # a JSON text is a TOML text except for this control character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _frame_cells(series: Any) -> Cells:
    """Return a data frame's column; missing cells are None or NaN."""
    if series.dtype == np.float64:
        numbers: Array = series.to_numpy()
        return numbers
    # Other types are read cell by cell, since one row can turn a column into objects.
    cells = zip(series, series.isna(), strict=True)
    return [None if is_missing else cell for cell, is_missing in cells]
