"""Construction of an estimator's network, and its description for storage."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from fedneighbors.neural._network import Network


class BodyAndHead(nn.Module):
    """A module in two parts: layers up to the embedding, and layers from it to the scores.

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


@contextmanager
def torch_seed(seed: int) -> Iterator[None]:
    """Draw weights inside the block from a seed, then restore the generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def perceptron(
    n_inputs: int, n_outputs: int, *, hidden: Sequence[int] = (256, 128), seed: int = 0
) -> Network:
    """Return linear layers with ReLUs, initialized from the seed alone.

    The last hidden layer is the embedding.

    Parameters
    ----------
    n_inputs, n_outputs : int
        Width of a row, and number of scores.
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
    layers: list[nn.Module] = [nn.Flatten()]
    with torch_seed(seed):
        for width, following in pairwise([n_inputs, *hidden]):
            layers += [nn.Linear(width, following), nn.ReLU()]
        module = BodyAndHead(nn.Sequential(*layers), nn.Linear(hidden[-1], n_outputs))
    return Network(module, embedding="body")


Model = Network | nn.Module | Callable[[tuple[int, ...], int], Any] | str | None
"""Types of an estimator's ``model`` parameter."""

READY = ("perceptron", "cnn", "mobilenet", "lstm")
"""Names of the built-in networks."""


def build_network(estimator: Any, shape: tuple[int, ...], n_outputs: int, *, seed: int) -> Network:
    """Return the network to train.

    Parameters
    ----------
    estimator : estimator
        Its parameters ``model``, ``embedding``, ``head`` and ``hidden`` are read. ``model`` is a
        network or a module; a function (shape of a row, number of scores) that returns one; the
        name of a built-in network in :data:`READY`; or None for a perceptron.
    shape : tuple of int
        Shape of a row.
    n_outputs : int
        Number of scores.
    seed : int
        Seed of the weights of a built-in network or of a module that a function returns.

    Raises
    ------
    TypeError
        If ``model`` has another type, or is not the name of a built-in network.
    ValueError
        If the module lacks a layer, or the built-in network does not support rows of this shape.
    """
    model: Model = estimator.model
    if model is None or model == "perceptron":
        return perceptron(math.prod(shape), n_outputs, hidden=estimator.hidden, seed=seed)
    if isinstance(model, str) and model in READY:
        from fedneighbors.neural import _architectures  # imports parts of this module

        ready: Network = getattr(_architectures, model)(shape, n_outputs, seed=seed)
        return ready
    if not isinstance(model, Network | nn.Module) and callable(model):
        with torch_seed(seed):
            model = model(shape, n_outputs)
    if isinstance(model, Network):
        return replace(model)  # read the weights again: the module may have been trained since
    if isinstance(model, nn.Module):
        return Network(model, estimator.embedding, _layers(estimator.head))
    raise TypeError(
        "expected model as a torch.nn.Module, a function (shape, n_outputs) that returns one, "
        f"one of {', '.join(map(repr, READY))}, or None, got "
        f"{repr(model) if isinstance(model, str) else type(model).__name__}"
    )


def _layers(head: str | Sequence[str]) -> tuple[str, ...]:
    return (head,) if isinstance(head, str) else tuple(head)


OWN = "own"
"""Model name of a user's module, whose code is neither stored nor sent."""


@dataclass(frozen=True)
class Blueprint:
    """Description of a network without its weights.

    Parameters
    ----------
    model : str
        ``"perceptron"`` or the name of another built-in network; :data:`OWN` for a user's module.
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
        if self.model not in (*READY, OWN):
            raise ValueError(f"expected a network among {READY}, got {self.model!r:.40}")
        numbers, texts = (*self.shape, *self.hidden, self.n_outputs), (self.embedding, *self.head)
        if not all(type(n) is int and 0 < n < 1 << 24 for n in numbers) or not all(
            type(text) is str for text in (self.model, *texts)
        ):
            raise ValueError(f"expected names and sizes of a network, got {str(self)[:120]}")

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
        named = "perceptron" if estimator.model is None else estimator.model
        return cls(
            model=named if isinstance(named, str) else OWN,
            shape=tuple(map(int, shape)),
            n_outputs=int(n_outputs),
            embedding=str(estimator.embedding),
            head=_layers(estimator.head),
            hidden=tuple(map(int, estimator.hidden)),
        )

    def parameters(self, own: Model = None) -> dict[str, Any]:
        """Return the estimator parameters that select this network.

        Parameters
        ----------
        own : Network, module or callable
            The user's module, if any.
        """
        ready = None if self.model == "perceptron" else self.model
        return {
            "model": ready if own is None else own,
            "embedding": self.embedding,
            "head": self.head[0] if len(self.head) == 1 else self.head,
            "hidden": self.hidden,
        }

    def network(self, own: Model = None, *, seed: int = 0) -> Network:
        """Return the network.

        Parameters
        ----------
        own : Network, module or callable
            The user's module, if the blueprint refers to one.
        seed : int
            Seed of the weights of a network that is built here.

        Raises
        ------
        ValueError
            If the user's module is missing, or lacks a layer.
        """
        if self.model == OWN and own is None:
            raise ValueError("expected model=, the module that was trained: its code is not stored")
        estimator = SimpleNamespace(**self.parameters(own if self.model == OWN else None))
        return build_network(estimator, self.shape, self.n_outputs, seed=seed)
