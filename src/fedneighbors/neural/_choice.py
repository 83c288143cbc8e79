"""Which network an estimator trains: the user's own, or a ready one."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from fedneighbors.neural._architectures import cnn, lstm, mobilenet, perceptron
from fedneighbors.neural._network import Network

Model = Network | nn.Module | Callable[[tuple[int, ...], int], Any] | str | None
"""What an estimator takes as ``model``."""

IMAGES_AND_WORDS: dict[str, Callable[..., Network]] = {
    "cnn": cnn,
    "mobilenet": mobilenet,
    "lstm": lstm,
}
READY = ("perceptron", *IMAGES_AND_WORDS)
"""Names of the ready networks."""


def chosen_network(
    model: Model,
    shape: tuple[int, ...],
    n_outputs: int,
    *,
    embedding: str,
    head: str | tuple[str, ...],
    hidden: Sequence[int],
    seed: int,
) -> Network:
    """Return the network that is trained.

    Parameters
    ----------
    model : Network, module, callable, str or None
        A network or a module, taken as it is; a function of a row's shape and the number of scores
        that makes one; the name of a ready one in :data:`READY`; or None for a perceptron.
    shape : tuple of int
        Of a row.
    n_outputs : int
        Scores.
    embedding, head : str
        Names of layers, where ``model`` is, or makes, a module; ready networks have their own.
    hidden : sequence of int
        Widths of the perceptron's layers.
    seed : int
        From which a ready network's, or a made module's, weights follow.

    Raises
    ------
    TypeError
        If ``model`` is none of these, a word that names no ready network among them.
    ValueError
        If the module has no such layers, or the ready network does not take rows of this shape.
    """
    if model is None or model == "perceptron":
        return perceptron(math.prod(shape), n_outputs, hidden=hidden, seed=seed)
    if isinstance(model, str) and model in IMAGES_AND_WORDS:
        return IMAGES_AND_WORDS[model](shape, n_outputs, seed=seed)
    if not isinstance(model, Network | nn.Module) and callable(model):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = model(shape, n_outputs)
    if isinstance(model, Network):
        return model
    if isinstance(model, nn.Module):
        return Network(model, embedding, (head,) if isinstance(head, str) else tuple(head))
    raise TypeError(
        "expected model as a torch.nn.Module, a function (shape, n_outputs) that makes one, one of "
        f"{', '.join(map(repr, READY))}, or None, got "
        f"{repr(model) if isinstance(model, str) else type(model).__name__}"
    )
