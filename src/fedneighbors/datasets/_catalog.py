"""Data sets by name: from scikit-learn, the user's data folder, and OpenML."""

import difflib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Array
from fedneighbors.datasets._arrays import ReadArray, open_arrays
from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._files import CheckedGzip, explain_errors
from fedneighbors.datasets._reading import dataset_from_table, read_columns
from fedneighbors.datasets._table import (
    DEFAULT_LABEL,
    Table,
    join_names,
    missing_cells,
    word_column,
)
from fedneighbors.errors import DataError, MissingDataError

DATA_VARIABLE = "FEDNEIGHBORS_DATA"
BUNDLED = ("breast_cancer", "digits", "iris", "wine")
_IMAGE_FILES = {"mnist": "images/mnist.npz", "omniglot": "images/omniglot_small.npz"}
_OPENML_TARGET = "OpenML's default target"
_TABLE_FOLDERS = ("tabular", "fedpnn")
_OBJECT_FOLDERS = ("strings", "graphs", "spatial")
_N_TRAIN = {"USPS": 7291}  # the rows of zip.train, which come first in the file


@dataclass(frozen=True)
class Entry:
    """Catalogue entry of a data set.

    Parameters
    ----------
    name : str
        Name for `load`.
    n_rows, n_features, n_classes : int
        Size of the data set; features are columns of the source, before encoding.
    source : str
        Origin of the data set, such as the path of its file.
    """

    name: str
    n_rows: int
    n_features: int
    n_classes: int
    source: str


def load(name: str, *, keep_missing: bool = False) -> Dataset:
    """Load a data set by name.

    Data sets of scikit-learn are always available. All others are read from the folder in the
    environment variable ``FEDNEIGHBORS_DATA``: gzipped CSV files in ``tabular/`` and ``fedpnn/``,
    whose name is the file name without ``.csv.gz``, and ``mnist`` and ``omniglot`` in ``images/``.
    Nothing is downloaded.

    Missing cells of a table are filled and nominal columns encoded with constants computed from all
    rows; empty columns are dropped. To compute the constants from some of the rows only, use
    `load_columns` and `Schema`.

    Parameters
    ----------
    name : str
        A name from `available`.
    keep_missing : bool, default=False
        Leave missing cells of numeric columns NaN, for methods that support them.

    Returns
    -------
    Dataset

    Raises
    ------
    MissingDataError
        If the variable is not set, or there is no such data set.
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
        return _load_bundled(name)
    if name in _IMAGE_FILES:
        return _load_images(name, data_folder(name))
    table = load_columns(name)
    features = table.without([DEFAULT_LABEL])
    empty = [name for name, column in features.columns.items() if missing_cells(column).all()]
    nonempty = table.without(empty) if empty else table
    loaded = dataset_from_table(nonempty, DEFAULT_LABEL, name=name, keep_missing=keep_missing)
    return replace(loaded, n_train=_N_TRAIN.get(name))


def load_columns(name: str) -> Table:
    """Return the columns of a table without filling or encoding.

    Parameters
    ----------
    name : str
        A name from `available`, except image sets.

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
        return _build_table(_load_bundled(name))
    files = dict(_table_files(data_folder(name)))
    if name not in files:
        raise _unknown_error("table", name, {*BUNDLED, *_IMAGE_FILES, *files} - {name})
    return read_columns(files[name], nominal=[DEFAULT_LABEL])


def find_file(name: str) -> Path:
    """Return the path of a named file in the data folder.

    Parameters
    ----------
    name : str
        Name of a file in ``strings/``, ``graphs/`` or ``spatial/``, or of a table, without
        extensions.

    Raises
    ------
    MissingDataError
        If the environment variable ``FEDNEIGHBORS_DATA`` is not set, or there is no such file.
    """
    folder = data_folder(name)
    files = dict(_table_files(folder))
    for subfolder in _OBJECT_FOLDERS:
        files |= {
            path.name.split(".")[0]: path for path in sorted((folder / subfolder).glob("*.*"))
        }
    if name not in files:
        raise _unknown_error("file and no data set", name, files)
    return files[name]


