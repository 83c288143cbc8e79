"""What the experiments share: clients with rows of their own, a network, and what it sees."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets import load
from fedneighbors.methods.knnper.estimator import KNNPerClassifier
from fedneighbors.methods.knnper.memory.bank import EmbeddingBank
from fedneighbors.partition import dirichlet, row_roles, unseen_parties

__all__ = ["Scene", "Scope", "scene"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Scope:
    """How large an experiment is.

    Parameters
    ----------
    data : str
        ``"digits"``, or ``"mnist"`` at half its width and height.
    n_rows : int
        Rows that are used.
    n_clients : int
        Clients, a fifth of which comes after training.
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
class Scene:
    """Clients, what the shared network sees in their rows, and what it says of them.

    Parameters
    ----------
    bank : EmbeddingBank
        Of all rows of all clients.
    scores : float64 array of shape (n_rows, n_classes)
        Logarithms of the network's shares, in the order of the bank.
    test : bool array of shape (n_rows,)
        Rows on which nothing was trained or chosen, in the order of the bank.
    unseen : tuple of str
        Clients that took no part in training.
    model : KNNPerClassifier
        What was trained.
    """

    bank: EmbeddingBank
    scores: Floats
    test: npt.NDArray[np.bool_]
    unseen: tuple[str, ...]
    model: KNNPerClassifier

    @property
    def seen(self) -> tuple[str, ...]:
        """Clients that took part in training."""
        return tuple(name for name in self.bank.names if name not in self.unseen)

    def split(self, name: str) -> tuple[Integers, Integers]:
        """Return the rows of the bank on which a client trains, and is tested."""
        span = self.bank.span(name)
        rows = np.arange(span.start, span.stop)
        return rows[~self.test[span]], rows[self.test[span]]


def images(scope: Scope, seed: int) -> tuple[Floats, Integers]:
    """Return rows in [-1, 1] and their classes."""
    whole = load(scope.data)
    x = np.asarray(whole.x, np.float64)
    if scope.data == "mnist":
        x = x.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(len(x), -1)
    rows = np.random.default_rng(seed).permutation(len(x))[: scope.n_rows]
    classes = np.unique(np.asarray(whole.y), return_inverse=True)[1]
    return 2 * x[rows] / x.max() - 1, classes[rows].astype(np.int64)


def scene(scope: Scope, *, alpha: float, seed: int, **parameters: Any) -> Scene:
    """Train a network over label-skewed clients, and see all rows through it.

    Parameters
    ----------
    scope : Scope
        How large.
    alpha : float
        Concentration of the Dirichlet label skew; lower is more skewed.
    seed : int
        Of rows, skew, roles and training.
    **parameters
        Of :class:`KNNPerClassifier`.
    """
    x, y = images(scope, seed)
    owners = dirichlet(y, scope.n_clients, alpha=alpha, min_rows=5, seed=seed)
    test = row_roles(owners, test=0.25, seed=seed).test
    unseen = unseen_parties(owners, 0.2, seed=seed)
    fitted = ~np.isin(owners, unseen) & ~test
    settings = {"n_rounds": scope.n_rounds, "standardize": False, "learning_rate": 0.05}
    model = KNNPerClassifier(random_state=seed, classes=range(10), **(settings | parameters))
    model.fit(x[fitted], y[fitted], parties=owners[fitted])
    for name in unseen:
        own = (owners == name) & ~test
        model.add_client(name, x[own], y[own])
    keys, scores = model.embed(x)
    bank = EmbeddingBank.collect(keys, y, owners)
    return Scene(bank, scores[bank.rows], test[bank.rows], unseen, model)
