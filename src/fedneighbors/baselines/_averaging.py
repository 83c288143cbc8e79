"""Federated averaging, and what clients make of its network for themselves."""

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
from fedneighbors.baselines._dynamic_clients import NOTHING, Owns, Vector
from fedneighbors.methods.knnper.algorithm import local_prior

if TYPE_CHECKING:  # it needs torch
    from fedneighbors.baselines._trainer import Bench


@dataclass(kw_only=True, eq=False, repr=False)
class FedProxClassifier(Baseline):
    """Federated averaging whose clients are held near the network that they were sent [1]_.

    Nothing is personal: a client that comes later gets the network of all.

    Parameters
    ----------
    model, embedding, head, hidden
        As :class:`~fedneighbors.methods.knnper.KNNPerClassifier` takes them, like all others.
    n_rounds, participation, local_epochs, batch_size
        Of the training.
    learning_rate, momentum, weight_decay
        Of its steps.
    validation, standardize, trainer, device, classes, random_state
        Of what tuning holds out, of columns, of how and where clients train side by side, of labels
        that may come, and of all that is drawn.
    proximal : float
        Strength of the pull (mu): a client minimizes its loss plus ``proximal / 2`` times the
        squared distance.

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

    def _train(self, bench: "Bench") -> tuple[Vector, Owns]:
        return bench.federated_average(proximal=self.proximal), self._join(bench)


@dataclass(kw_only=True, eq=False, repr=False)
class WarmStart:
    """Clients' own parts from a network that all trained together, or that is taken over.

    Parameters
    ----------
    start : fitted KNNPerClassifier or baseline, optional
        Whose network is taken over, as it is, in place of training one; it should be one of the
        same clients and rows. What is said of the network and of rounds then means nothing. A
        clone of the estimator has the same one.
    """

    start: Any = None

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted estimator with the same network."""
        fresh: Self = super().__sklearn_clone__()  # type: ignore[misc]
        fresh.start = self.start
        return fresh

    def _train(self, bench: "Bench") -> tuple[Vector, Owns]:
        weights = bench.federated_average() if self.start is None else bench.initial
        return weights, self._make(bench, weights)

    def _join(self, bench: "Bench") -> Owns:
        return self._make(bench, bench.initial)

    @abstractmethod
    def _make(self, bench: "Bench", weights: Vector) -> Owns:
        """Return the clients' own parts for a network with these weights."""


@dataclass(kw_only=True, eq=False, repr=False)
class FedAvgClassifier(WarmStart, Baseline):
    """One network for all clients, by federated averaging [1]_.

    Nothing is personal: a client that comes later gets the network of all.

    Parameters
    ----------
    model, embedding, head, hidden
        As :class:`~fedneighbors.methods.knnper.KNNPerClassifier` takes them, like all others.
    n_rounds, participation, local_epochs, batch_size
        Of the training.
    learning_rate, momentum, weight_decay
        Of its steps.
    validation, standardize, trainer, device, classes, random_state
        Of what tuning holds out, of columns, of how and where clients train side by side, of labels
        that may come, and of all that is drawn.
    start : fitted KNNPerClassifier or baseline, optional
        Whose network is taken over in place of training one.

    References
    ----------
    .. [1] McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-Efficient Learning of
       Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1.
    """

    _own_part = "nothing"
    grid: ClassVar[tuple[Mapping[str, Any], ...]] = tuple(
        {"learning_rate": value} for value in (0.01, 0.02, 0.05, 0.1)
    )

    def _make(self, bench: "Bench", _weights: Vector) -> Owns:
        return dict.fromkeys(bench.names, NOTHING)


@dataclass(kw_only=True, eq=False, repr=False)
class PriorCorrectedClassifier(WarmStart, Baseline):
    """The network of all clients, its shares corrected by how often a client meets each class.

    A share is multiplied by what the class has among the client's rows over what it has among
    those of all, to the power of ``strength`` [1]_. A client that comes later counts its labels.

    Parameters
    ----------
    model, embedding, head, hidden
        As :class:`~fedneighbors.methods.knnper.KNNPerClassifier` takes them, like all others.
    n_rounds, participation, local_epochs, batch_size
        Of the training.
    learning_rate, momentum, weight_decay
        Of its steps.
    validation, standardize, trainer, device, classes, random_state
        Of what tuning holds out, of columns, of how and where clients train side by side, of labels
        that may come, and of all that is drawn.
    start : fitted KNNPerClassifier or baseline, optional
        Whose network is taken over in place of training one.
    strength : float
        From 0, nothing, to 1, by Bayes' rule.

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

    def _make(self, bench: "Bench", _weights: Vector) -> Owns:
        overall = bench.overall
        priors = {name: local_prior(bench.labels(name), overall) for name in bench.names}
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
        Whose network is taken over in place of training one.
    tuning_epochs : int
        Passes of a client over its rows.
    tuning_rate : float
        Of their steps.
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
    """The network of all clients, of which each trains some passes more on its own rows [1]_.

    A client that comes later does the same.

    Parameters
    ----------
    model, embedding, head, hidden
        As :class:`~fedneighbors.methods.knnper.KNNPerClassifier` takes them, like all others.
    n_rounds, participation, local_epochs, batch_size
        Of the training.
    learning_rate, momentum, weight_decay
        Of its steps.
    validation, standardize, trainer, device, classes, random_state
        Of what tuning holds out, of columns, of how and where clients train side by side, of labels
        that may come, and of all that is drawn.
    start : fitted KNNPerClassifier or baseline, optional
        Whose network is taken over in place of training one.
    tuning_epochs : int
        Passes of a client over its rows.
    tuning_rate : float
        Of their steps.

    References
    ----------
    .. [1] Jiang, Konecny, Rush and Kannan, "Improving Federated Learning Personalization via Model
       Agnostic Meta Learning", 2019; for clients that come later Marfoq et al., ICML 2022,
       Section 6.
    """

    def _make(self, bench: "Bench", weights: Vector) -> Owns:
        regime = bench.tuning(self.tuning_epochs, self.tuning_rate)
        return dict(bench.trained(dict.fromkeys(bench.names, weights), regime, "tuning"))


@dataclass(kw_only=True, eq=False, repr=False)
class HeadTuningClassifier(FineTuning, Baseline):
    """The network of all clients, of which each trains the head further on its own rows.

    The body stays as all have trained it, so that clients differ in a few weights. A client that
    comes later does the same.

    Parameters
    ----------
    model, embedding, head, hidden
        As :class:`~fedneighbors.methods.knnper.KNNPerClassifier` takes them, like all others.
    n_rounds, participation, local_epochs, batch_size
        Of the training.
    learning_rate, momentum, weight_decay
        Of its steps.
    validation, standardize, trainer, device, classes, random_state
        Of what tuning holds out, of columns, of how and where clients train side by side, of labels
        that may come, and of all that is drawn.
    start : fitted KNNPerClassifier or baseline, optional
        Whose network is taken over in place of training one.
    tuning_epochs : int
        Passes of a client over its rows.
    tuning_rate : float
        Of their steps.

    References
    ----------
    .. [1] Yu, Bagdasaryan and Shmatikov, "Salvaging Federated Learning by Local Adaptation", 2020,
       Section 3 (freeze-base fine-tuning).
    """

    _own_part = "head"

    def _make(self, bench: "Bench", weights: Vector) -> Owns:
        regime = bench.tuning(self.tuning_epochs, self.tuning_rate)
        return bench.heads(dict.fromkeys(bench.names, weights), regime)
