"""CSV, ARFF and Parquet files as columns, as a `Dataset`, or as rows for prediction."""

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._lazy import optional_module
from fedneighbors.datasets._cells import parquet_batches, read_cells
from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._files import explain_errors
from fedneighbors.datasets._schema import EncodedRows, Schema
from fedneighbors.datasets._table import (
    Column,
    Table,
    check_finite,
    check_names,
    missing_cells,
    word_column,
)
from fedneighbors.datasets._text_tables import is_arff, read_arff, read_delimited
from fedneighbors.errors import DataError, MissingDataError

MISSING_CELLS = ("", "?")

_WHOLE_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.0*)?")  # 18 digits always fit int64


def read_columns(
    path: str | os.PathLike[str],
    *,
    nominal: Collection[str] = (),
    delimiter: str = ",",
    missing: Collection[str] = MISSING_CELLS,
) -> Table:
    """Read the unchanged columns of a CSV, Parquet or ARFF file.

    Parameters
    ----------
    path : str or path
        Parquet if the name ends in ``.parquet`` or ``.pq`` (needs the extra ``data``), ARFF if it
        ends in ``.arff``, otherwise delimited UTF-8 text with a header row; ARFF and text are
        gzipped if the name ends in ``.gz``.
    nominal : collection of str, default=()
        Nominal columns whose cells are numbers.
    delimiter : str, default=","
        Separator of cells in delimited text.
    missing : collection of str, default=("", "?")
        Cells that count as missing; NaN among numbers and null in Parquet count as well.

    Returns
    -------
    Table

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is empty, damaged, not UTF-8, or ragged, repeats a column name, or lacks a
        column of ``nominal``.
    MissingExtraError
        If the file is Parquet and pyarrow is not installed.
    """
    file = Path(path)
    if file.suffix in {".parquet", ".pq"}:
        table = _read_parquet(file, words=nominal, missing=missing)
    elif is_arff(file):
        table = read_arff(file, words=nominal, missing=missing)
    else:
        table = read_delimited(file, words=nominal, delimiter=delimiter, missing=missing)
    table.require(sorted(nominal))
    return table


def read_table(
    path: str | os.PathLike[str],
    label: str = "target",
    *,
    party: str | None = None,
    drop: Collection[str] = (),
    nominal: Collection[str] = (),
    schema: Schema | None = None,
    delimiter: str = ",",
    missing: Collection[str] = MISSING_CELLS,
    keep_missing: bool = False,
) -> Dataset:
    """Read a labelled data set from a CSV, Parquet or ARFF file.

    Parameters
    ----------
    path : str or path
        See `read_columns`.
    label : str, default="target"
        Label column: int64 if all labels are integers, otherwise str.
    party : str, optional
        Column with the owner of each row.
    drop : collection of str, default=()
        Columns to ignore.
    nominal : collection of str, default=()
        Nominal columns whose cells are numbers.
    schema : Schema, optional
        Columns and labels, if declared. Each row is then read by itself, and rows that the schema
        does not allow are dropped; of the other arguments only ``party``, ``delimiter`` and, for a
        schema without a label, ``label`` have an effect. By default columns and the rules for
        missing cells come from all rows of the file.
    delimiter : str, default=","
        Separator of cells in delimited text.
    missing : collection of str, default=("", "?")
        Cells that count as missing.
    keep_missing : bool, default=False
        Leave missing cells of numeric columns NaN.

    Returns
    -------
    Dataset

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is invalid; the message names the column or the line.
    MissingExtraError
        If the file is Parquet and pyarrow is not installed.
    """
    file_name = Path(path).name.split(".")[0]
    if schema is not None:
        return _read_declared(Path(path), schema, label, party=party, delimiter=delimiter)
    words = {*nominal, label, *([] if party is None else [party])}
    table = read_columns(path, nominal=words, delimiter=delimiter, missing=missing)
    return dataset_from_table(
        table.without(drop) if drop else table,
        label,
        name=file_name,
        party=party,
        keep_missing=keep_missing,
    )


