"""Cells of files, each row read by itself: no row changes how another one is read."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from fedneighbors._lazy import optional_module
from fedneighbors.datasets._files import MAX_RATIO, CheckedGzip, check_content, explain_errors
from fedneighbors.datasets._table import check_names, join_names
from fedneighbors.datasets._text_tables import is_arff, quoted_cells, read_arff_header
from fedneighbors.errors import DataError, MissingDataError

_BATCH_ROWS = 4096
_NESTED_BATCH_ROWS = 32  # may repeat a stored text in every row
_CELL_BYTES = 8  # a number, or a reference to a Python object, even for a cell stored in a bit
_MIN_PARQUET_LIMIT = 16 << 20  # a table of 2 million cells of a few values takes some kilobytes
_MAX_LINE = 1 << 20  # bytes; a longer line is unreadable, so that no row takes much memory


def read_cells(
    path: Path, names: Sequence[str], *, delimiter: str = ","
) -> tuple[dict[str, list[Any]], int]:
    """Read columns of a file, one row per line.

    Parameters
    ----------
    path : Path
        Parquet if the name ends in ``.parquet`` or ``.pq``, ARFF if it ends in ``.arff``, JSON
        lines if it ends in ``.jsonl`` or ``.ndjson``, otherwise delimited text with a header row;
        text is UTF-8, gzipped if the name ends in ``.gz``.
    names : sequence of str
        Columns to read.
    delimiter : str
        Separator of cells in delimited text.

    Returns
    -------
    cells : dict of str to list
        Texts, numbers, booleans or None. Bytes that are not UTF-8 become U+FFFD.
    n_unreadable : int
        Number of rows without cells for the columns of the header. They are left out.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the header lacks a column or repeats a name, or the file as a whole is damaged.
    MissingExtraError
        If the file is Parquet and pyarrow is not installed.
    """
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    with explain_errors(path):
        if kind in ("parquet", "pq"):
            rows = _parquet_rows(path, names)
        elif kind in ("jsonl", "ndjson"):
            rows = (_json_cells(line, names) for line in _lines(path) if line != "")
        elif is_arff(path):
            rows = _arff_rows(path, names)
        else:
            rows = _delimited_rows(path, names, delimiter)
        every = list(rows)
    readable = [row for row in every if row is not None]
    columns = zip(*readable, strict=True) if readable else ([] for _ in names)
    return dict(zip(names, map(list, columns), strict=True)), len(every) - len(readable)


def _lines(path: Path) -> Iterator[str | None]:
    """Yield the lines of a file, None for too long ones.

    Line ends and the byte order mark are removed.
    """
    with CheckedGzip(path) if path.suffix.lower() == ".gz" else path.open("rb") as stream:
        mark = b"\xef\xbb\xbf"
        while line := stream.readline(_MAX_LINE):
            line, mark = line.removeprefix(mark), b""
            if len(line) < _MAX_LINE or line.endswith(b"\n"):
                yield line.decode("utf-8", "replace").rstrip("\r\n")
                continue
            while (rest := stream.readline(_MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            yield None


def _delimited_rows(path: Path, names: Sequence[str], delimiter: str) -> Iterator[list[Any] | None]:
    lines = _lines(path)
    header = _delimited_cells(next(lines, None), delimiter)
    if header is None:
        raise DataError(f"{path} has no header row; expected column names in its first line")
    choose = _columns(path, [name.strip() for name in header], names)
    for line in lines:
        if line != "":
            yield choose(_delimited_cells(line, delimiter))


def _delimited_cells(line: str | None, delimiter: str) -> list[str] | None:
    if line is None:
        return None
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), None)
    except csv.Error:  # for example a carriage return within a cell
        return None


def _arff_rows(path: Path, names: Sequence[str]) -> Iterator[list[Any] | None]:
    lines = _lines(path)
    choose = _columns(path, list(read_arff_header(zip(count(1), map(str, lines)), path)), names)
    for line in lines:
        row = "{" if line is None else line.strip()
        if row and not row.startswith("%"):
            yield None if row.startswith("{") else choose(quoted_cells(row))  # "{": a sparse row


def _columns(
    path: Path, header: Sequence[str], names: Sequence[str]
) -> Callable[[Sequence[Any] | None], list[Any] | None]:
    """Return the function that chooses a row's named cells.

    It returns None for a ragged row.
    """
    check_names(header, source=str(path))
    missing = [name for name in names if name not in header]
    if missing:
        raise DataError(
            f"{path} has no column {join_names(missing)}; its columns are {join_names(header)}"
        )
    positions, n_columns = [header.index(name) for name in names], len(header)

    def choose(cells: Sequence[Any] | None) -> list[Any] | None:
        if cells is None or len(cells) != n_columns:
            return None
        return [cells[position] for position in positions]

    return choose


def _json_cells(line: str | None, names: Sequence[str]) -> list[Any] | None:
    try:
        record = json.loads(line or "")
    except (ValueError, RecursionError):
        return None
    return [record.get(name) for name in names] if isinstance(record, dict) else None


def _parquet_rows(path: Path, names: Sequence[str]) -> Iterator[list[Any] | None]:
    pyarrow = optional_module("pyarrow", "data")
    if not path.is_file():
        raise MissingDataError(f"there is no file {path}; check the name")
    try:
        content = open_parquet(path)
        _columns(path, content.schema_arrow.names, names)
        for batch in parquet_batches(content, path, names):
            columns = [_parquet_cells(batch.column(name)) for name in names]
            yield from map(list, zip(*columns, strict=True))
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error


def open_parquet(path: Path) -> Any:
    """Open a Parquet file; its texts are read as dictionaries.

    A text that is stored once for many rows then takes memory once.
    """
    import pyarrow
    from pyarrow import parquet

    content = parquet.ParquetFile(path)
    is_text = (pyarrow.types.is_string, pyarrow.types.is_large_string)
    texts = [field.name for field in content.schema_arrow if any(f(field.type) for f in is_text)]
    return parquet.ParquetFile(path, metadata=content.metadata, read_dictionary=texts)


def parquet_batches(content: Any, path: Path, names: Sequence[str]) -> Iterator[Any]:
    """Yield the batches of columns of an open Parquet file.

    Raises
    ------
    DataError
        If they take much more memory than the file.
    """
    import pyarrow

    limit = _MIN_PARQUET_LIMIT + MAX_RATIO * path.stat().st_size
    fields = [field for field in content.schema_arrow if field.name in names]
    is_nested = any(pyarrow.types.is_nested(field.type) for field in fields)
    n_rows, n_bytes = _NESTED_BATCH_ROWS if is_nested else _BATCH_ROWS, 0
    for batch in content.iter_batches(batch_size=n_rows, columns=list(names)):
        n_bytes += sum(_decoded_bytes(column) for column in batch.columns)
        check_content(path, n_bytes, limit, remedy="save it as CSV")
        columns = [
            column.dictionary_decode() if isinstance(column, pyarrow.DictionaryArray) else column
            for column in batch.columns
        ]
        yield pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _decoded_bytes(column: Any) -> int:
    """Return the size of a column without dictionary, at least 8 bytes per cell."""
    import pyarrow
    from pyarrow import compute

    size = column.nbytes
    if isinstance(column, pyarrow.DictionaryArray):
        texts = column.dictionary.cast(pyarrow.large_binary())
        size = compute.sum(compute.binary_length(texts).take(column.indices)).as_py() or 0
    return int(max(size, _CELL_BYTES * len(column)))


def _parquet_cells(column: Any) -> list[Any]:
    """Return the cells of a Parquet column.

    A cell without a value in Python becomes None.
    """
    import pyarrow

    kind = pyarrow.types
    if kind.is_string(column.type) or kind.is_large_string(column.type):
        cells = column.cast(pyarrow.large_binary()).to_pylist()
        return [None if cell is None else cell.decode("utf-8", "replace") for cell in cells]
    return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):  # for example a date after the year 9999
        return None
