"""Federated averaging and its local adaptations."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from scipy.special import log_softmax

from fedneighbors._typing import Floats
from fedneighbors.baselines._base import (
    Baseline,
    check_count,
    check_not_negative,
    check_rate,
    check_share,
)
from fedneighbors.baselines._dynamic_clients import NOTHING, ClientParts, Vector
from fedneighbors.methods.knnper.algorithm import local_prior

if TYPE_CHECKING:  # imports torch
    from fedneighbors.baselines._trainer import FederatedTrainer


@dataclass(kw_only=True, eq=False, repr=False)
class FedProxClassifier(Baseline):
    """Federated averaging with a proximal term towards the shared network [1]_.

    The model is not personalised: later clients get the shared network.

    Parameters
    ----------
    model, embedding, head, hidden
        As in :class:`~fedneighbors.methods.knnper.KNNPerClassifier`, like all parameters below.
    n_rounds, participation, local_epochs, batch_size
        Training schedule.
    learning_rate, momentum, weight_decay
        Parameters of SGD.
    validation, standardize, trainer, device, classes, random_state
        Share of rows held out for tuning, scaling of columns, batching of clients, device, possible
        labels, and random seed.
    proximal : float
        Strength of the proximal term (mu): a client minimizes its loss plus ``proximal / 2``
        times the squared distance.

    References
    ----------
    .. [1] Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous
       Networks", MLSys 2020, Algorithm 2.
    """

    _own_part = "nothing"
    grid: ClassVar[tuple[Mapping[str, Any], ...]] = tuple(
        {"proximal": value} for value in (0.001, 0.01, 0.1, 1.0)
    )

    proximal: float = 0.01

    def _check(self) -> None:
        check_not_negative("proximal", self.proximal)

    def _train(self, trainer: "FederatedTrainer") -> tuple[Vector, ClientParts]:
        return trainer.federated_average(proximal=self.proximal), self._join_clients(trainer)


@dataclass(kw_only=True, eq=False, repr=False)
class WarmStart:
    """Clients' own parts on a shared network, which is trained here or given.

    Parameters
    ----------
    start : fitted KNNPerClassifier or baseline, optional
        Its network is used, unchanged, instead of training one; it should have the same clients
        and rows. Parameters of the network and of the rounds then have no effect. A clone of the
        estimator has the same network.
    """

    start: Any = None

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted estimator with the same network."""
        fresh: Self = super().__sklearn_clone__()  # type: ignore[misc]
        fresh.start = self.start
        return fresh

    def _train(self, trainer: "FederatedTrainer") -> tuple[Vector, ClientParts]:
        weights = trainer.federated_average() if self.start is None else trainer.initial
        return weights, self._make_client_parts(trainer, weights)

    def _join_clients(self, trainer: "FederatedTrainer") -> ClientParts:
        return self._make_client_parts(trainer, trainer.initial)

    @abstractmethod
    def _make_client_parts(self, trainer: "FederatedTrainer", weights: Vector) -> ClientParts:
        """Return the clients' own parts for a network with these weights."""


@dataclass(kw_only=True, eq=False, repr=False)
class FedAvgClassifier(WarmStart, Baseline):
    """One network for all clients by federated averaging [1]_.

    The model is not personalised: later clients get the shared network.

    Parameters
    ----------
    model, embedding, head, hidden
        As in :class:`~fedneighbors.methods.knnper.KNNPerClassifier`, like all parameters below.
    n_rounds, participation, local_epochs, batch_size
        Training schedule.
    learning_rate, momentum, weight_decay
        Parameters of SGD.
    validation, standardize, trainer, device, classes, random_state
        Share of rows held out for tuning, scaling of columns, batching of clients, device, possible
        labels, and random seed.
    start : fitted KNNPerClassifier or baseline, optional
        Its network is used instead of training one.

    References
    ----------
    .. [1] McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-Efficient Learning of
       Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1.
    """

    _own_part = "nothing"
    grid: ClassVar[tuple[Mapping[str, Any], ...]] = tuple(
        {"learning_rate": value} for value in (0.01, 0.02, 0.05, 0.1)
    )

    def _make_client_parts(self, trainer: "FederatedTrainer", _weights: Vector) -> ClientParts:
        return dict.fromkeys(trainer.names, NOTHING)


