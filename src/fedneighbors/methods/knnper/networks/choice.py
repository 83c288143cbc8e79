"""Which network an estimator trains: the user's own, or a perceptron for tables."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedneighbors.methods.knnper.networks.network import Network
from fedneighbors.methods.knnper.networks.perceptron import perceptron

__all__ = ["Model", "chosen_network"]

Model = Network | nn.Module | Callable[[tuple[int, ...], int], Any] | None
"""What an estimator takes as ``model``."""


def chosen_network(
    model: Model,
    shape: tuple[int, ...],
    n_outputs: int,
    *,
    embedding: str,
    head: str | tuple[str, ...],
    hidden: tuple[int, ...],
    seed: int,
) -> Network:
    """Return the network that is trained.

    Parameters
    ----------
    model : Network, module, callable or None
        A network or a module, taken as it is; a function of a row's shape and the number of scores
        that makes one; or None for a perceptron.
    shape : tuple of int
        Of a row.
    n_outputs : int
        Scores.
    embedding, head : str
        Names of layers, where ``model`` is, or makes, a module.
    hidden : tuple of int
        Widths of the perceptron's layers.
    seed : int
        From which a perceptron's, or a made module's, weights follow.

    Raises
    ------
    TypeError
        If ``model`` is none of these.
    ValueError
        If the module has no such layers.
    """
    if model is None:
        width = 1
        for side in shape:
            width *= side
        return perceptron(width, n_outputs, hidden=hidden, seed=seed)
    if not isinstance(model, Network | nn.Module) and callable(model):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = model(shape, n_outputs)
    if isinstance(model, Network):
        return model
    if isinstance(model, nn.Module):
        return Network(model, embedding, (head,) if isinstance(head, str) else tuple(head))
    raise TypeError(
        "expected model as a torch.nn.Module, a function (shape, n_outputs) that makes one, or "
        f"None, got {type(model).__name__}"
    )