def available() -> tuple[Entry, ...]:
    """List the data sets that `load` can read here.

    Returns
    -------
    tuple of Entry
        First those of scikit-learn; then, if the environment variable ``FEDNEIGHBORS_DATA`` is set,
        those of its folder. Both parts ascend by name.

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
    bundled = tuple(
        Entry(data.name, data.n_rows, data.n_features, data.n_classes, data.source)
        for data in map(_load_bundled, sorted(BUNDLED))
    )
    if not os.environ.get(DATA_VARIABLE):
        return bundled
    folder = data_folder("any")
    images = [
        _scan_images(name, folder)
        for name, file in _IMAGE_FILES.items()
        if (folder / file).is_file()
    ]
    tables = [_scan_table(name, path) for name, path in _table_files(folder)]
    return bundled + tuple(sorted(images + tables, key=lambda entry: entry.name))


def data_folder(name: str) -> Path:
    """Return the folder named by ``FEDNEIGHBORS_DATA``.

    The name of the data set appears in the error message.

    Raises
    ------
    MissingDataError
        If the variable is not set, or its folder does not exist.
    """
    value = os.environ.get(DATA_VARIABLE)
    if value and Path(value).is_dir():
        return Path(value)
    reason = (
        f"{DATA_VARIABLE} is set to {Path(value)}, which does not exist"
        if value
        else f"data set {name!r} is not among those of scikit-learn ({', '.join(BUNDLED)}), and "
        f"the environment variable {DATA_VARIABLE} is not set"
    )
    raise MissingDataError(
        f"{reason}; set it to the folder with {', '.join(_TABLE_FOLDERS)} and images"
    )


def _build_table(data: Dataset) -> Table:
    """Return a numeric data set as a table, with labels as text."""
    columns = dict(zip(data.feature_names, data.x.T, strict=True))
    return Table({**columns, DEFAULT_LABEL: word_column(map(str, data.y.tolist()))}, data.source)


def _unknown_error(kind: str, name: str, known: Iterable[str]) -> MissingDataError:
    """Return an error that suggests similar names, or lists all."""
    names = sorted(known)
    with_prefix = [other for other in names if name and other.lower().startswith(name.lower())]
    suggestions = with_prefix or difflib.get_close_matches(name, names, n=3) or names
    return MissingDataError(
        f"there is no {kind} {name!r} in the folder {os.environ[DATA_VARIABLE]} that "
        f"{DATA_VARIABLE} names; did you mean {join_names(suggestions)}?"
    )


def _table_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for subfolder in _TABLE_FOLDERS:
        for path in sorted((folder / subfolder).glob("*.csv.gz")):
            yield path.name.removesuffix(".csv.gz"), path


def _scan_table(name: str, path: Path) -> Entry:
    """Count rows, features and classes without parsing the cells.

    Assumes that the label is the last column and that no cell contains a line end.
    """
    labels: set[bytes] = set()
    n_rows = 0
    with explain_errors(path), CheckedGzip(path) as lines:
        n_features = next(lines, b"").count(b",")
        for line in lines:
            labels.add(line.rstrip().rpartition(b",")[2])
            n_rows += 1
    return Entry(name, n_rows, n_features, len(labels), str(path))


def _scan_images(name: str, folder: Path) -> Entry:
    """Count rows and classes of an image set from its labels."""
    with open_arrays(folder / _IMAGE_FILES[name]) as read:
        labels = _read_labels(name, read)
    source = str(folder / _IMAGE_FILES[name])
    return Entry(name, len(labels), len(_pixel_names()), len(np.unique(labels)), source)


def _load_bundled(name: str) -> Dataset:
    """Return one of scikit-learn's data sets in ``BUNDLED``."""
    from sklearn import datasets

    content = getattr(datasets, f"load_{name}")()
    return Dataset(
        name=name,
        x=np.asarray(content.data, dtype=np.float64),
        y=np.asarray(content.target, dtype=np.int64),
        feature_names=tuple(str(feature) for feature in content.feature_names),
        source=f"scikit-learn, load_{name}",
    )


def _load_images(name: str, folder: Path) -> Dataset:
    """Return MNIST, or the small Omniglot with its 20 drawers as parties.

    A row is a flattened image of 28 x 28 pixels, uint8 from 0 (paper) to 255 (ink).
    """
    with open_arrays(folder / _IMAGE_FILES[name]) as read:
        labels = _read_labels(name, read)
        source = str(folder / _IMAGE_FILES[name])
        if name == "mnist":
            train = read("x_train")
            x = np.vstack([train, read("x_test")])
            return Dataset(name, x, labels, _pixel_names(), source, n_train=len(train))
        x = read("x28").reshape(len(labels), -1)
        drawers = np.array([f"drawer-{drawer}" for drawer in read("drawer")], dtype=np.str_)
        return Dataset(name, x, labels, _pixel_names(), source, parties=drawers)


def _read_labels(name: str, read: ReadArray) -> Array:
    if name == "mnist":
        return np.concatenate([read("y_train"), read("y_test")]).astype(np.int64)
    pairs = zip(read("alphabet"), read("character"), strict=True)
    return np.array([f"{alphabet}/{character}" for alphabet, character in pairs], dtype=np.str_)


def _pixel_names() -> tuple[str, ...]:
    return tuple(f"pixel-{row}-{column}" for row in range(28) for column in range(28))


def fetch_openml(name_or_id: str | int, *, keep_missing: bool = False) -> Dataset:
    """Download a classification set from OpenML with scikit-learn.

    Requires the extra ``data``, and network access unless scikit-learn has cached the set. Missing
    cells are filled and nominal columns encoded with constants computed from all rows, see
    `Schema`.

    Parameters
    ----------
    name_or_id : str or int
        A name, for its newest active version, or an OpenML id, which identifies the data exactly.
    keep_missing : bool, default=False
        Leave missing cells of numeric columns NaN, for methods that support them.

    Returns
    -------
    Dataset

    Raises
    ------
    MissingDataError
        If OpenML cannot be reached or has no such set.
    DataError
        If the set has no single default target, or cannot be used.
    MissingExtraError
        If pandas is not installed.
    """
    optional_module("pandas", "data")  # scikit-learn needs it for data frames
    from sklearn import datasets

    query = {"data_id": name_or_id} if isinstance(name_or_id, int) else {"name": name_or_id}
    try:
        content = datasets.fetch_openml(**query, as_frame=True, parser="auto")
    except (OSError, ValueError) as error:
        raise MissingDataError(
            f"OpenML set {name_or_id!r} could not be fetched ({error}); check the name and the "
            "network, or download the file elsewhere and use read_table"
        ) from error
    if content.target is None or content.target.ndim != 1:
        raise DataError(
            f"OpenML set {name_or_id!r} has no single default target; download it and use "
            "read_table with label=..."
        )
    source = f"OpenML {name_or_id!r}, id {content.details['id']}"
    frame = content.data.assign(**{_OPENML_TARGET: content.target.astype("string")})
    table, name = Table.from_frame(frame, source=source), str(content.details["name"])
    return dataset_from_table(table, _OPENML_TARGET, name=name, keep_missing=keep_missing)