@dataclass(kw_only=True, eq=False, repr=False)
class PriorCorrectedClassifier(WarmStart, Baseline):
    """A shared network with probabilities corrected by each client's class shares.

    A probability is multiplied by the ratio of the client's class share to the overall share, to
    the power of ``strength`` [1]_. A later client counts its labels.

    Parameters
    ----------
    model, embedding, head, hidden
        As in :class:`~fedneighbors.methods.knnper.KNNPerClassifier`, like all parameters below.
    n_rounds, participation, local_epochs, batch_size
        Training schedule.
    learning_rate, momentum, weight_decay
        Parameters of SGD.
    validation, standardize, trainer, device, classes, random_state
        Share of rows held out for tuning, scaling of columns, batching of clients, device, possible
        labels, and random seed.
    start : fitted KNNPerClassifier or baseline, optional
        Its network is used instead of training one.
    strength : float
        Exponent of the correction: 0 for none, 1 for Bayes' rule.

    References
    ----------
    .. [1] Saerens, Latinne and Decaestecker, "Adjusting the Outputs of a Classifier to New a Priori
       Probabilities", Neural Computation 14, 2002, Eq 2.4.
    """

    grid: ClassVar[tuple[Mapping[str, Any], ...]] = tuple(
        {"strength": value} for value in (0.25, 0.5, 0.75, 1.0)
    )

    strength: float = 1.0

    def _check(self) -> None:
        check_share("strength", self.strength)

    def _make_client_parts(self, trainer: "FederatedTrainer", _weights: Vector) -> ClientParts:
        overall = trainer.overall
        priors = {name: local_prior(trainer.labels(name), overall) for name in trainer.names}
        return {
            name: self.strength * (np.log(prior) - np.log(overall))
            for name, prior in priors.items()
        }

    def _fits(self, own: Vector) -> bool:
        return len(own) in (0, len(self.overall_))

    def _for_one(self, own: Vector, _x: Any, scores: Floats) -> Floats:
        return np.asarray(log_softmax(scores + own, axis=1))


@dataclass(kw_only=True, eq=False, repr=False)
class FineTuning(WarmStart):
    """Further training of a network by each client on its own rows.

    Parameters
    ----------
    start : fitted KNNPerClassifier or baseline, optional
        Its network is used instead of training one.
    tuning_epochs : int
        Epochs of a client on its own rows.
    tuning_rate : float
        Learning rate of these epochs.
    """

    grid: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"tuning_epochs": 5, "tuning_rate": 0.02},
        {"tuning_epochs": 20, "tuning_rate": 0.02},
        {"tuning_epochs": 60, "tuning_rate": 0.02},
        {"tuning_epochs": 60, "tuning_rate": 0.05},
    )

    tuning_epochs: int = 5
    tuning_rate: float = 0.02

    def _check(self) -> None:
        check_count("tuning_epochs", self.tuning_epochs)
        check_rate("tuning_rate", self.tuning_rate)


@dataclass(kw_only=True, eq=False, repr=False)
class FedAvgPlusClassifier(FineTuning, Baseline):
    """A shared network, fine-tuned by each client on its own rows [1]_.

    Later clients do the same.

    Parameters
    ----------
    model, embedding, head, hidden
        As in :class:`~fedneighbors.methods.knnper.KNNPerClassifier`, like all parameters below.
    n_rounds, participation, local_epochs, batch_size
        Training schedule.
    learning_rate, momentum, weight_decay
        Parameters of SGD.
    validation, standardize, trainer, device, classes, random_state
        Share of rows held out for tuning, scaling of columns, batching of clients, device, possible
        labels, and random seed.
    start : fitted KNNPerClassifier or baseline, optional
        Its network is used instead of training one.
    tuning_epochs : int
        Epochs of a client on its own rows.
    tuning_rate : float
        Learning rate of these epochs.

    References
    ----------
    .. [1] Jiang, Konecny, Rush and Kannan, "Improving Federated Learning Personalization via Model
       Agnostic Meta Learning", 2019; for later clients Marfoq et al., ICML 2022,
       Section 6.
    """

    def _make_client_parts(self, trainer: "FederatedTrainer", weights: Vector) -> ClientParts:
        regime = trainer.tuning(self.tuning_epochs, self.tuning_rate)
        return dict(trainer.train(dict.fromkeys(trainer.names, weights), regime, "tuning"))


@dataclass(kw_only=True, eq=False, repr=False)
class HeadTuningClassifier(FineTuning, Baseline):
    """A shared network whose head each client fine-tunes on its own rows.

    The body stays shared, so clients differ in few weights. Later clients do the same.

    Parameters
    ----------
    model, embedding, head, hidden
        As in :class:`~fedneighbors.methods.knnper.KNNPerClassifier`, like all parameters below.
    n_rounds, participation, local_epochs, batch_size
        Training schedule.
    learning_rate, momentum, weight_decay
        Parameters of SGD.
    validation, standardize, trainer, device, classes, random_state
        Share of rows held out for tuning, scaling of columns, batching of clients, device, possible
        labels, and random seed.
    start : fitted KNNPerClassifier or baseline, optional
        Its network is used instead of training one.
    tuning_epochs : int
        Epochs of a client on its own rows.
    tuning_rate : float
        Learning rate of these epochs.

    References
    ----------
    .. [1] Yu, Bagdasaryan and Shmatikov, "Salvaging Federated Learning by Local Adaptation", 2020,
       Section 3 (freeze-base fine-tuning).
    """

    _own_part = "head"

    def _make_client_parts(self, trainer: "FederatedTrainer", weights: Vector) -> ClientParts:
        regime = trainer.tuning(self.tuning_epochs, self.tuning_rate)
        return trainer.heads(dict.fromkeys(trainer.names, weights), regime)
