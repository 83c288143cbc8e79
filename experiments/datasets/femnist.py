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
"""Ten digits, 26 capital letters and 26 small letters, in this order."""

N_PIXELS = 28 * 28
_CHUNK_BYTES = 1 << 20  # read at a time until the key is found
_ROWS_KEY = b'"user_data"'

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


def load_femnist(folder: Path) -> Dataset:
    """Load all characters as flattened images of 28 x 28 pixels.

    Reads the output of LEAF's scripts [1]_: JSON files with ``users`` and ``user_data``, either
    in ``images/femnist/train`` and ``images/femnist/test``, or in ``images/femnist/all_data``.

    Parameters
    ----------
    folder : Path
        The data folder.

    Returns
    -------
    Dataset
        ``x`` is uint8 from 0 (paper) to 255 (ink), as in the other image sets; in LEAF's files, 1
        is paper and 0 is ink. Labels are 0 to 61, parties the writers. Rows of the folder ``train``
        come before those of ``test``.

    Raises
    ------
    MissingDataError
        If there are no files.
    DataError
        If a file is truncated or has another format; the message names file and writer.

    References
    ----------
    .. [1] Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097, 2018.
    """
    files, n_train_files = _list_files(folder)
    rows = [_read_file(path) for path in files]
    n_train = sum(len(y) for _, y, _ in rows[:n_train_files])
    return Dataset(
        "femnist",
        np.concatenate([x for x, _, _ in rows]),
        np.concatenate([y for _, y, _ in rows]),
        tuple(f"pixel-{row}-{column}" for row in range(28) for column in range(28)),
        str(folder / FEMNIST_FOLDER),
        n_train=n_train if n_train_files < len(files) else None,
        parties=np.concatenate([writers for _, _, writers in rows]),
    )


def femnist_size(folder: Path) -> int:
    """Count the characters, from the headers of the files if possible.

    Parameters
    ----------
    folder : Path
        The data folder.

    Raises
    ------
    MissingDataError
        If there are no files.
    DataError
        If a file cannot be parsed.
    """
    return sum(_count_rows(path) for path in _list_files(folder)[0])


def _list_files(folder: Path) -> tuple[list[Path], int]:
    """List the files, training files first, and count the training files.

    Without a split, all files count as training files.
    """
    subfolder = folder / FEMNIST_FOLDER
    train, test = (sorted((subfolder / part).glob("*.json")) for part in ("train", "test"))
    if train and test:
        return train + test, len(train)
    files = sorted((subfolder / "all_data").glob("*.json"))
    if not files:
        raise MissingDataError(
            f"there are no JSON files in {subfolder}/train and {subfolder}/test, nor in "
            f"{subfolder}/all_data; put the output of LEAF's scripts there"
        )
    return files, len(files)


def _read_file(path: Path) -> tuple[Images, Labels, npt.NDArray[np.str_]]:
    content = _parse_json(path, path.read_bytes())
    users, data = content.get("users"), content.get("user_data")
    if not isinstance(users, list) or not isinstance(data, dict) or not users:
        raise DataError(f'{path}: expected "users" and "user_data" as LEAF writes them')
    writers = [(str(user), *_parse_writer(path, str(user), data.get(user))) for user in users]
    parties = np.repeat([user for user, _, _ in writers], [len(y) for _, _, y in writers])
    return (
        np.concatenate([x for _, x, _ in writers]),
        np.concatenate([y for _, _, y in writers]),
        parties.astype(np.str_),
    )


def _parse_writer(path: Path, user: str, content: Any) -> tuple[Images, Labels]:
    """Return images and labels of one writer."""
    location = f"{path}, writer {user!r}"
    if not isinstance(content, Mapping) or not {"x", "y"} <= content.keys():
        raise DataError(f'{location}: expected "x" and "y"')
    try:
        x = np.asarray(content["x"], np.float64).reshape(-1, N_PIXELS)
        y = np.asarray(content["y"], np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise DataError(f"{location}: expected rows of {N_PIXELS} numbers, and labels") from None
    if len(x) != len(y):
        raise DataError(f"{location}: expected one label for each of {len(x)} images, got {len(y)}")
    if not ((x >= 0) & (x <= 1)).all():
        raise DataError(f"{location}: expected pixels from 0 (ink) to 1 (paper)")
    labels = y.astype(np.int64)
    if not ((labels == y) & (y >= 0) & (y < FEMNIST_CLASSES)).all():
        raise DataError(f"{location}: expected labels from 0 to {FEMNIST_CLASSES - 1}")
    return np.rint(255 * (1 - x)).astype(np.uint8), labels


def _count_rows(path: Path) -> int:
    """Count the rows of a file, from its header if possible.

    LEAF writes the rows, which are most of the file, after the numbers of rows.
    """
    head = b""
    with path.open("rb") as file:
        while _ROWS_KEY not in head and (chunk := file.read(_CHUNK_BYTES)):
            head += chunk
    header, separator, _ = head.partition(_ROWS_KEY)
    content = _parse_json(path, header.rstrip().removesuffix(b",") + b"}") if separator else {}
    counts = content.get("num_samples")
    if isinstance(counts, list) and all(type(n) is int for n in counts):
        return sum(counts)
    return len(_read_file(path)[1])


def _parse_json(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        content = json.loads(raw)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} is not a complete JSON file: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f'{path}: expected "users" and "user_data" as LEAF writes them')
    return content
