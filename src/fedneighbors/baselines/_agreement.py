"""What training starts from: classes, columns brought to one scale, and a network."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fedneighbors._typing import Floats
from fedneighbors.baselines._trainer import Bench, Vector, head_places
from fedneighbors.errors import PartyRefused
from fedneighbors.federation._roles import Refuse
from fedneighbors.methods.knnper._base import ClientClassifier, ClientEstimator
from fedneighbors.methods.knnper._inputs import as_tensor, refuse_unsuited, shared_log_shares
from fedneighbors.methods.knnper._settings import RoundSettings
from fedneighbors.methods.knnper.protocol import Shared
from fedneighbors.neural._blueprint import chosen_network
from fedneighbors.neural._network import Device, Network
from fedneighbors.tabular._ownership import Holdings
from fedneighbors.tabular._schema import (
    Agreed,
    Label,
    agree,
    column_moments,
    describe,
    label_positions,
    mean_and_deviation,
)


@dataclass(frozen=True, eq=False)
class Ground:
    """A network, and how rows and labels reach it.

    Parameters
    ----------
    network : Network
        What is trained.
    shared : Shared
        Classes and their shares, columns' means and deviations; weights where training begins, or
        of a network that is trained already.
    """

    network: Network
    shared: Shared

    @classmethod
    def new(
        cls, asked: Any, holdings: Holdings, seed: int, reserved: tuple[Label, ...]
    ) -> "Ground":
        """Return what clients agree on before they train.

        Parameters
        ----------
        asked : estimator
            Its parameters ``model``, ``embedding``, ``head``, ``hidden`` and ``standardize`` are
            read.
        holdings : Holdings
            The table and its owners.
        seed : int
            From which the first weights follow.
        reserved : tuple of labels
            Classes that may come later.

        Raises
        ------
        PartyRefused
            If a client's rows cannot be used.
        DataError
            If the clients hold fewer than two classes together, or what the network gives is not
            finite.
        ValueError
            If the network does not take such rows, or gives another number of scores.
        """
        agreed = _agreed(holdings, reserved)
        shape = holdings.x.shape[1:]
        network = chosen_network(asked, shape, len(agreed.classes), seed=seed)
        refuse_unsuited(network, shape, len(agreed.classes), kind=holdings.x.dtype.kind)
        scales = asked.standardize and len(shape) == 1 and not network.reads_tokens
        center, scale = _columns(holdings.x) if scales else (np.empty(0), np.empty(0))
        counts = np.bincount(label_positions(holdings.y, agreed.classes, name="target"))
        counts.resize(len(agreed.classes))
        overall = (counts + 1) / (counts.sum() + len(counts))
        shared = Shared(network.initial, agreed.classes, overall, None, center, scale, agreed)
        return cls(network, shared)

    @classmethod
    def of(cls, start: Any, holdings: Holdings) -> "Ground":
        """Return that of a fitted estimator, if it is for such rows and labels.

        Raises
        ------
        TypeError
            If it is no classifier of clients.
        ValueError
            If it was trained on rows of another shape, or does not know all labels.
        """
        if not (isinstance(start, ClientClassifier) and isinstance(start, ClientEstimator)):
            raise TypeError(
                "expected start as a fitted KNNPerClassifier or baseline, got "
                f"{type(start).__name__}"
            )
        check_is_fitted(start)
        shape, labels = holdings.x.shape[1:], holdings.y
        if start._row_shape != shape:
            raise ValueError(
                f"start was trained on rows of shape {start._row_shape}, X has {shape}"
            )
        unknown = sorted(set(np.unique(labels).tolist()) - set(start.classes_.tolist()))
        if unknown:
            raise ValueError(
                f"start knows the labels {start.classes_[:10].tolist()}, y has {unknown[:5]} "
                "besides; name all labels in its classes="
            )
        return cls(start._network, start._shared)

    def bench(
        self, holdings: Holdings, rounds: RoundSettings, method: Any, device: Device
    ) -> Bench:
        """Return where clients train on their rows.

        Parameters
        ----------
        holdings : Holdings
            Rows and labels, all of which are among the classes.
        rounds : RoundSettings
            How all train.
        method : {"auto", "stacked", "reuse"}
            As :class:`~.training.trainer.Trainer` takes it.
        device : {"cpu", "cuda", "auto"}
            Where they train.
        """
        y = label_positions(holdings.y, self.shared.classes, name="target")
        places = np.arange(len(y))
        rows = {name: places[owned] for name, owned in holdings.owned.items()}
        x = self.tensor(holdings.x)
        return Bench(
            self.network,
            x,
            y,
            rows,
            self.shared,
            rounds=rounds,
            method=method,
            device=device,
        )

    @cached_property
    def head(self) -> npt.NDArray[np.bool_]:
        """Which weights are those of the network's head, shape (n_weights,)."""
        return head_places(self.network)

    def tensor(self, x: npt.NDArray[Any]) -> Tensor:
        """Return rows as the network takes them."""
        return as_tensor(x, self.shared.center, self.shared.scale, self.network)

    def log_shares(self, weights: Vector, x: Tensor, device: Device) -> Floats:
        """Return logarithms of the shares that a network with these weights gives."""
        return shared_log_shares(self.network, weights, x, device=device)[1]


def _agreed(holdings: Holdings, reserved: tuple[Label, ...]) -> Agreed:
    """Return what the clients' rows have in common, as the protocol finds it."""
    described = {}
    for name, rows in holdings.owned.items():
        table = holdings.x[rows]
        table = table.reshape(len(table), -1)
        try:
            described[name] = describe(table, holdings.y[rows], holdings.feature_names, "target")
        except Refuse as refuse:
            raise PartyRefused(name, refuse.code, refuse.detail) from None
    return agree(described, reserved)


def _columns(x: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    """Return mean and deviation of each column, as exact sums over the clients give them."""
    mean, deviation = mean_and_deviation(column_moments(x))
    return mean, np.where(deviation > 0, deviation, 1.0)
