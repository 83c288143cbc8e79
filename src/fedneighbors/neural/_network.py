"""Networks: torch modules with named embedding and head, and their weights as one vector."""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedneighbors.errors import MissingDeviceError
from fedneighbors.tabular._ownership import model_lock

Device = Literal["auto", "cpu", "cuda"]
"""Values of an estimator's ``device`` parameter."""


def torch_device(device: Device) -> torch.device:
    """Return the torch device of a name.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}
        ``"auto"`` is the GPU if there is one, otherwise the CPU. Results are repeatable bit for bit
        on the CPU only, so that is the default everywhere.

    Raises
    ------
    ValueError
        If the name is unknown.
    MissingDeviceError
        If ``"cuda"`` is requested and torch finds no GPU.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"expected device 'auto', 'cpu' or 'cuda', got {device!r}")
    use_gpu = device != "cpu" and torch.cuda.is_available()
    if device == "cuda" and not use_gpu:
        raise MissingDeviceError(
            f"expected a GPU for device='cuda', but torch {torch.__version__} finds none; "
            "install a torch build for your GPU, or use device='cpu' or 'auto'"
        )
    return torch.device("cuda" if use_gpu else "cpu")


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Make convolutions on a GPU deterministic, with full float32 precision.

    On a CPU they always are, so nothing is done.
    """
    if device.type == "cpu":
        yield
        return
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    ):
        yield


State = dict[str, Tensor]
"""Parameters and buffers of a module by name."""


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
    """A module whose weights are passed as an argument, so that all clients share the module.

    The weights are the module's parameters and floating-point buffers, and form one vector in the
    module's order. Integer buffers, such as a count of batches, are not weights: a vector gives
    them their initial values.

    Parameters
    ----------
    module : torch.nn.Module
        Maps a batch to scores of shape (n_rows, n_outputs). Its weights are the initial weights and
        are never changed. Frozen parameters (``requires_grad`` is False) are not trained.
    embedding : str
        Name of the submodule whose output is the embedding (phi(x) in the paper), such as
        ``"body"``. That of a recurrent layer is the concatenation of its final hidden and cell
        states.
    head : tuple of str
        Names of the submodules between embedding and scores.
    n_tokens : int, optional
        Size of the alphabet if rows are tokens, integers from 0 to ``n_tokens - 1``.

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
                layers = ", ".join(sorted(filter(None, named))) or "none"
                raise ValueError(f"the model has no layer named {name!r}; its layers are: {layers}")
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
        """Return the names of all parameters that are not frozen."""
        return tuple(name for name, p in self.module.named_parameters() if p.requires_grad)

    @property
    def head_names(self) -> tuple[str, ...]:
        """Return the names of the head's trainable parameters."""
        prefixes = tuple(f"{name}." for name in self.head)
        return tuple(name for name in self.parameter_names if name.startswith(prefixes))

    @property
    def body_names(self) -> tuple[str, ...]:
        """Return the names of all other trainable parameters."""
        return tuple(name for name in self.parameter_names if name not in set(self.head_names))

    @property
    def is_stackable(self) -> bool:
        """Return whether many clients can be trained as one batched product.

        Batch normalization, dropout and recurrent layers prevent it.
        """
        unsupported = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RNNBase)
        return not self._has(unsupported)

    @property
    def reads_tokens(self) -> bool:
        """Return whether rows of integers are tokens, not numbers."""
        lookups = (nn.Embedding, nn.EmbeddingBag)
        return self.n_tokens is not None or self._has(lookups)

    @property
    def has_convolutions(self) -> bool:
        """Return whether the module has convolutions."""
        return self._has(nn.modules.conv._ConvNd)

    @property
    def min_rows(self) -> int:
        """Return the minimum batch size: 2 with batch normalization, otherwise 1."""
        return 2 if self._has(nn.modules.batchnorm._BatchNorm) else 1

    @cached_property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the weights."""
        return next(self._weights())[1].dtype

    @cached_property
    def _initial_state(self) -> State:
        """Return a copy of the module's own parameters and buffers."""
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
        """Return a digest of the names, shapes and type of the weights."""
        words = repr((self.weight_names, tuple(self._shapes.values()), str(self.dtype)))
        return hashlib.sha256(words.encode()).hexdigest()

    @property
    def initial(self) -> Vector:
        """Return the module's own weights as a vector."""
        return self.vector(self._initial_state)

    def vector(self, state: State) -> Vector:
        """Return the weights in a state as a vector."""
        parts = [state[name].detach().reshape(-1) for name in self.weight_names]
        vector: Vector = torch.cat(parts).cpu().numpy().copy()
        return vector

    def state(self, vector: Vector) -> State:
        """Return a state with the weights of a vector.

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
        weights = {name: part.reshape(shape).clone() for (name, shape), part in named}
        return {**clone(self._initial_state), **weights}

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the module's parameters and floating-point buffers."""
        for name, tensor in chain(self.module.named_parameters(), self.module.named_buffers()):
            if tensor.is_floating_point():
                yield name, tensor

    def head_only(self, only: Sequence[str] | None) -> bool:
        """Return whether ``only`` has parameters of the head alone."""
        return only is not None and set(only) <= set(self.head_names)

    def exclusive(self) -> AbstractContextManager[Any]:
        """Return a lock that gives one thread exclusive use of the module."""
        return model_lock(self.module)

    def prepare(self, only: Sequence[str] | None = None) -> None:
        """Set the modes of the layers for training.

        If only the head is trained, all other layers are in evaluation mode: their running averages
        do not change, and their dropout is off.

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
        """Return the module's output with the weights of a state."""
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
            Parameters and buffers.
        x : Tensor of shape (n_rows, ...)
            Rows.
        batch_size : int, optional
            Number of rows per batch, which bounds the memory in use. Default: 1024, or 128 for
            modules with convolutions.
        device : {"cpu", "cuda", "auto"}
            Device of the computation.

        Returns
        -------
        embeddings : Tensor of shape (n_rows, n_dimensions)
        scores : Tensor of shape (n_rows, n_outputs)
            Both on the CPU.
        """
        keys: list[Tensor] = []
        size = batch_size or self._default_batch_size
        hook = self._hook(self.embedding, lambda layer, _, out: keys.append(_flat(layer, out)))
        with self.exclusive(), hook, self._evaluation_mode(device) as gpu_or_cpu:
            scores = self._batch_scores(state, x, size, gpu_or_cpu)
        return torch.cat(keys).cpu(), torch.cat(scores).cpu()

    def head_network(self) -> "Network | None":
        """Return the head as a separate network; None for several layers.

        The network's rows are the inputs from :meth:`before_head`; its only layer has the name
        ``"head"``.
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
            State and rows of each client.
        device : {"cpu", "cuda", "auto"}
            Device of the computation and the result.

        Returns
        -------
        list of Tensor of shape (n_rows, ...) or None
            None unless the head's input is one tensor and its output is returned as the scores.
        """
        calls: list[tuple[tuple[Any, ...], Any]] = []
        inputs, size = [], self._default_batch_size
        hook = self._hook(self.head[0], lambda _, args, out: calls.append((args, out)))
        with self.exclusive(), hook, self._evaluation_mode(device) as gpu_or_cpu:
            for state, x in clients:
                calls.clear()
                scores = self._batch_scores(state, x, size, gpu_or_cpu)
                if not _returns_scores(calls, scores):
                    return None
                inputs.append(torch.cat([args[0] for args, _ in calls]))
        return inputs

    def head_input(self, state: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the head's input and the scores; both have gradients."""
        inputs: list[Tensor] = []
        with self._hook(self.head[0], lambda _, args, out: inputs.append(args[0])):  # noqa: ARG005
            scores = self.scores(state, x)
        return inputs[0], scores

    @contextmanager
    def _hook(self, name: str, hook: Callable[[nn.Module, Any, Any], None]) -> Iterator[None]:
        """Call a function with each input and output of a layer."""
        handle = self.module.get_submodule(name).register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def _evaluation_mode(self, device: Device) -> Iterator[torch.device]:
        """Set evaluation mode inside the block; yield the torch device."""
        gpu_or_cpu = torch_device(device)
        was_training = self.module.training
        self.module.train(False)
        try:
            with torch.no_grad(), repeatable(gpu_or_cpu):
                yield gpu_or_cpu
        finally:
            self.module.train(was_training)

    def _batch_scores(
        self, state: Mapping[str, Tensor], x: Tensor, size: int, device: torch.device
    ) -> list[Tensor]:
        """Return the scores of consecutive batches of ``size`` rows."""
        on_device = {name: _channels_last(tensor.to(device)) for name, tensor in state.items()}
        return [self.scores(on_device, batch.to(device)) for batch in torch.split(x, size)]

    @property
    def _default_batch_size(self) -> int:
        """Return the default number of rows per batch in evaluation mode."""
        return 128 if self.has_convolutions else 1024

    def _has(self, types: type[nn.Module] | tuple[type[nn.Module], ...]) -> bool:
        return any(isinstance(layer, types) for layer in self.module.modules())


