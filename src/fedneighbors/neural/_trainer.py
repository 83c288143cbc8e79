"""Training of client networks, one after another or as one batched product.

If only heads are trained, the inputs of the heads are computed once per row, not in every pass.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedneighbors._typing import Integers
from fedneighbors.neural._network import Device, Network, State, clone, repeatable, torch_device
from fedneighbors.neural._schedule import (
    BatchPlan,
    Regime,
    batch_plan,
    derive_seed,
    row_order,
)


@dataclass(frozen=True, eq=False)
class LocalTask:
    """Training task of one client.

    Parameters
    ----------
    rows : int64 array of shape (n_rows,)
        The client's rows in the trainer's table.
    start : State
        Initial weights.
    words : tuple
        Seed of the row order: seed, client, round.
    anchor : State, optional
        Center of the proximal term; by default the initial weights.
    """

    rows: Integers
    start: State
    words: tuple[object, ...]
    anchor: State | None = None


class SplitHeads(NamedTuple):
    """Inputs for training heads only: the head, its inputs and labels, and the clients' tasks.

    The first row is zero and fills short batches.
    """

    network: Network
    x: Tensor
    y: Tensor
    tasks: list[LocalTask]


def split_heads(
    network: Network, tasks: Sequence[LocalTask], x: Tensor, y: Tensor, *, device: Device
) -> SplitHeads | None:
    """Return the inputs for training heads only.

    None if no client has rows, or if the head is not a single layer whose output is the network's
    scores: such a network is trained as a whole.
    """
    head = network.head_network()
    rows = [torch.from_numpy(task.rows) for task in tasks if len(task.rows)]
    if head is None or not rows:
        return None
    starts = [task.start for task in tasks if len(task.rows)]
    parts = zip(starts, (x[own] for own in rows), strict=True)
    seen = network.before_head(parts, device=device)
    if seen is None:
        return None
    ends = 1 + np.cumsum([len(task.rows) for task in tasks])
    split = [
        replace(
            task,
            rows=np.arange(end - len(task.rows), end),
            start=_head_state(task.start, network),
            anchor=task.anchor and _head_state(task.anchor, network),
        )
        for task, end in zip(tasks, ends, strict=True)
    ]
    return SplitHeads(
        head,
        torch.cat([torch.zeros_like(seen[0][:1]), *seen]),
        torch.cat([y[:1], *(y[own] for own in rows)]),
        split,
    )


def _head_state(state: State, network: Network) -> State:
    """Return the head's part of a state, under its own names."""
    prefix = f"{network.head[0]}."
    own = {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
    return {_own_name(name, network): tensor for name, tensor in own.items()}


def _own_name(name: str, network: Network) -> str:
    return f"head.{name.removeprefix(f'{network.head[0]}.')}"


Objective = Callable[[Network, Mapping[str, Tensor], Tensor, Tensor, Tensor], Tensor]
"""Function of network, state, rows, labels and weights; returns the weighted loss of a batch."""

CHUNK = 128
"""Maximum number of clients trained as one product; it bounds the memory."""

STACKED_BYTES = 6 * 2**20
"""Maximum bytes of weights trained as one product; more do not stay in the CPU's cache."""


def cross_entropy(
    network: Network, state: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor
) -> Tensor:
    """Return the weighted negative log-likelihood of classes."""
    logs = torch.log_softmax(network.scores(state, x), dim=-1)
    return -(logs.gather(1, y[:, None]).squeeze(1) * weights).sum()


def squared_error(
    network: Network, state: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor
) -> Tensor:
    """Return the weighted half squared errors, summed over outputs."""
    scores = network.scores(state, x)
    if scores.shape != y.shape:
        raise ValueError(
            f"expected a network with {y.shape[-1]} outputs, got scores of shape "
            f"{tuple(scores.shape)} for {len(y)} rows; change its last layer"
        )
    return (((scores - y) ** 2).sum(dim=1) * weights).sum() / 2


class Trainer:
    """Local training of clients whose rows are in one table.

    Parameters
    ----------
    network : Network
        Network to train.
    x, y : Tensor
        Rows and labels of all clients.
    method : {"auto", "stacked", "reuse"}
        ``"stacked"`` trains the clients together, each layer as one batched product; ``"reuse"``
        trains one after another. They agree up to rounding. ``"auto"`` stacks networks that allow
        it, except those with convolutions, where stacking is slower.
    objective : callable
        Loss to minimize.
    device : {"cpu", "cuda", "auto"}
        Device of the steps. States come from, and return to, the CPU.

    Raises
    ------
    ValueError
        If the method or device is unknown, or the network cannot be stacked.
    MissingDeviceError
        If a GPU is requested and there is none.
    """

    def __init__(
        self,
        network: Network,
        x: Tensor,
        y: Tensor,
        *,
        method: Literal["auto", "stacked", "reuse"] = "auto",
        objective: Objective = cross_entropy,
        device: Device = "cpu",
    ) -> None:
        if method not in ("auto", "stacked", "reuse"):
            raise ValueError(f"expected method 'auto', 'stacked' or 'reuse', got {method!r}")
        if method == "stacked" and not network.stacks:
            raise ValueError(
                "networks with batch normalization, dropout or recurrent layers cannot be stacked; "
                "use method='reuse'"
            )
        stackable = network.stacks and not network.convolves
        stacked = method == "stacked" or (method == "auto" and stackable)
        self._place = torch_device(device)
        self.device: Device = device
        self.network, self.x, self.y = network, x.to(self._place), y.to(self._place)
        self.method: Literal["stacked", "reuse"] = "stacked" if stacked else "reuse"
        self._objective = objective

    def train(
        self, tasks: Sequence[LocalTask], regime: Regime, *, only: Sequence[str] | None = None
    ) -> list[State]:
        """Return the weights of each client after its steps.

        Parameters
        ----------
        tasks : sequence of LocalTask
            One task per client. A client without rows keeps its weights, and so does one with a
            single row if the network has batch normalization.
        regime : Regime
            Settings of the training.
        only : sequence of str, optional
            Names of the trained parameters; by default all.

        Raises
        ------
        ValueError
            If batch normalization would get batches of one row.
        """
        if regime.batch_size < self.network.least_rows:
            raise ValueError(
                "batch normalization needs two rows in a batch; raise batch_size to 2 or more"
            )
        if self.network.body_names and self.network.head_only(only):
            found = self._train_heads(tasks, regime, only or ())
            if found is not None:
                return found
        size = self._n_stacked() if self.method == "stacked" else 1
        ended: list[State] = []
        self.network.prepare(only)
        cards = [self._place] if self._place.type == "cuda" else []
        with torch.random.fork_rng(devices=cards), repeatable(self._place):
            for first in range(0, len(tasks), size):
                # dropout is seeded by the first client: there is only one
                self._set_seed(derive_seed(*tasks[first].words, n_bytes=8))
                ended += self._train_stacked(tasks[first : first + size], regime, only)
        return ended

    def _train_heads(
        self, tasks: Sequence[LocalTask], regime: Regime, only: Sequence[str]
    ) -> list[State] | None:
        """Train the heads separately and return whole networks, or None."""
        split = split_heads(self.network, tasks, self.x, self.y, device=self.device)
        if split is None:
            return None
        trainer = Trainer(
            *split[:3], method=self.method, objective=self._objective, device=self.device
        )
        own = [_own_name(name, self.network) for name in only]
        heads = trainer.train(split.tasks, regime, only=own)
        prefix = f"{self.network.head[0]}."
        return [
            {**clone(task.start), **{prefix + k.removeprefix("head."): v for k, v in head.items()}}
            for task, head in zip(tasks, heads, strict=True)
        ]

    def _n_stacked(self) -> int:
        """Return the number of clients whose weights fit in the cache together."""
        own = sum(part.nbytes for part in self.network.module.parameters())
        return min(CHUNK, max(1, STACKED_BYTES // own))

    def _set_seed(self, seed: int) -> None:
        """Set the seed of torch's default generator."""
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 500 times as long
        if self._place.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _train_stacked(
        self, tasks: Sequence[LocalTask], regime: Regime, only: Sequence[str] | None
    ) -> list[State]:
        passes = [
            [task.rows[row_order(len(task.rows), *task.words, n)] for n in range(regime.epochs)]
            for task in tasks
        ]
        plan = batch_plan(passes, regime.batch_size, least_rows=self.network.least_rows)
        state = self._stack([tasks[client].start for client in plan.order])
        names = self.network.parameter_names if only is None else tuple(only)
        anchor = None
        if regime.proximal:
            anchors = [tasks[client].anchor or tasks[client].start for client in plan.order]
            anchor = self._stack([{name: each[name] for name in names} for each in anchors])
        self._descend(state, plan, regime, names, anchor)
        places = {int(client): place for place, client in enumerate(plan.order)}
        return [
            {name: tensor[places[n]].clone().cpu() for name, tensor in state.items()}
            for n in range(len(tasks))
        ]

    def _descend(
        self,
        state: State,
        plan: BatchPlan,
        regime: Regime,
        names: Sequence[str],
        anchor: Mapping[str, Tensor] | None,
    ) -> None:
        """Run the steps; update the stacked weights in place."""
        velocity = {name: torch.zeros_like(state[name]) for name in names}
        for rows, weights in zip(plan.rows, plan.weights, strict=True):
            n = len(rows)
            index = torch.from_numpy(rows)
            batch = self.x[index], self.y[index], torch.from_numpy(weights).to(self._place)
            grads = self._grads({k: v[:n] for k, v in state.items()}, batch, names)
            with torch.no_grad():
                for name, grad in zip(names, grads, strict=True):
                    place, step = state[name][:n], velocity[name][:n]
                    step.mul_(regime.momentum).add_(place, alpha=regime.weight_decay)
                    if anchor is not None:
                        step.add_(place - anchor[name][:n], alpha=regime.proximal)
                    step.add_(grad)  # one call: gradients of stacked layers are transposed
                    place.sub_(step, alpha=regime.learning_rate)

    def _grads(
        self, state: State, batch: tuple[Tensor, Tensor, Tensor], names: Sequence[str]
    ) -> tuple[Tensor, ...]:
        """Return the gradients of each client's batch, stacked."""
        moving = {name: state[name].detach().requires_grad_() for name in names}
        whole, kind = {**state, **moving}, next(iter(moving.values())).dtype
        batch = (*batch[:2], batch[2].to(kind))
        if self.method == "stacked":
            losses = vmap(lambda s, x, y, w: self._objective(self.network, s, x, y, w))(
                whole, *batch
            )
        else:
            alone = {name: tensor[0] for name, tensor in whole.items()}
            losses = self._objective(self.network, alone, *(part[0] for part in batch))
        # a layer that does not affect the scores has zero gradients
        return torch.autograd.grad(losses.sum(), list(moving.values()), materialize_grads=True)

    def _stack(self, states: Sequence[State]) -> State:
        """Return the stacked states on the device of the steps.

        Matrices are stored transposed like the gradients of stacked linear layers: a round takes 30
        % less time. Filters of images are stored channels last for fast convolutions.
        """
        stacked = {
            name: torch.stack([state[name] for state in states]).to(self._place)
            for name in states[0]
        }
        return {name: _lay_out(tensor) for name, tensor in stacked.items()}


def _lay_out(tensor: Tensor) -> Tensor:
    if tensor.ndim == 3:
        return tensor.mT.contiguous().mT
    if tensor.ndim == 5:
        return tensor.movedim(2, -1).contiguous().movedim(-1, 2)
    return tensor
