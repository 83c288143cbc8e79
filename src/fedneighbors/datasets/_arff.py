"""Owns the reading of ARFF files, the format in which OpenML keeps tables, into columns."""

import gzip
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._table import Column, Table, refuse_repeated
from fedneighbors.errors import DataError, MissingDataError

_BLOCK_ROWS = 64  # rows of genes have ten thousand cells
_NUMERIC = ("numeric", "real", "integer")
_ATTRIBUTE = re.compile(
    r"""@attribute\s+(?P<name>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s{]+)\s*(?P<kind>.+)""",
    re.IGNORECASE | re.DOTALL,
)
_CELL = re.compile(r"""\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,'"]*)\s*(,|$)""")
_ESCAPED = re.compile(r"\\(.)")


def is_arff(path: Path) -> bool:
    """Tell whether a file's name is that of an ARFF file, gzipped or not."""
    return path.name.lower().removesuffix(".gz").endswith(".arff")


def read_arff(path: Path, *, words: Collection[str] = (), missing: Collection[str] = ()) -> Table:
    """Columns of a dense ARFF file.

    Attributes that are numeric, real or integer become numeric columns; nominal ones and strings
    become nominal ones.

    Parameters
    ----------
    path : Path
        UTF-8 text; gzipped if the name ends in ``.gz``.
    words : collection of str
        Columns that are nominal even if the file calls them numeric.
    missing : collection of str
        Cells that count as missing, beside the format's ``?``.

    Returns
    -------
    Table

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is damaged, not UTF-8, sparse, ragged, names a column twice, has a column of
        dates or of tables, or a cell that is not what its column holds.
    """
    with _explained(path), _open(path) as stream:
        lines = enumerate(stream, start=1)
        kinds = _header(lines, path)
        gone = {*missing, "?"}
        numeric = [kind.lower() in _NUMERIC and name not in words for name, kind in kinds.items()]
        names = list(kinds)
        parts: list[list[Column]] = [[] for _ in names]
        for first, block in _blocks(lines, len(names), path):
            for place, cells in enumerate(zip(*block, strict=True)):
                where = f"column {names[place]!r} of {path}, from line {first}"
                read = _numbers(cells, gone, where) if numeric[place] else _words(cells, gone)
                parts[place].append(read)
    columns: list[npt.NDArray[Any]] = [
        np.concatenate(part) if part else np.empty(0) for part in parts
    ]
    return Table(dict(zip(names, columns, strict=True)), str(path))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise MissingDataError(f"there is no file {path}; check the name") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason}); convert it") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror or error}") from error


def _open(path: Path) -> TextIO:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _header(lines: Iterator[tuple[int, str]], path: Path) -> dict[str, str]:
    """Names and kinds of the columns, up to the line that opens the data."""
    names: list[str] = []
    kinds: list[str] = []
    for number, raw in lines:
        line = raw.strip()
        if not line or line.startswith("%") or line.lower().startswith("@relation"):
            continue
        if line.lower() == "@data":
            if not names:
                raise DataError(f"{path} describes no column before line {number}")
            refuse_repeated(names, source=str(path))
            return dict(zip(names, kinds, strict=True))
        found = _ATTRIBUTE.fullmatch(line)
        if found is None:
            raise DataError(f"line {number} of {path} is no part of an ARFF header: {line[:60]!r}")
        names.append(_unquoted(found["name"]))
        kinds.append(_kind(found["kind"].strip(), names[-1], path))
    raise DataError(f"{path} has no line @data; expected an ARFF file")


def _kind(kind: str, name: str, path: Path) -> str:
    if kind.lower() in (*_NUMERIC, "string") or (kind.startswith("{") and kind.endswith("}")):
        return kind
    raise DataError(
        f"column {name!r} of {path} is of kind {kind[:30]!r}; expected numeric, real, integer, "
        "string or a list of words in braces"
    )


def _blocks(
    lines: Iterator[tuple[int, str]], width: int, path: Path
) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield rows of cells, some at a time, with the line that the first of them stands on."""
    told = ((number, raw.strip()) for number, raw in lines)
    rows = ((number, line) for number, line in told if line and not line.startswith("%"))
    while block := list(islice(rows, _BLOCK_ROWS)):
        yield block[0][0], [_cells(line, number, width, path) for number, line in block]


def _cells(line: str, number: int, width: int, path: Path) -> list[str]:
    if line.startswith("{"):
        raise DataError(f"line {number} of {path} is sparse; expected a cell for every column")
    plain = "'" not in line and '"' not in line
    cells = [cell.strip() for cell in line.split(",")] if plain else _quoted_cells(line)
    if len(cells) != width:
        raise DataError(
            f"line {number} of {path} has {len(cells)} cells; every row needs the {width} of the "
            "header"
        )
    return cells


def _quoted_cells(line: str) -> list[str]:
    """Cells of a line with quotes; up to the place where the quotes go wrong."""
    cells, place = [], 0
    while found := _CELL.match(line, place):
        cells.append(_unquoted(found[1].strip()))
        place = found.end()
        if not found[2]:
            break
    return cells


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return _ESCAPED.sub(r"\1", text[1:-1])
    return text


def _numbers(cells: Sequence[str], gone: set[str], where: str) -> npt.NDArray[np.float64]:
    try:
        numbers = np.array([np.nan if cell in gone else float(cell) for cell in cells])
    except ValueError as error:
        raise DataError(f"{where} on: expected a number ({error})") from error
    if np.isinf(numbers).any():
        raise DataError(f"{where} on: a number is infinite; numbers must be finite or missing")
    return numbers


def _words(cells: Sequence[str], gone: set[str]) -> npt.NDArray[np.object_]:
    words = np.empty(len(cells), dtype=np.object_)
    words[:] = [None if cell in gone else cell for cell in cells]
    return words
