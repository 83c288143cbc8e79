"""Baselines whose clients share class means of embeddings: FedProto and pFedFDA.

Both classify by a linear function of the embedding that is computed from the means. It replaces the
network's head, so that models are stored and predict like other networks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import solve
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.model_selection import StratifiedKFold

from fedneighbors._typing import Booleans, Floats, Integers
from fedneighbors.baselines._base import Baseline, check_not_negative
from fedneighbors.baselines._dynamic_clients import ClientParts, ClientState, Vector

if TYPE_CHECKING:  # imports torch
    from fedneighbors.baselines._trainer import FederatedTrainer

Linear = tuple[Floats, Floats]
"""Coefficients of shape (n_classes, n_dimensions), and intercepts of the classes."""

UNKNOWN = -1e30
"""Intercept of a class without a prototype: its probability is 0."""

N_FOLDS = 2
"""Folds of the cross-validation in pFedFDA; a class needs more rows for a mean of its own."""

SHRINKAGE = 1e-4
"""Weight of the identity in covariances, and of all classes in priors (pFedFDA)."""


# -- FedProto ---------------------------------------------------------------------------------


def sum_classes(points: Floats, labels: Integers, n_classes: int) -> tuple[Floats, Integers]:
    """Return the sum of the points of each class, and their number."""
    is_class = labels == np.arange(n_classes)[:, None]
    return is_class @ points, is_class.sum(axis=1)


@dataclass(frozen=True, eq=False)
class Prototypes:
    """Mean embedding of each class over all clients.

    Parameters
    ----------
    means : float64 array of shape (n_classes, n_dimensions)
        Zeros for a class without rows.
    is_known : bool array of shape (n_classes,)
        Classes with rows.
    """

    means: Floats
    is_known: Booleans

    @classmethod
    def average(cls, parts: Iterable[tuple[Floats, Integers]]) -> "Prototypes":
        """Return the clients' mean prototypes, weighted by rows of the class."""
        all_sums, all_counts = zip(*parts, strict=True)
        counts = np.sum(all_counts, axis=0)
        return cls(np.sum(all_sums, axis=0) / np.maximum(counts, 1)[:, None], counts > 0)

    def head(self) -> Linear:
        """Return the head whose scores order classes by distance.

        They are the negative squared distances, plus a number that depends on the row only.
        """
        squares = (self.means**2).sum(axis=1)
        return 2 * self.means, np.where(self.is_known, -squares, UNKNOWN)

    @classmethod
    def of_head(cls, coefficients: Floats, intercepts: Floats) -> "Prototypes":
        """Return the prototypes of a head, the inverse of :meth:`head`."""
        return cls(coefficients / 2, intercepts > UNKNOWN / 2)


@dataclass(kw_only=True, eq=False, repr=False)
class FedProtoClassifier(Baseline):
    """A network for each client, with embeddings drawn to class means of all clients [1]_.

    Clients share no weights. After its training in a round, a participant sends the mean embedding
    of each of its classes and the numbers of rows. Their means over all clients that have taken
    part, weighted by rows, are the prototypes of the next round. The nearest prototype classifies;
    the softmax of negative squared distances is the probability. A client added after training
    trains with the final prototypes for as many epochs as the others, from the initial body; an
    unknown client gets the overall class shares.

    Parameters
    ----------
    model, embedding, head, hidden
        As in :class:`~fedneighbors.methods.knnper.KNNPerClassifier`, like all parameters below. The
        head must be one linear layer.
    n_rounds, participation, local_epochs, batch_size
        Training schedule.
    learning_rate, momentum, weight_decay
        Parameters of SGD.
    validation, standardize, trainer, device, classes, random_state
        Fraction of rows held out for tuning, scaling of columns, batching of clients, device,
        possible labels, and random seed.
    strength : float
        Weight of the mean squared difference of embeddings from their prototypes (lambda).

    Notes
    -----
    As in the authors' program, the distance to a prototype is a mean over rows and dimensions. The
    printed mean over clients, Eq 6, divides by their number a second time; it is left out.

    References
    ----------
    .. [1] Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, "FedProto: Federated Prototype Learning across
       Heterogeneous Clients", AAAI 2022, Algorithm 1.
    """

    grid = tuple({"strength": value} for value in (0.1, 1.0, 10.0, 100.0))

    strength: float = 1.0

    def _check_own_parameters(self) -> None:
        check_not_negative("strength", self.strength)

    def _train(self, trainer: "FederatedTrainer") -> tuple[Vector, ClientParts]:
        shape = trainer.linear_head.shape
        prototypes = Prototypes(np.zeros(shape), np.zeros(shape[0], bool))
        client_parts = dict.fromkeys(trainer.names, trainer.initial)
        sums: dict[str, tuple[Floats, Integers]] = {}
        for number in range(trainer.rounds.limit):
            starts = {name: client_parts[name] for name in trainer.participants(number)}
            ends = dict(self._train_round(trainer, starts, number, prototypes))
            for name, points in trainer.embed(ends).items():
                sums[name] = sum_classes(points, trainer.labels(name), shape[0])
            client_parts |= ends
            prototypes = Prototypes.average(sums.values())
        head = prototypes.head()
        weights = trainer.linear_head.replace(trainer.initial, *head)
        return weights, self._set_heads(trainer, client_parts, head)

    def _fit_own_parts(self, trainer: "FederatedTrainer") -> ClientParts:
        head = trainer.linear_head.read(trainer.initial)
        prototypes = Prototypes.of_head(*head)
        start = trainer.linear_head.replace(trainer.initial, *map(np.zeros_like, head))
        client_parts = dict.fromkeys(trainer.names, start)
        for number in range(trainer.rounds.limit):
            client_parts.update(self._train_round(trainer, client_parts, number, prototypes))
        return self._set_heads(trainer, client_parts, head)

    def _train_round(
        self, trainer: "FederatedTrainer", starts: ClientParts, number: int, prototypes: Prototypes
    ) -> Iterable[tuple[str, Vector]]:
        from fedneighbors.baselines._linear_head import PrototypeLoss

        loss = PrototypeLoss(prototypes.means, np.where(prototypes.is_known, self.strength, 0.0))
        return trainer.train(starts, trainer.regime(number), number, objective=loss)

    def _set_heads(
        self, trainer: "FederatedTrainer", client_parts: ClientParts, head: Linear
    ) -> ClientParts:
        replace = trainer.linear_head.replace
        return {name: replace(own, *head) for name, own in client_parts.items()}

    def _shared_scores(self, x: Any) -> Floats:
        return np.tile(np.log(self.overall_), (len(x), 1))


