"""Tables in text files, optionally gzipped: CSV reading and writing, ARFF reading."""

import csv
import io
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Floats
from fedneighbors.datasets._files import explain_errors, open_text
from fedneighbors.datasets._table import (
    Column,
    Table,
    check_finite,
    check_names,
    list_others,
    word_column,
)
from fedneighbors.datasets._text_format import (
    TextFormat,
    check_decimal,
    convert_decimal_commas,
    find_delimiter,
)
from fedneighbors.errors import DataError

_BLOCK_ROWS = 512  # a block's cells stay in the CPU's cache while they are transposed
_ARFF_BLOCK_ROWS = 64  # rows of gene data have ten thousand cells
_NUMERIC = ("numeric", "real", "integer")

_ATTRIBUTE = re.compile(
    r"""@attribute\s+(?P<name>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s{]+)\s*(?P<kind>.+)""",
    re.IGNORECASE | re.DOTALL,
)

_CELL = re.compile(r"""\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,'"]*)\s*(,|$)""")

_ESCAPED = re.compile(r"\\(.)")
_MAX_INTEGER = 2.0**53  # float64 represents every integer up to this exactly


def read_delimited(path: Path, *, words: Collection[str], text_format: TextFormat) -> Table:
    """Read the columns of a delimited text file with a header.

    A column is numeric if each of its cells is a number or missing. The file is read a second time
    for the text of the others, so that numbers are never stored as text.

    Parameters
    ----------
    path : Path
        Text; gzipped if the name ends in ``.gz``.
    words : collection of str
        Nominal columns whose cells may look like numbers.
    text_format : TextFormat
        Form of the file.

    Returns
    -------
    Table

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is empty, damaged, in another encoding, or ragged, or repeats a column name.
    """
    with explain_errors(path):
        delimiter = text_format.delimiter or _find_delimiter(path, text_format)
        check_decimal(path, delimiter, text_format)
        text_format = replace(text_format, delimiter=delimiter)
        names = _read_header(path, text_format)
        nominal = {position for position, name in enumerate(names) if name in words}
        every = set(range(len(names)))
        columns = _read_columns(path, text_format, indices=every, nominal=nominal)
        text = every - columns.keys()
        if text:
            columns |= _read_columns(path, text_format, indices=text, nominal=text)
    by_name = {name: columns[position] for position, name in enumerate(names)}
    may_be_comma = text_format.decimal is None and text_format.delimiter != ","
    text |= {p for p in nominal if any(cell is not None and "," in cell for cell in columns[p])}
    if text and (text_format.decimal == "," or may_be_comma):
        numbers = convert_decimal_commas(
            {names[position]: columns[position] for position in sorted(text)},
            source=str(path),
            is_sure=text_format.decimal == "," or text_format.delimiter == ";",
        )
        for name in numbers.keys() & {names[position] for position in nominal}:
            numbers[name] = word_column(cell and cell.replace(",", ".") for cell in by_name[name])
        by_name |= numbers
    table = Table(by_name, str(path))
    check_finite(table)
    return table


def is_arff(path: Path) -> bool:
    """Return whether a file name ends in .arff or .arff.gz."""
    return path.name.lower().removesuffix(".gz").endswith(".arff")


def read_arff(
    path: Path,
    *,
    words: Collection[str] = (),
    missing: Collection[str] = (),
    encoding: str = "utf-8",
) -> Table:
    """Read the columns of a dense ARFF file.

    Numeric, real and integer attributes become numeric columns; nominal and string attributes
    become nominal columns.

    Parameters
    ----------
    path : Path
        Text; gzipped if the name ends in ``.gz``.
    words : collection of str
        Nominal columns that are numeric in the file.
    missing : collection of str
        Cells that count as missing, in addition to the format's ``?``.
    encoding : str
        Encoding of the text.

    Returns
    -------
    Table

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is damaged, not UTF-8, sparse, or ragged, repeats a column name, has a date or
        relational column, or a cell of another type than its column.
    """
    with explain_errors(path), open_text(path, encoding=encoding) as stream:
        lines = enumerate(stream, start=1)
        kinds = read_arff_header(lines, path)
        markers = {*missing, "?"}
        numeric = [kind.lower() in _NUMERIC and name not in words for name, kind in kinds.items()]
        names = list(kinds)
        parts: list[list[Column]] = [[] for _ in names]
        for first, block in _read_arff_blocks(lines, len(names), path):
            for position, cells in enumerate(zip(*block, strict=True)):
                location = f"column {names[position]!r} of {path}, from line {first}"
                parts[position].append(
                    _parse_arff_numbers(cells, markers, location)
                    if numeric[position]
                    else word_column(None if cell in markers else cell for cell in cells)
                )
    columns: list[Array] = [np.concatenate(part) if part else np.empty(0) for part in parts]
    return Table(dict(zip(names, columns, strict=True)), str(path))