def dataset_from_table(
    table: Table,
    label: str,
    *,
    name: str,
    party: str | None = None,
    keep_missing: bool = False,
    schema: Schema | None = None,
) -> Dataset:
    """Build a labelled data set from columns in memory.

    Parameters
    ----------
    table : Table
        Columns of features, labels and, if named, parties.
    label : str
        Label column.
    name : str
        Name of the data set.
    party : str, optional
        Column with the owner of each row.
    keep_missing : bool, default=False
        Leave missing cells of numeric columns NaN.
    schema : Schema, optional
        Columns of the features; by default derived from ``table``.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        If a column is missing, or labels or parties have missing cells.
    """
    roles = [label] if party is None else [label, party]
    features = table.without(roles)
    schema = schema or Schema.draft(features, with_ranges=False, keep_missing=keep_missing)
    owners = None if party is None else np.array(_text_cells(table, party), dtype=np.str_)
    return Dataset(
        name=name,
        x=schema.encode_all(features),
        y=_labels(_text_cells(table, label)),
        feature_names=schema.feature_names,
        source=table.source,
        parties=owners,
        schema=schema,
    )


def read_features(
    path: str | os.PathLike[str],
    feature_names: Sequence[str],
    *,
    delimiter: str = ",",
    missing: Collection[str] = MISSING_CELLS,
    keep_missing: bool = False,
) -> npt.NDArray[np.float64]:
    """Read numeric features from a file, without labels.

    For a model with missing cells or categories in its training data use `read_rows`.

    Parameters
    ----------
    path : str or path
        See `read_columns`. Columns may be in any order; additional columns are ignored.
    feature_names : sequence of str
        Features of the training data, in order.
    delimiter : str, default=","
        Separator of cells in delimited text.
    missing : collection of str, default=("", "?")
        Cells that count as missing.
    keep_missing : bool, default=False
        Leave missing cells NaN; otherwise they raise an error.

    Returns
    -------
    float64 array of shape (n_rows, n_features)
        Columns in the order of ``feature_names``.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is invalid, or a feature is missing; the message names it.
    MissingExtraError
        If the file is Parquet and pyarrow is not installed.
    """
    table = read_columns(path, delimiter=delimiter, missing=missing)
    table.require(feature_names)
    return np.column_stack(
        [_numbers(table, name, keep_missing=keep_missing) for name in feature_names]
    )


def read_rows(
    path: str | os.PathLike[str], schema: Schema, *, labelled: bool = True, delimiter: str = ","
) -> EncodedRows:
    """Read a file's rows by a schema, each row by itself.

    Parameters
    ----------
    path : str or path
        CSV, Parquet, ARFF or JSON lines, see the ending of the name; text is gzipped if it ends in
        ``.gz``. Each line of text is a row.
    schema : Schema
        Declared columns and labels.
    labelled : bool, default=True
        Read the label column of the schema.
    delimiter : str, default=","
        Separator of cells in delimited text.

    Returns
    -------
    EncodedRows

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file as a whole is damaged or lacks a column.
    MissingExtraError
        If the file is Parquet and pyarrow is not installed.
    """
    label = [schema.label] if labelled and schema.label else []
    cells, n_unreadable = read_cells(
        Path(path), [*schema.column_names, *label], delimiter=delimiter
    )
    return replace(schema.encode(cells), n_unreadable=n_unreadable)


def _read_declared(
    path: Path, schema: Schema, label: str, *, party: str | None, delimiter: str
) -> Dataset:
    """Return the labelled rows that a schema allows."""
    label = schema.label or label
    others = [label] if party is None else [label, party]
    cells, _ = read_cells(path, [*schema.column_names, *others], delimiter=delimiter)
    rows = schema.encode(cells, cells[label])
    owners = None
    if party is not None:
        owners = np.array(cells[party], dtype=object)[rows.kept].astype(np.str_)
    return Dataset(
        name=schema.name or path.name.split(".")[0],
        x=rows.x,
        y=np.asarray(rows.y),
        feature_names=schema.feature_names,
        source=str(path),
        parties=owners,
        schema=schema,
    )


