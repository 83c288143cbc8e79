"""A network for each client: trained alone, held near that of all, or mixed with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.baselines._base import (
    Baseline,
    check_count,
    check_not_negative,
    check_rate,
    check_share,
)
from fedneighbors.baselines._dynamic_clients import Owns, Vector

if TYPE_CHECKING:  # it needs torch
    from fedneighbors.baselines._trainer import Bench


@dataclass(kw_only=True, eq=False, repr=False)
class LocalClassifier(Baseline):
    """A network for each client, trained on its own rows and nothing else.

    Each makes as many passes as it would in ``n_rounds`` rounds, at the same rates; there is no
    network for all, and ``participation`` means nothing. A client that comes later does the same;
    one that is not known gets the shares of the classes over all clients.

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

    References
    ----------
    .. [1] Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning through Local
       Memorization", ICML 2022, Table 2.
    """

    grid: ClassVar[tuple[Mapping[str, Any], ...]] = tuple(
        {"learning_rate": value} for value in (0.02, 0.05, 0.1, 0.2)
    )

    def _train(self, bench: "Bench") -> tuple[Vector, Owns]:
        return bench.initial, self._join(bench)

    def _join(self, bench: "Bench") -> Owns:
        owns = dict.fromkeys(bench.names, bench.initial)
        for number in range(bench.rounds.n_rounds):
            owns.update(bench.trained(owns, bench.regime(number), number))
        return owns

    def _for_all(self, x: Any) -> Floats:
        return np.tile(np.log(self.overall_), (len(x), 1))


@dataclass(kw_only=True, eq=False, repr=False)
class DittoClassifier(Baseline):
    """Federated averaging with an additional network for each client [1]_.

    Who takes part in a round trains the network of all, and then goes on with its own, whose steps
    are pulled towards the network that it was sent. A client that comes later begins its own with
    the network of all, and is pulled towards that.

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
        Strength of the pull (lambda): a client's own network minimizes its loss plus
        ``proximal / 2`` times the squared distance.
    tuning_epochs : int
        Passes of a client that comes later.
    tuning_rate : float, optional
        Of their steps; by default that of the last round, at which weights have settled.

    References
    ----------
    .. [1] Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through
       Personalization", ICML 2021, Algorithm 1; for clients that come later Marfoq et al.,
       ICML 2022, Section 6.
    """

    grid: ClassVar[tuple[Mapping[str, Any], ...]] = tuple(
        {"proximal": value} for value in (0.01, 0.1, 1.0, 10.0)
    )

    proximal: float = 0.1
    tuning_epochs: int = 20
    tuning_rate: float | None = None

    def _check(self) -> None:
        check_not_negative("proximal", self.proximal)
        check_count("tuning_epochs", self.tuning_epochs)
        check_rate("tuning_rate", self.tuning_rate, optional=True)

    def _train(self, bench: "Bench") -> tuple[Vector, Owns]:
        weights: Vector = bench.initial
        owns = dict.fromkeys(bench.names, weights)
        for number in range(bench.rounds.n_rounds):
            sent = dict.fromkeys(bench.participants(number), weights)
            weights = bench.averaged(weights, bench.trained(sent, bench.regime(number), number))
            pulled = bench.regime(number, proximal=self.proximal)
            before = {name: owns[name] for name in sent}
            owns.update(bench.trained(before, pulled, number, anchors=sent))
        return weights, owns

    def _join(self, bench: "Bench") -> Owns:
        regime = bench.tuning(self.tuning_epochs, self.tuning_rate, proximal=self.proximal)
        return dict(bench.trained(dict.fromkeys(bench.names, self.weights_), regime, "tuning"))


@dataclass(kw_only=True, eq=False, repr=False)
class APFLClassifier(Baseline):
    """Each client's weights are a mixture: a share of its own, the rest of the network of all [1]_.

    Who takes part in a round trains the network of all, and in the same steps its own, by the slope
    of the mixture's loss. The mixture is one of weights, not of what two networks say. A client
    that comes later begins its own with the network of all, which stays.

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
    alpha : float
        Share of a client's own network in the mixture, from 0, federated averaging, to 1, training
        alone.
    tuning_epochs : int
        Passes of a client that comes later.
    tuning_rate : float, optional
        Of their steps; by default that of the last round, at which weights have settled.

    References
    ----------
    .. [1] Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning", 2020, Algorithm 1
       with a fixed alpha.
    """

    grid: ClassVar[tuple[Mapping[str, Any], ...]] = tuple(
        {"alpha": value} for value in (0.1, 0.3, 0.6, 0.9)
    )

    alpha: float = 0.5
    tuning_epochs: int = 20
    tuning_rate: float | None = None

    def _check(self) -> None:
        check_share("alpha", self.alpha)
        check_count("tuning_epochs", self.tuning_epochs)
        check_rate("tuning_rate", self.tuning_rate, optional=True)

    def _train(self, bench: "Bench") -> tuple[Vector, Owns]:
        weights: Vector = bench.initial
        owns = dict.fromkeys(bench.names, weights)
        for number in range(bench.rounds.n_rounds):
            starts = {name: (weights, owns[name]) for name in bench.participants(number)}
            ends = bench.trained_pairs(starts, bench.regime(number), number, share=self.alpha)
            weights = bench.averaged(weights, _kept(ends, owns))
        return weights, owns

    def _join(self, bench: "Bench") -> Owns:
        from fedneighbors.baselines._trainer import OWN

        starts = dict.fromkeys(bench.names, (self.weights_, self.weights_))
        regime = bench.tuning(self.tuning_epochs, self.tuning_rate)
        ends = bench.trained_pairs(starts, regime, "tuning", share=self.alpha, moving=(OWN,))
        return {name: own for name, (_, own) in ends}

    def _network_weights(self, own: Vector) -> Vector:
        return np.asarray(self.alpha * own + (1 - self.alpha) * self.weights_, own.dtype)


def _kept(ends: Any, owns: Owns) -> Any:
    """Yield the clients' shared networks; store their own in ``owns``."""
    for name, (ours, own) in ends:
        owns[name] = own
        yield name, ours
