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


def module_lock(module: nn.Module) -> AbstractContextManager[Any]:
    """Return a reentrant lock for a module.

    The lock is not an attribute of the module, because locks can be neither copied nor pickled.
    """
    with _OF_LOCKS:
        return _LOCKS.setdefault(module, RLock())


Device = Literal["auto", "cpu", "cuda"]
"""Types of an estimator's ``device`` parameter."""


def torch_device(device: Device) -> torch.device:
    """Return the torch device of a name.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}
        ``"auto"`` is the GPU if there is one. Equal seeds give equal bits on every machine only on
        the CPU, so that is the default everywhere.

    Raises
    ------
    ValueError
        If the name is unknown.
    MissingDeviceError
        If ``"cuda"`` is requested and torch finds no GPU.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"expected device 'auto', 'cpu' or 'cuda', got {device!r}")
    there = device != "cpu" and torch.cuda.is_available()
    if device == "cuda" and not there:
        raise MissingDeviceError(
            f"expected a GPU for device='cuda', but torch {torch.__version__} finds none; "
            "install a torch build for your GPU, or use device='cpu' or 'auto'"
        )
    return torch.device("cuda" if there else "cpu")


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Make GPU convolutions deterministic and full float32.

    Convolutions on a CPU always are.
    """
    if device.type == "cpu":
        yield
        return
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    ):
        yield


State = dict[str, Tensor]
"""Parameters and buffers of a module by name; see :func:`state_of`."""


