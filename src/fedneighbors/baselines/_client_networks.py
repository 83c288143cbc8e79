"""Baselines with a network for each client: local, regularized, or mixed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.baselines._base import (
    Baseline,
    check_fraction,
    check_not_negative,
    check_rate,
)
from fedneighbors.baselines._dynamic_clients import ClientParts, Vector
from fedneighbors.methods.knnper._settings import check_count

if TYPE_CHECKING:  # imports torch
    from fedneighbors.baselines._trainer import FederatedTrainer


@dataclass(kw_only=True, eq=False, repr=False)
class LocalClassifier(Baseline):
    """A network for each client, trained on its own rows only.

    Each client trains for as many epochs as in ``n_rounds`` rounds, with the same learning rates.
    There is no shared network, and ``participation`` has no effect. Clients added after training do
    the same; an unknown client gets the overall class shares.

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

    References
    ----------
    .. [1] Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning through Local
       Memorization", ICML 2022, Table 2.
    """

    grid = tuple({"learning_rate": value} for value in (0.02, 0.05, 0.1, 0.2))

    def _train(self, trainer: "FederatedTrainer") -> tuple[Vector, ClientParts]:
        return trainer.initial, self._fit_own_parts(trainer)

    def _fit_own_parts(self, trainer: "FederatedTrainer") -> ClientParts:
        client_parts = dict.fromkeys(trainer.names, trainer.initial)
        for number in range(trainer.rounds.limit):
            client_parts.update(trainer.train(client_parts, trainer.regime(number), number))
        return client_parts

    def _shared_scores(self, x: Any) -> Floats:
        return np.tile(np.log(self.overall_), (len(x), 1))


@dataclass(kw_only=True, eq=False, repr=False)
class DittoClassifier(Baseline):
    """Federated averaging with an additional network for each client [1]_.

    A participant of a round trains the shared network and then its own, with a proximal term
    towards the shared network that it received. A client added after training starts its own
    network from the shared one, with the same term.

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
    proximal : float
        Strength of the proximal term (lambda): a client's own network minimizes its loss plus
        ``proximal / 2`` times the squared distance of its weights from the shared ones.
    tuning_epochs : int
        Epochs of a client added after training.
    tuning_rate : float, optional
        Learning rate of these epochs; by default that of the last round.

    References
    ----------
    .. [1] Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through
       Personalization", ICML 2021, Algorithm 1; for clients added later, Marfoq et al.,
       ICML 2022, Section 6.
    """

    grid = tuple({"proximal": value} for value in (0.01, 0.1, 1.0, 10.0))

    proximal: float = 0.1
    tuning_epochs: int = 20
    tuning_rate: float | None = None

    def _check_own_parameters(self) -> None:
        check_not_negative("proximal", self.proximal)
        check_count("tuning_epochs", self.tuning_epochs)
        check_rate("tuning_rate", self.tuning_rate, optional=True)

    def _train(self, trainer: "FederatedTrainer") -> tuple[Vector, ClientParts]:
        weights: Vector = trainer.initial
        client_parts = dict.fromkeys(trainer.names, weights)
        for number in range(trainer.rounds.limit):
            sent = dict.fromkeys(trainer.participants(number), weights)
            weights = trainer.average(weights, trainer.train(sent, trainer.regime(number), number))
            own_regime = trainer.regime(number, proximal=self.proximal)
            starts = {name: client_parts[name] for name in sent}
            client_parts.update(trainer.train(starts, own_regime, number, anchors=sent))
        return weights, client_parts

    def _fit_own_parts(self, trainer: "FederatedTrainer") -> ClientParts:
        regime = trainer.tuning_regime(self.tuning_epochs, self.tuning_rate, proximal=self.proximal)
        return dict(trainer.train(dict.fromkeys(trainer.names, self.weights_), regime, "tuning"))


@dataclass(kw_only=True, eq=False, repr=False)
class APFLClassifier(Baseline):
    """A mixture of the weights of the shared network and of each client's own network [1]_.

    A participant of a round trains the shared network and, in the same steps, its own network by
    the gradient of the mixture's loss. Weights are mixed, not outputs. A client added after
    training starts its own network from the shared one, which stays fixed.

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
    alpha : float
        Weight of the client's own network in the mixture: 0 is federated averaging, 1 local
        training.
    tuning_epochs : int
        Epochs of a client added after training.
    tuning_rate : float, optional
        Learning rate of these epochs; by default that of the last round.

    References
    ----------
    .. [1] Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning", 2020, Algorithm 1
       with a fixed alpha.
    """

    grid = tuple({"alpha": value} for value in (0.1, 0.3, 0.6, 0.9))

    alpha: float = 0.5
    tuning_epochs: int = 20
    tuning_rate: float | None = None

    def _check_own_parameters(self) -> None:
        check_fraction("alpha", self.alpha)
        check_count("tuning_epochs", self.tuning_epochs)
        check_rate("tuning_rate", self.tuning_rate, optional=True)

    def _train(self, trainer: "FederatedTrainer") -> tuple[Vector, ClientParts]:
        weights: Vector = trainer.initial
        client_parts = dict.fromkeys(trainer.names, weights)
        for number in range(trainer.rounds.limit):
            starts = {name: (weights, client_parts[name]) for name in trainer.participants(number)}
            ends = trainer.train_pairs(starts, trainer.regime(number), number, alpha=self.alpha)
            weights = trainer.average(weights, _store_networks(ends, client_parts))
        return weights, client_parts

    def _fit_own_parts(self, trainer: "FederatedTrainer") -> ClientParts:
        from fedneighbors.baselines._trainer import CLIENT_PREFIX

        starts = dict.fromkeys(trainer.names, (self.weights_, self.weights_))
        regime = trainer.tuning_regime(self.tuning_epochs, self.tuning_rate)
        ends = trainer.train_pairs(
            starts, regime, "tuning", alpha=self.alpha, trained=(CLIENT_PREFIX,)
        )
        return {name: own for name, (_, own) in ends}

    def _network_weights(self, own: Vector) -> Vector:
        return np.asarray(self.alpha * own + (1 - self.alpha) * self.weights_, own.dtype)


def _store_networks(ends: Any, client_parts: ClientParts) -> Any:
    """Yield the trained shared networks; store the clients' own networks."""
    for name, (shared, own) in ends:
        client_parts[name] = own
        yield name, shared
