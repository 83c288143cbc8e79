"""A network that has read a window of characters and says which comes next."""

import torch
from torch import Tensor, nn

from fedneighbors.datasets.speeches import ALPHABET
from fedneighbors.methods.knnper.networks.network import Network

__all__ = ["CharacterLSTM", "lstm"]


class CharacterLSTM(nn.Module):
    """Characters as short vectors, recurrent layers over them, and scores from the last output.

    The embedding is what the recurrent layers remember at the end: the hidden states of all layers,
    then their cell states.

    Parameters
    ----------
    n_tokens : int
        Characters that there are.
    n_outputs : int
        Number of scores.
    width : int
        Dimensions of a character.
    hidden : int
        Units of each recurrent layer.
    n_layers : int
        Recurrent layers.
    """

    def __init__(
        self, n_tokens: int, n_outputs: int, *, width: int = 8, hidden: int = 256, n_layers: int = 2
    ) -> None:
        super().__init__()
        self.characters = nn.Embedding(n_tokens, width)
        self.body = nn.LSTM(width, hidden, n_layers, batch_first=True)
        self.head = nn.Linear(hidden, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of shape (n_rows, n_outputs)."""
        outputs, _ = self.body(self.characters(x))
        scores: Tensor = self.head(outputs[:, -1])
        return scores


def lstm(
    shape: tuple[int, ...],
    n_outputs: int,
    *,
    n_tokens: int = len(ALPHABET),
    width: int = 8,
    hidden: int = 256,
    n_layers: int = 2,
    seed: int = 0,
) -> Network:
    """Return a recurrent network whose weights follow from the seed alone.

    By default the two layers of 256 units of the kNN-Per paper: an embedding of 1024 dimensions.

    Parameters
    ----------
    shape : tuple of int
        Of a row: (characters of a window,).
    n_outputs, n_tokens, width, hidden, n_layers
        As :class:`CharacterLSTM` takes them.
    seed : int
        Of the weights.

    Raises
    ------
    ValueError
        If rows are no windows of tokens.
    """
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(f"expected rows that are windows of tokens, got rows of shape {shape}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = CharacterLSTM(n_tokens, n_outputs, width=width, hidden=hidden, n_layers=n_layers)
    return Network(module, embedding="body", n_tokens=n_tokens)