# -- pFedFDA ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Normal distributions of the embeddings of each class, with one covariance.

    Parameters
    ----------
    means : float64 array of shape (n_classes, n_dimensions)
        Mean of each class.
    covariance : float64 array of shape (n_dimensions, n_dimensions)
        Covariance within classes.
    """

    means: Floats
    covariance: Floats

    @classmethod
    def estimate(cls, points: Floats, labels: Integers, fallback: Floats) -> "Gaussians":
        """Return the distributions of a client's embeddings.

        Parameters
        ----------
        points : float64 array of shape (n_rows, n_dimensions)
            Embeddings.
        labels : int64 array of shape (n_rows,)
            Class of each row.
        fallback : float64 array of shape (n_classes, n_dimensions)
            Means of classes with too few rows.
        """
        sums, counts = sum_classes(points, labels, len(fallback))
        is_frequent = counts > N_FOLDS
        means = np.where(is_frequent[:, None], sums / np.maximum(counts, 1)[:, None], fallback)
        centered = points - means[labels]
        scatter = centered.T @ centered / max(len(points) - 1, 1)
        return cls(means, scatter + np.eye(len(scatter)))

    @classmethod
    def average(cls, parts: Iterable["Gaussians"], weights: Iterable[float]) -> "Gaussians":
        """Return the weighted means of all means and covariances."""
        shares = np.array(list(weights))
        shares = shares / shares.sum()
        each = list(parts)
        return cls(
            np.einsum("i,ijk", shares, np.stack([part.means for part in each])),
            np.einsum("i,ijk", shares, np.stack([part.covariance for part in each])),
        )

    def mix(self, shared: "Gaussians", beta: float) -> "Gaussians":
        """Return the mean of these and the shared distributions, ``beta`` of these."""
        return Gaussians.average([self, shared], [beta, 1 - beta])

    def head(self, priors: Floats) -> Linear:
        """Return the linear discriminants."""
        mean_variance = np.trace(self.covariance) / len(self.covariance)
        covariance = (1 - SHRINKAGE) * self.covariance
        covariance += SHRINKAGE * mean_variance * np.eye(len(covariance))
        coefficients = solve(covariance, self.means.T, assume_a="pos").T
        return coefficients, np.log(priors) - (self.means * coefficients).sum(axis=1) / 2

    def loss(self, points: Floats, labels: Integers, priors: Floats) -> float:
        """Return the mean negative log-likelihood of the labels."""
        coefficients, intercepts = self.head(priors)
        logs = log_softmax(points @ coefficients.T + intercepts, axis=1)
        return -float(logs[np.arange(len(labels)), labels].mean())


def class_priors(labels: Integers, n_classes: int) -> Floats:
    """Return class shares, each increased by a little."""
    shares = np.bincount(labels, minlength=n_classes) / len(labels) + SHRINKAGE
    return np.asarray(shares / shares.sum())


def adapt(points: Floats, labels: Integers, shared: Gaussians, *, seed: int) -> Gaussians:
    """Return a client's mixture of its own and the shared distributions.

    The mixture's weight has the lowest cross-validated loss. It is 0 if no class has two rows.
    """
    priors = class_priors(labels, len(shared.means))
    kept = np.bincount(labels)[labels] >= N_FOLDS
    if not kept.any():
        return shared
    x, y = points[kept], labels[kept]
    splitter = StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed)
    folds = [
        (Gaussians.estimate(x[train], y[train], shared.means), x[test], y[test])
        for train, test in splitter.split(x, y)
    ]

    def loss(beta: float) -> float:
        return sum(own.mix(shared, beta).loss(x, y, priors) for own, x, y in folds)

    found = minimize_scalar(loss, bounds=(0, 1), method="bounded", options={"xatol": 1e-2})
    return Gaussians.estimate(points, labels, shared.means).mix(shared, float(found.x))


@dataclass(kw_only=True, eq=False, repr=False)
class PFedFDAClassifier(Baseline):
    """A shared body with linear discriminants of each client's embeddings [1]_.

    A participant of a round trains the body with a fixed head, the discriminants of the shared
    class means and covariance with its own class shares. It then estimates means and covariance of
    its own embeddings, and sends a mixture of these with the shared ones, whose weight it chooses
    by cross-validation. The means over participants, weighted by rows, are the shared ones of the
    next round. After the last round every client computes its mixture on the final body, and so
    does a client added after training. An unknown client gets the shared discriminants.

    Parameters
    ----------
    model, embedding, head, hidden
        As in :class:`~fedneighbors.methods.knnper.KNNPerClassifier`, like all parameters below. The
        head must be one linear layer.
    n_rounds, participation, local_epochs, batch_size
        Training schedule.
    learning_rate, momentum, weight_decay
        Parameters of SGD.
    validation, standardize, trainer, device, classes, random_state
        Fraction of rows held out for tuning, scaling of columns, batching of clients, device,
        possible labels, and random seed.

    Attributes
    ----------
    distribution_ : Gaussians
        Shared class means and covariance.

    Notes
    -----
    Constants are those of the authors' program: the identity is added to estimated covariances, a
    class needs three rows for a mean of its own, and the shared distributions begin with uniform
    random means and the identity. Means and covariance have one weight. Embeddings are computed
    after the training of a round, not during it.

    References
    ----------
    .. [1] McLaughlin and Su, "Personalized Federated Learning via Feature Distribution Adaptation",
       NeurIPS 2024.
    """

    _own_part = "head"
    grid = tuple({"learning_rate": value} for value in (0.01, 0.02, 0.05, 0.1))

    def _train(self, trainer: "FederatedTrainer") -> tuple[Vector, ClientParts]:
        (n_classes, n_dimensions), replace = trainer.linear_head.shape, trainer.linear_head.replace
        rng = np.random.default_rng(trainer.rounds.seed)
        shared = Gaussians(rng.random((n_classes, n_dimensions)), np.eye(n_dimensions))
        weights, only = trainer.initial, trainer.network.body_names
        for number in range(trainer.rounds.limit):
            priors = {
                name: class_priors(trainer.labels(name), n_classes)
                for name in trainer.participants(number)
            }
            starts = {name: replace(weights, *shared.head(each)) for name, each in priors.items()}
            ends = dict(trainer.train(starts, trainer.regime(number), number, only=only))
            mixtures = self._adapt(trainer, ends, shared)
            shared = Gaussians.average(mixtures.values(), trainer.n_rows(mixtures))
            bodies = [(name, end[trainer.body]) for name, end in ends.items()]
            weights = weights.copy()
            weights[trainer.body] = trainer.average(weights[trainer.body], bodies)
        self.distribution_ = shared
        weights = replace(weights, *shared.head(trainer.overall))
        return weights, self._make_heads(trainer, weights)

    def _fit_own_parts(self, trainer: "FederatedTrainer") -> ClientParts:
        return self._make_heads(trainer, trainer.initial)

    def _adapt(
        self, trainer: "FederatedTrainer", weights: Mapping[str, Vector], shared: Gaussians
    ) -> dict[str, Gaussians]:
        """Return each client's mixture for its embeddings by a network."""
        seed = trainer.rounds.seed % 2**32
        return {
            name: adapt(points, trainer.labels(name), shared, seed=seed)
            for name, points in trainer.embed(weights).items()
        }

    def _make_heads(self, trainer: "FederatedTrainer", weights: Vector) -> ClientParts:
        every = dict.fromkeys(trainer.names, weights)
        heads = {}
        for name, mixture in self._adapt(trainer, every, self.distribution_).items():
            priors = class_priors(trainer.labels(name), len(mixture.means))
            network = trainer.linear_head.replace(weights, *mixture.head(priors))
            heads[name] = network[trainer.head]
        return heads

    def _client_state(self, names: list[str]) -> ClientState:
        parts, clusters, _ = super()._client_state(names)
        shared = self.distribution_
        return parts, clusters, [np.vstack([shared.means, shared.covariance])]

    def _set_clusters(self, clusters: list[tuple[str, ...]], networks: list[Vector]) -> None:
        n_classes, n_weights = len(self.overall_), int(self._agreement.head.sum())
        n_dimensions = n_weights // n_classes - 1  # an intercept of each class
        shape = (n_classes + n_dimensions, n_dimensions)
        if clusters or [each.shape for each in networks] != [shape]:
            raise ValueError("expected class means and a covariance that fit the head")
        means, covariance = np.split(networks[0].astype(np.float64), [n_classes])
        self.distribution_ = Gaussians(means, covariance)
