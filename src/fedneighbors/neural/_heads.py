"""Heads that are trained alone: what stays is computed once for a row, not in every pass."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedneighbors.neural._network import Device, Network, State, copied
from fedneighbors.neural._tasks import LocalTask


@dataclass(frozen=True, eq=False)
class HeadsApart:
    """What a trainer of heads takes.

    Parameters
    ----------
    network : Network
        The head.
    x : Tensor of shape (n_rows + 1, ...)
        What the head takes of each row of each client; the first is zero, and stands in short
        batches.
    y : Tensor of shape (n_rows + 1, ...)
        Labels.
    tasks : list of LocalTask
        The clients.
    starts : list of State
        Where the weights of their whole networks begin.
    prefix : str
        With which the names of the head's weights begin in these.
    """

    network: Network
    x: Tensor
    y: Tensor
    tasks: list[LocalTask]
    starts: list[State]
    prefix: str

    def named(self, only: Sequence[str]) -> list[str]:
        """Return the names that the head has for some of its parameters."""
        return [f"head.{name.removeprefix(self.prefix)}" for name in only]

    def whole(self, heads: Sequence[State]) -> list[State]:
        """Return the weights of whole networks with heads that are trained."""
        own = [
            {self.prefix + name.removeprefix("head."): tensor for name, tensor in head.items()}
            for head in heads
        ]
        return [{**copied(start), **head} for start, head in zip(self.starts, own, strict=True)]


def heads_apart(
    network: Network, tasks: Sequence[LocalTask], x: Tensor, y: Tensor, *, device: Device
) -> HeadsApart | None:
    """Return what a trainer needs that moves nothing but heads.

    Parameters
    ----------
    network : Network
        Whose head is trained.
    tasks : sequence of LocalTask
        The clients.
    x, y : Tensor
        Rows and labels of all clients.
    device : {"cpu", "cuda", "auto"}
        Where it is computed, and stays.

    Returns
    -------
    HeadsApart or None
        None where no client has rows, or where the head is not a single layer that gives the
        network's scores: such a network is trained as a whole.
    """
    head, prefix = network.head_network(), f"{network.head[0]}."
    rows = [torch.from_numpy(task.rows) for task in tasks if len(task.rows)]
    if head is None or not rows:
        return None
    starts = [task.start for task in tasks if len(task.rows)]
    parts = zip(starts, (x[own] for own in rows), strict=True)
    seen = network.before_head(parts, device=device)
    if seen is None:
        return None
    ends = 1 + np.cumsum([len(task.rows) for task in tasks])
    apart = [
        replace(
            task,
            rows=np.arange(end - len(task.rows), end),
            start=_head_of(task.start, prefix),
            anchor=None if task.anchor is None else _head_of(task.anchor, prefix),
        )
        for task, end in zip(tasks, ends, strict=True)
    ]
    return HeadsApart(
        head,
        torch.cat([torch.zeros_like(seen[0][:1]), *seen]),
        torch.cat([y[:1], *(y[own] for own in rows)]),
        apart,
        [task.start for task in tasks],
        prefix,
    )


def _head_of(state: State, prefix: str) -> State:
    """Return the part of a state that is the head's, under the names that it has alone."""
    return {
        f"head.{name.removeprefix(prefix)}": tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
