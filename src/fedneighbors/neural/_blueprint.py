"""Construction, check, inputs and description of an estimator's network.

Torch is imported when a network is built; descriptions of frozen embeddings do not need it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from numbers import Integral
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.errors import DataError
from fedneighbors.tabular._schema import check_cells

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedneighbors.neural._network import Network


@contextmanager
def torch_seed(seed: int) -> Iterator[None]:
    """Set the seed of torch inside the block, then restore the generator."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def perceptron(
    n_inputs: int, n_outputs: int, *, hidden: Sequence[int] = (256, 128), seed: int = 0
) -> "Network":
    """Return a multilayer perceptron whose initial weights depend on the seed alone.

    Hidden layers have ReLUs. The output of the last one is the embedding.

    Parameters
    ----------
    n_inputs, n_outputs : int
        Number of numbers in a row, and number of scores.
    hidden : sequence of int
        Widths of the hidden layers, at least one.
    seed : int
        Seed of the weights.

    Raises
    ------
    ValueError
        If there is no hidden layer, or a width is not an integer of 1 or more.
    """
    if isinstance(hidden, str) or not isinstance(hidden, Sequence) or not hidden:
        raise ValueError(
            "expected hidden as the widths of at least one hidden layer, such as (256, 128); the "
            f"output of the last one is the embedding; got {hidden!r}"
        )
    if not all(isinstance(width, Integral) and width >= 1 for width in hidden):
        raise ValueError(f"expected widths of 1 or more in hidden, got {hidden!r}")
    from torch import nn

    from fedneighbors.neural._network import BodyAndHead, Network

    layers: list[nn.Module] = [nn.Flatten()]
    with torch_seed(seed):
        for width, following in pairwise([n_inputs, *hidden]):
            layers += [nn.Linear(width, following), nn.ReLU()]
        module = BodyAndHead(nn.Sequential(*layers), nn.Linear(hidden[-1], n_outputs))
    return Network(module, embedding="body")


Model: TypeAlias = "Network | nn.Module | Callable[[tuple[int, ...], int], Any] | str | None"
"""Types of an estimator's ``model`` parameter; see :func:`build_network`."""

BUILT_IN = ("perceptron", "cnn", "mobilenet", "lstm")
"""Names of the built-in networks."""


def build_network(
    estimator: Any, shape: tuple[int, ...], n_outputs: int, *, seed: int
) -> "Network":
    """Return the network to train.

    Parameters
    ----------
    estimator : estimator
        Its parameters ``model``, ``embedding``, ``head`` and ``hidden`` are read. ``model`` is a
        network or a module; a function (shape of a row, number of scores) that returns one; the
        name of a built-in network in :data:`BUILT_IN`; or None for a perceptron.
    shape : tuple of int
        Shape of a row.
    n_outputs : int
        Number of scores per row.
    seed : int
        Seed of the weights of a built-in network or of a module that a function returns.

    Raises
    ------
    TypeError
        If ``model`` has another type, or is not the name of a built-in network.
    ValueError
        If the module lacks a layer, or the built-in network does not support rows of this shape.
    """
    from torch import nn

    from fedneighbors.neural._network import Network

    model: Model = estimator.model
    if model is None or model == "perceptron":
        return perceptron(math.prod(shape), n_outputs, hidden=estimator.hidden, seed=seed)
    if isinstance(model, str) and model in BUILT_IN:
        from fedneighbors.neural import _architectures  # imports this module

        built_in: Network = getattr(_architectures, model)(shape, n_outputs, seed=seed)
        return built_in
    if not isinstance(model, Network | nn.Module) and callable(model):
        with torch_seed(seed):
            model = model(shape, n_outputs)
    if isinstance(model, Network):
        return replace(model)  # a copy reads the module's weights again: they may have changed
    if isinstance(model, nn.Module):
        return Network(model, estimator.embedding, _layers(estimator.head))
    raise TypeError(
        "expected model as a torch.nn.Module, a function (shape, n_outputs) that returns one, "
        f"one of {', '.join(map(repr, BUILT_IN))}, or None, got "
        f"{repr(model) if isinstance(model, str) else type(model).__name__}"
    )


