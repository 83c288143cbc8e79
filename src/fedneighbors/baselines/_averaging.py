"""Federated averaging, plain and with a pull back to the network that was sent."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedneighbors.baselines._base import Rival, refuse_negative
from fedneighbors.baselines._prediction import NOTHING, Owns, Vector
from fedneighbors.methods.knnper._membership import Classifying
from fedneighbors.tabular._ownership import Holdings

if TYPE_CHECKING:
    from fedneighbors.baselines._trainer import Bench


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


@dataclass(kw_only=True, eq=False, repr=False)
class Started(Rival):
    """Base of the methods that make something of the network that all clients trained together.

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
    start : fitted KNNPerClassifier or rival, optional
        Whose network is taken over, as it is, in place of training one; it should be one of the
        same clients and rows. What is said of the network and of rounds then means nothing. A
        clone of the estimator has the same one.
    """

    start: Any = None

    def __sklearn_clone__(self) -> Self:
        """Return an estimator that is not fitted and takes over the same network."""
        fresh: Self = super().__sklearn_clone__()
        fresh.start = self.start
        return fresh

    def _learned(self, bench: "Bench") -> tuple[Vector, Owns]:
        weights = federated_average(bench) if self.start is None else bench.initial
        return weights, self._made(bench, weights)

    def _joined(self, bench: "Bench") -> Owns:
        return self._made(bench, self.weights_)

    @abstractmethod
    def _made(self, bench: "Bench", weights: Vector) -> Owns:
        """Return what each client makes of the network for itself.

        Parameters
        ----------
        bench : Bench
            The clients, which may be those that come later.
        weights : float array of shape (n_weights,)
            Of the network.
        """

    def _drawn_up(self, ground: Any) -> Any:
        return super()._drawn_up(ground) if self.start is None else self.start._blueprint

    def _found_ground(self, holdings: Holdings) -> Any:
        if self.start is None:
            return super()._found_ground(holdings)
        from fedneighbors.baselines._agreement import Ground

        start = _checked(self.start, holdings)
        return Ground(start._network, start._shared)


def _checked(start: Any, holdings: Holdings) -> Any:
    """Return whose network is taken over, if it is for such rows and labels."""
    if not isinstance(start, Classifying):
        raise TypeError(
            f"expected start as a fitted KNNPerClassifier or rival, got {type(start).__name__}"
        )
    check_is_fitted(start)
    shape, labels = holdings.x.shape[1:], holdings.y
    if start._row_shape != shape:
        raise ValueError(f"start was trained on rows of shape {start._row_shape}, X has {shape}")
    unknown = sorted(set(np.unique(labels).tolist()) - set(start.classes_.tolist()))
    if unknown:
        raise ValueError(
            f"start knows the labels {start.classes_[:10].tolist()}, y has {unknown[:5]} besides; "
            "name all labels in its classes="
        )
    return start


@dataclass(kw_only=True, eq=False, repr=False)
class FedAvgClassifier(Started):
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
    start : fitted KNNPerClassifier or rival, optional
        Whose network is taken over in place of training one.

    References
    ----------
    .. [1] McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-Efficient Learning of
       Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1.
    """

    grid: ClassVar[tuple[Mapping[str, Any], ...]] = tuple(
        {"learning_rate": value} for value in (0.01, 0.02, 0.05, 0.1)
    )

    def _made(self, bench: "Bench", _weights: Vector) -> Owns:
        return dict.fromkeys(bench.names, NOTHING)

    def _fits(self, own: Vector) -> bool:
        return len(own) == 0
