"""The federations of the experiments: owners of rows, and differences between clients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.datasets.catalog import load
from fedneighbors._typing import Floats, Integers
from fedneighbors.partition import (
    dirichlet,
    pathological_v2,
    permute_labels,
    row_roles,
    shift_features,
    unseen_parties,
)

SIDE = 14
"""Width and height of images, which are halved."""


@dataclass(frozen=True)
class Scope:
    """Size of an experiment.

    Parameters
    ----------
    data : str
        Name of the data set, as :func:`experiments.datasets.catalog.load` takes it.
    n_rows : int
        Rows that are used.
    n_clients : int
        Clients, a fifth of which comes after training. Where rows have natural owners, these.
    n_rounds : int
        Of the shared network.
    seeds : tuple of int
        Repetitions.
    """

    data: str
    n_rows: int
    n_clients: int
    n_rounds: int
    seeds: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Crowd:
    """Clients and their rows.

    Parameters
    ----------
    x : array of shape (n_rows, n_features)
        Images from -1 to 1; columns of tables of mean 0 and deviation 1; or tokens.
    y : int64 array of shape (n_rows,)
        Classes, from 0.
    owners : str array of shape (n_rows,)
        Owner of each row.
    test : bool array of shape (n_rows,)
        Rows on which nothing is trained or chosen: a quarter of each client's.
    unseen : tuple of str
        Clients outside of training.
    """

    x: npt.NDArray[Any]
    y: Integers
    owners: npt.NDArray[np.str_]
    test: npt.NDArray[np.bool_]
    unseen: tuple[str, ...]

    @property
    def n_classes(self) -> int:
        """Return the number of classes."""
        return int(self.y.max()) + 1

    @property
    def fit(self) -> npt.NDArray[np.bool_]:
        """Return the rows that train the shared network."""
        return ~self.test & ~np.isin(self.owners, self.unseen)

    def rows(self, name: str, *, test: bool) -> Integers:
        """Return a client's rows: those of its test, or all others."""
        return np.flatnonzero((self.owners == name) & (self.test == test))

    @property
    def names(self) -> tuple[str, ...]:
        """Return all clients, in order."""
        return tuple(np.unique(self.owners).tolist())


Dealt = tuple[Floats, Integers, npt.NDArray[np.str_]]
Deal = Callable[[Scope, int, Floats, Integers, Any], Dealt]
"""Takes rows, classes and natural owners; returns rows, classes and owners."""


def _label_skew(
    scope: Scope, seed: int, x: Floats, y: Integers, _: Any, *, alpha: float = 0.3
) -> Dealt:
    return x, y, dirichlet(y, scope.n_clients, alpha=alpha, min_rows=5, seed=seed)


def _two_classes(scope: Scope, seed: int, x: Floats, y: Integers, _: Any) -> Dealt:
    return x, y, pathological_v2(y, scope.n_clients, seed=seed)


def _permuted_labels(
    scope: Scope, seed: int, x: Floats, y: Integers, natural: Any, *, n_groups: int = 4
) -> Dealt:
    _, _, owners = _label_skew(scope, seed, x, y, natural, alpha=1.0)
    return x, permute_labels(y, owners, n_groups=n_groups, seed=seed), owners


def _turned_images(scope: Scope, seed: int, x: Floats, y: Integers, natural: Any) -> Dealt:
    _, _, owners = _label_skew(scope, seed, x, y, natural, alpha=1.0)
    side = round(x.shape[1] ** 0.5)
    turned = shift_features(x.reshape(-1, side, side), owners, n_groups=4, seed=seed)
    return turned.reshape(len(x), -1), y, owners


def _natural(_scope: Scope, _seed: int, x: Floats, y: Integers, natural: Any) -> Dealt:
    return x, y, natural


