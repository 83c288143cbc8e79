"""Torch modules with a named embedding and head, and their weights as one vector."""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from threading import RLock
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedneighbors.errors import MissingDeviceError

_LOCKS: WeakKeyDictionary[nn.Module, AbstractContextManager[Any]] = WeakKeyDictionary()
_OF_LOCKS = RLock()


def alone_in(module: nn.Module) -> AbstractContextManager[Any]:
    """Return a reentrant lock for a module.

    A module itself holds no lock, which could be neither copied nor sent to another process.
    """
    with _OF_LOCKS:
        return _LOCKS.setdefault(module, RLock())


Device = Literal["auto", "cpu", "cuda"]
"""What an estimator takes as ``device``."""


def chosen_device(device: Device) -> torch.device:
    """Return the device that a word stands for.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}
        ``"auto"`` is the graphics card where there is one. Only on the processor do equal seeds
        promise equal bits on every machine, which is why it is the default everywhere.

    Raises
    ------
    ValueError
        If it is none of these words.
    MissingDeviceError
        If ``"cuda"`` is asked for and torch sees no such card.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"expected device 'auto', 'cpu' or 'cuda', got {device!r}")
    there = device != "cpu" and torch.cuda.is_available()
    if device == "cuda" and not there:
        raise MissingDeviceError(
            f"device='cuda' was asked for, but torch {torch.__version__} sees no such card; "
            "install a build of torch for it, or take device='cpu' or 'auto'"
        )
    return torch.device("cuda" if there else "cpu")


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Make GPU convolutions deterministic and full float32.

    On a CPU they always are.
    """
    if device.type == "cpu":
        yield
        return
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    ):
        yield


State = dict[str, Tensor]
"""Parameters and buffers of a module by name; :func:`state_of` makes it."""


