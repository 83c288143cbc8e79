"""Local training of clients, one after another or together as one batched product.

If only heads are trained, the inputs of the heads are computed once, not in every pass.
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
from fedneighbors.neural._schedule import BatchPlan, Regime, batch_plan, derive_seed, row_order


@dataclass(frozen=True, eq=False)
class LocalTask:
    """Training of one client in one round.

    Parameters
    ----------
    rows : int64 array of shape (n_rows,)
        The client's rows in the trainer's table.
    start : State
        Initial weights.
    seed_parts : tuple
        Values that determine the row order and dropout, such as seed, client and round.
    anchor : State, optional
        Center of the proximal term; by default the initial weights.
    """

    rows: Integers
    start: State
    seed_parts: tuple[object, ...]
    anchor: State | None = None


class SplitHeads(NamedTuple):
    """Head as a network, its inputs ``x``, the labels and the clients' tasks.

    The first row is zero: short batches are padded with it.
    """

    network: Network
    x: Tensor
    y: Tensor
    tasks: list[LocalTask]


def split_heads(
    network: Network, tasks: Sequence[LocalTask], x: Tensor, y: Tensor, *, device: Device
) -> SplitHeads | None:
    """Return the head as a network, with its inputs, labels and tasks.

    The result is None, and the network must be trained as a whole, if no client has rows or the
    head is not a single layer with a single input and the network's scores as output.
    """
    head = network.head_network()
    rows = [torch.from_numpy(task.rows) for task in tasks if len(task.rows)]
    if head is None or not rows:
        return None
    starts = [task.start for task in tasks if len(task.rows)]
    clients = zip(starts, (x[client_rows] for client_rows in rows), strict=True)
    inputs = network.before_head(clients, device=device)
    if inputs is None:
        return None
    ends = 1 + np.cumsum([len(task.rows) for task in tasks])
    head_tasks = [
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
        torch.cat([torch.zeros_like(inputs[0][:1]), *inputs]),
        torch.cat([y[:1], *(y[client_rows] for client_rows in rows)]),
        head_tasks,
    )


def _head_state(state: State, network: Network) -> State:
    """Return the head's part of a state, under the head's names."""
    prefix = f"{network.head[0]}."
    of_head = {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
    return {_head_parameter_name(name, network): tensor for name, tensor in of_head.items()}


def _head_parameter_name(name: str, network: Network) -> str:
    return f"head.{name.removeprefix(f'{network.head[0]}.')}"


Objective = Callable[[Network, Mapping[str, Tensor], Tensor, Tensor, Tensor], Tensor]
"""Function of network, state, rows, labels and row weights that returns a batch's weighted loss."""

MAX_STACKED = 128
"""Maximum number of clients trained as one batched product; it bounds the memory."""

MAX_STACKED_BYTES = 6 * 2**20
"""Maximum bytes of parameters trained as one product; more do not fit into the CPU's cache."""


def cross_entropy(
    network: Network, state: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor
) -> Tensor:
    """Return the sum of weighted negative log-likelihoods of the labels."""
    return cross_entropy_of_scores(network.scores(state, x), y, weights)


