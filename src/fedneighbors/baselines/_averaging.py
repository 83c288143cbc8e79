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
    check_fraction,
    check_not_negative,
    check_rate,
)
from fedneighbors.baselines._dynamic_clients import NO_OWN_PART, ClientParts, Vector
from fedneighbors.methods.knnper._settings import check_count
from fedneighbors.methods.knnper.algorithm import local_prior

if TYPE_CHECKING:  # imports torch
    from fedneighbors.baselines._trainer import FederatedTrainer


@dataclass(kw_only=True, eq=False, repr=False)
class FedProxClassifier(Baseline):
    """Federated averaging with a proximal term towards the shared network [1]_.

    The model is not personalised: clients added after training get the shared network as well.

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
        Strength of the proximal term (mu): a client minimizes its loss plus ``proximal / 2``
        times the squared distance of its weights from the shared ones.

    References
    ----------
    .. [1] Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous
       Networks", MLSys 2020, Algorithm 2.
    """

    _own_part = "nothing"
    grid = tuple({"proximal": value} for value in (0.001, 0.01, 0.1, 1.0))

    proximal: float = 0.01

    def _check_own_parameters(self) -> None:
        check_not_negative("proximal", self.proximal)

    def _train(self, trainer: "FederatedTrainer") -> tuple[Vector, ClientParts]:
        return trainer.federated_average(proximal=self.proximal), self._fit_own_parts(trainer)


@dataclass(kw_only=True, eq=False, repr=False)
class WarmStart:
    """Own parts of clients, computed from a shared network that is trained or given.

    Parameters
    ----------
    start : fitted KNNPerClassifier or baseline, optional
        Its network is used, unchanged, instead of training one; it should be fitted on the same
        clients and rows. Parameters of the network and of the rounds then have no effect. A clone
        of this estimator has the same ``start``, which stays fitted.
    """

    start: Any = None

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted estimator with the same ``start``."""
        fresh: Self = super().__sklearn_clone__()  # type: ignore[misc]
        fresh.start = self.start
        return fresh

    def _train(self, trainer: "FederatedTrainer") -> tuple[Vector, ClientParts]:
        weights = trainer.federated_average() if self.start is None else trainer.initial
        return weights, self._make_client_parts(trainer, weights)

    def _fit_own_parts(self, trainer: "FederatedTrainer") -> ClientParts:
        return self._make_client_parts(trainer, trainer.initial)

    @abstractmethod
    def _make_client_parts(self, trainer: "FederatedTrainer", weights: Vector) -> ClientParts:
        """Return the clients' own parts for a network with these weights."""


@dataclass(kw_only=True, eq=False, repr=False)
class FedAvgClassifier(WarmStart, Baseline):
    """One network for all clients by federated averaging [1]_.

    The model is not personalised: clients added after training get the shared network as well.

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
    start : fitted KNNPerClassifier or baseline, optional
        Its network is used instead of training one.

    References
    ----------
    .. [1] McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-Efficient Learning of
       Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1.
    """

    _own_part = "nothing"
    grid = tuple({"learning_rate": value} for value in (0.01, 0.02, 0.05, 0.1))

    def _make_client_parts(self, trainer: "FederatedTrainer", _weights: Vector) -> ClientParts:
        return dict.fromkeys(trainer.names, NO_OWN_PART)


@dataclass(kw_only=True, eq=False, repr=False)
class PriorCorrectedClassifier(WarmStart, Baseline):
    """A shared network with probabilities corrected by each client's class shares.

    A probability is multiplied by the ratio of the client's class share to the overall share, to
    the power of ``strength``, and the results are normalized [1]_. The class shares of a client
    that is added after training come from its labels.

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
    start : fitted KNNPerClassifier or baseline, optional
        Its network is used instead of training one.
    strength : float
        Exponent of the correction: 0 for none, 1 for Bayes' rule.

    References
    ----------
    .. [1] Saerens, Latinne and Decaestecker, "Adjusting the Outputs of a Classifier to New a Priori
       Probabilities", Neural Computation 14, 2002, Eq 2.4.
    """

    grid = tuple({"strength": value} for value in (0.25, 0.5, 0.75, 1.0))

    strength: float = 1.0

    def _check_own_parameters(self) -> None:
        check_fraction("strength", self.strength)

    def _make_client_parts(self, trainer: "FederatedTrainer", _weights: Vector) -> ClientParts:
        overall = trainer.overall
        priors = {name: local_prior(trainer.labels(name), overall) for name in trainer.names}
        return {
            name: self.strength * (np.log(prior) - np.log(overall))
            for name, prior in priors.items()
        }

    def _is_own_part(self, own: Vector) -> bool:
        return len(own) in (0, len(self.overall_))

    def _client_scores(self, own: Vector, _x: Any, scores: Floats) -> Floats:
        return np.asarray(log_softmax(scores + own, axis=1))


@dataclass(kw_only=True, eq=False, repr=False)
class FineTuning(WarmStart):
    """Further training of a shared network by each client on its own rows.

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

    def _check_own_parameters(self) -> None:
        check_count("tuning_epochs", self.tuning_epochs)
        check_rate("tuning_rate", self.tuning_rate)


@dataclass(kw_only=True, eq=False, repr=False)
class FedAvgPlusClassifier(FineTuning, Baseline):
    """A shared network, fine-tuned by each client on its own rows [1]_.

    Clients added after training do the same.

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
    start : fitted KNNPerClassifier or baseline, optional
        Its network is used instead of training one.
    tuning_epochs : int
        Epochs of a client on its own rows.
    tuning_rate : float
        Learning rate of these epochs.

    References
    ----------
    .. [1] Jiang, Konecny, Rush and Kannan, "Improving Federated Learning Personalization via Model
       Agnostic Meta Learning", 2019; for clients added later, Marfoq et al., ICML 2022,
       Section 6.
    """

    def _make_client_parts(self, trainer: "FederatedTrainer", weights: Vector) -> ClientParts:
        regime = trainer.tuning_regime(self.tuning_epochs, self.tuning_rate)
        return dict(trainer.train(dict.fromkeys(trainer.names, weights), regime, "tuning"))


@dataclass(kw_only=True, eq=False, repr=False)
class HeadTuningClassifier(FineTuning, Baseline):
    """A shared network whose head each client fine-tunes on its own rows.

    The body stays shared, so clients differ in few weights. Clients added after training do the
    same.

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
        regime = trainer.tuning_regime(self.tuning_epochs, self.tuning_rate)
        return trainer.train_heads(dict.fromkeys(trainer.names, weights), regime)
