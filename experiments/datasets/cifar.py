"""CIFAR-10 and CIFAR-100, read from the official binary files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._dataset import Dataset
from fedneighbors.errors import DataError, MissingDataError

CIFAR_FOLDERS = {
    "cifar10": "images/cifar-10-batches-bin",
    "cifar100": "images/cifar-100-binary",
}
"""Where the archives ``cifar-10-binary.tar.gz`` and ``cifar-100-binary.tar.gz`` unpack to."""

N_VALUES = 3 * 32 * 32

Name = Literal["cifar10", "cifar100"]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Form:
    """Layout of a record: one byte per kind of label, then red, green and blue.

    ``limits`` is the number of labels of each kind; the last kind is the one to predict.
    """

    train: tuple[str, ...]
    test: str
    limits: tuple[int, ...]


_FORMS = {
    "cifar10": _Form(tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin", (10,)),
    "cifar100": _Form(("train.bin",), "test.bin", (20, 100)),
}


def load_cifar(name: Name, folder: Path) -> Dataset:
    """Return all images, one row of red, green and blue pixels each.

    Parameters
    ----------
    name : {"cifar10", "cifar100"}
        Which set; the labels of ``"cifar100"`` are the fine ones.
    folder : Path
        The data folder.

    Returns
    -------
    Dataset
        ``x`` is uint8 of shape (n_rows, 3072); ``x.reshape(-1, 3, 32, 32)`` are images. The rows of
        the training files stand first.

    Raises
    ------
    MissingDataError
        If a file is not there.
    DataError
        If a file is cut off or none of this format.
    """
    parts = _parts(name, folder)
    n_labels = len(_FORMS[name].limits)
    colors = ("red", "green", "blue")
    return Dataset(
        name,
        np.concatenate([part[:, n_labels:] for part in parts]),
        np.concatenate([part[:, n_labels - 1] for part in parts]).astype(np.int64),
        tuple(f"{color}-{y}-{x}" for color in colors for y in range(32) for x in range(32)),
        str(folder / CIFAR_FOLDERS[name]),
        n_train=sum(map(len, parts[:-1])),
    )


def cifar_labels(name: Name, folder: Path) -> npt.NDArray[np.int64]:
    """Return only the labels of :func:`load_cifar`.

    Parameters
    ----------
    name, folder
        As :func:`load_cifar` takes them.
    """
    return _labels(name, folder, kind=-1)


def coarse_labels(folder: Path) -> npt.NDArray[np.int64]:
    """Return CIFAR-100's coarse labels in the order of :func:`load_cifar`.

    Pachinko allocation splits images by them.

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
        If a file is not there.
    DataError
        If a file is cut off or none of this format.
    """
    return _labels("cifar100", folder, kind=0)


def _labels(name: Name, folder: Path, *, kind: int) -> npt.NDArray[np.int64]:
    place = range(len(_FORMS[name].limits))[kind]
    return np.concatenate([part[:, place] for part in _parts(name, folder)]).astype(np.int64)


def _parts(name: Name, folder: Path) -> list[Bytes]:
    """Return the records of each file; the test file is last."""
    form, inside = _FORMS[name], folder / CIFAR_FOLDERS[name]
    return [_records(inside / file, form.limits) for file in (*form.train, form.test)]


def _records(path: Path, limits: tuple[int, ...]) -> Bytes:
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
            f"expected {path} to hold records of {width} bytes, got {size} bytes; it is cut off, "
            "or not of the binary version"
        )
    records = np.memmap(path, np.uint8, "r", shape=(size // width, width))
    for place, limit in enumerate(limits):
        if (records[:, place] >= limit).any():
            row = int(np.argmax(records[:, place] >= limit))
            raise DataError(
                f"{path}, record {row + 1}: expected a label below {limit}, got "
                f"{int(records[row, place])}; it is not of the binary version"
            )
    return records