def _layers(head: str | Sequence[str]) -> tuple[str, ...]:
    return (head,) if isinstance(head, str) else tuple(head)


MAX_LAYERS = 100  # hidden layers

MAX_WEIGHTS = 1 << 26
"""Maximum number of weights of a built-in network; training holds four copies, 1 GiB."""

CUSTOM = "own"
"""Model name of a user's network, whose code is neither stored nor sent."""

FROZEN = ("discriminants", "rows", "embedding")
"""Names of shared models without a network: a linear head on a frozen embedding."""


@dataclass(frozen=True)
class Blueprint:
    """Description of a network without its weights.

    Parameters
    ----------
    model : str
        Name of a built-in network, :data:`CUSTOM` for a user's network, or one of :data:`FROZEN`.
    shape : tuple of int
        Shape of a row.
    n_outputs : int
        Number of scores.
    embedding : str
        Name of the embedding layer.
    head : tuple of str
        Names of the layers after the embedding.
    hidden : tuple of int
        Widths of a perceptron's hidden layers.
    """

    model: str
    shape: tuple[int, ...]
    n_outputs: int
    embedding: str = "body"
    head: tuple[str, ...] = ("head",)
    hidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.model not in (*BUILT_IN, CUSTOM, *FROZEN):
            raise ValueError(f"expected a network among {BUILT_IN}, got {self.model!r:.40}")
        numbers, texts = (*self.shape, *self.hidden, self.n_outputs), (self.embedding, *self.head)
        if not all(type(n) is int and 0 < n < 1 << 24 for n in numbers) or not all(
            type(text) is str for text in (self.model, *texts)
        ):
            raise ValueError(f"expected names and sizes of a network, got {str(self)[:120]}")
        check_cells("a row", *self.shape)
        if len(self.hidden) > MAX_LAYERS:
            raise ValueError(f"expected at most {MAX_LAYERS} hidden layers")

    @classmethod
    def of(cls, estimator: Any, shape: tuple[int, ...], n_outputs: int) -> "Blueprint":
        """Return the description of an estimator's network.

        Parameters
        ----------
        estimator : estimator
            Its parameters ``model``, ``embedding``, ``head`` and ``hidden`` are read.
        shape : tuple of int
            Shape of a row.
        n_outputs : int
            Number of scores.
        """
        model = "perceptron" if estimator.model is None else estimator.model
        return cls(
            model=model if isinstance(model, str) else CUSTOM,
            shape=tuple(map(int, shape)),
            n_outputs=int(n_outputs),
            embedding=str(estimator.embedding),
            head=_layers(estimator.head),
            hidden=tuple(map(int, estimator.hidden)),
        )

    def check_size(self) -> None:
        """Raise ValueError if a built-in network would have too many weights."""
        import torch

        with torch.device("meta"):  # allocates nothing
            n_weights = self.network().n_weights
        if n_weights > MAX_WEIGHTS:
            raise ValueError(f"{n_weights} weights; the limit is {MAX_WEIGHTS}")

    def parameters(self, custom: Model = None) -> dict[str, Any]:
        """Return the estimator parameters that select this network.

        Parameters
        ----------
        custom : Network, module or callable
            The user's network, if any.
        """
        built_in = None if self.model == "perceptron" else self.model
        return {
            "model": built_in if custom is None else custom,
            "embedding": self.embedding,
            "head": self.head[0] if len(self.head) == 1 else self.head,
            "hidden": self.hidden,
        }

    def network(self, custom: Model = None, *, seed: int = 0) -> "Network":
        """Build the network.

        Parameters
        ----------
        custom : Network, module or callable
            The user's network, if the blueprint refers to one.
        seed : int
            Seed of the weights, unless ``custom`` is a network or module.

        Raises
        ------
        ValueError
            If the user's network is missing, or lacks a layer.
        """
        if self.model == CUSTOM and custom is None:
            raise ValueError("expected model=, the trained network: its code is not stored")
        estimator = SimpleNamespace(**self.parameters(custom if self.model == CUSTOM else None))
        return build_network(estimator, self.shape, self.n_outputs, seed=seed)