def _returns_scores(calls: Sequence[tuple[tuple[Any, ...], Any]], scores: Sequence[Tensor]) -> bool:
    """Return whether a layer maps one tensor to each batch's scores."""
    return len(calls) == len(scores) and all(
        output is score and len(args) == 1 and isinstance(args[0], Tensor)
        for (args, output), score in zip(calls, scores, strict=True)
    )


def _channels_last(weights: Tensor) -> Tensor:
    """Return weights; those of image filters channels last, which is faster."""
    return weights.to(memory_format=torch.channels_last) if weights.ndim == 4 else weights


def _flat(layer: nn.Module, output: Any) -> Tensor:
    """Return a layer's output as one row per input.

    For a recurrent layer: its final hidden states, then its final cell states if any.
    """
    if isinstance(layer, nn.RNNBase):
        states = output[1] if isinstance(output[1], tuple) else (output[1],)
        return torch.cat([state.detach().transpose(0, 1).flatten(1) for state in states], dim=1)
    if isinstance(output, Tensor):
        return output.detach().flatten(1)
    raise TypeError(f"expected a tensor from the embedding layer, got {type(output).__name__}")


class BodyAndHead(nn.Module):
    """Module of two parts: layers up to the embedding, and layers from it to the scores.

    Parameters
    ----------
    body, head : torch.nn.Module
        The two parts.
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of shape (n_rows, n_outputs)."""
        scores: Tensor = self.head(self.body(x))
        return scores
