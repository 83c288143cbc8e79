"""FEMNIST: handwritten characters and their writers, read from the JSON files of LEAF."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._dataset import Dataset
from fedneighbors.errors import DataError, MissingDataError

FEMNIST_FOLDER = "images/femnist"
FEMNIST_CLASSES = 62
"""Digits, then capitals, then small letters."""

N_PIXELS = 28 * 28
_PIECE = 1 << 20
_ROWS = b'"user_data"'

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


def load_femnist(folder: Path) -> Dataset:
    """Return all characters as flattened images of 28 x 28 pixels.

    Reads the output of LEAF's scripts [1]_: JSON files with ``users`` and ``user_data``, either
    in ``images/femnist/train`` and ``images/femnist/test``, or in ``images/femnist/all_data``.

    Parameters
    ----------
    folder : Path
        The data folder.

    Returns
    -------
    Dataset
        ``x`` is uint8 from 0 (paper) to 255 (ink), as in all image sets here; LEAF has 1 for paper
        and 0 for ink. Labels are 0 to 61, parties the writers. If there are folders ``train`` and
        ``test``, rows of the former stand first.

    Raises
    ------
    MissingDataError
        If there are no files.
    DataError
        If a file is cut off or none of this format; file and writer are named.

    References
    ----------
    .. [1] Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097, 2018.
    """
    parts, n_first = _files(folder)
    rows = [_read(path) for path in parts]
    n_train = sum(len(y) for _, y, _ in rows[:n_first])
    return Dataset(
        "femnist",
        np.concatenate([x for x, _, _ in rows]),
        np.concatenate([y for _, y, _ in rows]),
        tuple(f"pixel-{row}-{column}" for row in range(28) for column in range(28)),
        str(folder / FEMNIST_FOLDER),
        n_train=n_train if n_first < len(parts) else None,
        parties=np.concatenate([writers for _, _, writers in rows]),
    )


def femnist_size(folder: Path) -> int:
    """Return the number of characters, from the headers of the files.

    Parameters
    ----------
    folder : Path
        The data folder.

    Raises
    ------
    MissingDataError
        If there are no files.
    DataError
        If a file does not begin as one of LEAF.
    """
    return sum(_count_rows(path) for path in _files(folder)[0])


def _files(folder: Path) -> tuple[list[Path], int]:
    """Return all files, training files first, and their number."""
    inside = folder / FEMNIST_FOLDER
    train, test = (sorted((inside / part).glob("*.json")) for part in ("train", "test"))
    if train and test:
        return train + test, len(train)
    every = sorted((inside / "all_data").glob("*.json"))
    if not every:
        raise MissingDataError(
            f"there are no JSON files in {inside}/train and {inside}/test, nor in "
            f"{inside}/all_data; put there what the scripts of LEAF make"
        )
    return every, len(every)


def _read(path: Path) -> tuple[Images, Labels, npt.NDArray[np.str_]]:
    held = _parsed(path, path.read_bytes())
    users, data = held.get("users"), held.get("user_data")
    if not isinstance(users, list) or not isinstance(data, dict) or not users:
        raise DataError(f'{path}: expected "users" and "user_data" as LEAF writes them')
    read = [(str(user), *_rows(path, str(user), data.get(user))) for user in users]
    owners = np.repeat([user for user, _, _ in read], [len(y) for _, _, y in read])
    return (
        np.concatenate([x for _, x, _ in read]),
        np.concatenate([y for _, _, y in read]),
        owners.astype(np.str_),
    )


def _rows(path: Path, user: str, held: Any) -> tuple[Images, Labels]:
    """Return images and labels of one writer."""
    where = f"{path}, writer {user!r}"
    if not isinstance(held, Mapping) or not {"x", "y"} <= held.keys():
        raise DataError(f'{where}: expected "x" and "y"')
    try:
        x = np.asarray(held["x"], np.float64).reshape(-1, N_PIXELS)
        y = np.asarray(held["y"], np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise DataError(f"{where}: expected rows of {N_PIXELS} numbers, and labels") from None
    if len(x) != len(y):
        raise DataError(f"{where}: expected one label for each of {len(x)} images, got {len(y)}")
    if not ((x >= 0) & (x <= 1)).all():
        raise DataError(f"{where}: expected pixels from 0 (ink) to 1 (paper)")
    labels = y.astype(np.int64)
    if not ((labels == y) & (y >= 0) & (y < FEMNIST_CLASSES)).all():
        raise DataError(f"{where}: expected labels from 0 to {FEMNIST_CLASSES - 1}")
    return np.rint(255 * (1 - x)).astype(np.uint8), labels


def _count_rows(path: Path) -> int:
    """Return a file's number of rows, from its header if possible.

    LEAF writes the rows themselves, which are most of the file, last.
    """
    head = b""
    with path.open("rb") as file:
        while _ROWS not in head and (piece := file.read(_PIECE)):
            head += piece
    before, found, _ = head.partition(_ROWS)
    told = _parsed(path, before.rstrip().removesuffix(b",") + b"}") if found else {}
    numbers = told.get("num_samples")
    if isinstance(numbers, list) and all(type(n) is int for n in numbers):
        return sum(numbers)
    return len(_read(path)[1])


def _parsed(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        held = json.loads(raw)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} is no complete JSON file: {error}") from None
    if not isinstance(held, dict):
        raise DataError(f'{path}: expected "users" and "user_data" as LEAF writes them')
    return held
