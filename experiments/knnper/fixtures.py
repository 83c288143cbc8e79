"""Shared network of an experiment, and its embeddings of all clients' rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.bootstrap import HitCounts
from experiments.knnper.federations import ClientRows, Scope, make_clients
from fedneighbors._typing import Floats, Integers
from fedneighbors.baselines import FedAvgClassifier
from fedneighbors.errors import DataError
from fedneighbors.methods.knnper.estimator import KNNPerClassifier
from fedneighbors.tabular._ownership import party_name


@dataclass(frozen=True, eq=False)
class EmbeddingBank:
    """Embeddings and labels of all clients, each client's rows contiguous (Eq 3 of the paper).

    With it, experiments on memories need no neural network.

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
                f"expected a label and a row number for each embedding, got "
                f"{self.embeddings.shape}, {self.labels.shape} and {self.rows.shape}"
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
        self._check_finite()
        for array in (self.embeddings, self.labels, self.rows, self.offsets):
            array.flags.writeable = False

    def _check_finite(self) -> None:
        bad = ~np.isfinite(self.embeddings).all(axis=1)
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            name = self.names[int(np.searchsorted(self.offsets, first, side="right")) - 1]
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
        """Sort rows by owner; keep the order of each owner's rows.

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
            If a row has no owner, or as in the class.
        """
        owner_names = [party_name(name) for name in np.asarray(owners, object)]
        names, owner = np.unique(np.array(owner_names, np.str_), return_inverse=True)
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
        index = self.names.index(name)
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def of(self, name: str) -> tuple[npt.NDArray[np.floating[Any]], npt.NDArray[Any]]:
        """Return a client's embeddings and labels, without copying them."""
        span = self.span(name)
        return self.embeddings[span], self.labels[span]


HIDDEN = (64, 32)
"""Sizes of the hidden layers of all experiments' networks; the last is the embedding."""


@dataclass(frozen=True, eq=False)
class EmbeddedClients:
    """Clients, and embeddings and predictions of the shared network for their rows.

    Parameters
    ----------
    bank : EmbeddingBank
        Embeddings of all rows.
    scores : float64 array of shape (n_rows, n_classes)
        Log-probabilities of the network, in the order of the bank.
    test : bool array of shape (n_rows,)
        True for test rows, in the order of the bank.
    unseen : tuple of str
        Clients that did not take part in training.
    model : KNNPerClassifier or FedAvgClassifier
        Trained estimator.
    """

    bank: EmbeddingBank
    scores: Floats
    test: npt.NDArray[np.bool_]
    unseen: tuple[str, ...]
    model: Any

    @property
    def seen(self) -> tuple[str, ...]:
        """Return the clients that took part in training."""
        return tuple(name for name in self.bank.names if name not in self.unseen)

    def split(self, name: str) -> tuple[Integers, Integers]:
        """Return the positions of a client's training and test rows."""
        span = self.bank.span(name)
        rows = np.arange(span.start, span.stop)
        return rows[~self.test[span]], rows[self.test[span]]

    def keys(self, rows: Integers) -> Floats:
        """Return the embeddings of rows as contiguous float64, for a memory."""
        return np.ascontiguousarray(self.bank.embeddings[rows], np.float64)

    def count_hits(self, name: str, probabilities: Floats) -> tuple[int, int]:
        """Count a client's correct test rows, and all its test rows."""
        test = self.split(name)[1]
        predicted = probabilities.argmax(axis=1)
        return int((predicted == self.bank.labels[test]).sum()), len(test)

    def by_group(self, hits: HitCounts) -> dict[str, HitCounts]:
        """Group the hits by seen and unseen clients."""
        return {
            group: {name: hits[name] for name in names if name in hits}
            for group, names in (("seen", self.seen), ("unseen", self.unseen))
        }


def train_clients(clients: ClientRows, n_rounds: int, seed: int) -> KNNPerClassifier:
    """Train kNN-Per, and then add the unseen clients.

    Parameters
    ----------
    clients : ClientRows
        The clients.
    n_rounds : int
        Training rounds of the shared network.
    seed : int
        Seed of the training.
    """
    model: KNNPerClassifier = _fit(
        KNNPerClassifier(representation="network"), clients, n_rounds, seed
    )
    for name in clients.unseen:
        train = clients.rows(name, test=False)
        model.add_client(name, clients.x[train], clients.y[train])
    return model


def train_network(
    clients: ClientRows, n_rounds: int, seed: int, **parameters: Any
) -> FedAvgClassifier:
    """Train the network of :func:`train_clients` only, in half the time.

    Parameters
    ----------
    clients, n_rounds, seed
        As in :func:`train_clients`.
    **parameters
        Further parameters of :class:`FedAvgClassifier`.
    """
    network: FedAvgClassifier = _fit(FedAvgClassifier(), clients, n_rounds, seed, **parameters)
    return network


def _fit(estimator: Any, clients: ClientRows, n_rounds: int, seed: int, **parameters: Any) -> Any:
    """Fit an estimator on the clients that take part in training."""
    settings: dict[str, Any] = {"standardize": False, "learning_rate": 0.05, "hidden": HIDDEN}
    settings |= {"device": "auto", "random_state": seed, "n_rounds": n_rounds}
    estimator.set_params(**settings | {"classes": range(clients.n_classes)} | parameters)
    rows = clients.fit
    return estimator.fit(clients.x[rows], clients.y[rows], parties=clients.owners[rows])


def embed_clients(model: Any, clients: ClientRows) -> EmbeddedClients:
    """Return embeddings and predictions of a trained network."""
    keys, scores = model.embed(clients.x)
    bank = EmbeddingBank.collect(keys, clients.y, clients.owners)
    return EmbeddedClients(bank, scores[bank.rows], clients.test[bank.rows], clients.unseen, model)


def train_and_embed(scope: Scope, *, alpha: float, seed: int) -> EmbeddedClients:
    """Train a network on label-skewed clients, and embed all rows.

    Parameters
    ----------
    scope : Scope
        Size of the experiment.
    alpha : float
        Concentration of the Dirichlet label skew; lower is more skewed.
    seed : int
        Seed of rows, skew, test rows and training.
    """
    clients = make_clients("label skew", scope, seed, alpha=alpha)
    return embed_clients(train_network(clients, scope.n_rounds, seed), clients)
