"""CSV, ARFF and Parquet files as columns, as a `Dataset`, or as rows for prediction."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Array, Floats
from fedneighbors.datasets._arrays import is_arrays, read_arrays
from fedneighbors.datasets._cells import header_delimiter, parquet_batches, read_cells
from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._files import explain_errors
from fedneighbors.datasets._schema import EncodedRows, Schema
from fedneighbors.datasets._schema_columns import cell_text, parse_integer
from fedneighbors.datasets._table import (
    Column,
    Table,
    check_finite,
    check_names,
    missing_cells,
    word_column,
)
from fedneighbors.datasets._text_format import TextFormat, parse_number, point_number
from fedneighbors.datasets._text_tables import is_arff, read_arff, read_delimited
from fedneighbors.errors import DataError, MissingDataError


def read_columns(
    path: str | os.PathLike[str],
    *,
    nominal: Collection[str] = (),
    text_format: TextFormat | None = None,
) -> Table:
    """Read the unchanged columns of a CSV, Parquet or ARFF file.

    Parameters
    ----------
    path : str or path
        Parquet if the name ends in ``.parquet`` or ``.pq`` (needs the extra ``data``), ARFF if it
        ends in ``.arff``, otherwise delimited text with a header row; ARFF and text are gzipped if
        the name ends in ``.gz``.
    nominal : collection of str, default=()
        Nominal columns whose cells are numbers.
    text_format : TextFormat, optional
        Separators and encoding of text, and marks of missing cells of every format.
        NaN among numbers and null in Parquet are missing as well.

    Returns
    -------
    Table

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is empty, damaged, in another encoding, or ragged, repeats a column name, or
        lacks a column of ``nominal``.
    MissingExtraError
        If the file is Parquet and pyarrow is not installed.
    """
    file, form = Path(path), text_format or TextFormat()
    if file.suffix in {".parquet", ".pq"}:
        table = _read_parquet(file, words=nominal, missing=form.missing)
    elif is_arff(file):
        table = read_arff(file, words=nominal, missing=form.missing, encoding=form.encoding)
    else:
        table = read_delimited(file, words=nominal, text_format=form)
    table.require(sorted(nominal))
    return table if not form.missing_numbers else _without_marks(table, form.missing_numbers)


def _without_marks(table: Table, marks: Sequence[float]) -> Table:
    """Return a table with NaN for numbers that mark missing cells."""
    columns: dict[str, Column] = {
        name: column
        if column.dtype == np.object_
        else np.where(np.isin(column, marks), np.nan, column)
        for name, column in table.columns.items()
    }
    return Table(columns, table.source)


def read_table(
    path: str | os.PathLike[str],
    label: str = "target",
    *,
    party: str | None = None,
    drop: Collection[str] = (),
    nominal: Collection[str] = (),
    schema: Schema | None = None,
    text_format: TextFormat | None = None,
    keep_missing: bool = False,
) -> Dataset:
    """Read a labelled CSV, Parquet, ARFF or NumPy file.

    Parameters
    ----------
    path : str or path
        See `read_columns`; or ``.npz`` with the arrays ``x``, ``y`` and, if known, ``parties``, for
        which of the other arguments only ``keep_missing`` has an effect. Images are flattened.
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
        does not allow are dropped; of the other arguments only ``party``, ``text_format`` and, for
        a schema without a label, ``label`` have an effect. By default columns and the rules for
        missing cells come from all rows of the file.
    text_format : TextFormat, optional
        Separators and encoding of text, and marks of missing cells of every format.
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
    if is_arrays(path):
        return read_arrays(path, keep_missing=keep_missing)
    form = text_format or TextFormat()
    if schema is not None:
        return _read_declared(Path(path), schema, label, party=party, text_format=form)
    words = {*nominal, label, *([] if party is None else [party])}
    table = read_columns(path, nominal=words, text_format=form)
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
    owners = None if party is None else np.array(complete_cells(table, party), dtype=np.str_)
    return Dataset(
        name=name,
        x=schema.encode_all(features),
        y=parse_labels(complete_cells(table, label)),
        feature_names=schema.feature_names,
        source=table.source,
        parties=owners,
        schema=schema,
    )