def as_tensor(x: Array, center: Floats, scale: Floats, network: "Network") -> "Tensor":
    """Return rows as network inputs.

    Parameters
    ----------
    x : array of shape (n_rows, ...)
        Rows of numbers, or of integer tokens.
    center, scale : float64 array of shape (n_features,)
        Center and scale of the columns; empty for no scaling.
    network : Network
        Network that reads the rows; it determines the dtype.

    Raises
    ------
    DataError
        If the network has an alphabet of tokens and rows have other values.
    """
    import torch

    if len(center):
        x = (x - center) / scale
    if network.n_tokens is not None:
        x = check_tokens(x, network.n_tokens)
    if network.reads_tokens and x.dtype.kind in "iu":
        return torch.from_numpy(np.ascontiguousarray(x, np.int64))
    return torch.from_numpy(np.ascontiguousarray(x)).to(network.dtype)


def check_tokens(x: Array, n_tokens: int) -> Integers:
    """Return rows of tokens as int64.

    Parameters
    ----------
    x : array of shape (n_rows, n_tokens_of_a_row)
        Integers.
    n_tokens : int
        Size of the alphabet.

    Raises
    ------
    DataError
        If a token is not in the alphabet.
    """
    if not ((x >= 0) & (x < n_tokens) & (x == np.floor(x))).all():
        raise DataError(
            f"expected rows of tokens, integers from 0 to {n_tokens - 1}; encode them with "
            "the alphabet of the network"
        )
    return np.asarray(x, np.int64)


@lru_cache(maxsize=8)  # all clients of a simulation share a network
def check_network(
    network: "Network", shape: tuple[int, ...], n_outputs: int, *, dtype_kind: str = "f"
) -> None:
    """Raise if a network does not support rows of a shape.

    It must return finite embeddings and ``n_outputs`` finite scores for two rows of zeros.

    Parameters
    ----------
    network : Network
        Network to train.
    shape : tuple of int
        Shape of a row.
    n_outputs : int
        Expected number of scores per row.
    dtype_kind : {"f", "i"}
        ``kind`` of the rows' NumPy dtype. Rows of integers may be tokens.

    Raises
    ------
    ValueError
        If the network does not accept the rows, does not use the embedding layer, or returns
        another number of scores.
    DataError
        If embeddings or scores are not finite.
    """
    import torch

    rows = np.zeros((2, *shape), np.int64 if dtype_kind in "iu" else np.float64)
    try:
        keys, scores = _initial_outputs(network, rows)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"the model does not support rows of shape {shape} with the embedding from its layer "
            f"{network.embedding!r}: {str(error).splitlines()[0]}"
        ) from error
    if tuple(scores.shape) != (2, n_outputs):
        raise ValueError(
            f"expected a model with {n_outputs} scores for each row, got an output of shape "
            f"{tuple(scores.shape)} for 2 rows"
        )
    if not (torch.isfinite(keys).all() and torch.isfinite(scores).all()):
        raise DataError(
            f"the model's embeddings or scores are not finite for rows of zeros; check its "
            f"layers up to {network.embedding!r}"
        )


def probe_outputs(network: "Network", shape: tuple[int, ...], *, dtype_kind: str = "f") -> Floats:
    """Compute embeddings and scores of two fixed rows under the initial weights.

    Parameters
    ----------
    network, shape, dtype_kind
        As in :func:`check_network`.
    """
    size = 2 * math.prod(shape)
    cells = np.zeros(size, np.int64) if dtype_kind in "iu" else np.linspace(-1, 1, size)
    outputs = _initial_outputs(network, cells.reshape(2, *shape))
    return np.concatenate([part.numpy().ravel() for part in outputs]).astype(np.float64)


def _initial_outputs(network: "Network", rows: Array) -> "tuple[Tensor, Tensor]":
    """Return embeddings and scores of rows under the initial weights."""
    x = as_tensor(rows, np.empty(0), np.empty(0), network)  # without scaling
    return network.embed(network.state(network.initial), x)
