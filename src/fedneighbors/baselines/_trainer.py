"""Agreement of clients before training, and their batched training."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fedneighbors._typing import Array, Booleans, Floats, Integers
from fedneighbors.baselines._dynamic_clients import Vector
from fedneighbors.baselines._linear_head import LinearHead
from fedneighbors.errors import PartyRefused
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.knnper._base import ClientClassifier
from fedneighbors.methods.knnper._client import shared_outputs
from fedneighbors.methods.knnper._settings import RoundSettings
from fedneighbors.methods.knnper.algorithm import average_changes, binary_places, weighted_change
from fedneighbors.methods.knnper.protocol import Shared
from fedneighbors.neural._blueprint import Blueprint, as_tensor, build_network, check_network
from fedneighbors.neural._network import Device, Network, State
from fedneighbors.neural._schedule import Regime
from fedneighbors.neural._trainer import MAX_STACKED, LocalTask, Objective, Trainer, cross_entropy
from fedneighbors.tabular._ownership import Holdings
from fedneighbors.tabular._schema import (
    JointSchema,
    Label,
    agree,
    column_moments,
    describe,
    label_positions,
    mean_and_deviation,
)

Ends = Iterable[tuple[str, Vector]]
"""Clients and their weights after training, in order of completion."""

Pair = tuple[Vector, Vector]
"""Weights of the shared network, and of a client's own network."""

PREFIXES = SHARED_PREFIX, CLIENT_PREFIX = "shared.", "client."
"""Prefixes of weight names when the two networks are trained as one."""

DIVERGED = "training has diverged: lower the learning rate"


@dataclass(frozen=True, eq=False)
class Agreement:
    """A network and the conversion of rows and labels to its inputs and targets.

    Parameters
    ----------
    network : Network
        Network to train.
    shared : Shared
        Classes and their shares, columns' means and deviations, and weights: initial ones, or those
        of a trained network.
    blueprint : Blueprint
        Description of the network.
    """

    network: Network
    shared: Shared
    blueprint: Blueprint

    @classmethod
    def new(
        cls, estimator: Any, holdings: Holdings, seed: int, reserved: tuple[Label, ...]
    ) -> "Agreement":
        """Return the agreement of all clients before training.

        Parameters
        ----------
        estimator : estimator
            Its parameters ``model``, ``embedding``, ``head``, ``hidden`` and ``standardize`` are
            read.
        holdings : Holdings
            The table and its owners.
        seed : int
            Seed of the initial weights.
        reserved : tuple of labels
            Classes that may occur later.

        Raises
        ------
        PartyRefused
            If a client's rows are invalid.
        DataError
            If the clients have fewer than two classes together, or the network's output is not
            finite.
        ValueError
            If the network does not accept the rows, or has another number of scores.
        """
        agreed = _agree_on_schema(holdings, reserved)
        shape = holdings.x.shape[1:]
        network = build_network(estimator, shape, len(agreed.classes), seed=seed)
        check_network(network, shape, len(agreed.classes), dtype_kind=holdings.x.dtype.kind)
        standardize = estimator.standardize and len(shape) == 1 and not network.reads_tokens
        center, scale = _center_and_scale(holdings.x) if standardize else (np.empty(0), np.empty(0))
        counts = np.bincount(label_positions(holdings.y, agreed.classes, name="target"))
        counts.resize(len(agreed.classes))
        overall = (counts + 1) / (counts.sum() + len(counts))
        shared = Shared(network.initial, agreed.classes, overall, None, center, scale, agreed)
        return cls(network, shared, Blueprint.of(estimator, shape, len(agreed.classes)))

    @classmethod
    def from_start(cls, start: Any, holdings: Holdings) -> "Agreement":
        """Return the agreement of a fitted estimator, for the rows of ``holdings``.

        Raises
        ------
        TypeError
            If ``start`` is not a classifier with a network.
        ValueError
            If the shape of its rows differs, or it lacks a label.
        """
        if not isinstance(start, ClientClassifier):
            raise TypeError(
                "expected start as a fitted KNNPerClassifier or baseline, got "
                f"{type(start).__name__}"
            )
        check_is_fitted(start)
        fitted: Any = start
        shape, labels = holdings.x.shape[1:], holdings.y
        if fitted._row_shape != shape:
            raise ValueError(
                f"start was trained on rows of shape {fitted._row_shape}, X has {shape}"
            )
        unknown = sorted(set(np.unique(labels).tolist()) - set(fitted.classes_.tolist()))
        if unknown:
            raise ValueError(
                f"start has the labels {fitted.classes_[:10].tolist()}, y also has {unknown[:5]}; "
                "list all labels in its classes="
            )
        return cls(fitted._network, fitted._shared, fitted._blueprint)

    @cached_property
    def head(self) -> Booleans:
        """Return a mask of the head's weights, shape (n_weights,)."""
        marks = self.network.state(np.zeros_like(self.network.initial))
        for name in self.network.head_names:
            marks[name] = torch.ones_like(marks[name])
        return np.asarray(self.network.vector(marks) > 0)

    def with_head(self, weights: Vector, head: Vector) -> Vector:
        """Return the weights with this head."""
        result = weights.copy()
        result[self.head] = head
        return result

    def tensor(self, x: Array) -> Tensor:
        """Return rows as network inputs."""
        return as_tensor(x, self.shared.center, self.shared.scale, self.network)

    def log_probabilities(self, weights: Vector, x: Tensor, device: Device) -> Floats:
        """Return log-probabilities of a network with these weights."""
        return shared_outputs(self.network, weights, x, device=device)[1]