def read_features(
    path: str | os.PathLike[str],
    feature_names: Sequence[str],
    *,
    text_format: TextFormat | None = None,
    keep_missing: bool = False,
) -> Floats:
    """Read numeric features from a file, without labels.

    For a model with missing cells or categories in its training data use `read_rows`.

    Parameters
    ----------
    path : str or path
        See `read_columns`. Columns may be in any order; additional columns are ignored.
    feature_names : sequence of str
        Features of the training data, in order.
    text_format : TextFormat, optional
        Separators and encoding of text, and marks of missing cells of every format.
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
    table = read_columns(path, text_format=text_format)
    table.require(feature_names)
    return np.column_stack(
        [_numbers(table, name, keep_missing=keep_missing) for name in feature_names]
    )


def read_rows(
    path: str | os.PathLike[str],
    schema: Schema,
    *,
    labelled: bool = True,
    text_format: TextFormat | None = None,
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
    text_format : TextFormat, optional
        Separators and encoding of text, and marks of missing labels and numbers. By default the
        header decides the delimiter; rows have no influence.

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
    cells, n_unreadable = read_declared_cells(Path(path), schema, label, text_format)
    return replace(schema.encode(cells), n_unreadable=n_unreadable)


def read_declared_cells(
    path: Path,
    schema: Schema,
    others: Sequence[str],
    text_format: TextFormat | None,
    *,
    strict: bool = False,
) -> tuple[dict[str, list[Any]], int]:
    """Read the columns of a schema, and others, like `read_cells`.

    Marks of missing cells become None in columns of numbers. Numbers with a decimal comma are
    converted if the format says so, or cells are separated by semicolons; the rows do not decide
    it. Text that is no number is unchanged.
    """
    form = text_format or TextFormat()
    names = [*schema.column_names, *others]
    cells, n_unreadable = read_cells(path, names, form, strict=strict)
    marks = form.missing_numbers
    has_commas = has_decimal_commas(path, form)

    def convert(cell: Any) -> Any:
        if not isinstance(cell, str):
            return None if cell in marks else cell
        number = parse_number(cell, form.decimal or ".")
        if number is None and has_commas:
            number = parse_number(cell, ",")
        if number is None and cell.strip() not in form.missing:
            # "3.5" is no number where the decimal separator is a comma
            return cell if parse_number(cell) is None else f"{cell} (decimal point)"
        return None if number in marks else number

    for name in set(schema.column_names) - set(schema.nominal_names):
        cells[name] = [convert(cell) for cell in cells[name]]
    return cells, n_unreadable


def has_decimal_commas(path: Path, form: TextFormat) -> bool:
    """Return whether a file may have decimal commas, by its form alone."""
    return form.decimal == "," or (form.decimal is None and header_delimiter(path, form) == ";")


def _read_declared(
    path: Path, schema: Schema, label: str, *, party: str | None, text_format: TextFormat
) -> Dataset:
    """Return the labelled rows that a schema allows."""
    label = schema.label or label
    others = [label] if party is None else [label, party]
    cells, n_unreadable = read_declared_cells(path, schema, others, text_format)
    marks = {None, *text_format.missing}
    for name in others:
        texts = map(cell_text, cells[name])
        cells[name] = [None if text in marks else text for text in texts]
    if has_decimal_commas(path, text_format):
        cells[label] = [cell and point_number(cell) for cell in cells[label]]
    rows = replace(schema.encode(cells, cells[label]), n_unreadable=n_unreadable)
    if not len(rows.x):
        raise DataError(
            f"{path} has no row that the schema allows; see fedneighbors schema check, the "
            "delimiter and the decimal separator"
        )
    owners = None
    if party is not None:
        column = Table({party: word_column(cells[party])}, str(path))
        owners = np.array(complete_cells(column, party), np.str_)[rows.kept]
    return Dataset(
        name=schema.name or path.name.split(".")[0],
        x=rows.x,
        y=np.asarray(rows.y),
        feature_names=schema.feature_names,
        source=str(path),
        parties=owners,
        schema=schema,
        notes=tuple(f"{path}: {note}" for note in schema.notes(rows)),
    )


def _numbers(table: Table, name: str, *, keep_missing: bool) -> Floats:
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


def complete_cells(table: Table, name: str) -> list[str]:
    """Return the cells of a nominal column; raise if one is missing."""
    column = table.columns[name]
    gone = np.flatnonzero(missing_cells(column))
    if len(gone):
        raise DataError(
            f"column {name!r} of {table.source} is missing in {len(gone)} rows, first in data "
            f"row {gone[0] + 1}; fill or remove these rows"
        )
    return [str(cell) for cell in column.tolist()]


def parse_labels(cells: Sequence[str]) -> Array:
    """Convert labels to int64 if all are integers.

    For example 3 or 3.0; other labels are returned unchanged.
    """
    integers = [parse_integer(cell) for cell in cells]
    return np.array(cells, np.str_) if None in integers else np.array(integers, np.int64)


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
    if kind.is_dictionary(column.type):  # the file has no rows
        column = column.cast(column.type.value_type)
    number = kind.is_integer(column.type) or kind.is_floating(column.type)
    if (number or kind.is_boolean(column.type)) and not as_words:
        numbers: Column = column.cast(pyarrow.float64(), safe=False).to_numpy()
        return numbers
    words = column.cast(pyarrow.string()).to_pylist()
    stripped = (None if word is None else word.strip() for word in words)
    return word_column(None if cell in missing else cell for cell in stripped)
