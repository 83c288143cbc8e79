"""Common parts of the experiments: clients, a network, and its embeddings of all rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.bootstrap import Right
from experiments.knnper.federations import Crowd, Scope, crowd
from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import DataError
from fedneighbors.methods.knnper.estimator import KNNPerClassifier
from fedneighbors.tabular._ownership import party_name


@dataclass(frozen=True, eq=False)
class EmbeddingBank:
    """Embeddings and labels of all clients, each client's rows side by side (Eq 3 of the paper).

    After it, neighbors, mixtures, capacities, drift and compression need no neural network.

    Parameters
    ----------
    embeddings : float32 or float64 array of shape (n_rows, n_dimensions), C order
        phi(x) of each row, finite.
    labels : array of shape (n_rows,) or (n_rows, n_outputs)
        Class of each row, from 0; or targets.
    rows : int64 array of shape (n_rows,)
        Position of each row in its original table.
    names : tuple of str
        The clients, in the order of their rows.
    offsets : int64 array of shape (n_clients + 1,)
        Client ``i`` owns the rows from ``offsets[i]`` up to ``offsets[i + 1]``.

    Raises
    ------
    DataError
        If an embedding is not finite; the client is named.
    ValueError
        If shapes disagree or a client is named twice.
    """

    embeddings: npt.NDArray[np.floating[Any]]
    labels: npt.NDArray[Any]
    rows: Integers
    names: tuple[str, ...]
    offsets: Integers

    def __post_init__(self) -> None:
        n = len(self.embeddings)
        if self.embeddings.ndim != 2 or len(self.labels) != n or len(self.rows) != n:
            raise ValueError(
                f"expected a label and a place for each embedding, got {self.embeddings.shape}, "
                f"{self.labels.shape} and {self.rows.shape}"
            )
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"expected each client once, got {self.names}")
        ends = self.offsets
        if (
            len(ends) != len(self.names) + 1
            or ends[0] != 0
            or ends[-1] != n
            or (np.diff(ends) < 0).any()
        ):
            raise ValueError(f"expected offsets from 0 to {n}, ascending, one more than clients")
        self._refuse_infinite()
        for array in (self.embeddings, self.labels, self.rows, self.offsets):
            array.flags.writeable = False

    def _refuse_infinite(self) -> None:
        bad = ~np.isfinite(self.embeddings).all(axis=1)
        if bad.any():
            place = int(np.flatnonzero(bad)[0])
            name = self.names[int(np.searchsorted(self.offsets, place, side="right")) - 1]
            raise DataError(
                f"client {name!r}: {int(bad.sum())} embeddings of the bank are not finite; the "
                "shared model has diverged, or its input was: lower its learning rate"
            )

    @classmethod
    def collect(
        cls,
        embeddings: npt.NDArray[np.floating[Any]],
        labels: npt.NDArray[Any],
        owners: Sequence[str] | npt.NDArray[Any],
    ) -> "EmbeddingBank":
        """Sort rows by owner, stably.

        Parameters
        ----------
        embeddings : array of shape (n_rows, n_dimensions)
            phi(x) of each row.
        labels : array of shape (n_rows,) or (n_rows, n_outputs)
            Classes or targets.
        owners : sequence of shape (n_rows,)
            Name of the client that owns each row.

        Raises
        ------
        ValueError
            If a row has no owner, or as the class raises it.
        """
        who = np.array([party_name(name) for name in np.asarray(owners, object)], np.str_)
        names, owner = np.unique(who, return_inverse=True)
        order = np.argsort(owner, kind="stable")
        sizes = np.bincount(owner, minlength=len(names))
        return cls(
            np.ascontiguousarray(embeddings[order]),
            np.ascontiguousarray(np.asarray(labels)[order]),
            order.astype(np.int64),
            tuple(names.tolist()),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.embeddings)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return the number of rows per client."""
        return dict(zip(self.names, np.diff(self.offsets).tolist(), strict=True))

    @property
    def nbytes(self) -> int:
        """Return the bytes of embeddings and labels."""
        return int(self.embeddings.nbytes + self.labels.nbytes)

    def span(self, name: str) -> slice:
        """Return the positions of a client's rows.

        Raises
        ------
        KeyError
            If the client is unknown.
        """
        if name not in self.names:
            raise KeyError(f"the bank has no client {name!r}")
        place = self.names.index(name)
        return slice(int(self.offsets[place]), int(self.offsets[place + 1]))

    def of(self, name: str) -> tuple[npt.NDArray[np.floating[Any]], npt.NDArray[Any]]:
        """Return a client's embeddings and labels, without copying them."""
        span = self.span(name)
        return self.embeddings[span], self.labels[span]


HIDDEN = (64, 32)
"""Of the network of all experiments: the last layer is the embedding."""


@dataclass(frozen=True, eq=False)
class Scene:
    """Clients, and embeddings and predictions of the shared network for their rows.

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
        Trained estimator.
    """

    bank: EmbeddingBank
    scores: Floats
    test: npt.NDArray[np.bool_]
    unseen: tuple[str, ...]
    model: KNNPerClassifier

    @property
    def seen(self) -> tuple[str, ...]:
        """Return the clients that took part in training."""
        return tuple(name for name in self.bank.names if name not in self.unseen)

    def split(self, name: str) -> tuple[Integers, Integers]:
        """Return a client's training and test rows in the bank."""
        span = self.bank.span(name)
        rows = np.arange(span.start, span.stop)
        return rows[~self.test[span]], rows[self.test[span]]

    def keys(self, rows: Integers) -> Floats:
        """Return embeddings of some rows, as a memory takes them."""
        return np.ascontiguousarray(self.bank.embeddings[rows], np.float64)

    def right(self, name: str, shares: Floats) -> tuple[int, int]:
        """Count a client's correct test rows, and all of them."""
        asked = self.split(name)[1]
        guess = shares.argmax(axis=1)
        return int((guess == self.bank.labels[asked]).sum()), len(asked)

    def by_role(self, right: Right) -> dict[str, Right]:
        """Return the hits of seen and of unseen clients."""
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
    fitted = people.fit
    model.fit(people.x[fitted], people.y[fitted], parties=people.owners[fitted])
    for name in people.unseen:
        own = people.rows(name, test=False)
        model.add_client(name, people.x[own], people.y[own])
    return model


def seen_through(model: KNNPerClassifier, people: Crowd) -> Scene:
    """Return embeddings and predictions of a trained network for a crowd."""
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
