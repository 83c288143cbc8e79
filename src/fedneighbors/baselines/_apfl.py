"""For each client a mixture of a network of its own with the one that all train together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedneighbors.baselines._base import Rival, refuse_count, refuse_rate, refuse_share
from fedneighbors.baselines._prediction import Owns, Vector

if TYPE_CHECKING:  # it needs torch
    from fedneighbors.baselines._trainer import Bench


@dataclass(kw_only=True, eq=False, repr=False)
class APFLClassifier(Rival):
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
        refuse_share("alpha", self.alpha)
        refuse_count("tuning_epochs", self.tuning_epochs)
        refuse_rate("tuning_rate", self.tuning_rate, optional=True)

    def _learned(self, bench: "Bench") -> tuple[Vector, Owns]:
        from fedneighbors.baselines._pairs import trained_pairs

        weights: Vector = bench.initial
        owns = dict.fromkeys(bench.names, weights)
        for number in range(bench.rounds.n_rounds):
            starts = {name: (weights, owns[name]) for name in bench.participants(number)}
            ends = trained_pairs(bench, starts, bench.regime(number), number, share=self.alpha)
            weights = bench.averaged(weights, _kept(ends, owns))
        return weights, owns

    def _joined(self, bench: "Bench") -> Owns:
        from fedneighbors.baselines._pairs import OWN, trained_pairs

        starts = dict.fromkeys(bench.names, (self.weights_, self.weights_))
        regime = bench.tuning(self.tuning_epochs, self.tuning_rate)
        ends = trained_pairs(bench, starts, regime, "tuning", share=self.alpha, moving=(OWN,))
        return {name: own for name, (_, own) in ends}

    def _network_weights(self, own: Vector) -> Vector:
        return np.asarray(self.alpha * own + (1 - self.alpha) * self.weights_, own.dtype)


def _kept(ends: Any, owns: Owns) -> Any:
    """Yield what clients made of the network for all; their own is put to those of all clients."""
    for name, (ours, own) in ends:
        owns[name] = own
        yield name, ours
