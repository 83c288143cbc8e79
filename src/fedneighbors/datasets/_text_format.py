"""`TextFormat`: separators, encoding and marks of missing cells of a delimited text file."""

import codecs
import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedneighbors.datasets._table import Column
from fedneighbors.errors import DataError

MISSING_CELLS = (
    "", "?", ".", "NA", "na", "N/A", "n/a", "#N/A", "#n/a", "<NA>", "NULL", "null", "Null",
    "NaN", "nan", "Nan", "NAN", "None",
)  # fmt: skip
"""Marks of missing cells, those of pandas among them.

Neither "Na", which is sodium, nor "none", which is often a category.
"""

_DELIMITERS = ",;\t|"
_THOUSANDS_OR_DECIMALS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")


@dataclass(frozen=True)
class TextFormat:
    """Form of a delimited text file.

    Parameters
    ----------
    delimiter : str, optional
        Separator of cells: one character. By default the one among comma, semicolon, tab and
        vertical bar that splits the header into the most cells; rows have no influence.
    decimal : {".", ","}, optional
        Decimal separator. By default a point; in a file with another delimiter than a comma, also a
        comma in columns whose cells are then all numbers. With a schema, a comma by default only in
        files with semicolons.
    encoding : str, default="utf-8"
        Encoding of files that are not UTF-8.
    missing : sequence of str, default=MISSING_CELLS
        Cells that count as missing, after stripping blanks; a number such as ``"-999"`` also in
        another notation. By default the empty cell, ``?``, ``.``, ``NA``, ``N/A``, ``#N/A``,
        ``<NA>``, ``NULL`` and ``NaN``, also in lower case, and ``None``.

    Raises
    ------
    ValueError
        If a value is none of these.
    """

    delimiter: str | None = None
    decimal: Literal[".", ","] | None = None
    encoding: str = "utf-8"
    missing: Sequence[str] = MISSING_CELLS

    def __post_init__(self) -> None:
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise ValueError(f"expected delimiter as one character, got {self.delimiter!r}")
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"expected decimal as '.' or ',', got {self.decimal!r}")
        if self.decimal is not None and self.decimal == self.delimiter:
            raise ValueError(f"delimiter and decimal are both {self.decimal!r}; they must differ")
        if isinstance(self.missing, str):
            raise ValueError(f"expected missing as a list of texts, got {self.missing!r}")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise ValueError(
                f"there is no encoding {self.encoding!r}; expected a name such as cp1252 or utf-16"
            ) from None

    @property
    def missing_numbers(self) -> list[float]:
        """Return the marks of missing cells that are numbers."""
        return [number for mark in self.missing if (number := parse_number(mark)) is not None]


def parse_number(cell: str, decimal: str = ".") -> float | None:
    """Return a cell as a number, None if it is none."""
    if "_" in cell or (decimal == "," and "." in cell):  # float() would parse 1_2 as twelve
        return None
    try:
        number = float(cell.replace(decimal, "."))
    except ValueError:
        return None
    return None if number != number else number


def point_number(cell: str) -> str:
    """Return a number's text with a decimal point; other text unchanged."""
    return cell if parse_number(cell, ",") is None else cell.replace(",", ".")


def recognize_utf8(lines: Iterable[bytes], encoding: str) -> str:
    """Return UTF-8 if non-ASCII lines are valid UTF-8, else the encoding.

    An encoding with several bytes for a character is returned unchanged: its text may be UTF-8 by
    chance. In one with a byte for each, words would have pairs such as "Ã¤".
    """
    is_ascii = True
    if len("ä".encode().decode(encoding, "replace")) < 2:
        return encoding
    try:
        for line in lines:
            is_ascii &= line.isascii()
            line.decode()
    except UnicodeDecodeError:
        return encoding
    return encoding if is_ascii else "utf-8"


def find_delimiter(header: str) -> str:
    """Return the separator that splits a header into the most cells.

    ``csv.Sniffer`` is not used: it reads rows, which must not decide how a file is read, and takes
    a decimal comma for a separator.
    """
    return max(_DELIMITERS, key=lambda delimiter: _count_cells(header, delimiter))


def check_decimal(path: Path, delimiter: str, text_format: TextFormat) -> None:
    """Raise DataError if a file's delimiter is the declared decimal separator."""
    if delimiter == text_format.decimal:
        raise DataError(
            f"the cells of {path} are separated by {delimiter!r}, which is declared as decimal "
            "separator; declare none (--decimal), so that it is found in each file"
        )


def _count_cells(header: str, delimiter: str) -> int:
    try:
        cells = csv.reader([header], delimiter=delimiter, skipinitialspace=True, strict=True)
        return len(next(cells, []))
    except csv.Error:  # text next to quotes, or a cell of more than 128 KiB: another one splits it
        return 0


def convert_decimal_commas(
    columns: Mapping[str, Column], *, source: str, is_sure: bool
) -> dict[str, Column]:
    """Return the word columns whose cells are numbers with a decimal comma.

    Parameters
    ----------
    columns : mapping of str to object array
        Words.
    source : str
        Name of the file in messages.
    is_sure : bool
        A comma does not separate thousands.

    Raises
    ------
    DataError
        If it is not sure, and every comma may also separate thousands.
    """
    converted: dict[str, Column] = {}
    unclear = ""
    is_clear = is_sure
    for name, cells in columns.items():
        numbers = [np.nan if cell is None else parse_number(cell, ",") for cell in cells]
        if None in numbers:
            continue
        converted[name] = np.array(numbers, np.float64)
        with_comma = [cell for cell in cells if cell and "," in cell]
        if all(map(_THOUSANDS_OR_DECIMALS.fullmatch, with_comma)):
            unclear = unclear or name
        else:
            is_clear = True
    if unclear and not is_clear:
        row = next(row for row, cell in enumerate(columns[unclear], 1) if cell and "," in cell)
        raise DataError(
            f"column {unclear!r} of {source}: the comma in data row {row} may separate decimals or "
            "thousands; declare the decimal separator (--decimal), or write a point"
        )
    return converted
