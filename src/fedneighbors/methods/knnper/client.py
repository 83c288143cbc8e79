"""One client of a kNN-Per federation: its rows, its training, and what it keeps to itself."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedneighbors.federation.messages import Message
from fedneighbors.federation.roles import Refuse
from fedneighbors.methods.knnper.algorithm import weighted_change
from fedneighbors.methods.knnper.messages import (
    CountsReply,
    CountsRequest,
    MomentsReply,
    MomentsRequest,
    PoolReply,
    PoolRequest,
    Receipt,
    ReleaseRequest,
    SchemaRequest,
    TrainRequest,
    UpdateReply,
)
from fedneighbors.methods.knnper.networks.flat import Layout
from fedneighbors.methods.knnper.networks.network import Network
from fedneighbors.methods.knnper.personal import HeldOut, Personal, held_out_rows, personalized
from fedneighbors.methods.knnper.pool import pool_terms
from fedneighbors.methods.knnper.settings import MemorySettings
from fedneighbors.methods.knnper.training.regime import Regime
from fedneighbors.methods.knnper.training.trainer import LocalTask, Trainer
from fedneighbors.tables.labels import Label, label_positions
from fedneighbors.tables.moments import column_moments
from fedneighbors.tables.schema import describe

__all__ = ["FIXED_POINT", "KNNPerParty", "as_tensor", "regime_of", "shared_log_shares"]

Floats = npt.NDArray[np.float64]

FIXED_POINT = 32
"""Binary places of the terms of a pool."""


class KNNPerParty:
    """A client's rows and what it answers.

    Parameters
    ----------
    name : str
        Its name in the federation.
    x : array of shape (n_rows, ...)
        Its rows: numbers, which become those of the network's weights, or whole numbers that stand
        for tokens.
    y : array of shape (n_rows,)
        Labels: strings, integers, floats or booleans.
    network : Network
        The same for all clients.
    settings : MemorySettings, optional
        Of its memory.
    feature_names : tuple of str, optional
        Column names, where rows are those of a table.

    Attributes
    ----------
    x : Tensor of shape (n_rows, ...)
        Its rows as the network takes them, once training has begun.
    classes : tuple of labels
        Of the federation, once training has begun.
    personal : Personal or None
        Memory and mixture, once the final model is here.
    """

    accepts: tuple[type[Any], ...] = (
        SchemaRequest,
        MomentsRequest,
        CountsRequest,
        TrainRequest,
        ReleaseRequest,
        PoolRequest,
    )

    def __init__(
        self,
        name: str,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        network: Network,
        *,
        settings: MemorySettings | None = None,
        feature_names: tuple[str, ...] | None = None,
    ) -> None:
        if len(x) != len(y):
            raise ValueError(f"expected one label for each of {len(x)} rows, got {len(y)}")
        self.name = name
        self.network = network
        self.classes: tuple[Label, ...] = ()
        self.personal: Personal | None = None
        self.settings = settings or MemorySettings()
        self.layout = Layout(network)
        self.held_out = held_out_rows(len(y), self.settings, name)
        self.x = torch.empty(0)
        self._raw = np.asarray(x)
        self._y = np.asarray(y)
        self._feature_names = feature_names
        self._labels = np.empty(0, np.int64)
        self._found: HeldOut | None = None

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts``."""
        match request:
            case SchemaRequest():
                if request.layout != self.layout.digest:
                    raise Refuse("the network is not the one of the coordinator")
                table = self._raw.reshape(len(self._raw), -1)
                return describe(table, self._y, self._feature_names, "target")
            case MomentsRequest():
                moments = column_moments(self._raw)
                return MomentsReply(moments.n_rows, moments.sums, moments.squares)
            case CountsRequest():
                return self._counts(request)
            case TrainRequest():
                task = self.task(request)
                trainer = Trainer(self.network, self.x, self.targets, method="reuse")
                [state] = trainer.train([task], regime_of(request))
                return self.update(request, self.layout.vector(state))
            case ReleaseRequest():
                self._release(request)
                return Receipt()
            case PoolRequest():
                return self._pool(request)
        raise Refuse("unknown request")

    @property
    def n_rows(self) -> int:
        """Rows of the client."""
        return len(self._y)

    @property
    def targets(self) -> Tensor:
        """Positions of the labels among the classes."""
        return torch.from_numpy(self._labels)

    def rows(self, *, held_out: bool) -> npt.NDArray[np.int64]:
        """Return the rows to train on: all, or all but those held out."""
        return np.flatnonzero(~self.held_out if held_out else np.ones(self.n_rows, bool))

    def task(self, request: TrainRequest) -> LocalTask:
        """Return what the client is to train in a round."""
        return LocalTask(
            rows=self.rows(held_out=request.held_out),
            start=self.layout.state(request.weights),
            words=(request.seed, self.name, request.number),
        )

    def update(self, request: TrainRequest, after: npt.NDArray[Any]) -> UpdateReply:
        """Return what the client's new weights add to the sum."""
        n = len(self.rows(held_out=request.held_out))
        try:
            change = weighted_change(request.weights, after, n_rows=n, bits=request.bits)
        except FloatingPointError:
            raise Refuse("training has diverged: lower the learning rate") from None
        return UpdateReply(change)

    def _counts(self, request: CountsRequest) -> CountsReply:
        self.classes = request.classes
        self._labels = label_positions(self._y, request.classes, name="target")
        self.x = as_tensor(self._raw, request.center, request.scale, self.layout)
        own = self._labels[self.rows(held_out=request.held_out)]
        return CountsReply(np.bincount(own, minlength=len(request.classes)))

    def _seen(self, weights: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        return shared_log_shares(self.network, self.layout, weights, self.x)

    def _release(self, request: ReleaseRequest) -> None:
        keys, scores = self._seen(request.shared)
        if not request.final:
            self._found = HeldOut.of(
                keys, scores, self._labels, self.held_out, request.overall, self.settings
            )
            return
        self.personal = personalized(
            keys,
            self._labels,
            weight=0.0 if self._found is None else self._found.weight,
            overall=request.overall,
            pool=request.pool if len(request.pool) else None,
            settings=self.settings,
        )

    def _pool(self, request: PoolRequest) -> PoolReply:
        if self._found is None:
            raise Refuse("no model has come yet")
        terms = pool_terms(self._found.experts, self._found.labels, request.weights)
        return PoolReply(
            n_rows=terms.n_rows,
            loss=int(_fixed(np.array(terms.loss))),
            gradient=_fixed(terms.gradient),
            hessian=_fixed(terms.hessian),
        )


def _fixed(values: Floats) -> npt.NDArray[np.int64]:
    scaled = np.rint(np.ldexp(values, FIXED_POINT))
    if not (np.abs(scaled) < 2.0**56).all():
        raise Refuse("the pool's terms are too large to be added up")
    return scaled.astype(np.int64)


def regime_of(request: TrainRequest) -> Regime:
    """Return how a round asks to train."""
    return Regime(
        epochs=request.epochs,
        batch_size=request.batch_size,
        learning_rate=request.learning_rate,
        momentum=request.momentum,
        weight_decay=request.weight_decay,
        proximal=request.proximal,
    )


def as_tensor(x: npt.NDArray[Any], center: Floats, scale: Floats, layout: Layout) -> Tensor:
    """Return rows as a network takes them.

    Parameters
    ----------
    x : array of shape (n_rows, ...)
        Numbers, or whole numbers that stand for tokens.
    center, scale : float64 array of shape (n_features,)
        Of the columns; empty if they are left as they are.
    layout : Layout
        Of the network, whose type numbers get.
    """
    if len(center):
        x = (x - center) / scale
    if x.dtype.kind in "iu":
        return torch.from_numpy(np.ascontiguousarray(x, np.int64))
    return torch.from_numpy(np.ascontiguousarray(x)).to(layout.dtype)


def shared_log_shares(
    network: Network, layout: Layout, weights: npt.NDArray[Any], x: Tensor
) -> tuple[Floats, Floats]:
    """Return embeddings and logarithms of the shared model's shares, as float64 arrays."""
    embeddings, scores = network.seen(layout.state(weights), x)
    logs = torch.log_softmax(scores.double(), dim=1)
    return embeddings.double().numpy(), logs.numpy()
