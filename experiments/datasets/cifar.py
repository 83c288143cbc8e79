"""CIFAR-10 and CIFAR-100, from the official binary files or a smaller file of 12,000 images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._dataset import Dataset
from fedneighbors.errors import DataError, MissingDataError

CIFAR_FOLDERS = {
    "cifar10": "images/cifar-10-batches-bin",
    "cifar100": "images/cifar-100-binary",
}
"""Folders of the unpacked archives ``cifar-10-binary.tar.gz`` and ``cifar-100-binary.tar.gz``."""

SAMPLE_FILE = "images/cifar10_12k.npz"
"""File with 12,000 images of CIFAR-10, channels last, and their labels."""

N_VALUES = 3 * 32 * 32
COLORS = ("red", "green", "blue")

Name = Literal["cifar10", "cifar100"]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Layout:
    """Layout of a record: one byte per kind of label, then red, green and blue.

    ``limits`` is the number of labels of each kind; the last kind is the one to predict.
    """

    train: tuple[str, ...]
    test: str
    limits: tuple[int, ...]


_LAYOUTS = {
    "cifar10": _Layout(tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin", (10,)),
    "cifar100": _Layout(("train.bin",), "test.bin", (20, 100)),
}


def load_cifar(name: Name, folder: Path) -> Dataset:
    """Load all images as rows of red, green and blue pixels.

    Parameters
    ----------
    name : {"cifar10", "cifar100"}
        Name of the set; the labels of ``"cifar100"`` are the fine ones.
    folder : Path
        The data folder.

    Returns
    -------
    Dataset
        ``x`` is uint8 of shape (n_rows, 3072); ``x.reshape(-1, 3, 32, 32)`` are images. The rows of
        the training files come first.

    Raises
    ------
    MissingDataError
        If a file does not exist.
    DataError
        If a file is truncated or has another format.
    """
    parts = _read_files(name, folder)
    n_labels = len(_LAYOUTS[name].limits)
    return Dataset(
        name,
        np.concatenate([part[:, n_labels:] for part in parts]),
        np.concatenate([part[:, n_labels - 1] for part in parts]).astype(np.int64),
        _pixel_names(),
        str(folder / CIFAR_FOLDERS[name]),
        n_train=sum(map(len, parts[:-1])),
    )


def load_cifar_sample(folder: Path) -> Dataset:
    """Load the images of :data:`SAMPLE_FILE` in the form of :func:`load_cifar`.

    Parameters
    ----------
    folder : Path
        The data folder.

    Raises
    ------
    MissingDataError
        If the file does not exist.
    DataError
        If it has another format.
    """
    path = folder / SAMPLE_FILE
    if not path.exists():
        raise MissingDataError(f"there is no file {path}")
    try:
        with np.load(path) as content:
            x, y = content["x"], content["y"].astype(np.int64)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise DataError(f"{path}: expected the arrays x and y: {error}") from error
    if x.shape != (len(y), 32, 32, 3) or x.dtype != np.uint8:
        raise DataError(
            f"{path}: expected a uint8 array of shape ({len(y)}, 32, 32, 3), got {x.dtype} of "
            f"{x.shape}"
        )
    rows = np.ascontiguousarray(x.transpose(0, 3, 1, 2)).reshape(len(x), N_VALUES)
    return Dataset("cifar10_12k", rows, y, _pixel_names(), str(path))


def _pixel_names() -> tuple[str, ...]:
    return tuple(f"{color}-{y}-{x}" for color in COLORS for y in range(32) for x in range(32))


def cifar_labels(name: Name, folder: Path) -> npt.NDArray[np.int64]:
    """Load only the labels of :func:`load_cifar`.

    Parameters
    ----------
    name, folder
        See :func:`load_cifar`.
    """
    return _read_labels(name, folder, kind=-1)


def coarse_labels(folder: Path) -> npt.NDArray[np.int64]:
    """Load CIFAR-100's coarse labels in the order of :func:`load_cifar`.

    Pachinko allocation partitions images by coarse and fine labels.

    Parameters
    ----------
    folder : Path
        The data folder.

    Returns
    -------
    int64 array of shape (n_rows,)
        From 0 to 19.

    Raises
    ------
    MissingDataError
        If a file does not exist.
    DataError
        If a file is truncated or has another format.
    """
    return _read_labels("cifar100", folder, kind=0)


def _read_labels(name: Name, folder: Path, *, kind: int) -> npt.NDArray[np.int64]:
    column = range(len(_LAYOUTS[name].limits))[kind]
    return np.concatenate([part[:, column] for part in _read_files(name, folder)]).astype(np.int64)


def _read_files(name: Name, folder: Path) -> list[Bytes]:
    """Map the records of each file; the test file is last."""
    layout, subfolder = _LAYOUTS[name], folder / CIFAR_FOLDERS[name]
    return [_map_records(subfolder / file, layout.limits) for file in (*layout.train, layout.test)]


def _map_records(path: Path, limits: tuple[int, ...]) -> Bytes:
    """Map a file as uint8 array of shape (n_records, n_labels + 3072)."""
    width = len(limits) + N_VALUES
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise MissingDataError(
            f"there is no file {path}; unpack the official binary version there"
        ) from None
    if size == 0 or size % width:
        raise DataError(
            f"expected {path} to hold records of {width} bytes, got {size} bytes; it is "
            "truncated, or not in the binary format"
        )
    records = np.memmap(path, np.uint8, "r", shape=(size // width, width))
    for column, limit in enumerate(limits):
        if (records[:, column] >= limit).any():
            row = int(np.argmax(records[:, column] >= limit))
            raise DataError(
                f"{path}, record {row + 1}: expected a label below {limit}, got "
                f"{int(records[row, column])}; it is not in the binary format"
            )
    return records
