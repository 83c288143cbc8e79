"""Two networks that train side by side at each client: one for all, and one of its own."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedneighbors.baselines._trainer import Bench, Vector
from fedneighbors.neural._network import Network, State
from fedneighbors.neural._schedule import Regime
from fedneighbors.neural._trainer import LocalTask, Trainer, cross_entropy

Pair = tuple[Vector, Vector]
"""Weights of the network for all, and of a client's own."""

OURS, OWN = "for all.", "own."
"""What the names of the two networks' weights begin with."""


class MixtureLoss:
    """Loss of the network for all, and of a mixture in which it is held fast.

    Parameters
    ----------
    share : float
        Of the client's own network in the mixture (alpha).
    """

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(
        self, network: Network, state: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor
    ) -> Tensor:
        """Return the sum of both losses, weighted over the rows of a batch."""
        ours, own = _part(state, OURS), _part(state, OWN)
        mixture = dict(own)
        for name in network.parameter_names:
            mixture[name] = self.share * own[name] + (1 - self.share) * ours[name].detach()
        return cross_entropy(network, ours, x, y, weights) + cross_entropy(
            network, mixture, x, y, weights
        )


def trained_pairs(
    bench: Bench,
    starts: Mapping[str, Pair],
    regime: Regime,
    *words: object,
    share: float,
    moving: Sequence[str] = (OURS, OWN),
) -> Iterator[tuple[str, Pair]]:
    """Yield each client's two networks after their steps, some clients at a time.

    In each step both see the same rows: the network for all moves by the slope of its own loss, the
    client's by that of the mixture's.

    Parameters
    ----------
    bench : Bench
        The clients.
    starts : mapping of str to Pair
        Who trains, and where its weights begin.
    regime : Regime
        How.
    *words : objects
        What tells these passes from others.
    share : float
        Of the client's own network in the mixture.
    moving : sequence of str
        Which of the two move: :data:`OURS`, :data:`OWN` or both.

    Raises
    ------
    PartyRefused
        If weights are no numbers any more: training has diverged.
    """
    trainer = Trainer(
        bench.network,
        bench.x,
        torch.from_numpy(bench.y),
        method=bench.trainer.method,
        objective=MixtureLoss(share),
        device=bench.trainer.device,
    )
    only = [start + name for start in moving for name in bench.network.parameter_names]
    for some in bench.groups(starts):
        tasks = [
            LocalTask(bench.rows[n], _joined(bench, starts[n]), (bench.rounds.seed, n, *words))
            for n in some
        ]
        ended = trainer.train(tasks, regime, only=only)
        for name, state in zip(some, ended, strict=True):
            ours, own = (bench.network.vector(_part(state, start)) for start in (OURS, OWN))
            yield name, (bench.finite(name, ours), bench.finite(name, own))


def _joined(bench: Bench, pair: Pair) -> State:
    ours, own = (bench.network.state(vector) for vector in pair)
    return {OURS + name: ours[name] for name in ours} | {OWN + name: own[name] for name in own}


def _part(state: Mapping[str, Tensor], start: str) -> State:
    """Return one of the two networks."""
    return {name[len(start) :]: state[name] for name in state if name.startswith(start)}
