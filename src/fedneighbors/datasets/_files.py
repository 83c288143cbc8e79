"""Text files, optionally compressed: opening, reading lines, errors with file names."""

import bz2
import csv
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO, cast

from fedneighbors.errors import DataError, MissingDataError

_OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}

MAX_RATIO = 400
"""Maximum ratio of a file's content to its compressed size; wide sparse tables reach 200."""

MIN_LIMIT = 1 << 18  # bytes of content that every compressed file may have


def content_limit(path: Path) -> int:
    """Return the maximum size of a compressed file's content, in bytes."""
    return MIN_LIMIT + MAX_RATIO * path.stat().st_size


def check_content(path: Path, n_bytes: int, limit: int, *, remedy: str = "decompress it") -> None:
    """Raise DataError if a compressed file expands beyond a limit."""
    if n_bytes > limit:
        raise DataError(
            f"{path} expands to more than {limit} bytes, about {MAX_RATIO} times its size, as a "
            f"file made to exhaust memory would; {remedy} if it is yours"
        )


class CheckedGzip(gzip.GzipFile):
    """A gzipped file that is read only up to its limit."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._checked_path = path
        self._limit = content_limit(path)

    def read1(self, size: int = -1) -> bytes:
        """Return some bytes."""
        return self._check(super().read1(size))

    def readline(self, size: int | None = -1) -> bytes:
        """Return a line, or its first bytes."""
        return self._check(super().readline(-1 if size is None else size))

    def _check(self, content: bytes) -> bytes:
        check_content(self._checked_path, self.tell(), self._limit)
        return content


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
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError, MemoryError) as error:
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
    if path.suffix.lower() == ".gz" and mode == "rt":
        return TextIOWrapper(CheckedGzip(path), encoding=encoding, newline=newline)
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
        if file.suffix in _OPEN:
            with _OPEN[file.suffix](file) as stream:
                limit = content_limit(file)
                raw = stream.read(limit + 1)
            check_content(file, len(raw), limit)
        else:
            raw = file.read_bytes()
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
