"""A perceptron of some hidden layers: the network for tables, and for small images."""

from collections.abc import Sequence
from itertools import pairwise
from numbers import Integral

import torch
from torch import Tensor, nn

from fedneighbors.methods.knnper.networks.network import Network

__all__ = ["Perceptron", "perceptron"]


class Perceptron(nn.Module):
    """Linear layers with rectifiers between them; the last hidden layer is the embedding.

    Parameters
    ----------
    n_inputs, n_outputs : int
        Width of a row, and number of scores.
    hidden : sequence of int
        Widths of the hidden layers, at least one.
    """

    def __init__(self, n_inputs: int, n_outputs: int, hidden: Sequence[int] = (256, 128)) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for width, following in pairwise([n_inputs, *hidden]):
            layers += [nn.Linear(width, following), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(hidden[-1], n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of shape (n_rows, n_outputs)."""
        scores: Tensor = self.head(self.body(x))
        return scores


def perceptron(
    n_inputs: int, n_outputs: int, *, hidden: Sequence[int] = (256, 128), seed: int = 0
) -> Network:
    """Return a perceptron whose weights follow from the seed alone.

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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Network(Perceptron(n_inputs, n_outputs, hidden), embedding="body")