def state_of(module: nn.Module) -> State:
    """Return copies of all parameters and buffers of a module."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def clone(state: Mapping[str, Tensor]) -> State:
    """Return a deep copy of a state."""
    return {name: tensor.detach().clone() for name, tensor in state.items()}


Vector = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Network:
    """A module with external weights: one module serves all clients.

    The weights also form one vector: parameters and floating-point buffers in the module's order.
    Integer buffers, such as a count of batches, are not weights and stay unchanged.

    Parameters
    ----------
    module : torch.nn.Module
        Maps a batch to scores of shape (n_rows, n_outputs). Training begins at its weights, which
        are never changed. Frozen parameters (``requires_grad`` is False) are not trained.
    embedding : str
        Name of the submodule whose output is phi(x), such as ``"body"``. The embedding of a
        recurrent layer is the concatenation of its last hidden and cell states.
    head : tuple of str
        Names of the submodules between embedding and scores.
    n_tokens : int, optional
        Number of tokens if rows are tokens: integers from 0 up to this.

    Raises
    ------
    ValueError
        If the module lacks a submodule of such a name, the head has no trainable parameters, or the
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
                f"the head {self.head} has no trainable parameters; name the last linear layer, "
                "and do not freeze it"
            )
        if any(tensor.dtype != self.dtype for _, tensor in self._weights()):
            raise ValueError("expected a model whose weights are all of one type")
        if self.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"expected a model with weights of 32 or 64 bits, got {self.dtype}; call its "
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

        Running averages (batch normalization) and dropout rule it out.
        """
        refused = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RNNBase)
        return not self._has(refused)

    @property
    def reads_tokens(self) -> bool:
        """Return whether integer rows are tokens."""
        looked_up = (nn.Embedding, nn.EmbeddingBag)
        return self.n_tokens is not None or self._has(looked_up)

    @property
    def convolves(self) -> bool:
        """Return whether the module has convolutions."""
        return self._has(nn.modules.conv._ConvNd)

    @property
    def least_rows(self) -> int:
        """Return the minimum number of rows per step.

        Batch normalization needs two rows.
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
            If the vector belongs to another network.
        """
        if vector.shape != (self.n_weights,):
            raise ValueError(
                f"expected {self.n_weights} weights, got an array of shape {vector.shape}; it "
                "belongs to another network"
            )
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        parts = torch.split(torch.from_numpy(np.array(vector)).to(self.dtype), sizes)
        named = zip(self._shapes.items(), parts, strict=True)
        given = {name: part.reshape(shape).clone() for (name, shape), part in named}
        return {**clone(self._first), **given}

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the module's parameters and floating-point buffers."""
        for name, tensor in chain(self.module.named_parameters(), self.module.named_buffers()):
            if tensor.is_floating_point():
                yield name, tensor

    def head_only(self, only: Sequence[str] | None) -> bool:
        """Return whether only the head is trained."""
        return only is not None and set(only) <= set(self.head_names)

    def alone(self) -> AbstractContextManager[Any]:
        """Return a context manager with exclusive use of the module."""
        return module_lock(self.module)

    def prepare(self, only: Sequence[str] | None = None) -> None:
        """Put the layers into training mode.

        If only the head is trained, all other layers stay in evaluation mode: running averages do
        not change, and dropout is off.

        Parameters
        ----------
        only : sequence of str, optional
            Names of the trained parameters; by default all.
        """
        self.module.train(not self.head_only(only))
        if self.head_only(only):
            for name in self.head:
                self.module.get_submodule(name).train()

    def scores(self, state: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the module's output under a state."""
        scores: Tensor = functional_call(self.module, dict(state), (x,))
        return scores

    def embed(
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
            Rows per batch; affects only the memory in use. Default: 1024, and 128 for modules with
            convolutions.
        device : {"cpu", "cuda", "auto"}
            Device of the computation.

        Returns
        -------
        embeddings : Tensor of shape (n_rows, n_dimensions)
        scores : Tensor of shape (n_rows, n_outputs)
            Both on the CPU.
        """
        caught: list[Tensor] = []
        hook = self._hook(self.embedding, lambda own, _, out: caught.append(_flat(own, out)))
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
            None unless the scores are the output of a single layer with a single input tensor.
        """
        calls: list[tuple[tuple[Any, ...], Any]] = []
        found, size = [], self._usual_size
        hook = self._hook(self.head[0], lambda _, given, out: calls.append((given, out)))
        with self.alone(), hook, self._evaluating(device) as place:
            for state, x in clients:
                calls.clear()
                scores = self._in_parts(state, x, size, place)
                if not _gives(calls, scores):
                    return None
                found.append(torch.cat([given[0] for given, _ in calls]))
        return found

    @contextmanager
    def _hook(self, name: str, hook: Callable[[nn.Module, Any, Any], None]) -> Iterator[None]:
        """Call a function on each input and output of a layer."""
        handle = self.module.get_submodule(name).register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def _evaluating(self, device: Device) -> Iterator[torch.device]:
        """Set evaluation mode inside the block; yield the device."""
        place = torch_device(device)
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
        """Return the scores of consecutive batches of rows."""
        there = {name: _filters_last(tensor.to(place)) for name, tensor in state.items()}
        return [self.scores(there, part.to(place)) for part in torch.split(x, size)]

    @property
    def _usual_size(self) -> int:
        """Return the default number of rows per batch of predictions."""
        return 128 if self.convolves else 1024

    def _has(self, kinds: type[nn.Module] | tuple[type[nn.Module], ...]) -> bool:
        return any(isinstance(layer, kinds) for layer in self.module.modules())


def _gives(calls: Sequence[tuple[tuple[Any, ...], Any]], scores: Sequence[Tensor]) -> bool:
    """Return whether a layer took one tensor and returned each score."""
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
    """Return a layer's output as one row per input.

    For a recurrent layer: the last hidden states of all layers, and the cell states if any.
    """
    if isinstance(layer, nn.RNNBase):
        states = output[1] if isinstance(output[1], tuple) else (output[1],)
        return torch.cat([state.detach().transpose(0, 1).flatten(1) for state in states], dim=1)
    if isinstance(output, Tensor):
        return output.detach().flatten(1)
    raise TypeError(f"expected a tensor from the embedding layer, got {type(output).__name__}")