def serialize_csv(columns: Mapping[str, Sequence[Any]]) -> bytes:
    r"""Serialize columns of equal length as UTF-8 CSV with a header.

    Parameters
    ----------
    columns : mapping of str to sequence
        Cells of each column; None becomes an empty cell.

    Raises
    ------
    ValueError
        If columns differ in length.

    Examples
    --------
    >>> serialize_csv({"name": ["a", None], "size": [1, 2.5]})
    b'name,size\na,1\n,2.5\n'
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode("utf-8")


def table_cells(table: Table) -> dict[str, list[Any]]:
    """Return the cells of each column as Python values.

    Numbers are int if all numbers of their column are integers below 2**53, otherwise float; a
    missing cell is None.

    Parameters
    ----------
    table : Table
        Numbers and text.

    Examples
    --------
    >>> table_cells(Table({"age": np.array([3.0, np.nan]), "dose": np.array([1.0, 0.5])}, "here"))
    {'age': [3, None], 'dose': [1.0, 0.5]}
    """
    return {name: _python_values(column) for name, column in table.columns.items()}


def _find_delimiter(path: Path, text_format: TextFormat) -> str:
    with open_text(path, encoding=text_format.encoding) as stream:
        return find_delimiter(next((line for line in stream if line.strip()), ""))


def _read_rows(path: Path, text_format: TextFormat) -> Iterator[list[str]]:
    """Yield the header and the data rows, all of equal length.

    Blank lines are allowed only at the end of the file.
    """
    delimiter = text_format.delimiter or ","
    with open_text(path, newline="", encoding=text_format.encoding) as stream:
        reader = csv.reader(stream, delimiter=delimiter, skipinitialspace=True, strict=True)
        width, blank = 0, False
        for row in reader:
            if not row:
                blank = True
                continue
            width = width or len(row)
            if blank or len(row) != width:
                problem = "follows a blank line" if blank else f"has {len(row)} cells"
                line, others = reader.line_num, [] if blank else _find_others(reader, width)
                raise DataError(
                    f"the row that ends at line {line} of {path} {problem}; every row needs the "
                    f"{width} cells of the header, separated by {delimiter!r}"
                    + list_others(others, unit="line")
                )
            yield row


def _find_others(reader: Any, width: int) -> list[int]:
    """Return further lines with another number of cells, among a thousand."""
    found = []
    # a further fault, also of a compressed file, does not hide the first one
    with suppress(csv.Error, UnicodeError, OSError, EOFError, zlib.error, DataError):
        for row in islice(reader, 1000):
            if row and len(row) != width:
                found.append(reader.line_num)
    return found


def _read_header(path: Path, text_format: TextFormat) -> list[str]:
    header = next(_read_rows(path, text_format), None)
    if header is None:
        raise DataError(f"{path} is empty; expected a header row and data below it")
    names = [name.strip() for name in header]
    if names[0].lower() == "sep=" or (len(names) == 1 and names[0].lower().startswith("sep=")):
        raise DataError(
            f"{path} begins with the line 'sep=' of a spreadsheet program; delete this line, so "
            "that the names of the columns are the first"
        )
    check_names(names, source=str(path))
    return names


def _read_blocks(path: Path, text_format: TextFormat) -> Iterator[list[tuple[str, ...]]]:
    """Yield blocks of data rows, transposed to columns."""
    rows = islice(_read_rows(path, text_format), 1, None)
    while block := list(islice(rows, _BLOCK_ROWS)):
        yield list(zip(*block, strict=True))


def _read_columns(
    path: Path, text_format: TextFormat, *, indices: set[int], nominal: set[int]
) -> dict[int, Column]:
    """Read the columns with the given indices.

    A column is omitted if it is not in ``nominal`` and a cell is neither a number nor missing.
    """
    parts: dict[int, list[Array]] = {position: [np.empty(0)] for position in indices}
    for block in _read_blocks(path, text_format):
        for position in list(parts):
            parse = _parse_words if position in nominal else _parse_numbers
            try:
                parts[position].append(parse(block[position], text_format.missing))
            except ValueError:
                del parts[position]
    return {position: np.concatenate(part) for position, part in parts.items()}


def _parse_numbers(cells: Sequence[str], missing: Collection[str]) -> Floats:
    if "_" in "".join(cells):  # float() would parse the name 1_2 as twelve
        raise ValueError("a number must not contain an underscore")
    try:
        return np.array(list(map(float, cells)))
    except ValueError:
        return np.array([np.nan if cell.strip() in missing else float(cell) for cell in cells])


def _parse_words(cells: Iterable[str], missing: Collection[str]) -> npt.NDArray[np.object_]:
    marks = frozenset(missing)
    return word_column(None if cell in marks else cell for cell in map(str.strip, cells))


def _python_values(column: Column) -> list[Any]:
    if column.dtype == np.object_:
        return list(column)
    numbers = column.astype(np.float64)
    missing = np.isnan(numbers)
    exact = (np.rint(numbers) == numbers) & (np.abs(numbers) < _MAX_INTEGER)
    convert = int if exact[~missing].all() else float
    return [None if value != value else convert(value) for value in numbers.tolist()]


def read_arff_header(lines: Iterator[tuple[int, str]], path: Path) -> dict[str, str]:
    """Return names and kinds of the columns before the data line."""
    names: list[str] = []
    kinds: list[str] = []
    for number, raw in lines:
        line = raw.strip()
        if not line or line.startswith("%") or line.lower().startswith("@relation"):
            continue
        if line.lower() == "@data":
            if not names:
                raise DataError(f"{path} has no column before line {number}")
            check_names(names, source=str(path))
            return dict(zip(names, kinds, strict=True))
        match = _ATTRIBUTE.fullmatch(line)
        if match is None:
            raise DataError(f"line {number} of {path} is invalid in an ARFF header: {line[:60]!r}")
        names.append(_unquote(match["name"]))
        kinds.append(_check_kind(match["kind"].strip(), names[-1], path))
    raise DataError(f"{path} has no line @data; expected an ARFF file")


def _check_kind(kind: str, name: str, path: Path) -> str:
    if kind.lower() in (*_NUMERIC, "string") or (kind.startswith("{") and kind.endswith("}")):
        return kind
    raise DataError(
        f"column {name!r} of {path} is of kind {kind[:30]!r}; expected numeric, real, integer, "
        "string or a list of words in braces"
    )


def _read_arff_blocks(
    lines: Iterator[tuple[int, str]], width: int, path: Path
) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield blocks of rows with the line number of the first."""
    stripped = ((number, raw.strip()) for number, raw in lines)
    rows = ((number, line) for number, line in stripped if line and not line.startswith("%"))
    while block := list(islice(rows, _ARFF_BLOCK_ROWS)):
        yield block[0][0], [_split_arff_line(line, number, width, path) for number, line in block]


