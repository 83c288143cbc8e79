"""Clustered federated learning: clusters whose clients diverge are split."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from fedneighbors._typing import Booleans, Floats
from fedneighbors.baselines._base import Baseline, check_fraction, check_not_negative
from fedneighbors.baselines._dynamic_clients import ClientParts, ClientState, Vector

if TYPE_CHECKING:  # imports torch
    from fedneighbors.baselines._trainer import FederatedTrainer


def is_split_needed(changes: Floats, n_rows: Sequence[int], *, tolerance: float) -> bool:
    """Return whether the mean change is short compared with the longest change.

    Parameters
    ----------
    changes : float64 array of shape (n_clients, n_weights)
        Weight changes of each client in a round.
    n_rows : sequence of int
        Number of rows of each client.
    tolerance : float
        Maximum length of the mean change, relative to the longest change.
    """
    mean = np.average(changes, axis=0, weights=np.asarray(n_rows, np.float64))
    longest = float(np.sqrt((changes**2).sum(axis=1)).max())
    return longest > 0 and float(np.sqrt((mean**2).sum())) < tolerance * longest


def bipartition(changes: Floats) -> Booleans:
    """Split clients in two by the directions of their weight changes.

    Complete-linkage clustering with the cosine distance: the two groups whose least similar members
    are most similar are merged until two groups remain.

    Parameters
    ----------
    changes : float64 array of shape (n_clients, n_weights)
        Changes of at least two clients.

    Returns
    -------
    bool array of shape (n_clients,)
        False for the first client and the others in its group.
    """
    lengths = np.sqrt((changes**2).sum(axis=1, keepdims=True))
    directions = changes / np.where(lengths > 0, lengths, 1.0)
    distances = 1 - directions @ directions.T
    upper = np.triu_indices(len(changes), 1)
    groups = fcluster(linkage(distances[upper], "complete"), 2, "maxclust")
    return np.asarray(groups != groups[0])


@dataclass(frozen=True, eq=False)
class Cluster:
    """Clients that train a network together.

    Parameters
    ----------
    members : tuple of str
        The clients, ascending.
    weights : float array of shape (n_weights,)
        Weights of the cluster's network.
    """

    members: tuple[str, ...]
    weights: Vector


def train_round(
    trainer: "FederatedTrainer", number: int, clusters: Sequence[Cluster], tolerance: float
) -> list[Cluster]:
    """Train one round and return the clusters after it.

    Parameters
    ----------
    trainer : FederatedTrainer
        All clients.
    number : int
        Number of the round, from 0.
    clusters : sequence of Cluster
        Clusters before the round.
    tolerance : float
        As in :func:`is_split_needed`; 0 disables splits.
    """
    weights_of = {name: cluster.weights for cluster in clusters for name in cluster.members}
    starts = {name: weights_of[name] for name in trainer.participants(number)}
    ends = dict(trainer.train(starts, trainer.regime(number), number))
    result: list[Cluster] = []
    for cluster in clusters:
        cluster_ends = {name: ends[name] for name in cluster.members if name in ends}
        result += _average_or_split(trainer, number, cluster, cluster_ends, tolerance)
    return result


def _average_or_split(
    trainer: "FederatedTrainer", number: int, cluster: Cluster, ends: ClientParts, tolerance: float
) -> list[Cluster]:
    """Return the averaged cluster, or the two clusters of a split."""
    members, before = cluster.members, cluster.weights
    if not _must_split(trainer, cluster, ends, tolerance):
        return [Cluster(members, trainer.average(before, ends.items(), members))]
    absent = dict.fromkeys((name for name in members if name not in ends), before)
    ends.update(trainer.train(absent, trainer.regime(number), number))
    is_second = bipartition(_changes(before, [ends[name] for name in members]))
    parts = (tuple(np.array(members)[is_second == second].tolist()) for second in (False, True))
    return [
        Cluster(part, trainer.average(before, [(name, ends[name]) for name in part], part))
        for part in parts
    ]


def _must_split(
    trainer: "FederatedTrainer", cluster: Cluster, ends: ClientParts, tolerance: float
) -> bool:
    """Return whether a cluster of three or more clients must be split."""
    if tolerance == 0 or len(cluster.members) < 3 or len(ends) < 2:
        return False
    changes = _changes(cluster.weights, list(ends.values()))
    return is_split_needed(changes, trainer.n_rows(ends), tolerance=tolerance)


def _changes(before: Vector, ends: Sequence[Vector]) -> Floats:
    return np.stack([after.astype(np.float64) - before for after in ends])


@dataclass(kw_only=True, eq=False, repr=False)
class ClusteredFLClassifier(Baseline):
    """Federated averaging in clusters of clients, found during training [1]_.

    All clients begin as one cluster. A cluster of three or more clients is split when the mean of
    their weight changes in a round is short compared with the longest change. The cosines between
    the changes of all clients of the cluster, including those that did not participate in the
    round, determine the two parts. A client added after training gets the network that is most
    accurate on its rows; an unknown client gets that of the cluster with the most rows.

    Parameters
    ----------
    model, embedding, head, hidden
        As in :class:`~fedneighbors.methods.knnper.KNNPerClassifier`, like all parameters below.
    n_rounds, participation, local_epochs, batch_size
        Training schedule.
    learning_rate, momentum, weight_decay
        Parameters of SGD.
    validation, standardize, trainer, device, classes, random_state
        Fraction of rows held out for tuning, scaling of columns, batching of clients, device,
        possible labels, and random seed.
    tolerance : float
        A cluster is split when its mean change is shorter than this fraction of the longest change;
        0 disables splits.
    split_after : float
        Fraction of the rounds before the first split.

    Attributes
    ----------
    clusters_ : list of tuple of str
        The clients of each cluster at the end of training; clients added later are in none.
    networks_ : list of float32 array of shape (n_weights,)
        Networks of the clusters; ``clients_`` has the index of each client's network.

    References
    ----------
    .. [1] Sattler, Mueller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed
       Multitask Optimization under Privacy Constraints", IEEE TNNLS 32, 2021, Algorithm 3; for
       clients added later, Marfoq et al., ICML 2022, Section 6.
    """

    grid = tuple({"tolerance": value} for value in (0.0, 0.1, 0.25, 0.5))

    tolerance: float = 0.4
    split_after: float = 0.3

    def _check_own_parameters(self) -> None:
        check_not_negative("tolerance", self.tolerance)
        check_fraction("split_after", self.split_after)

    def _train(self, trainer: "FederatedTrainer") -> tuple[Vector, ClientParts]:
        clusters = [Cluster(trainer.names, trainer.initial)]
        first_split = self.split_after * trainer.rounds.limit
        for number in range(trainer.rounds.limit):
            tolerance = self.tolerance if number >= first_split else 0.0
            clusters = train_round(trainer, number, clusters, tolerance)
        self.clusters_: list[tuple[str, ...]] = [cluster.members for cluster in clusters]
        self.networks_: list[Vector] = [cluster.weights for cluster in clusters]
        sizes = [sum(trainer.n_rows(members)) for members in self.clusters_]
        client_parts = {
            name: np.array([index], np.float32)
            for index, cluster in enumerate(clusters)
            for name in cluster.members
        }
        return self.networks_[int(np.argmax(sizes))], client_parts

    def _fit_own_parts(self, trainer: "FederatedTrainer") -> ClientParts:
        return {name: np.array([self._best(trainer, name)], np.float32) for name in trainer.names}

    def _is_own_part(self, own: Vector) -> bool:
        return len(own) == 0 or (len(own) == 1 and float(own[0]) in range(len(self.networks_)))

    def _client_state(self, names: list[str]) -> ClientState:
        """Return these clients' own parts, and the clusters that they use.

        All clusters are returned if these are all clients.
        """
        used = sorted({int(self.clients_[name][0]) for name in names if len(self.clients_[name])})
        if set(names) == set(self.clients_):
            used = list(range(len(self.networks_)))
        client_parts = {name: self.clients_[name] for name in names}
        for name, own in client_parts.items():
            if len(own):
                client_parts[name] = np.array([used.index(int(own[0]))], np.float32)
        members_of = (self.clusters_[index] for index in used)
        clusters = [tuple(n for n in members if n in client_parts) for members in members_of]
        return client_parts, clusters, [self.networks_[index] for index in used]

    def _set_clusters(self, clusters: list[tuple[str, ...]], networks: list[Vector]) -> None:
        if [each.shape for each in networks] != [self.weights_.shape] * len(clusters):
            raise ValueError("expected one network per cluster, with weights of the model")
        self.clusters_, self.networks_ = clusters, networks

    def _network_weights(self, own: Vector) -> Vector:
        return self.networks_[int(own[0])]

    def _best(self, trainer: "FederatedTrainer", name: str) -> int:
        """Return the index of a client's most accurate network; ties by likelihood."""
        x, labels = trainer.x[trainer.rows[name]], trainer.labels(name)
        rows = np.arange(len(labels))
        ranks = []
        for weights in self.networks_:
            scores = self._agreement.log_probabilities(weights, x, self.device)
            n_correct = int((scores.argmax(axis=1) == labels).sum())
            ranks.append((n_correct, float(scores[rows, labels].sum())))
        return max(range(len(ranks)), key=ranks.__getitem__)
