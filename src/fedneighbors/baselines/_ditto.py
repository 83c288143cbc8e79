"""A network of its own for each client, held near the one that all train together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedneighbors.baselines._base import Rival, refuse_count, refuse_negative, refuse_rate
from fedneighbors.baselines._prediction import Owns, Vector

if TYPE_CHECKING:  # it needs torch
    from fedneighbors.baselines._trainer import Bench


@dataclass(kw_only=True, eq=False, repr=False)
class DittoClassifier(Rival):
    """Federated averaging, and beside it a network of its own for each client [1]_.

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
        refuse_negative("proximal", self.proximal)
        refuse_count("tuning_epochs", self.tuning_epochs)
        refuse_rate("tuning_rate", self.tuning_rate, optional=True)

    def _learned(self, bench: "Bench") -> tuple[Vector, Owns]:
        weights: Vector = bench.initial
        owns = dict.fromkeys(bench.names, weights)
        for number in range(bench.rounds.n_rounds):
            sent = dict.fromkeys(bench.participants(number), weights)
            weights = bench.averaged(weights, bench.trained(sent, bench.regime(number), number))
            pulled = bench.regime(number, proximal=self.proximal)
            before = {name: owns[name] for name in sent}
            owns.update(bench.trained(before, pulled, number, anchors=sent))
        return weights, owns

    def _joined(self, bench: "Bench") -> Owns:
        regime = bench.tuning(self.tuning_epochs, self.tuning_rate, proximal=self.proximal)
        return dict(bench.trained(dict.fromkeys(bench.names, self.weights_), regime, "tuning"))