def _split_arff_line(line: str, number: int, width: int, path: Path) -> list[str]:
    if line.startswith("{"):
        raise DataError(f"line {number} of {path} is sparse; expected a cell for every column")
    is_unquoted = "'" not in line and '"' not in line
    cells = [cell.strip() for cell in line.split(",")] if is_unquoted else quoted_cells(line)
    if len(cells) != width:
        raise DataError(
            f"line {number} of {path} has {len(cells)} cells; every row needs the {width} of the "
            "header"
        )
    return cells


def quoted_cells(line: str) -> list[str]:
    """Split a line with quoted cells, up to the first error."""
    cells, position = [], 0
    while match := _CELL.match(line, position):
        cells.append(_unquote(match[1].strip()))
        position = match.end()
        if not match[2]:
            break
    return cells


def _unquote(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return _ESCAPED.sub(r"\1", text[1:-1])
    return text


def _parse_arff_numbers(cells: Sequence[str], markers: set[str], location: str) -> Column:
    try:
        numbers = np.array([np.nan if cell in markers else float(cell) for cell in cells])
    except ValueError as error:
        raise DataError(f"{location} on: expected a number ({error})") from error
    if np.isinf(numbers).any():
        raise DataError(f"{location} on: a number is infinite; numbers must be finite or missing")
    return numbers
