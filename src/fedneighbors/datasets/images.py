"""Owns the image sets of the data folder: MNIST and the small Omniglot with its drawers."""

import zipfile
from pathlib import Path

import numpy as np

from fedneighbors.datasets.dataset import Dataset
from fedneighbors.errors import DataError, MissingDataError

__all__ = ["IMAGE_FILES", "load_images"]

IMAGE_FILES = {"mnist": "images/mnist.npz", "omniglot": "images/omniglot_small.npz"}


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
    path = folder / IMAGE_FILES[name]
    if not path.is_file():
        raise MissingDataError(f"there is no file {path}; put it there or choose another data set")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return _mnist(arrays, path) if name == "mnist" else _omniglot(arrays, path)
    except (zipfile.BadZipFile, KeyError, ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} is not a complete set of arrays: {error}") from error


def _mnist(arrays: np.lib.npyio.NpzFile, path: Path) -> Dataset:
    train = arrays["x_train"]
    return Dataset(
        name="mnist",
        x=np.vstack([train, arrays["x_test"]]),
        y=np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(np.int64),
        feature_names=_pixels(),
        source=str(path),
        n_train=len(train),
    )


def _omniglot(arrays: np.lib.npyio.NpzFile, path: Path) -> Dataset:
    labels = [
        f"{alphabet}/{character}"
        for alphabet, character in zip(arrays["alphabet"], arrays["character"], strict=True)
    ]
    return Dataset(
        name="omniglot",
        x=arrays["x28"].reshape(len(labels), -1),
        y=np.array(labels, dtype=np.str_),
        feature_names=_pixels(),
        source=str(path),
        parties=np.array([f"drawer-{drawer}" for drawer in arrays["drawer"]], dtype=np.str_),
    )


def _pixels() -> tuple[str, ...]:
    return tuple(f"pixel-{row}-{column}" for row in range(28) for column in range(28))