def state_of(module: nn.Module) -> State:
    """Return copies of all parameters and buffers of a module."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def copied(state: Mapping[str, Tensor]) -> State:
    """Return a state that shares nothing with another."""
    return {name: tensor.detach().clone() for name, tensor in state.items()}


Vector = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Network:
    """A module with external weights, so that one module serves all clients.

    Its weights are also one vector: parameters and floating-point buffers in the module's order.
    Whole numbers, such as a count of batches, are no weights and stay as the module has them.

    Parameters
    ----------
    module : torch.nn.Module
        Takes a batch and returns scores of shape (n_rows, n_outputs). Its own weights are where
        training begins; they are never changed. Parameters that it has frozen
        (``requires_grad`` is False) stay as they are.
    embedding : str
        Name of the submodule whose output is phi(x), such as ``"body"``. Of a recurrent layer its
        last hidden and cell states are put side by side.
    head : tuple of str
        Names of the submodules that turn the embedding into scores.
    n_tokens : int, optional
        Where rows are tokens: they are whole numbers from 0 up to this.

    Raises
    ------
    ValueError
        If the module has no submodule of such a name, the head has no parameters that move, or
        weights are not all of 32 or all of 64 bits.
    """

    module: nn.Module
    embedding: str
    head: tuple[str, ...] = ("head",)
    n_tokens: int | None = None

    def __post_init__(self) -> None:
        named = dict(self.module.named_modules())
        for name in (self.embedding, *self.head):
            if name not in named or not name:
                have = ", ".join(sorted(filter(None, named))) or "none"
                raise ValueError(f"the model has no layer named {name!r}; its layers are: {have}")
        if not self.head_names:
            raise ValueError(
                f"the head {self.head} has no parameters that training may move; name the last "
                "linear layer, and do not freeze it"
            )
        if any(tensor.dtype != self.dtype for _, tensor in self._weights()):
            raise ValueError("expected a model whose weights are all of one type")
        if self.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"expected a model whose weights are of 32 or 64 bits, got {self.dtype}; call its "
                "method float()"
            )

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Return the names of all trainable parameters.

        Frozen parameters of the module are not trained.
        """
        return tuple(name for name, p in self.module.named_parameters() if p.requires_grad)

    @property
    def head_names(self) -> tuple[str, ...]:
        """Return the parameter names of the head."""
        prefixes = tuple(f"{name}." for name in self.head)
        return tuple(name for name in self.parameter_names if name.startswith(prefixes))

    @property
    def body_names(self) -> tuple[str, ...]:
        """Return the names of all other parameters."""
        return tuple(name for name in self.parameter_names if name not in set(self.head_names))

    @property
    def stacks(self) -> bool:
        """Return whether many clients can be trained as one batched product.

        Running averages, as batch normalization keeps them, and dropout cannot.
        """
        refused = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RNNBase)
        return not self._has(refused)

    @property
    def reads_tokens(self) -> bool:
        """Return whether rows of whole numbers contain tokens."""
        looked_up = (nn.Embedding, nn.EmbeddingBag)
        return self.n_tokens is not None or self._has(looked_up)

    @property
    def convolves(self) -> bool:
        """Return whether there are convolutions."""
        return self._has(nn.modules.conv._ConvNd)

    @property
    def least_rows(self) -> int:
        """Return the minimum number of rows per step.

        Batch normalization needs two.
        """
        return 2 if self._has(nn.modules.batchnorm._BatchNorm) else 1

    @cached_property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the weights."""
        return next(self._weights())[1].dtype

    @cached_property
    def _first(self) -> State:
        """Return copies of the module's initial parameters and buffers."""
        return state_of(self.module)

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the weights by name, in vector order."""
        return {name: tuple(tensor.shape) for name, tensor in self._weights()}

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Return the names of parameters and floating-point buffers, in vector order."""
        return tuple(self._shapes)

    @property
    def n_weights(self) -> int:
        """Return the length of the weight vector."""
        return sum(map(math.prod, self._shapes.values()))

    @cached_property
    def digest(self) -> str:
        """Return a text that identifies names, shapes and types."""
        words = repr((self.weight_names, tuple(self._shapes.values()), str(self.dtype)))
        return hashlib.sha256(words.encode()).hexdigest()

    @property
    def initial(self) -> Vector:
        """Return the module's own weights as a vector."""
        return self.vector(self._first)

    def vector(self, state: State) -> Vector:
        """Return a state as a vector of its type."""
        parts = [state[name].detach().reshape(-1) for name in self.weight_names]
        vector: Vector = torch.cat(parts).cpu().numpy().copy()
        return vector

    def state(self, vector: Vector) -> State:
        """Return the state of a vector of weights.

        Raises
        ------
        ValueError
            If the vector is of another network.
        """
        if vector.shape != (self.n_weights,):
            raise ValueError(
                f"expected {self.n_weights} weights, got an array of shape {vector.shape}; it is "
                "of another network"
            )
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        parts = torch.split(torch.from_numpy(np.array(vector)).to(self.dtype), sizes)
        named = zip(self._shapes.items(), parts, strict=True)
        given = {name: part.reshape(shape).clone() for (name, shape), part in named}
        return {**copied(self._first), **given}

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the module's parameters and floating-point buffers."""
        for name, tensor in chain(self.module.named_parameters(), self.module.named_buffers()):
            if tensor.is_floating_point():
                yield name, tensor

    def head_moves_alone(self, only: Sequence[str] | None) -> bool:
        """Return whether none but the head's parameters move, where some do."""
        return only is not None and set(only) <= set(self.head_names)

    def alone(self) -> AbstractContextManager[Any]:
        """Return what keeps all other threads out of the module."""
        return alone_in(self.module)

    def prepare(self, only: Sequence[str] | None = None) -> None:
        """Put the layers into training mode.

        Where nothing but the head moves, all other layers stay as they are when rows are seen:
        running averages do not move, and nothing is dropped.

        Parameters
        ----------
        only : sequence of str, optional
            Names of the parameters that move; by default all.
        """
        self.module.train(not self.head_moves_alone(only))
        if self.head_moves_alone(only):
            for name in self.head:
                self.module.get_submodule(name).train()

    def scores(self, state: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the module's output under a state."""
        scores: Tensor = functional_call(self.module, dict(state), (x,))
        return scores

    def seen(
        self,
        state: Mapping[str, Tensor],
        x: Tensor,
        *,
        batch_size: int | None = None,
        device: Device = "cpu",
    ) -> tuple[Tensor, Tensor]:
        """Return embeddings and scores of rows, in evaluation mode.

        Parameters
        ----------
        state : mapping of str to Tensor
            Weights.
        x : Tensor of shape (n_rows, ...)
            Rows.
        batch_size : int, optional
            Rows at a time; it changes nothing but the memory that is needed. By default 1024, and
            128 through convolutions.
        device : {"cpu", "cuda", "auto"}
            Device of the computation.

        Returns
        -------
        embeddings : Tensor of shape (n_rows, n_dimensions)
        scores : Tensor of shape (n_rows, n_outputs)
            Both on the processor.
        """
        caught: list[Tensor] = []
        hook = self._hooked(self.embedding, lambda own, _, out: caught.append(_flat(own, out)))
        with self.alone(), hook, self._evaluating(device) as place:
            scores = self._in_parts(state, x, batch_size or self._usual_size, place)
        return torch.cat(caught).cpu(), torch.cat(scores).cpu()

    def head_network(self) -> "Network | None":
        """Return a single-layer head as a separate network, else None.

        Its rows are what :meth:`before_head` returns; its only layer has the name ``"head"``.
        """
        if len(self.head) != 1:
            return None
        layer = self.module.get_submodule(self.head[0])
        return Network(nn.Sequential(OrderedDict(head=layer)), "head")

    def before_head(
        self, clients: Iterable[tuple[State, Tensor]], *, device: Device = "cpu"
    ) -> list[Tensor] | None:
        """Return each client's head inputs, in evaluation mode.

        Parameters
        ----------
        clients : iterable of (State, Tensor of shape (n_rows, ...))
            Weights and rows.
        device : {"cpu", "cuda", "auto"}
            Device of the computation and the result.

        Returns
        -------
        list of Tensor of shape (n_rows, ...) or None
            None where the module does more than to let a single layer make scores of one tensor.
        """
        calls: list[tuple[tuple[Any, ...], Any]] = []
        found, size = [], self._usual_size
        hook = self._hooked(self.head[0], lambda _, given, out: calls.append((given, out)))
        with self.alone(), hook, self._evaluating(device) as place:
            for state, x in clients:
                calls.clear()
                scores = self._in_parts(state, x, size, place)
                if not _gives(calls, scores):
                    return None
                found.append(torch.cat([given[0] for given, _ in calls]))
        return found

    @contextmanager
    def _hooked(self, name: str, hook: Callable[[nn.Module, Any, Any], None]) -> Iterator[None]:
        """Let a function see what a layer takes and gives."""
        handle = self.module.get_submodule(name).register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def _evaluating(self, device: Device) -> Iterator[torch.device]:
        """Put the layers into evaluation mode; gives the place of computation."""
        place = chosen_device(device)
        was_training = self.module.training
        self.module.train(False)
        try:
            with torch.no_grad(), repeatable(place):
                yield place
        finally:
            self.module.train(was_training)

    def _in_parts(
        self, state: Mapping[str, Tensor], x: Tensor, size: int, place: torch.device
    ) -> list[Tensor]:
        """Return the scores of some rows at a time."""
        there = {name: _filters_last(tensor.to(place)) for name, tensor in state.items()}
        return [self.scores(there, part.to(place)) for part in torch.split(x, size)]

    @property
    def _usual_size(self) -> int:
        """Return the number of rows per batch of predictions."""
        return 128 if self.convolves else 1024

    def _has(self, kinds: type[nn.Module] | tuple[type[nn.Module], ...]) -> bool:
        return any(isinstance(layer, kinds) for layer in self.module.modules())


def _gives(calls: Sequence[tuple[tuple[Any, ...], Any]], scores: Sequence[Tensor]) -> bool:
    """Return whether a layer took one tensor and gave each score."""
    return len(calls) == len(scores) and all(
        out is score and len(given) == 1 and isinstance(given[0], Tensor)
        for (given, out), score in zip(calls, scores, strict=True)
    )


def _filters_last(weights: Tensor) -> Tensor:
    """Return image filters with channels last.

    CPUs process that layout faster.
    """
    return weights.to(memory_format=torch.channels_last) if weights.ndim == 4 else weights


def _flat(layer: nn.Module, output: Any) -> Tensor:
    """Return what a layer gave as one row for each input.

    Of a recurrent layer its last states: hidden, and cell where it has them, of all its layers.
    """
    if isinstance(layer, nn.RNNBase):
        states = output[1] if isinstance(output[1], tuple) else (output[1],)
        return torch.cat([state.detach().transpose(0, 1).flatten(1) for state in states], dim=1)
    if isinstance(output, Tensor):
        return output.detach().flatten(1)
    raise TypeError(f"an embedding layer gives a tensor, this one gave {type(output).__name__}")
