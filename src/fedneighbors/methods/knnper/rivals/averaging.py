"""Federated averaging, plain and with a pull back to the network that was sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedneighbors.methods.knnper.rivals.frame import Rival
from fedneighbors.methods.knnper.rivals.ranges import refuse_negative
from fedneighbors.methods.knnper.rivals.serving import NOTHING, Owns, Vector

if TYPE_CHECKING:  # it needs torch
    from fedneighbors.methods.knnper.rivals.bench import Bench

__all__ = ["FedProxClassifier", "federated_average"]


def federated_average(bench: "Bench", *, proximal: float = 0.0) -> Vector:
    """Return the network that all clients train together.

    Parameters
    ----------
    bench : Bench
        The clients.
    proximal : float
        Pull of each client's steps towards the network that it was sent.

    Returns
    -------
    float array of shape (n_weights,)

    References
    ----------
    .. [1] McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-Efficient Learning of
       Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1; averaged as Eq 13 of
       Marfoq et al., ICML 2022.
    """
    weights: Vector = bench.initial
    for number in range(bench.rounds.n_rounds):
        sent = dict.fromkeys(bench.participants(number), weights)
        ends = bench.trained(sent, bench.regime(number, proximal=proximal), number)
        weights = bench.averaged(weights, ends)
    return weights


@dataclass(kw_only=True, eq=False, repr=False)
class FedProxClassifier(Rival):
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

    grid: ClassVar[tuple[Mapping[str, Any], ...]] = tuple(
        {"proximal": value} for value in (0.001, 0.01, 0.1, 1.0)
    )

    proximal: float = 0.01

    def _check(self) -> None:
        refuse_negative("proximal", self.proximal)

    def _learned(self, bench: "Bench") -> tuple[Vector, Owns]:
        return federated_average(bench, proximal=self.proximal), self._joined(bench)

    def _fits(self, own: Vector) -> bool:
        return len(own) == 0

    def _joined(self, bench: "Bench") -> Owns:
        return dict.fromkeys(bench.names, NOTHING)
