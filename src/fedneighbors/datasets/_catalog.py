"""Owns the names of data sets: those of scikit-learn and those of the user's data folder."""

import difflib
import gzip
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedneighbors.datasets._bundled import BUNDLED, load_bundled
from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._encoder import TableEncoder
from fedneighbors.datasets._images import IMAGE_FILES, N_PIXELS, image_labels, load_images
from fedneighbors.datasets._reading import dataset_from_table, read_columns
from fedneighbors.datasets._table import Table, listed
from fedneighbors.errors import DataError, MissingDataError

DATA_VARIABLE = "FEDNEIGHBORS_DATA"
_LABEL = "target"
_TABLE_FOLDERS = ("tabular", "fedpnn")
_OBJECT_FOLDERS = ("strings", "graphs", "spatial")
_N_TRAIN = {"USPS": 7291}  # the rows of zip.train, which stand first in the file


@dataclass(frozen=True)
class Entry:
    """A data set that `load` knows.

    Parameters
    ----------
    name : str
        What to give to `load`.
    n_rows, n_features, n_classes : int
        Its size; features as columns of the source, before nominal ones are encoded.
    source : str
        Where it comes from.
    """

    name: str
    n_rows: int
    n_features: int
    n_classes: int
    source: str


def load(name: str, *, keep_missing: bool = False) -> Dataset:
    """Return the data set of that name.

    Sets of scikit-learn are always there. All others are read from the folder that the
    environment variable ``FEDNEIGHBORS_DATA`` names: gzipped CSV files in ``tabular/`` and
    ``fedpnn/`` under their file name without ending, ``mnist`` and ``omniglot`` in ``images/``.
    Nothing is downloaded.

    A table's missing cells and nominal columns are encoded by constants of all its rows, and
    columns without a single cell are left out. To fit them on a part of the rows only, use
    `load_columns` and `TableEncoder`.

    Parameters
    ----------
    name : str
        A name from `available`.
    keep_missing : bool, default=False
        Leave missing cells of numeric columns NaN, for a method that takes them.

    Returns
    -------
    Dataset

    Raises
    ------
    MissingDataError
        If the variable is not set, or there is no such set.
    DataError
        If the file is damaged.

    Examples
    --------
    >>> from fedneighbors.datasets import load
    >>> digits = load("digits")
    >>> digits.n_rows, digits.n_features, digits.n_classes
    (1797, 64, 10)
    """
    if name in BUNDLED:
        return load_bundled(name)
    if name in IMAGE_FILES:
        return load_images(name, data_folder(name))
    table = load_columns(name)
    features = table.without([_LABEL])
    empty = [column for column in features.names if _is_empty(features, column)]
    kept = table.without(empty) if empty else table
    encoder = TableEncoder.fit(kept.without([_LABEL]), keep_missing=keep_missing)
    loaded = dataset_from_table(kept, _LABEL, name=name, encoder=encoder)
    return replace(loaded, n_train=_N_TRAIN.get(name))


def load_columns(name: str) -> Table:
    """Return the columns of a table, nothing filled in or encoded.

    Parameters
    ----------
    name : str
        A name from `available` that is no set of images.

    Returns
    -------
    Table
        With the labels in the nominal column ``target``.

    Raises
    ------
    MissingDataError
        If the variable is not set, or there is no such table.
    DataError
        If the file is damaged.
    """
    if name in BUNDLED:
        return _columns(load_bundled(name))
    files = dict(_table_files(data_folder(name)))
    if name not in files:
        near = _nearest(name, {*BUNDLED, *IMAGE_FILES, *files} - {name})
        raise MissingDataError(
            f"there is no table {name!r} in the folder {os.environ[DATA_VARIABLE]} that "
            f"{DATA_VARIABLE} names; did you mean {listed(near)}?"
        )
    return read_columns(files[name], nominal=[_LABEL])


