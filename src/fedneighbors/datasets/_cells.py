"""Cells of files, each row read by itself: no row changes how another one is read."""

import codecs
import csv
import gzip
import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Floats, Integers
from fedneighbors.datasets._files import MAX_RATIO, check_content, content_limit, explain_errors
from fedneighbors.datasets._table import check_names, check_present
from fedneighbors.datasets._text_format import (
    TextFormat,
    check_decimal,
    find_delimiter,
    recognize_utf8,
)
from fedneighbors.datasets._text_tables import is_arff, quoted_cells, read_arff_header
from fedneighbors.errors import DataError, MissingDataError

_HAS_SRID = 0x20000000  # flag of the type of a point in PostGIS's binary format
_DEGREES = 4326  # spatial reference of longitude and latitude

_ARROW, _PARQUET = {".arrow", ".feather", ".ipc"}, {".parquet", ".pq"}
_BATCH_ROWS, _LIST_ROWS = 1 << 16, 1 << 12
_CELL_BYTES = 8  # a number, or a reference to a Python object, even for a cell stored in a bit
_TEXT_BYTES = 16  # in addition to its characters: two references
_MIN_PARQUET_LIMIT = 6 << 20  # some kilobytes may have 700,000 cells of a few values
_MAX_LINE = 1 << 20  # bytes; a longer line is unreadable, so that no row takes much memory


