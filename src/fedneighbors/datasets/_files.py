"""Text files, optionally compressed: opening, reading lines, errors with file names."""

import bz2
import csv
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, cast

from fedneighbors.errors import DataError, MissingDataError

_DECOMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
    ".bz2": bz2.decompress,
}


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Convert read errors to library errors that name the file."""
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
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        kind = path.suffix[1:].replace("gz", "gzip")
        raise DataError(
            f"{path} is not a complete {kind} file and cannot be read ({error}); is it damaged?"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror or error}") from error


def open_text(path: Path, mode: str = "rt", *, newline: str | None = None) -> TextIO:
    """Open UTF-8 text, decompressing ``.gz`` files.

    A byte order mark is skipped.
    """
    encoding = "utf-8-sig" if mode == "rt" else "utf-8"
    if path.suffix.lower() == ".gz":
        return cast(TextIO, gzip.open(path, mode, encoding=encoding, newline=newline))
    return cast(TextIO, path.open(mode, encoding=encoding, newline=newline))


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Return the lines of a text file without line ends.

    Empty lines are kept.

    Parameters
    ----------
    path : str or path
        UTF-8 text, compressed if the name ends in ``.gz``, ``.xz`` or ``.bz2``.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is empty or damaged, or a line is not UTF-8; the error names the line.
    """
    file = Path(path)
    with explain_errors(file):
        raw = _DECOMPRESS.get(file.suffix, bytes)(file.read_bytes())
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{file}, line {line}: expected UTF-8 text ({error.reason}); convert it, for example "
            "with iconv -t utf-8"
        ) from None
    if not text:
        raise DataError(f"{file} is empty; expected one string per line")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()  # the text ends with a line end, not with an empty line
    return [line.removesuffix("\r") for line in lines]
