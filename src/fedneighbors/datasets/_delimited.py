"""Owns the reading of delimited text (CSV, also gzipped) into columns."""

import csv
import gzip
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

_BLOCK_ROWS = 512  # a block's cells stay in the processor's cache while they are transposed


def read_delimited(
    path: Path, *, words: Collection[str], delimiter: str, missing: Collection[str]
) -> Table:
    """Columns of a delimited text file with a header row.

    A column is numeric if each of its cells is a number or missing; the file is read a second
    time for the words of the others, so that numbers never lie in memory as text.

    Parameters
    ----------
    path : Path
        UTF-8 text; gzipped if the name ends in ``.gz``.
    words : collection of str
        Columns that are nominal even if their cells look like numbers.
    delimiter : str
        One character.
    missing : collection of str
        Cells that count as missing, after stripping blanks.

    Returns
    -------
    Table

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is empty, damaged, not UTF-8, ragged, or names a column twice.
    """
    with _explained(path):
        names = _header(path, delimiter)
        nominal = {position for position, name in enumerate(names) if name in words}
        every = set(range(len(names)))
        columns = _columns(path, delimiter, wanted=every, nominal=nominal, missing=missing)
        late = every - columns.keys()
        if late:
            columns |= _columns(path, delimiter, wanted=late, nominal=late, missing=missing)
    table = Table({name: columns[position] for position, name in enumerate(names)}, str(path))
    _refuse_infinite(table)
    return table


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise MissingDataError(f"there is no file {path}; check the name") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text ({error.reason}); convert it, for example with "
            "iconv -t utf-8"
        ) from error
    except csv.Error as error:
        raise DataError(f"{path} cannot be read as delimited text: {error}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror or error}") from error


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _rows(path: Path, delimiter: str) -> Iterator[list[str]]:
    """Header and rows, each as long as the header; blank lines may only end the file."""
    with _open(path) as stream:
        reader = csv.reader(stream, delimiter=delimiter, skipinitialspace=True, strict=True)
        width, blank = 0, False
        for row in reader:
            if not row:
                blank = True
                continue
            width = width or len(row)
            if blank or len(row) != width:
                came = "follows a blank line" if blank else f"has {len(row)} cells"
                raise DataError(
                    f"the row that ends at line {reader.line_num} of {path} {came}; "
                    f"every row needs the {width} cells of the header"
                )
            yield row


def _header(path: Path, delimiter: str) -> list[str]:
    first = next(_rows(path, delimiter), None)
    if first is None:
        raise DataError(f"{path} is empty; expected a header row and data below it")
    names = [name.strip() for name in first]
    refuse_repeated(names, source=str(path))
    return names


def _blocks(path: Path, delimiter: str) -> Iterator[list[tuple[str, ...]]]:
    """Yield data rows, some hundreds at a time, turned into columns."""
    rows = islice(_rows(path, delimiter), 1, None)
    while block := list(islice(rows, _BLOCK_ROWS)):
        yield list(zip(*block, strict=True))


def _columns(
    path: Path,
    delimiter: str,
    *,
    wanted: set[int],
    nominal: set[int],
    missing: Collection[str],
) -> dict[int, Column]:
    """Return the wanted columns by position, save those that are neither numeric nor nominal."""
    parts: dict[int, list[npt.NDArray[Any]]] = {position: [np.empty(0)] for position in wanted}
    for block in _blocks(path, delimiter):
        for position in list(parts):
            read = _as_words if position in nominal else _as_numbers
            try:
                parts[position].append(read(block[position], missing))
            except ValueError:
                del parts[position]
    return {position: np.concatenate(part) for position, part in parts.items()}


def _as_numbers(cells: Sequence[str], missing: Collection[str]) -> npt.NDArray[np.float64]:
    if "_" in "".join(cells):  # float() would read the name 1_2 as twelve
        raise ValueError("an underscore is no part of a number")
    try:
        return np.array(list(map(float, cells)))
    except ValueError:
        return np.array([np.nan if cell.strip() in missing else float(cell) for cell in cells])


def _as_words(cells: Sequence[str], missing: Collection[str]) -> npt.NDArray[np.object_]:
    words = np.empty(len(cells), dtype=np.object_)
    stripped = map(str.strip, cells)
    words[:] = [None if cell in missing else cell for cell in stripped]
    return words


def _refuse_infinite(table: Table) -> None:
    for name, column in table.columns.items():
        if column.dtype != np.object_ and np.isinf(column.astype(np.float64)).any():
            row = int(np.isinf(column.astype(np.float64)).argmax()) + 1
            raise DataError(
                f"column {name!r} of {table.source} is infinite in data row {row}; "
                "numbers must be finite or missing"
            )