def _agree_on_schema(holdings: Holdings, reserved: tuple[Label, ...]) -> JointSchema:
    """Return the common schema of the clients' rows."""
    described = {}
    for name, rows in holdings.owned.items():
        table = holdings.x[rows]
        table = table.reshape(len(table), -1)
        try:
            described[name] = describe(table, holdings.y[rows], holdings.feature_names, "target")
        except Refused as refuse:
            raise PartyRefused(name, refuse.code, refuse.detail) from None
    return agree(described, reserved)


def _center_and_scale(x: Array) -> tuple[Floats, Floats]:
    """Return the columns' means and deviations, 1 for constant columns."""
    mean, deviation = mean_and_deviation(column_moments(x))
    return mean, np.where(deviation > 0, deviation, 1.0)


class FederatedTrainer:
    """Clients that are trained together, and operations on their weights.

    Parameters
    ----------
    agreement : Agreement
        Network, classes and scales, and the weights at the beginning of training.
    holdings : Holdings
        Rows and labels; all labels are among the classes.
    rounds : RoundSettings
        Training settings.
    method : {"auto", "stacked", "reuse"}
        As in :class:`Trainer`.
    device : {"cpu", "cuda", "auto"}
        Device of the training.

    Attributes
    ----------
    names : tuple of str
        The clients, ascending.
    initial : float array of shape (n_weights,)
        Initial weights.
    head : bool array of shape (n_weights,)
        True for the head's weights.
    body : bool array of shape (n_weights,)
        True for all other weights.
    overall : float64 array of shape (n_classes,)
        Class shares over all training clients.
    """

    def __init__(
        self,
        agreement: Agreement,
        holdings: Holdings,
        rounds: RoundSettings,
        *,
        method: Literal["auto", "stacked", "reuse"] = "auto",
        device: Device = "cpu",
    ) -> None:
        self.agreement, self.network, self.rounds = agreement, agreement.network, rounds
        self.y: Integers = label_positions(holdings.y, agreement.shared.classes, name="target")
        self.x = agreement.tensor(holdings.x)
        indices = np.arange(len(self.y))
        self.rows = {name: indices[owned] for name, owned in holdings.owned.items()}
        self.names = tuple(sorted(self.rows))
        self.initial: Vector = agreement.shared.weights
        self.overall = agreement.shared.overall
        self.head = agreement.head
        self.body = ~self.head
        self._method, self._device = method, device
        self._local_trainer = self._make_local_trainer()

    def federated_average(self, *, proximal: float = 0.0) -> Vector:
        """Return the weights after all rounds of federated averaging.

        Parameters
        ----------
        proximal : float
            Strength of the proximal term towards the weights sent to a client.
        """
        weights: Vector = self.initial
        for number in range(self.rounds.limit):
            sent = dict.fromkeys(self.participants(number), weights)
            ends = self.train(sent, self.regime(number, proximal=proximal), number)
            weights = self.average(weights, ends)
        return weights

    def labels(self, name: str) -> Integers:
        """Return the class indices of a client's labels."""
        labels: Integers = self.y[self.rows[name]]
        return labels

    def n_rows(self, names: Iterable[str]) -> list[int]:
        """Return the number of rows of each client."""
        return [len(self.rows[name]) for name in names]

    def participants(self, number: int) -> tuple[str, ...]:
        """Return the participants of a round, counted from 0."""
        return self.rounds.participants(self.names, number)

    def regime(self, number: int, **changes: Any) -> Regime:
        """Return the local training settings of a round, counted from 0."""
        rate = self.rounds.learning_rate(number)
        return replace(self.rounds.regime, **({"learning_rate": rate} | changes))

    def groups(self, names: Iterable[str]) -> list[list[str]]:
        """Split clients into groups that train one after another."""
        ordered = sorted(names)
        return [
            ordered[first : first + MAX_STACKED] for first in range(0, len(ordered), MAX_STACKED)
        ]

    def tuning_regime(self, epochs: int, rate: float | None, *, proximal: float = 0.0) -> Regime:
        """Return the local training settings after the last round.

        If ``rate`` is None, the learning rate is that of the last round.
        """
        regime = self.rounds.regime
        rate = self.rounds.learning_rate(self.rounds.limit - 1) if rate is None else rate
        return replace(regime, epochs=epochs, learning_rate=rate, proximal=proximal)

    def train(
        self,
        starts: Mapping[str, Vector],
        regime: Regime,
        *seed_parts: object,
        only: Sequence[str] | None = None,
        anchors: Mapping[str, Vector] | None = None,
        objective: Objective | None = None,
    ) -> Iterator[tuple[str, Vector]]:
        """Yield each client's weights after training, group by group.

        Parameters
        ----------
        starts : mapping of str to float array of shape (n_weights,)
            Initial weights of each training client.
        regime : Regime
            Local training settings.
        *seed_parts : objects
            Further parts of the seed of the row order: the number of the round, the trained part
            of the network, or both.
        only : sequence of str, optional
            Names of the trained parameters; by default all.
        anchors : mapping of str to float array of shape (n_weights,), optional
            Center of a proximal term; by default the initial weights.
        objective : callable, optional
            Loss of a batch; by default the cross-entropy.

        Raises
        ------
        PartyRefused
            If weights are not finite: training has diverged.
        """
        local = self._make_local_trainer(objective) if objective else self._local_trainer
        for group in self.groups(starts):
            states = self._states(starts[name] for name in group)
            centers = None if anchors is None else self._states(anchors[name] for name in group)
            tasks = [
                LocalTask(
                    self.rows[name],
                    states[index],
                    (self.rounds.seed, name, *seed_parts),
                    None if centers is None else centers[index],
                )
                for index, name in enumerate(group)
            ]
            trained = local.train(tasks, regime, only=only)
            for name, state in zip(group, trained, strict=True):
                yield name, self.check_finite(name, self.network.vector(state))

    def train_heads(self, starts: Mapping[str, Vector], regime: Regime) -> dict[str, Vector]:
        """Return the clients' heads after training with a fixed body.

        Parameters
        ----------
        starts : mapping of str to float array of shape (n_weights,)
            Initial weights of each training client.
        regime : Regime
            Local training settings.
        """
        only = self.network.head_names
        ends = self.train(starts, regime, "heads", only=only)
        return {name: weights[self.head] for name, weights in ends}

    def train_pairs(
        self,
        starts: Mapping[str, Pair],
        regime: Regime,
        *seed_parts: object,
        alpha: float,
        trained: Sequence[str] = PREFIXES,
    ) -> Iterator[tuple[str, Pair]]:
        """Yield each client's two trained networks, group by group.

        In each step both networks use the same rows: the shared one follows the gradient of its own
        loss, the client's that of the mixture's loss.

        Parameters
        ----------
        starts : mapping of str to Pair
            Initial weights of each training client.
        regime : Regime
            Local training settings.
        *seed_parts : objects
            As in :meth:`train`.
        alpha : float
            Weight of the client's own network in the mixture.
        trained : sequence of str
            Networks to train: :data:`SHARED_PREFIX`, :data:`CLIENT_PREFIX` or both.

        Raises
        ------
        PartyRefused
            If weights are not finite: training has diverged.
        """
        local = self._make_local_trainer(MixtureLoss(alpha))
        only = [prefix + name for prefix in trained for name in self.network.parameter_names]
        for group in self.groups(starts):
            seeds = {name: (self.rounds.seed, name, *seed_parts) for name in group}
            tasks = [LocalTask(self.rows[n], self._pair_state(starts[n]), seeds[n]) for n in group]
            for name, state in zip(group, local.train(tasks, regime, only=only), strict=True):
                shared, own = (self.network.vector(_select(state, p)) for p in PREFIXES)
                yield name, (self.check_finite(name, shared), self.check_finite(name, own))

    @cached_property
    def linear_head(self) -> LinearHead:
        """Return the network's head, which must be one linear layer."""
        return LinearHead(self.network)

    def embed(self, weights: Mapping[str, Vector]) -> dict[str, Floats]:
        """Return each network's inputs of the head for its client's rows."""
        clients = ((weights[name], self.x[self.rows[name]]) for name in weights)
        points = self.linear_head.embed(clients, device=self._device)
        return dict(zip(weights, points, strict=True))

    def average(self, before: Vector, ends: Ends, names: Sequence[str] | None = None) -> Vector:
        """Return the shared weights after a round (kNN-Per paper, Eq 13).

        Parameters
        ----------
        before : float array of shape (n_weights,)
            Weights sent to the clients; absent clients count with these.
        ends : pairs of str and float array of shape (n_weights,)
            Trained weights by client.
        names : sequence of str, optional
            Clients to average over, including absent ones; by default all clients.

        Raises
        ------
        PartyRefused
            If a weight has changed by more than the fixed-point sums can represent.
        """
        n_rows = sum(self.n_rows(names or self.names))
        bits = binary_places(n_rows)
        total = np.zeros(len(before), np.int64)
        for name, after in ends:
            try:
                change = weighted_change(before, after, n_rows=len(self.rows[name]), bits=bits)
            except FloatingPointError:
                raise PartyRefused(name, DIVERGED) from None
            total += change
        return average_changes(before, total, n_rows=n_rows, bits=bits)

    def check_finite(self, name: str, weights: Vector) -> Vector:
        """Return a client's weights, which must be finite.

        Raises
        ------
        PartyRefused
            If they are not.
        """
        if not np.isfinite(weights).all():
            raise PartyRefused(name, DIVERGED)
        return weights

    def _states(self, vectors: Iterable[Vector]) -> list[State]:
        """Return the states of vectors; convert a vector that repeats only once."""
        all_vectors = list(vectors)  # keeps the ids unique
        states: dict[int, State] = {}
        for vector in all_vectors:
            if id(vector) not in states:
                states[id(vector)] = self.network.state(vector)
        return [states[id(vector)] for vector in all_vectors]

    def _pair_state(self, pair: Pair) -> State:
        """Return both networks' weights as one state."""
        states = zip(PREFIXES, map(self.network.state, pair), strict=True)
        return {prefix + name: state[name] for prefix, state in states for name in state}

    def _make_local_trainer(self, objective: Objective = cross_entropy) -> Trainer:
        """Return a trainer of these clients."""
        return Trainer(
            self.network,
            self.x,
            torch.from_numpy(self.y),
            method=self._method,
            objective=objective,
            device=self._device,
        )


class MixtureLoss:
    """Loss of the shared network plus the loss of a mixture in which that network is constant.

    Parameters
    ----------
    alpha : float
        Weight of the client's own network in the mixture.
    """

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def __call__(
        self, network: Network, state: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor
    ) -> Tensor:
        """Return the sum of both losses, weighted over a batch."""
        shared, own = _select(state, SHARED_PREFIX), _select(state, CLIENT_PREFIX)
        mixture = dict(own)
        for name in network.parameter_names:
            mixture[name] = self.alpha * own[name] + (1 - self.alpha) * shared[name].detach()
        return cross_entropy(network, shared, x, y, weights) + cross_entropy(
            network, mixture, x, y, weights
        )


def _select(state: Mapping[str, Tensor], prefix: str) -> State:
    """Return the weights of one of the two networks, without the prefix."""
    return {name[len(prefix) :]: state[name] for name in state if name.startswith(prefix)}
