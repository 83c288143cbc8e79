"""NumPy files (``.npz``) with arrays of rows, labels and parties."""

import lzma
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np

from fedneighbors._typing import Array
from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._files import check_content, content_limit
from fedneighbors.datasets._schema_columns import read_labels
from fedneighbors.errors import DataError, MissingDataError

ReadArray = Callable[[str], Array]
_DAMAGED: tuple[type[Exception], ...] = (  # errors of zipfile and of numpy's headers
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, KeyError, ValueError, TypeError),
    *(OSError, EOFError, RuntimeError, SyntaxError, MemoryError),
)


def is_arrays(path: str | os.PathLike[str]) -> bool:
    """Return whether a file name ends in .npz."""
    return Path(path).suffix.lower() == ".npz"


@contextmanager
def open_arrays(path: Path) -> Iterator[ReadArray]:
    """Open a file of arrays; yield the function that reads one.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If it is damaged, lacks an array, has objects or expands to much more than its size.
    """
    if not path.is_file():
        raise MissingDataError(f"there is no file {path}; add it or choose another data set")
    try:
        with zipfile.ZipFile(path) as archive:
            yield partial(_read_array, path, archive)
    except DataError:
        raise
    except _DAMAGED as error:
        raise DataError(f"{path} is not a complete set of arrays: {error}") from error


def _read_array(path: Path, archive: zipfile.ZipFile, name: str) -> Array:
    """Read an array; its size is checked before memory is allocated."""
    info, limit = archive.getinfo(f"{name}.npy"), content_limit(path)
    check_content(path, info.file_size, limit)  # zipfile reads no more than this
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        read_header = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read_header = np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read_header(member)
        if dtype.kind not in "biufU":
            raise ValueError(f"expected numbers or text in {name}, found {dtype}")
        # A side or a cell of length 0 counts as 1, so that no loop over it is without end.
        check_content(path, math.prod(max(1, side) for side in (*shape, dtype.itemsize)), limit)
        content = bytearray(member.read(math.prod(shape) * dtype.itemsize))
    return np.ndarray(shape, dtype, content, order="F" if is_fortran else "C")


def read_row_shape(path: Path) -> tuple[int, ...]:
    """Return the shape of a row of the array ``x``."""
    with open_arrays(path) as read:
        return read("x").shape[1:]


def read_array_rows(path: Path, *, keep_missing: bool = False) -> Array:
    """Read the array ``x`` as rows of numbers; flatten images."""
    with open_arrays(path) as read:
        x = read("x")
    if x.ndim < 2 or x.dtype.kind not in "biuf" or 0 in x.shape:
        raise DataError(
            f"array 'x' of {path} has shape {x.shape} and type {x.dtype}; expected numbers of "
            "shape (rows, columns), or images of shape (rows, height, width) or (rows, channels, "
            "height, width)"
        )
    rows = x.reshape(len(x), -1)
    invalid = ~np.isfinite(rows) if not keep_missing else np.isinf(rows)
    if invalid.any():
        row, column = np.argwhere(invalid)[0] + 1
        raise DataError(
            f"array 'x' of {path} has no finite number in row {row}, column {column}; fill it in"
        )
    return rows


def read_arrays(path: str | os.PathLike[str], *, keep_missing: bool = False) -> Dataset:
    """Read a data set from ``x``, ``y`` and, if present, ``parties``."""
    file = Path(path)
    rows = read_array_rows(file, keep_missing=keep_missing)
    parties = None
    with open_arrays(file) as read:
        labels = read("y")
        with suppress(KeyError):
            parties = read("parties").astype(np.str_)
    y, known = read_labels(labels.ravel().tolist(), ())
    if labels.ndim != 1 or not known.all():
        raise DataError(
            f"array 'y' of {file} has shape {labels.shape} and {int((~known).sum())} empty labels; "
            "expected a label for each row"
        )
    names = tuple(f"x{position}" for position in range(rows.shape[1]))
    return Dataset(file.name.split(".")[0], rows, y, names, str(file), parties=parties)
