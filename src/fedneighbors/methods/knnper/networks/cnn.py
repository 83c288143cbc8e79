"""A small convolutional network for images of 28 x 28 or 32 x 32 pixels."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedneighbors.methods.knnper.networks.images import image_sides, with_channels
from fedneighbors.methods.knnper.networks.network import Network

__all__ = ["SmallCNN", "cnn"]


class SmallCNN(nn.Module):
    """Convolutions of 3 x 3, each halving the image, and a linear layer that is the embedding.

    Parameters
    ----------
    shape : tuple of int
        Of a row: (height, width) or (channels, height, width).
    n_outputs : int
        Number of scores.
    channels : sequence of int
        Of each convolution.
    width : int
        Dimensions of the embedding.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        n_outputs: int,
        *,
        channels: Sequence[int] = (16, 32),
        width: int = 128,
    ) -> None:
        super().__init__()
        incoming, high, wide = image_sides(shape, least=2 ** len(channels))
        layers: list[nn.Module] = [with_channels(shape)]
        for outgoing in channels:
            layers += [nn.Conv2d(incoming, outgoing, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            incoming, high, wide = outgoing, high // 2, wide // 2
        layers += [nn.Flatten(), nn.Linear(incoming * high * wide, width), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of shape (n_rows, n_outputs)."""
        scores: Tensor = self.head(self.body(x))
        return scores


def cnn(
    shape: tuple[int, ...],
    n_outputs: int,
    *,
    channels: Sequence[int] = (16, 32),
    width: int = 128,
    seed: int = 0,
) -> Network:
    """Return a small convolutional network whose weights follow from the seed alone.

    Parameters
    ----------
    shape, n_outputs, channels, width
        As :class:`SmallCNN` takes them.
    seed : int
        Of the weights.

    Raises
    ------
    ValueError
        If rows of this shape are no images, or smaller than two to the number of convolutions.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = SmallCNN(shape, n_outputs, channels=channels, width=width)
    return Network(module, embedding="body")