def read_cells(
    path: Path,
    names: Sequence[str],
    text_format: TextFormat | None = None,
    *,
    strict: bool = False,
) -> tuple[dict[str, list[Any]], int]:
    """Read columns of a file, one row per line.

    Parameters
    ----------
    path : Path
        Parquet if the name ends in ``.parquet`` or ``.pq``, ARFF if it ends in ``.arff``, JSON
        lines if it ends in ``.jsonl`` or ``.ndjson``, otherwise delimited text with a header row;
        text is gzipped if the name ends in ``.gz``.
    names : sequence of str
        Columns to read.
    text_format : TextFormat, optional
        Delimiter and encoding of text; the delimiter is that of the header by default.
    strict : bool
        Bytes of another encoding are an error.

    Returns
    -------
    cells : dict of str to list
        Texts, numbers, booleans or None. Unless ``strict``, bytes of another encoding become
        U+FFFD, so that no row decides about the others.
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
    text_format = text_format or TextFormat()
    encoding = text_format.encoding
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    with explain_errors(path):
        if kind in ("parquet", "pq"):
            rows = _parquet_rows(path, names, strict=strict)
        elif kind in ("jsonl", "ndjson"):
            lines = iterate_lines(path, encoding, has_header=False, strict=strict)
            rows = (_json_cells(line, names) for line in lines if line != "")
        elif is_arff(path):
            rows = _arff_rows(path, names, encoding, strict=strict)
        else:
            rows = _delimited_rows(path, names, text_format, strict=strict)
        columns: list[list[Any]] = [[] for _ in names]
        n_unreadable = 0
        for row in rows:  # not kept: a list takes more memory than the text of a short row
            if row is None:
                n_unreadable += 1
                continue
            for column, cell in zip(columns, row, strict=True):
                column.append(cell)
    return dict(zip(names, columns, strict=True)), n_unreadable


def has_values(path: Path) -> bool:
    """Return whether a file is one for `read_all_cells`."""
    if path.suffix.lower() not in _PARQUET:
        return bool(set(path.suffixes) & {*_ARROW, ".jsonl", ".ndjson"})
    parquet, arrow = (optional_module(f"pyarrow{name}", "data") for name in (".parquet", ""))
    try:
        kinds = parquet.read_schema(path).types
    except (OSError, arrow.ArrowException):  # the reader of tables explains it
        return False
    return any(map(arrow.types.is_nested, kinds))


def read_all_cells(path: Path) -> dict[str, list[Any]]:
    """Read all columns of a file whose cells may be lists.

    Parameters
    ----------
    path : Path
        Arrow (IPC file or stream, also called Feather) if the name ends in ``.arrow``,
        ``.feather`` or ``.ipc``, Parquet after ``.parquet`` or ``.pq``, otherwise JSON lines.

    Returns
    -------
    dict of str to list
        Values of Python, None for missing ones.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is damaged or expands to much more than its size, or a line is no JSON object
        in UTF-8; the error names the line.
    MissingExtraError
        If the file is Arrow or Parquet and pyarrow is not installed.
    """
    kind = path.suffix.lower()
    with explain_errors(path):
        if kind in _ARROW | _PARQUET:
            return _read_arrow(path, is_parquet=kind in _PARQUET)
        rows, lines = [], iterate_lines(path, has_header=False, strict=True)
        for number, line in enumerate(lines, start=1):
            row = _parse_json(line)
            if row is not None:
                rows.append(row)
            elif line != "":
                raise DataError(
                    f"{path}, line {number}: expected a JSON object of less than {_MAX_LINE} bytes"
                )
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _read_arrow(path: Path, *, is_parquet: bool) -> dict[str, list[Any]]:
    """Read the columns of a Parquet or Arrow file, or a stream."""
    pyarrow = optional_module("pyarrow", "data")
    limit, n_bytes = _MIN_PARQUET_LIMIT + MAX_RATIO * path.stat().st_size, 0
    try:
        with pyarrow.OSFile(str(path)) as stream:
            schema, batches = (_open_parquet if is_parquet else _open_ipc)(stream)
            check_names(schema.names, source=str(path))
            columns: dict[str, list[Any]] = {name: [] for name in schema.names}
            for batch in batches:
                batch.validate(full=True)  # offsets may point outside of the file
                n_bytes += batch.nbytes + _CELL_BYTES * batch.num_rows * len(columns)
                check_content(path, n_bytes, limit, remedy="save it as CSV")
                for name, cells in columns.items():
                    cells += map(_value, batch.column(name))
    except pyarrow.ArrowException as error:
        kind = "Parquet" if is_parquet else "Arrow"
        raise DataError(f"{path} cannot be read as {kind}: {error}") from error
    return columns


def _open_parquet(stream: Any) -> tuple[Any, Iterable[Any]]:
    """Return the schema of a Parquet file, and its batches."""
    content = optional_module("pyarrow.parquet", "data").ParquetFile(stream)
    return content.schema_arrow, content.iter_batches(batch_size=_LIST_ROWS)


def _open_ipc(stream: Any) -> tuple[Any, Iterable[Any]]:
    """Return the schema of an Arrow file or stream, and its batches."""
    ipc = optional_module("pyarrow.ipc", "data")
    is_file = stream.read(6) == b"ARROW1"
    stream.seek(0)
    if not is_file:
        reader = ipc.open_stream(stream)
        return reader.schema, reader
    reader = ipc.open_file(stream)
    return reader.schema, map(reader.get_batch, range(reader.num_record_batches))


def header_delimiter(path: Path, text_format: TextFormat) -> str:
    """Return the delimiter of a text file, given or in its header.

    It is a comma for other files.
    """
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if text_format.delimiter or kind in ("parquet", "pq", "jsonl", "ndjson", "arff"):
        return text_format.delimiter or ","
    with explain_errors(path):
        return find_delimiter(next(iterate_lines(path, text_format.encoding), None) or "")


def iterate_lines(
    path: Path, encoding: str = "utf-8", *, has_header: bool = True, strict: bool = False
) -> Iterator[str | None]:
    """Yield the lines of a file, None for too long ones.

    Line ends are removed. A header with the byte order mark of UTF-8 loses it, and the file is read
    as UTF-8; without a header, the first line is a row, which decides nothing about others. In
    another file, each line that is UTF-8 is read as such.

    Raises
    ------
    UnicodeDecodeError
        If ``strict``, and a line is in another encoding.
    DataError
        If the encoding has other line ends than ASCII, or a gzipped file expands to hundreds of
        times its size. The longest line does not count, so that no single row decides it.
    """
    if "a\n".encode(encoding)[-2:] != b"a\n":
        raise DataError(
            f"{path} cannot be read by a schema in the encoding {encoding}; save it as UTF-8"
        )
    is_compressed = path.suffix.lower() == ".gz"
    limit, n_bytes, longest = content_limit(path), 0, 0
    mark = codecs.BOM_UTF8 if has_header else b""
    with gzip.open(path) if is_compressed else path.open("rb") as stream:
        while line := stream.readline(_MAX_LINE):
            size, part = len(line), line
            is_whole = size < _MAX_LINE or line.endswith(b"\n")
            while len(part) == _MAX_LINE and not part.endswith(b"\n"):
                part = stream.readline(_MAX_LINE)
                size += len(part)
            if is_compressed:
                n_bytes, longest = n_bytes + size, max(longest, size)
                check_content(path, n_bytes - longest, limit)
            if mark and line.startswith(mark):
                line, encoding = line.removeprefix(mark), "utf-8"
            mark = b""
            errors = "strict" if strict and is_whole else "replace"
            text = line.decode(recognize_utf8((line,), encoding), errors).rstrip("\r\n")
            yield text if is_whole else None


def _delimited_rows(
    path: Path, names: Sequence[str], text_format: TextFormat, *, strict: bool
) -> Iterator[list[Any] | None]:
    lines = iterate_lines(path, text_format.encoding, strict=strict)
    first = next(lines, None)
    delimiter = text_format.delimiter or find_delimiter(first or "")
    check_decimal(path, delimiter, text_format)
    header = _delimited_cells(first, delimiter)
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


def _arff_rows(
    path: Path, names: Sequence[str], encoding: str, *, strict: bool
) -> Iterator[list[Any] | None]:
    lines = iterate_lines(path, encoding, strict=strict)
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
    check_present(names, header, source=str(path))
    positions, n_columns = [header.index(name) for name in names], len(header)

    def choose(cells: Sequence[Any] | None) -> list[Any] | None:
        if cells is None or len(cells) != n_columns:
            return None
        return [cells[position] for position in positions]

    return choose


def _json_cells(line: str | None, names: Sequence[str]) -> list[Any] | None:
    record = _parse_json(line)
    return None if record is None else [record.get(name) for name in names]


def _parse_json(line: str | None) -> dict[str, Any] | None:
    """Return the JSON object of a line, or None."""
    try:
        record = json.loads((line or "").removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _parquet_rows(path: Path, names: Sequence[str], *, strict: bool) -> Iterator[list[Any] | None]:
    parquet = optional_module("pyarrow.parquet", "data")
    import pyarrow

    if not path.is_file():
        raise MissingDataError(f"there is no file {path}; check the name")
    try:
        _columns(path, parquet.read_schema(path).names, names)
        errors = "strict" if strict else "replace"
        for batch in parquet_batches(path, names, max_text=_MAX_LINE):
            columns = [_parquet_cells(batch.column(name), errors) for name in names]
            yield from map(list, zip(*columns, strict=True))
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error


def parquet_batches(
    path: Path, names: Sequence[str], *, max_text: int | None = None
) -> Iterator[Any]:
    """Yield the batches of columns of a Parquet file.

    The cells of a column of lists or structs are null, and all cells of a row whose texts have more
    than ``max_text`` bytes.

    Raises
    ------
    DataError
        If they take much more memory than the file. The longest row does not count, so that no
        single row decides it.
    """
    parquet = optional_module("pyarrow.parquet", "data")
    import pyarrow

    schema = parquet.read_schema(path)
    kinds = dict(zip(schema.names, schema.types, strict=True))
    flat = [name for name in names if not pyarrow.types.is_nested(kinds[name])]
    row_bytes = sum(_fixed_bytes(kinds[name]) for name in names)
    limit = _MIN_PARQUET_LIMIT + MAX_RATIO * path.stat().st_size
    n_bytes, longest = 0, 0
    n_rows = max(1, min(_BATCH_ROWS, limit // max(1, row_bytes)))
    # Dictionaries show the length of repeated texts before these are decoded. The lengths in the
    # metadata are not read: if those of a column are damaged, pyarrow ends the process.
    with parquet.ParquetFile(path, read_dictionary=flat) as content:
        for batch in content.iter_batches(batch_size=n_rows, columns=flat):
            texts = sum(map(_text_bytes, batch.columns), np.zeros(batch.num_rows, np.int64))
            is_long = texts > (texts.max(initial=0) if max_text is None else max_text)
            if is_long.any():
                batch = batch.take(pyarrow.array(np.arange(len(texts)), mask=is_long))
                texts[is_long] = 0
            n_bytes += row_bytes * batch.num_rows + int(texts.sum())
            longest = max(longest, row_bytes + int(texts.max(initial=0)))
            check_content(path, n_bytes - longest, limit, remedy="save it as CSV")
            nulls = pyarrow.nulls(batch.num_rows)
            columns = [batch.column(name) if name in flat else nulls for name in names]
            decoded = [
                column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
                for column in columns
            ]
            yield pyarrow.RecordBatch.from_arrays(decoded, names=list(names))


def _fixed_bytes(kind: Any) -> int:
    """Return the bytes of a decoded cell, without characters of text."""
    try:
        return max(_CELL_BYTES, int(kind.bit_width) // 8)
    except ValueError:  # its width varies
        return _TEXT_BYTES


def _text_bytes(column: Any) -> Integers:
    """Return the number of bytes of each text of a column, decoded."""
    import pyarrow
    from pyarrow import compute

    is_dictionary = pyarrow.types.is_dictionary(column.type)
    try:
        lengths = compute.binary_length(column.dictionary if is_dictionary else column)
    except pyarrow.ArrowNotImplementedError:  # no texts
        return np.zeros(len(column), np.int64)
    lengths = lengths.take(column.indices) if is_dictionary else lengths
    sizes = lengths.to_pylist()  # to_numpy() would import pandas
    return np.array([size or 0 for size in sizes], np.int64)


def _parquet_cells(column: Any, errors: str) -> list[Any]:
    """Return the cells of a Parquet column.

    A cell without a value in Python becomes None.
    """
    import pyarrow

    kind = pyarrow.types
    if kind.is_string(column.type) or kind.is_large_string(column.type):
        cells = column.cast(pyarrow.large_binary()).to_pylist()
        return [None if cell is None else cell.decode("utf-8", errors) for cell in cells]
    return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):  # for example a date after the year 9999
        return None


def cell_to_text(cell: Any) -> str:
    """Return a cell as text: times in UTC, decimals without exponent."""
    if isinstance(cell, datetime) and cell.tzinfo is not None:
        cell = cell.astimezone(UTC)
    return format(cell, "f") if isinstance(cell, Decimal) else str(cell)


def cell_to_json(cell: Any) -> Any:
    """Return a cell as a value of JSON.

    Numbers that are not finite become None, points GeoJSON, other bytes hexadecimal; a cell that
    JSON has no value for becomes text.
    """
    if isinstance(cell, np.generic | np.ndarray):
        cell = cell.tolist()
    if isinstance(cell, Decimal) and math.isfinite(number := float(cell)):
        return int(cell) if cell == cell.to_integral_value() else number
    if isinstance(cell, float | Decimal):
        return cell if math.isfinite(cell) and isinstance(cell, float) else None
    if isinstance(cell, list | tuple):
        return [cell_to_json(element) for element in cell]
    if isinstance(cell, dict):
        return {str(name): cell_to_json(element) for name, element in cell.items()}
    if isinstance(cell, bytes):
        try:
            coordinates = parse_ewkb(cell, in_degrees=False).tolist()
        except DataError:
            return cell.hex()
        return {"type": "Point", "coordinates": coordinates}
    if cell is None or isinstance(cell, bool | int):
        return cell
    return cell_to_text(cell).encode(errors="replace").decode()


def read_srid(content: bytes) -> int:
    """Return the SRID of a valid point in EWKB, 0 without one."""
    order = "<" if content[:1] == b"\x01" else ">"
    kind, srid = struct.unpack_from(f"{order}2I", content, 1)
    return int(srid) if kind & _HAS_SRID else 0


def parse_ewkb(content: bytes, *, in_degrees: bool) -> Floats:
    """Return the coordinates of a point in PostGIS's binary format (EWKB)."""
    order = "<" if content[:1] == b"\x01" else ">"
    try:
        (kind,) = struct.unpack_from(f"{order}I", content, 1)
        has_srid = bool(kind & _HAS_SRID)
        srid = struct.unpack_from(f"{order}I", content, 5)[0] if has_srid else _DEGREES
        point = np.array(struct.unpack(f"{order}2d", content[9 if has_srid else 5 :]))
    except struct.error:
        kind, point, srid = 0, np.empty(0), _DEGREES
    if kind & ~_HAS_SRID != 1 or not np.isfinite(point).all():
        raise DataError("expected a point of two coordinates")
    if in_degrees and srid != _DEGREES:
        raise DataError(
            f"expected a point in degrees (SRID 4326), got SRID {srid}; use ST_Transform(..., 4326)"
        )
    return point


def row_labels(rows: Iterable[int]) -> tuple[str, ...]:
    """Return the labels of rows without names."""
    return tuple(f"row {row}" for row in rows)
