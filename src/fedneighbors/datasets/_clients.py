"""Owns the list of the larger sets for which federated methods are known, and where they lie."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fedneighbors.datasets._cifar import CIFAR_FOLDERS, Name, cifar_labels, load_cifar
from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._leaf import FEMNIST_CLASSES, FEMNIST_FOLDER, femnist_size, load_femnist
from fedneighbors.datasets._speeches import SPEECHES_FILE, load_roles, roles_size

IMAGE_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "mnist": (28, 28),
        "omniglot": (28, 28),
        "femnist": (28, 28),
        "cifar10": (3, 32, 32),
        "cifar100": (3, 32, 32),
    }
)
"""Of one row of a set of images: ``x.reshape(-1, *IMAGE_SHAPES[name])``."""


@dataclass(frozen=True)
class ClientSet:
    """A set that lies in the data folder in a format of its own.

    Parameters
    ----------
    place : str
        File or folder within the data folder.
    load : callable
        Takes the data folder, returns the set.
    size : callable
        Takes the data folder, returns numbers of rows, features and classes.
    """

    place: str
    load: Callable[[Path], Dataset]
    size: Callable[[Path], tuple[int, int, int]]


def _cifar(name: Name) -> ClientSet:
    def size(folder: Path) -> tuple[int, int, int]:
        labels = cifar_labels(name, folder)
        return len(labels), 3 * 32 * 32, len(np.unique(labels))

    return ClientSet(CIFAR_FOLDERS[name], lambda folder: load_cifar(name, folder), size)


CLIENT_SETS: Mapping[str, ClientSet] = MappingProxyType(
    {
        "cifar10": _cifar("cifar10"),
        "cifar100": _cifar("cifar100"),
        "femnist": ClientSet(
            FEMNIST_FOLDER,
            load_femnist,
            lambda folder: (femnist_size(folder), 28 * 28, FEMNIST_CLASSES),
        ),
        "shakespeare": ClientSet(SPEECHES_FILE, load_roles, roles_size),
    }
)
"""Names that :func:`~fedneighbors.datasets.load` knows besides tables and small image sets."""
