"""What the experiments share: clients, a network, and what it sees in all their rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.knnper.bank import EmbeddingBank
from experiments.knnper.bootstrap import Right
from experiments.knnper.crowds import Crowd, Scope, crowd
from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.knnper.estimator import KNNPerClassifier

HIDDEN = (64, 32)
"""Of the network of all experiments: the last layer is the embedding."""


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

    def keys(self, rows: Integers) -> Floats:
        """Return embeddings of some rows, as a memory takes them."""
        return np.ascontiguousarray(self.bank.embeddings[rows], np.float64)

    def right(self, name: str, shares: Floats) -> tuple[int, int]:
        """Return how many of a client's test rows some shares of classes get right, of how many."""
        asked = self.split(name)[1]
        guess = shares.argmax(axis=1)
        return int((guess == self.bank.labels[asked]).sum()), len(asked)

    def by_role(self, right: Right) -> dict[str, Right]:
        """Return what seen and what unseen clients get right."""
        return {
            who: {name: right[name] for name in names if name in right}
            for who, names in (("seen", self.seen), ("unseen", self.unseen))
        }


def trained(people: Crowd, n_rounds: int, seed: int, **parameters: Any) -> KNNPerClassifier:
    """Return kNN-Per of a crowd, to which the unseen clients have come.

    Parameters
    ----------
    people : Crowd
        The clients.
    n_rounds : int
        Of the shared network.
    seed : int
        Of training.
    **parameters
        Of :class:`KNNPerClassifier`.
    """
    settings: dict[str, Any] = {"standardize": False, "learning_rate": 0.05, "hidden": HIDDEN}
    settings |= {"device": "auto"} | parameters
    classes = range(people.n_classes)
    model = KNNPerClassifier(random_state=seed, n_rounds=n_rounds, classes=classes, **settings)
    fitted = people.fitted
    model.fit(people.x[fitted], people.y[fitted], parties=people.owners[fitted])
    for name in people.unseen:
        own = people.rows(name, test=False)
        model.add_client(name, people.x[own], people.y[own])
    return model


def seen_through(model: KNNPerClassifier, people: Crowd) -> Scene:
    """Return what a trained network makes of all rows of a crowd."""
    keys, scores = model.embed(people.x)
    bank = EmbeddingBank.collect(keys, people.y, people.owners)
    return Scene(bank, scores[bank.rows], people.test[bank.rows], people.unseen, model)


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
    people = crowd("label skew", scope, seed, alpha=alpha)
    return seen_through(trained(people, scope.n_rounds, seed, **parameters), people)