def cross_entropy_of_scores(scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return :func:`cross_entropy` for given scores."""
    logs = torch.log_softmax(scores, dim=-1)
    return -(logs.gather(1, y[:, None]).squeeze(1) * weights).sum()


def squared_error(
    network: Network, state: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor
) -> Tensor:
    """Return the sum of weighted half squared errors over rows and outputs."""
    scores = network.scores(state, x)
    if scores.shape != y.shape:
        raise ValueError(
            f"expected a network with {y.shape[-1]} outputs, got scores of shape "
            f"{tuple(scores.shape)} for {len(y)} rows; change its last layer"
        )
    return (((scores - y) ** 2).sum(dim=1) * weights).sum() / 2


class Trainer:
    """Local training of clients whose rows are joined in one table.

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
        Function that computes the loss of a batch, see :data:`Objective`.
    device : {"cpu", "cuda", "auto"}
        Device of the steps. States are on the CPU before and after.

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
        if method == "stacked" and not network.is_stackable:
            raise ValueError(
                "networks with batch normalization, dropout or recurrent layers cannot be stacked; "
                "use method='reuse'"
            )
        stackable = network.is_stackable and not network.has_convolutions
        stacked = method == "stacked" or (method == "auto" and stackable)
        self._torch_device = torch_device(device)
        self.device: Device = device
        self.network, self.x, self.y = network, x.to(self._torch_device), y.to(self._torch_device)
        self.method: Literal["stacked", "reuse"] = "stacked" if stacked else "reuse"
        self._objective = objective

    def train(
        self, tasks: Sequence[LocalTask], regime: Regime, *, only: Sequence[str] | None = None
    ) -> list[State]:
        """Return the weights of each client after its training.

        Parameters
        ----------
        tasks : sequence of LocalTask
            One task per client. The weights do not change for a client without rows, and for one
            with a single row if the network has batch normalization.
        regime : Regime
            Settings of the training.
        only : sequence of str, optional
            Names of the trained parameters; by default all.

        Raises
        ------
        ValueError
            If batch normalization would get batches of one row.
        """
        if regime.batch_size < self.network.min_rows:
            raise ValueError(
                "batch normalization needs two rows in a batch; raise batch_size to 2 or more"
            )
        if self.network.body_names and self.network.head_only(only):
            states = self._train_heads(tasks, regime, only or ())
            if states is not None:
                return states
        size = self._n_stacked() if self.method == "stacked" else 1
        states = []
        self.network.prepare(only)
        gpus = [self._torch_device] if self._torch_device.type == "cuda" else []
        with torch.random.fork_rng(devices=gpus), repeatable(self._torch_device):
            for first in range(0, len(tasks), size):
                # seed of dropout, which only networks that are not stacked have: one client
                self._set_seed(derive_seed(*tasks[first].seed_parts, n_bytes=8))
                states += self._train_stacked(tasks[first : first + size], regime, only)
        return states

    def _train_heads(
        self, tasks: Sequence[LocalTask], regime: Regime, only: Sequence[str]
    ) -> list[State] | None:
        """Train heads separately; return states of whole networks, or None."""
        split = split_heads(self.network, tasks, self.x, self.y, device=self.device)
        if split is None:
            return None
        trainer = Trainer(
            *split[:3], method=self.method, objective=self._objective, device=self.device
        )
        names = [_head_parameter_name(name, self.network) for name in only]
        heads = trainer.train(split.tasks, regime, only=names)
        prefix = f"{self.network.head[0]}."
        return [
            {**clone(task.start), **{prefix + k.removeprefix("head."): v for k, v in head.items()}}
            for task, head in zip(tasks, heads, strict=True)
        ]

    def _n_stacked(self) -> int:
        """Return the number of clients whose parameters fit into the cache together."""
        n_bytes = sum(tensor.nbytes for tensor in self.network.module.parameters())
        return min(MAX_STACKED, max(1, MAX_STACKED_BYTES // n_bytes))

    def _set_seed(self, seed: int) -> None:
        """Set the seed of torch's default generator."""
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 500 times as long
        if self._torch_device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _train_stacked(
        self, tasks: Sequence[LocalTask], regime: Regime, only: Sequence[str] | None
    ) -> list[State]:
        passes = [
            [t.rows[row_order(len(t.rows), *t.seed_parts, n)] for n in range(regime.epochs)]
            for t in tasks
        ]
        plan = batch_plan(passes, regime.batch_size, min_rows=self.network.min_rows)
        state = self._stack([tasks[client].start for client in plan.order])
        names = self.network.parameter_names if only is None else tuple(only)
        anchor = None
        if regime.proximal:
            anchors = [tasks[client].anchor or tasks[client].start for client in plan.order]
            anchor = self._stack([{name: tensors[name] for name in names} for tensors in anchors])
        self._run_steps(state, plan, regime, names, anchor)
        position = {int(client): i for i, client in enumerate(plan.order)}
        return [
            {name: tensor[position[client]].clone().cpu() for name, tensor in state.items()}
            for client in range(len(tasks))
        ]

    def _run_steps(
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
            n = len(rows)  # clients with batches left; the plan has these first
            index = torch.from_numpy(rows)
            batch = self.x[index], self.y[index], torch.from_numpy(weights).to(self._torch_device)
            grads = self._gradients({k: v[:n] for k, v in state.items()}, batch, names)
            with torch.no_grad():
                for name, grad in zip(names, grads, strict=True):
                    tensor, step = state[name][:n], velocity[name][:n]
                    step.mul_(regime.momentum).add_(tensor, alpha=regime.weight_decay)
                    if anchor is not None:
                        step.add_(tensor - anchor[name][:n], alpha=regime.proximal)
                    step.add_(grad)  # one call: gradients of stacked layers are transposed
                    tensor.sub_(step, alpha=regime.learning_rate)

    def _gradients(
        self, state: State, batch: tuple[Tensor, Tensor, Tensor], names: Sequence[str]
    ) -> tuple[Tensor, ...]:
        """Return the gradients of each client's batch, stacked."""
        trained = {name: state[name].detach().requires_grad_() for name in names}
        state, dtype = {**state, **trained}, next(iter(trained.values())).dtype
        batch = (*batch[:2], batch[2].to(dtype))
        if self.method == "stacked":
            losses = vmap(lambda s, x, y, w: self._objective(self.network, s, x, y, w))(
                state, *batch
            )
        else:
            single = {name: tensor[0] for name, tensor in state.items()}
            losses = self._objective(self.network, single, *(part[0] for part in batch))
        # the gradient of a layer that does not affect the scores is zero
        return torch.autograd.grad(losses.sum(), list(trained.values()), materialize_grads=True)

    def _stack(self, states: Sequence[State]) -> State:
        """Return the stacked states on the device of the steps.

        Matrices are stored transposed, as the gradients of stacked linear layers are: a round then
        takes 30 % less time. Filters of images are stored channels last for fast convolutions.
        """
        stacked = {
            name: torch.stack([state[name] for state in states]).to(self._torch_device)
            for name in states[0]
        }
        return {name: _lay_out(tensor) for name, tensor in stacked.items()}


def _lay_out(tensor: Tensor) -> Tensor:
    if tensor.ndim == 3:
        return tensor.mT.contiguous().mT
    if tensor.ndim == 5:
        return tensor.movedim(2, -1).contiguous().movedim(-1, 2)
    return tensor
