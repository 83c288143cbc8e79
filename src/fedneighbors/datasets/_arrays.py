"""NumPy files (``.npz``) with arrays of rows, labels and parties."""

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._files import check_content, content_limit
from fedneighbors.datasets._schema_columns import read_labels
from fedneighbors.errors import DataError, MissingDataError


def is_arrays(path: str | os.PathLike[str]) -> bool:
    """Return whether a file name ends in .npz."""
    return Path(path).suffix.lower() == ".npz"


@contextmanager
def open_arrays(path: Path) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
    """Open a file of arrays, without objects that need pickle.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If it is damaged, lacks an array or expands to much more than its size.
    """
    if not path.is_file():
        raise MissingDataError(f"there is no file {path}; add it or choose another data set")
    try:
        with zipfile.ZipFile(path) as archive:
            n_bytes = sum(entry.file_size for entry in archive.infolist())
        check_content(path, n_bytes, content_limit(path), remedy="save it with numpy.savez")
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays
    except DataError:
        raise
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} is not a complete set of arrays: {error}") from error


def read_array_rows(path: Path, *, keep_missing: bool = False) -> npt.NDArray[Any]:
    """Read the array ``x`` as rows of numbers; flatten images."""
    with open_arrays(path) as arrays:
        x = arrays["x"]
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
    """Read a labelled data set from the arrays ``x``, ``y`` and, if present, ``parties``."""
    file = Path(path)
    rows = read_array_rows(file, keep_missing=keep_missing)
    with open_arrays(file) as arrays:
        labels = arrays["y"]
        parties = arrays["parties"].astype(np.str_) if "parties" in arrays else None
    y, known = read_labels(labels.ravel().tolist(), ())
    if labels.ndim != 1 or not known.all():
        raise DataError(
            f"array 'y' of {file} has shape {labels.shape} and {int((~known).sum())} empty labels; "
            "expected a label for each row"
        )
    names = tuple(f"x{position}" for position in range(rows.shape[1]))
    return Dataset(file.name.split(".")[0], rows, y, names, str(file), parties=parties)
