"""Reads text files of one string a line."""

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Callable
from pathlib import Path

from fedneighbors.errors import DataError, MissingDataError

__all__ = ["read_lines"]

_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
    ".bz2": bz2.decompress,
}


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Return the lines of a text file, line ends taken off, empty lines kept.

    Parameters
    ----------
    path : str or path
        UTF-8 text, packed if the name ends in ``.gz``, ``.xz`` or ``.bz2``.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is empty or damaged, or a line is not UTF-8; the line is named.
    """
    file = Path(path)
    raw = _content(file)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{file}, line {line}: expected UTF-8 text ({error.reason}); convert it, for example "
            "with iconv -t utf-8"
        ) from None
    if not text:
        raise DataError(f"{file} is empty; expected one string a line")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()  # the last line's own end begins no further line
    return [line.removesuffix("\r") for line in lines]


def _content(file: Path) -> bytes:
    try:
        packed = file.read_bytes()
        return _UNPACK.get(file.suffix, bytes)(packed)
    except FileNotFoundError:
        raise MissingDataError(f"there is no file {file}; check the path") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{file} cannot be read ({error}); is it damaged?") from error