def _numbers(table: Table, name: str, *, keep_missing: bool) -> npt.NDArray[np.float64]:
    column: Column = table.columns[name]
    if column.dtype == np.object_:
        raise DataError(
            f"column {name!r} of {table.source} has cells that are not numbers; "
            "read it by the schema of the training data, with read_rows"
        )
    numbers = column.astype(np.float64)
    if not keep_missing and np.isnan(numbers).any():
        raise DataError(
            f"column {name!r} of {table.source} has {np.isnan(numbers).sum()} missing cells; "
            "read it by the schema of the training data, with read_rows"
        )
    return numbers


def _text_cells(table: Table, name: str) -> list[str]:
    column = table.columns[name]
    gone = np.flatnonzero(missing_cells(column))
    if len(gone):
        raise DataError(
            f"column {name!r} of {table.source} is missing in {len(gone)} rows, first in data "
            f"row {gone[0] + 1}; fill or remove these rows"
        )
    return [str(cell) for cell in column.tolist()]


def _labels(cells: Sequence[str]) -> npt.NDArray[Any]:
    """Convert labels to int64 if all are integers.

    For example 3 or 3.0; other labels are returned unchanged.
    """
    if all(_WHOLE_NUMBER.fullmatch(cell) for cell in cells):
        return np.array([int(cell.split(".")[0]) for cell in cells], dtype=np.int64)
    return np.array(cells, dtype=np.str_)


def _read_parquet(path: Path, *, words: Collection[str], missing: Collection[str]) -> Table:
    """Read the columns of a Parquet file.

    Numbers and booleans become numeric columns; text becomes a nominal column even if it looks like
    numbers. Null and the text cells in ``missing`` are missing.
    """
    parquet = optional_module("pyarrow.parquet", "data")
    import pyarrow

    if not path.is_file():
        raise MissingDataError(f"there is no file {path}; check the name")
    with explain_errors(path):  # texts may not be UTF-8
        try:
            schema = parquet.read_schema(path)
            names = [str(name) for name in schema.names]
            check_names(names, source=str(path))
            for name, kind in zip(names, schema.types, strict=True):
                _check_parquet_type(kind, name=name, path=path)
            batches = list(parquet_batches(path, names))
            content = pyarrow.Table.from_batches(batches) if batches else schema.empty_table()
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read as Parquet: {error}") from error
        columns = {
            name: _parquet_column(column, as_words=name in words, missing=missing)
            for name, column in zip(names, content.columns, strict=True)
        }
        table = Table(columns, str(path))
    check_finite(table)
    return table


def _check_parquet_type(kind: Any, *, name: str, path: Path) -> None:
    """Raise unless a column has numbers, booleans or text."""
    from pyarrow import types

    value = kind.value_type if types.is_dictionary(kind) else kind
    if not any(
        test(value)
        for test in (
            types.is_integer,
            types.is_floating,
            types.is_boolean,
            types.is_string,
            types.is_large_string,
            types.is_null,
        )
    ):
        raise DataError(
            f"column {name!r} of {path} has type {kind}; expected numbers or text: "
            "convert or drop it"
        )


def _parquet_column(column: Any, *, as_words: bool, missing: Collection[str]) -> Column:
    import pyarrow

    kind = pyarrow.types
    if kind.is_dictionary(column.type):  # only if the file has no rows
        column = column.cast(column.type.value_type)
    number = kind.is_integer(column.type) or kind.is_floating(column.type)
    if (number or kind.is_boolean(column.type)) and not as_words:
        numbers: Column = column.cast(pyarrow.float64(), safe=False).to_numpy()
        return numbers
    return _parquet_words(column, missing=missing)


def _parquet_words(column: Any, *, missing: Collection[str]) -> Column:
    import pyarrow

    stripped = (
        None if cell is None else cell.strip() for cell in column.cast(pyarrow.string()).to_pylist()
    )
    return word_column(None if cell in missing else cell for cell in stripped)
