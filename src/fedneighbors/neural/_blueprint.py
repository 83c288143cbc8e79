"""The network of an estimator: its choice, the perceptron, and a description to store."""

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
    """Layers up to the embedding, and layers from it to the scores.

    Parameters
    ----------
    body, head : torch.nn.Module
        Parts.
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of shape (n_rows, n_outputs)."""
        scores: Tensor = self.head(self.body(x))
        return scores


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let weights that are drawn inside follow from a seed alone."""
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
        If there is no hidden layer, or a width is no whole number of 1 or more.
    """
    if isinstance(hidden, str) or not isinstance(hidden, Sequence) or not hidden:
        raise ValueError(
            "expected hidden as the widths of one hidden layer at least, such as (256, 128), whose "
            f"last output is the embedding, got {hidden!r}"
        )
    if not all(isinstance(width, Integral) and width >= 1 for width in hidden):
        raise ValueError(f"expected widths of 1 or more in hidden, got {hidden!r}")
    layers: list[nn.Module] = [nn.Flatten()]
    with seeded(seed):
        for width, following in pairwise([n_inputs, *hidden]):
            layers += [nn.Linear(width, following), nn.ReLU()]
        module = BodyAndHead(nn.Sequential(*layers), nn.Linear(hidden[-1], n_outputs))
    return Network(module, embedding="body")


Model = Network | nn.Module | Callable[[tuple[int, ...], int], Any] | str | None
"""What an estimator takes as ``model``."""

READY = ("perceptron", "cnn", "mobilenet", "lstm")
"""Names of the ready networks."""


def chosen_network(asked: Any, shape: tuple[int, ...], n_outputs: int, *, seed: int) -> Network:
    """Return the network that is trained.

    Parameters
    ----------
    asked : estimator
        Its parameters ``model``, ``embedding``, ``head`` and ``hidden`` are read. ``model`` is a
        network or a module, taken as it is; a function of a row's shape and the number of scores
        that makes one; the name of a ready one in :data:`READY`; or None for a perceptron.
    shape : tuple of int
        Shape of a row.
    n_outputs : int
        Scores.
    seed : int
        From which a ready network's, or a made module's, weights follow.

    Raises
    ------
    TypeError
        If ``model`` is none of these, a word that names no ready network among them.
    ValueError
        If the module has no such layers, or the ready network does not take rows of this shape.
    """
    model: Model = asked.model
    if model is None or model == "perceptron":
        return perceptron(math.prod(shape), n_outputs, hidden=asked.hidden, seed=seed)
    if isinstance(model, str) and model in READY:
        from fedneighbors.neural import _architectures  # they are made of the parts above

        ready: Network = getattr(_architectures, model)(shape, n_outputs, seed=seed)
        return ready
    if not isinstance(model, Network | nn.Module) and callable(model):
        with seeded(seed):
            model = model(shape, n_outputs)
    if isinstance(model, Network):
        return replace(model)  # its module may have been trained since: weights are read again
    if isinstance(model, nn.Module):
        return Network(model, asked.embedding, _layers(asked.head))
    raise TypeError(
        "expected model as a torch.nn.Module, a function (shape, n_outputs) that makes one, one of "
        f"{', '.join(map(repr, READY))}, or None, got "
        f"{repr(model) if isinstance(model, str) else type(model).__name__}"
    )


def _layers(head: str | Sequence[str]) -> tuple[str, ...]:
    return (head,) if isinstance(head, str) else tuple(head)


OWN = "own"
"""Stands for a module of the user's own, whose code is in no file and travels nowhere."""


@dataclass(frozen=True)
class Blueprint:
    """Description of a network without its weights.

    Parameters
    ----------
    model : str
        ``"perceptron"`` or the name of another ready network; :data:`OWN` for the user's module.
    shape : tuple of int
        Shape of a row.
    n_outputs : int
        Scores.
    embedding : str
        Name of the layer whose output is memorized.
    head : tuple of str
        Names of the layers after it.
    hidden : tuple of int
        Widths of a perceptron's layers.
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
    def of(cls, asked: Any, shape: tuple[int, ...], n_outputs: int) -> "Blueprint":
        """Return what describes the network that an estimator asks for.

        Parameters
        ----------
        asked : estimator
            Its parameters ``model``, ``embedding``, ``head`` and ``hidden`` are read.
        shape : tuple of int
            Shape of a row.
        n_outputs : int
            Scores.
        """
        named = "perceptron" if asked.model is None else asked.model
        return cls(
            model=named if isinstance(named, str) else OWN,
            shape=tuple(map(int, shape)),
            n_outputs=int(n_outputs),
            embedding=str(asked.embedding),
            head=_layers(asked.head),
            hidden=tuple(map(int, asked.hidden)),
        )

    def parameters(self, own: Model = None) -> dict[str, Any]:
        """Return the parameters of an estimator that asks for this network.

        Parameters
        ----------
        own : Network, module or callable
            The user's own, where there is one.
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
            The user's own, where the blueprint says so.
        seed : int
            From which the weights of one that is made here follow.

        Raises
        ------
        ValueError
            If the user's own is missing, or has no such layers.
        """
        if self.model == OWN and own is None:
            raise ValueError("expected model=, the module that was trained: its code is not stored")
        asked = SimpleNamespace(**self.parameters(own if self.model == OWN else None))
        return chosen_network(asked, self.shape, self.n_outputs, seed=seed)