def find_file(name: str) -> Path:
    """Return the file of the data folder that holds the objects of that name.

    Parameters
    ----------
    name : str
        Name of a file in ``strings/``, ``graphs/``, ``spatial/`` or of a table, without its
        endings.

    Raises
    ------
    MissingDataError
        If the environment variable ``FEDNEIGHBORS_DATA`` is not set, or there is no such file.
    """
    folder = data_folder(name)
    files = dict(_table_files(folder))
    for part in _OBJECT_FOLDERS:
        files |= {path.name.split(".")[0]: path for path in sorted((folder / part).glob("*.*"))}
    if name not in files:
        near = _nearest(name, files)
        raise MissingDataError(
            f"there is no file and no data set {name!r} in the folder "
            f"{os.environ[DATA_VARIABLE]} that {DATA_VARIABLE} names; did you mean {listed(near)}?"
        )
    return files[name]


def available() -> tuple[Entry, ...]:
    """List the data sets that `load` can read here.

    Returns
    -------
    tuple of Entry
        First those of scikit-learn; then, if the environment variable ``FEDNEIGHBORS_DATA`` is
        set, those of the folder that it names. Within each, ascending by name.

    Raises
    ------
    MissingDataError
        If the variable names a folder that does not exist.

    Examples
    --------
    >>> from fedneighbors.datasets import available
    >>> [entry.name for entry in available()[:4]]
    ['breast_cancer', 'digits', 'iris', 'wine']
    """
    bundled = tuple(_measured(load_bundled(name)) for name in sorted(BUNDLED))
    if not os.environ.get(DATA_VARIABLE):
        return bundled
    folder = data_folder("any")
    images = [
        _scanned_images(name, folder)
        for name, file in IMAGE_FILES.items()
        if (folder / file).is_file()
    ]
    tables = [_scanned_table(name, path) for name, path in _table_files(folder)]
    return bundled + tuple(sorted(images + tables, key=lambda entry: entry.name))


def _columns(data: Dataset) -> Table:
    """Return a set of numbers as a table, with the labels as words."""
    words = np.empty(data.n_rows, np.object_)
    words[:] = [str(label) for label in data.y.tolist()]
    columns = dict(zip(data.feature_names, data.x.T, strict=True))
    return Table({**columns, _LABEL: words}, data.source)


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return the names that begin like a misspelt one, else those spelt alike, else all."""
    every = sorted(known)
    begun = [other for other in every if name and other.lower().startswith(name.lower())]
    return begun or difflib.get_close_matches(name, every, n=3) or every


def data_folder(name: str) -> Path:
    """Return the folder that ``FEDNEIGHBORS_DATA`` names, where the set of a name is looked for.

    Raises
    ------
    MissingDataError
        If the variable is not set, or names no folder.
    """
    stated = os.environ.get(DATA_VARIABLE)
    if not stated:
        raise MissingDataError(
            f"data set {name!r} is not among those of scikit-learn ({', '.join(BUNDLED)}), and "
            f"the environment variable {DATA_VARIABLE} is not set; set it to the folder that "
            f"holds {', '.join(_TABLE_FOLDERS)} and images"
        )
    folder = Path(stated)
    if not folder.is_dir():
        raise MissingDataError(
            f"{DATA_VARIABLE} names the folder {folder}, which does not exist; set it to the "
            f"folder that holds {', '.join(_TABLE_FOLDERS)} and images"
        )
    return folder


def _table_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for part in _TABLE_FOLDERS:
        for path in sorted((folder / part).glob("*.csv.gz")):
            yield path.name.removesuffix(".csv.gz"), path


def _is_empty(table: Table, name: str) -> bool:
    return all(cell is None or cell != cell for cell in table.columns[name].tolist())


def _measured(data: Dataset) -> Entry:
    return Entry(data.name, data.n_rows, data.n_features, data.n_classes, data.source)


def _scanned_table(name: str, path: Path) -> Entry:
    """Size of a table from its lines alone: the label stands last, no cell holds a line end."""
    labels: set[bytes] = set()
    n_rows = 0
    try:
        with gzip.open(path, "rb") as lines:
            n_features = next(lines, b"").count(b",")
            for line in lines:
                labels.add(line.rstrip().rpartition(b",")[2])
                n_rows += 1
    except (OSError, EOFError) as error:
        raise DataError(f"{path} is not a complete gzip file: {error}") from error
    return Entry(name, n_rows, n_features, len(labels), str(path))


def _scanned_images(name: str, folder: Path) -> Entry:
    labels = image_labels(name, folder)
    return Entry(
        name, len(labels), N_PIXELS, len(np.unique(labels)), str(folder / IMAGE_FILES[name])
    )
