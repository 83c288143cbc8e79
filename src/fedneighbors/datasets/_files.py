"""Text files, optionally compressed: opening, reading lines, errors with file names."""

import bz2
import codecs
import csv
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from fedneighbors.datasets._text_format import recognize_utf8
from fedneighbors.errors import DataError, MissingDataError

_OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}

MAX_RATIO = 400
"""Maximum ratio of a file's content to its compressed size; wide sparse tables reach 200."""

MAX_XZ_RATIO = 600
"""The same for ``.xz``, which finds distant repetitions: nearly equal genomes reach 500."""

MIN_LIMIT = 1 << 18  # bytes of content that every compressed file may have


def content_limit(path: Path) -> int:
    """Return the maximum size of a compressed file's content, in bytes."""
    ratio = MAX_XZ_RATIO if path.suffix == ".xz" else MAX_RATIO
    return MIN_LIMIT + ratio * path.stat().st_size


def check_content(path: Path, n_bytes: int, limit: int, *, remedy: str = "decompress it") -> None:
    """Raise DataError if a compressed file expands beyond a limit."""
    if n_bytes > limit:
        raise DataError(
            f"{path} expands to more than {limit} bytes, hundreds of times its size, as a file "
            f"made to exhaust memory would; {remedy} if it is yours"
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
    except UnicodeError as error:
        with explain_errors(path):  # the file is read again, and its end can be damaged
            raise _encoding_error(path, error) from error
    except csv.Error as error:
        raise DataError(f"{path} cannot be read as delimited text: {error}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError, MemoryError) as error:
        kind = path.suffix[1:].replace("gz", "gzip")
        raise DataError(
            f"{path} is not a complete {kind} file and cannot be read ({error}); is it damaged?"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror or error}") from error


def _encoding_error(path: Path, error: UnicodeError) -> DataError:
    """Return an error that names the place that cannot be decoded."""
    encoding = getattr(error, "encoding", "utf-16")  # the codec that raises a plain UnicodeError
    if _is_workbook(path):
        return DataError(f"{path} is a workbook or archive, not text; export its sheet as CSV")
    return DataError(
        f"{path} is not {encoding.upper()} text{_locate_error(path, encoding)}; save it as UTF-8, "
        "or give its encoding (--encoding), often cp1252 or utf-16"
    )


def _is_workbook(path: Path) -> bool:
    """Return whether a file begins like .xlsx, .ods or .xls."""
    with path.open("rb") as stream:
        return stream.read(4) in (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")


def _locate_error(path: Path, encoding: str) -> str:
    """Return the place of the first line that cannot be decoded."""
    if path.suffix in {".parquet", ".pq"}:
        return ""
    with CheckedGzip(path) if path.suffix.lower() == ".gz" else path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode(encoding)
            except UnicodeDecodeError as found:
                return f" (line {number}, byte {found.start + 1} of the line)"
            except UnicodeError:  # no byte order mark
                break
    return ""


def open_text(path: Path, *, newline: str | None = None, encoding: str = "utf-8") -> TextIO:
    """Open text, decompressing ``.gz`` files.

    A byte order mark of UTF-8 is skipped; a file that is UTF-8 is read as such.
    """
    encoding = _find_encoding(path, encoding)
    if path.suffix.lower() == ".gz":
        return TextIOWrapper(CheckedGzip(path), encoding=encoding, newline=newline)
    return path.open(encoding=encoding, newline=newline)


def _find_encoding(path: Path, encoding: str) -> str:
    """Return UTF-8 if a file is UTF-8, else the given encoding."""
    with CheckedGzip(path) if path.suffix.lower() == ".gz" else path.open("rb") as stream:
        first = stream.readline()
        if first.startswith(codecs.BOM_UTF8) or codecs.lookup(encoding).name == "utf-8":
            return "utf-8-sig"
        return recognize_utf8(chain([first], stream), encoding)


def read_lines(path: str | os.PathLike[str], *, encoding: str = "utf-8") -> list[str]:
    """Return the lines of a text file without line ends.

    Empty lines are kept.

    Parameters
    ----------
    path : str or path
        Text, compressed if the name ends in ``.gz``, ``.xz`` or ``.bz2``.
    encoding : str, default="utf-8"
        Encoding; a byte order mark of UTF-8 is skipped.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is empty or damaged, or a line is in another encoding; the error names the line.
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
        text = raw.decode(encoding).removeprefix("\ufeff")
    except UnicodeError as error:
        line = raw.count(b"\n", 0, getattr(error, "start", 0)) + 1
        raise DataError(
            f"{file}, line {line}: expected {encoding.upper()} text; save it as UTF-8, or give its "
            "encoding (--encoding), often cp1252 or utf-16"
        ) from None
    if not text:
        raise DataError(f"{file} is empty; expected one string per line")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()  # the text ends with a line end, not with an empty line
    return [line.removesuffix("\r") for line in lines]


def read_fasta(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the sequences of a FASTA file by name.

    Parameters
    ----------
    path : str or path
        Text, compressed if the name ends in ``.gz``, ``.xz`` or ``.bz2``. A line ``>name`` and
        further words begins a sequence, of all lines up to the next one.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is empty or damaged, a sequence has no name or no letters, or two names are
        equal; the error names the line.
    """
    sequences: dict[str, list[str]] = {}
    name = ""
    for number, line in enumerate(read_lines(path), start=1):
        if line.startswith(">"):
            name = next(iter(line[1:].split()), "")
            if not name or name in sequences:
                raise DataError(f"{path}, line {number}: expected a new name after >, got {name!r}")
            sequences[name] = []
        elif name:
            sequences[name] += line.split()
        elif line.strip():
            raise DataError(f"{path}, line {number}: expected a line >name before the sequence")
    for name, parts in sequences.items():
        if not parts:
            raise DataError(f"{path}: the sequence {name!r} is empty; is the file truncated?")
    return {name: "".join(parts) for name, parts in sequences.items()}
