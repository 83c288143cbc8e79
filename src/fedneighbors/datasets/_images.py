"""Owns the image sets of the data folder: MNIST and the small Omniglot with its drawers."""

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._dataset import Dataset
from fedneighbors.errors import DataError, MissingDataError

IMAGE_FILES = {"mnist": "images/mnist.npz", "omniglot": "images/omniglot_small.npz"}
N_PIXELS = 28 * 28


def load_images(name: str, folder: Path) -> Dataset:
    """Return an image set, one flattened image of 28 x 28 pixels a row.

    Parameters
    ----------
    name : str
        ``"mnist"``: labels are digits, the first 60,000 rows are the training part.
        ``"omniglot"``: labels are alphabet and character, parties the 20 drawers.
    folder : Path
        The data folder.

    Returns
    -------
    Dataset
        ``x`` is uint8 from 0 (paper) to 255 (ink).

    Raises
    ------
    MissingDataError
        If the file is not there.
    DataError
        If the file is damaged or lacks an array.
    """
    with _arrays(name, folder) as arrays:
        labels = _labels(name, arrays)
        source = str(folder / IMAGE_FILES[name])
        if name == "mnist":
            train = arrays["x_train"]
            x = np.vstack([train, arrays["x_test"]])
            return Dataset(name, x, labels, _pixels(), source, n_train=len(train))
        x = arrays["x28"].reshape(len(labels), -1)
        drawers = np.array([f"drawer-{drawer}" for drawer in arrays["drawer"]], dtype=np.str_)
        return Dataset(name, x, labels, _pixels(), source, parties=drawers)


def image_labels(name: str, folder: Path) -> npt.NDArray[Any]:
    """Return the labels of an image set without reading its images.

    Parameters
    ----------
    name : str
        See `load_images`.
    folder : Path
        The data folder.

    Returns
    -------
    int64 or str array of shape (n_rows,)

    Raises
    ------
    MissingDataError
        If the file is not there.
    DataError
        If the file is damaged or lacks an array.
    """
    with _arrays(name, folder) as arrays:
        return _labels(name, arrays)


@contextmanager
def _arrays(name: str, folder: Path) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
    path = folder / IMAGE_FILES[name]
    if not path.is_file():
        raise MissingDataError(f"there is no file {path}; put it there or choose another data set")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} is not a complete set of arrays: {error}") from error


def _labels(name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if name == "mnist":
        return np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(np.int64)
    pairs = zip(arrays["alphabet"], arrays["character"], strict=True)
    return np.array([f"{alphabet}/{character}" for alphabet, character in pairs], dtype=np.str_)


def _pixels() -> tuple[str, ...]:
    return tuple(f"pixel-{row}-{column}" for row in range(28) for column in range(28))