CROWDS: Mapping[str, tuple[str, Deal]] = {
    "label skew": ("mnist", _label_skew),
    "two classes each": ("mnist", _two_classes),
    "permuted labels": ("mnist", _permuted_labels),
    "turned images": ("mnist", _turned_images),
    "drawers": ("omniglot", _natural),
    "letters": ("letter", _label_skew),
    "one meaning": ("mnist", partial(_permuted_labels, n_groups=1)),
    "two meanings": ("mnist", partial(_permuted_labels, n_groups=2)),
    "eight meanings": ("mnist", partial(_permuted_labels, n_groups=8)),
}
"""Data set, and how its rows are dealt.

Label skew is Dirichlet's law of concentration .3 over the clients (the paper's CIFAR-10), two
classes each its v2. In the next two the clients, of hardly skewed labels, are in four groups: each
means other digits by the same label, or turns its images by a quarter. Drawers are those of
Omniglot, who tell alphabets apart. Of the last ones one, two or eight groups mean other digits.
"""


def crowd(name: str, scope: Scope, seed: int, *, alpha: float | None = None) -> Crowd:
    """Return the clients of an experiment.

    Parameters
    ----------
    name : str
        A key of :data:`CROWDS`.
    scope : Scope
        How large; its data set must suit.
    seed : int
        Seed of rows, owners, test rows, and of the unseen clients.
    alpha : float, optional
        Concentration of a label skew, if not .3.
    """
    x, y, natural = _rows(scope, seed)
    if alpha is not None:
        x, y, owners = _label_skew(scope, seed, x, y, natural, alpha=alpha)
    else:
        x, y, owners = CROWDS[name][1](scope, seed, x, y, natural)
    test = row_roles(owners, test=0.25, seed=seed).test
    return Crowd(x, y, owners, test, unseen_parties(owners, 0.2, seed=seed))


LENGTH = 24
"""Characters of a window of a play. Windows do not overlap."""


def roles(n_roles: int, n_windows: int, seed: int) -> Crowd:
    """Return roles of Shakespeare's plays, whose next characters are to be told.

    Parameters
    ----------
    n_roles, n_windows : int
        Number of roles with the most text, and windows of each.
    seed : int
        Seed of test rows and of the unseen clients.
    """
    whole = load("shakespeare")
    said = np.asarray(whole.parties)
    names, counts = np.unique(said, return_counts=True)
    largest = names[np.argsort(-counts, kind="stable")[:n_roles]]
    apart = [np.flatnonzero(said == name)[:: LENGTH + 1][:n_windows] for name in largest]
    rows = np.concatenate(apart)
    classes = np.unique(whole.y[rows], return_inverse=True)[1].astype(np.int64)
    test = row_roles(said[rows], test=0.25, seed=seed).test
    tokens = whole.x[rows, -LENGTH:].astype(np.int64)
    unseen = unseen_parties(said[rows], 0.2, seed=seed)
    return Crowd(tokens, classes, said[rows], test, unseen)


def _rows(scope: Scope, seed: int) -> tuple[Floats, Integers, Any]:
    """Return some rows of a set, their classes and natural owners."""
    whole = load(scope.data)
    x, y = np.asarray(whole.x, np.float64), np.asarray(whole.y)
    if scope.data in ("mnist", "omniglot"):
        x = x.reshape(-1, SIDE, 2, SIDE, 2).mean(axis=(2, 4)).reshape(len(x), -1)
    if scope.data == "omniglot":
        y = np.array([label.split("/")[0] for label in y.tolist()])
    rows = np.random.default_rng(seed).permutation(len(x))[: scope.n_rows]
    classes = np.unique(y, return_inverse=True)[1].astype(np.int64)[rows]
    natural = None if whole.parties is None else np.asarray(whole.parties)[rows]
    return _scaled(x[rows], scope.data), classes, natural


def _scaled(x: Floats, data: str) -> Floats:
    if data in ("mnist", "omniglot", "digits"):
        return np.asarray(2 * x / x.max() - 1)
    spread = x.std(axis=0)
    return np.asarray((x - x.mean(axis=0)) / np.where(spread > 0, spread, 1))
