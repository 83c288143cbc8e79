"""Data sets by name: larger ones of the papers, and those of :mod:`fedneighbors.datasets`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from experiments.datasets.cifar import (
    CIFAR_FOLDERS,
    N_VALUES,
    SAMPLE_FILE,
    Name,
    cifar_labels,
    load_cifar,
    load_cifar_sample,
)
from experiments.datasets.femnist import FEMNIST_CLASSES, FEMNIST_FOLDER, femnist_size, load_femnist
from experiments.datasets.shakespeare import SPEECHES_FILE, load_roles, roles_size
from fedneighbors.datasets import Dataset, Entry
from fedneighbors.datasets import available as list_library_sets
from fedneighbors.datasets import load as load_library_set
from fedneighbors.datasets._catalog import data_folder

IMAGE_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "mnist": (28, 28),
        "omniglot": (28, 28),
        "femnist": (28, 28),
        "cifar10": (3, 32, 32),
        "cifar10_12k": (3, 32, 32),
        "cifar100": (3, 32, 32),
    }
)
"""Shape of one image: ``x.reshape(-1, *IMAGE_SHAPES[name])`` are the images of a set."""


@dataclass(frozen=True)
class ClientSet:
    """A data set in the data folder with its own format.

    Parameters
    ----------
    location : str
        File or folder within the data folder.
    load : callable
        Function of the data folder that returns the data set.
    size : callable
        Function of the data folder that returns the numbers of rows, features and classes.
    """

    location: str
    load: Callable[[Path], Dataset]
    size: Callable[[Path], tuple[int, int, int]]


def _cifar(name: Name) -> ClientSet:
    def size(folder: Path) -> tuple[int, int, int]:
        labels = cifar_labels(name, folder)
        return len(labels), N_VALUES, len(np.unique(labels))

    return ClientSet(CIFAR_FOLDERS[name], lambda folder: load_cifar(name, folder), size)


def _sample_size(folder: Path) -> tuple[int, int, int]:
    labels = load_cifar_sample(folder).y
    return len(labels), N_VALUES, len(np.unique(labels))


CLIENT_SETS: Mapping[str, ClientSet] = MappingProxyType(
    {
        "cifar10": _cifar("cifar10"),
        "cifar10_12k": ClientSet(SAMPLE_FILE, load_cifar_sample, _sample_size),
        "cifar100": _cifar("cifar100"),
        "femnist": ClientSet(
            FEMNIST_FOLDER,
            load_femnist,
            lambda folder: (femnist_size(folder), 28 * 28, FEMNIST_CLASSES),
        ),
        "shakespeare": ClientSet(SPEECHES_FILE, load_roles, roles_size),
    }
)
"""Data sets of :func:`load` in addition to those of :func:`fedneighbors.datasets.load`."""


def load(name: str) -> Dataset:
    """Return a named data set from the data folder or scikit-learn.

    Parameters
    ----------
    name : str
        A key of :data:`CLIENT_SETS`, or a name for :func:`fedneighbors.datasets.load`.

    Raises
    ------
    MissingDataError
        If the environment variable ``FEDNEIGHBORS_DATA`` is not set, or there is no such data set.
    DataError
        If a file is damaged.
    """
    if name in CLIENT_SETS:
        return CLIENT_SETS[name].load(data_folder(name))
    return load_library_set(name)


def available() -> tuple[Entry, ...]:
    """List the data sets available here, :data:`CLIENT_SETS` last.

    Raises
    ------
    MissingDataError
        If the environment variable ``FEDNEIGHBORS_DATA`` is not set, or its folder does not exist.
    """
    folder = data_folder("any")
    library_sets: tuple[Entry, ...] = list_library_sets()
    return library_sets + tuple(
        Entry(name, *source.size(folder), str(folder / source.location))
        for name, source in CLIENT_SETS.items()
        if (folder / source.location).exists()
    )
