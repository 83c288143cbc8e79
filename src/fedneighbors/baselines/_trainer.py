"""Where baselines train: the clients' rows in one table, one network, and weights as vectors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedneighbors.errors import PartyRefused
from fedneighbors.methods.knnper._settings import RoundSettings
from fedneighbors.methods.knnper.algorithm import averaged, scale_bits, weighted_change
from fedneighbors.methods.knnper.protocol import Shared
from fedneighbors.neural._network import Device, Network, State
from fedneighbors.neural._schedule import Regime
from fedneighbors.neural._trainer import CHUNK, LocalTask, Trainer

Vector = npt.NDArray[np.floating[Any]]
Ends = Iterable[tuple[str, Vector]]
"""Clients and their weights after training, as they come."""

DIVERGED = "training has diverged: lower the learning rate"


def head_places(network: Network) -> npt.NDArray[np.bool_]:
    """Return which weights of a vector are those of a network's head."""
    marks = network.state(np.zeros_like(network.initial))
    for name in network.head_names:
        marks[name] = torch.ones_like(marks[name])
    return np.asarray(network.vector(marks) > 0)


class Bench:
    """Clients that train side by side, and what is made of their weights.

    Parameters
    ----------
    network : Network
        What is trained.
    x : Tensor of shape (n_rows, ...)
        Rows of all clients.
    y : int64 array of shape (n_rows,)
        Positions of their labels among the classes.
    rows : mapping of str to int64 array
        Which rows are whose.
    shared : Shared
        Weights where training begins, and the classes' shares over all clients.
    rounds : RoundSettings
        How all train.
    method : {"auto", "stacked", "reuse"}
        As :class:`Trainer` takes it.
    device : {"cpu", "cuda", "auto"}
        Where they train.

    Attributes
    ----------
    names : tuple of str
        The clients, ascending.
    initial : float array of shape (n_weights,)
        Where training begins.
    head : bool array of shape (n_weights,)
        Which weights are those of the network's head.
    body : bool array of shape (n_weights,)
        Which are all others.
    overall : float64 array of shape (n_classes,)
        Shares of the classes over all clients that train.
    """

    def __init__(
        self,
        network: Network,
        x: Tensor,
        y: npt.NDArray[np.int64],
        rows: Mapping[str, npt.NDArray[np.int64]],
        shared: Shared,
        *,
        rounds: RoundSettings,
        method: Literal["auto", "stacked", "reuse"] = "auto",
        device: Device = "cpu",
    ) -> None:
        self.network, self.rounds = network, rounds
        self.x, self.y, self.rows = x, y, rows
        self.names = tuple(sorted(rows))
        self.initial: Vector = shared.weights
        self.overall = shared.overall
        self.head = head_places(network)
        self.body = ~self.head
        self.trainer = Trainer(network, x, torch.from_numpy(y), method=method, device=device)

    def federated_average(self, *, proximal: float = 0.0) -> Vector:
        """Return the weights after all rounds of federated averaging.

        Parameters
        ----------
        proximal : float
            Strength of the pull towards the weights that a client was sent.
        """
        weights: Vector = self.initial
        for number in range(self.rounds.n_rounds):
            sent = dict.fromkeys(self.participants(number), weights)
            ends = self.trained(sent, self.regime(number, proximal=proximal), number)
            weights = self.averaged(weights, ends)
        return weights

    def labels(self, name: str) -> npt.NDArray[np.int64]:
        """Return the positions of a client's labels."""
        return self.y[self.rows[name]]

    def n_rows(self, names: Iterable[str]) -> list[int]:
        """Return how many rows clients have."""
        return [len(self.rows[name]) for name in names]

    def participants(self, number: int) -> tuple[str, ...]:
        """Return who takes part in a round, from 0."""
        return self.rounds.participants(self.names, number)

    def regime(self, number: int, **changed: Any) -> Regime:
        """Return how clients train in a round, from 0."""
        rate = self.rounds.learning_rate(number)
        return replace(self.rounds.regime, **({"learning_rate": rate} | changed))

    def groups(self, names: Iterable[str]) -> list[list[str]]:
        """Return clients in as many groups as train one after another, in order of their names."""
        whole = sorted(names)
        return [whole[first : first + CHUNK] for first in range(0, len(whole), CHUNK)]

    def tuning(self, epochs: int, rate: float | None, *, proximal: float = 0.0) -> Regime:
        """Return how a client trains for itself; without a rate, at that of the last round."""
        regime = self.rounds.regime
        rate = self.rounds.learning_rate(self.rounds.n_rounds - 1) if rate is None else rate
        return replace(regime, epochs=epochs, learning_rate=rate, proximal=proximal)

    def trained(
        self,
        starts: Mapping[str, Vector],
        regime: Regime,
        *words: object,
        only: Sequence[str] | None = None,
        anchors: Mapping[str, Vector] | None = None,
    ) -> Iterator[tuple[str, Vector]]:
        """Yield each client's weights after its steps, some clients at a time.

        Parameters
        ----------
        starts : mapping of str to float array of shape (n_weights,)
            Who trains, and where its weights begin.
        regime : Regime
            How.
        *words : objects
            What tells these passes from others: the round, and which pass of it.
        only : sequence of str, optional
            Names of the parameters that move; by default all.
        anchors : mapping of str to float array of shape (n_weights,), optional
            Where a proximal term pulls to; by default where the weights begin.

        Raises
        ------
        PartyRefused
            If weights are no numbers any more: training has diverged.
        """
        for some in self.groups(starts):
            states = self._states(starts[name] for name in some)
            pulls = None if anchors is None else self._states(anchors[name] for name in some)
            tasks = [
                LocalTask(
                    self.rows[name],
                    states[place],
                    (self.rounds.seed, name, *words),
                    None if pulls is None else pulls[place],
                )
                for place, name in enumerate(some)
            ]
            ended = self.trainer.train(tasks, regime, only=only)
            for name, state in zip(some, ended, strict=True):
                yield name, self.finite(name, self.network.vector(state))

    def heads(self, starts: Mapping[str, Vector], regime: Regime) -> dict[str, Vector]:
        """Return what clients' heads come to when the body of their networks stays as it is.

        Parameters
        ----------
        starts : mapping of str to float array of shape (n_weights,)
            Who trains, and where its weights begin.
        regime : Regime
            How.
        """
        only = self.network.head_names
        ends = self.trained(starts, regime, "heads", only=only)
        return {name: whole[self.head] for name, whole in ends}

    def with_head(self, weights: Vector, head: Vector) -> Vector:
        """Return weights whose head is another."""
        whole = weights.copy()
        whole[self.head] = head
        return whole

    def averaged(self, before: Vector, ends: Ends, names: Sequence[str] | None = None) -> Vector:
        """Return the next weights of all when some have trained (Eq 13).

        Parameters
        ----------
        before : float array of shape (n_weights,)
            What they were sent; those who do not take part count with it.
        ends : pairs of str and float array of shape (n_weights,)
            Who has trained, and to which weights.
        names : sequence of str, optional
            Whose model it is; by default that of all.

        Raises
        ------
        PartyRefused
            If weights have moved further than any that can be added up.
        """
        n_rows = sum(self.n_rows(names or self.names))
        bits = scale_bits(n_rows)
        total = np.zeros(len(before), np.int64)
        for name, after in ends:
            try:
                own = weighted_change(before, after, n_rows=len(self.rows[name]), bits=bits)
            except FloatingPointError:
                raise PartyRefused(name, DIVERGED) from None
            total += own
        return averaged(before, total, n_rows=n_rows, bits=bits)

    def finite(self, name: str, weights: Vector) -> Vector:
        """Return a client's weights, if they are numbers.

        Raises
        ------
        PartyRefused
            If they are not.
        """
        if not np.isfinite(weights).all():
            raise PartyRefused(name, DIVERGED)
        return weights

    def _states(self, vectors: Iterable[Vector]) -> list[State]:
        """Return what vectors stand for; what several clients share is unpacked once."""
        kept = list(vectors)
        made: dict[int, State] = {}
        for vector in kept:
            if id(vector) not in made:
                made[id(vector)] = self.network.state(vector)
        return [made[id(vector)] for vector in kept]
