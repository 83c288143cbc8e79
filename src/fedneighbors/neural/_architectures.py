"""Built-in networks for images and texts: a small CNN, MobileNet-v2 and a character LSTM."""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedneighbors.neural._blueprint import BodyAndHead, torch_seed
from fedneighbors.neural._network import Network


def image_sides(shape: tuple[int, ...], *, least: int) -> tuple[int, int, int]:
    """Return channels, height and width of an image.

    Parameters
    ----------
    shape : tuple of int
        Shape of a row: (height, width) or (channels, height, width).
    least : int
        Minimum side in pixels.

    Raises
    ------
    ValueError
        If rows of this shape are not images, or a side is too short.
    """
    if len(shape) not in (2, 3):
        raise ValueError(
            f"expected rows of shape (height, width) or (channels, height, width), got {shape}; "
            "reshape flat rows, for example x.reshape(-1, 28, 28)"
        )
    channels, height, width = (1, *shape) if len(shape) == 2 else shape
    if channels < 1 or min(height, width) < least:
        raise ValueError(
            f"expected images of {least} x {least} pixels or more, got rows of shape {shape}"
        )
    return channels, height, width


def add_channel(shape: tuple[int, ...]) -> nn.Module:
    """Return a layer that adds a channel axis to images without channels."""
    return nn.Unflatten(1, (1, shape[0])) if len(shape) == 2 else nn.Identity()


def cnn(
    shape: tuple[int, ...],
    n_outputs: int,
    *,
    channels: Sequence[int] = (16, 32),
    width: int = 128,
    seed: int = 0,
) -> Network:
    """Return a small convolutional network whose weights follow from the seed alone.

    Each 3 x 3 convolution halves the image; a linear layer computes the embedding.

    Parameters
    ----------
    shape : tuple of int
        Shape of a row: (height, width) or (channels, height, width).
    n_outputs : int
        Number of scores.
    channels : sequence of int
        Channels of each convolution.
    width : int
        Embedding dimensions.
    seed : int
        Seed of the weights.

    Raises
    ------
    ValueError
        If rows of this shape are not images, or a side is below 2 to the number of convolutions.
    """
    incoming, high, wide = image_sides(shape, least=2 ** len(channels))
    layers: list[nn.Module] = [add_channel(shape)]
    with torch_seed(seed):
        for outgoing in channels:
            layers += [nn.Conv2d(incoming, outgoing, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            incoming, high, wide = outgoing, high // 2, wide // 2
        layers += [nn.Flatten(), nn.Linear(incoming * high * wide, width), nn.ReLU()]
        module = BodyAndHead(nn.Sequential(*layers), nn.Linear(width, n_outputs))
    return Network(module, embedding="body")


class CharacterLSTM(nn.Module):
    """Character embeddings, recurrent layers, and scores from the last output.

    The embedding is the recurrent layers' last state: the hidden states of all layers, then their
    cell states.

    Parameters
    ----------
    n_tokens : int
        Number of distinct characters.
    n_outputs : int
        Number of scores.
    width : int
        Dimensions of a character embedding.
    hidden : int
        Units per recurrent layer.
    n_layers : int
        Number of recurrent layers.
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


ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""Characters with a token, which is their index; those of the LEAF benchmark [1]_.

.. [1] Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097, 2018.
"""


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

    The defaults are those of the kNN-Per paper: two layers of 256 units, an embedding of 1024
    values.

    Parameters
    ----------
    shape : tuple of int
        Shape of a row: (characters of a window,).
    n_outputs, n_tokens, width, hidden, n_layers
        As in :class:`CharacterLSTM`.
    seed : int
        Seed of the weights.

    Raises
    ------
    ValueError
        If rows are not windows of tokens.
    """
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(f"expected rows with windows of tokens, got rows of shape {shape}")
    with torch_seed(seed):
        module = CharacterLSTM(n_tokens, n_outputs, width=width, hidden=hidden, n_layers=n_layers)
    return Network(module, embedding="body", n_tokens=n_tokens)


STAGES = (
    # expansion t, channels c, blocks n, stride s
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
EMBEDDING = 1280
SMALL = 64
"""Images with a side below this are halved three times; five halvings would lose too much."""

Stride = Literal[8, 16, 32]


class ChannelsLast(nn.Module):
    """Layer that converts feature maps to channels-last, which saves a third of a step on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with channels last in memory."""
        return x.contiguous(memory_format=torch.channels_last)


class InvertedResidual(nn.Module):
    """A block that expands, filters each channel and projects (Figure 3d of [1]_).

    Parameters
    ----------
    incoming, outgoing : int
        Channels.
    stride : int
        Stride of the filter.
    expansion : int
        Ratio of inner to incoming channels.

    References
    ----------
    .. [1] Sandler, Howard, Zhu, Zhmoginov and Chen, "MobileNetV2: Inverted Residuals and Linear
       Bottlenecks", CVPR 2018.
    """

    def __init__(self, incoming: int, outgoing: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        inside = incoming * expansion
        widen = [] if expansion == 1 else [_conv_block(incoming, inside, size=1)]
        self.layers = nn.Sequential(
            *widen,
            _conv_block(inside, inside, size=3, stride=stride, groups=inside),
            nn.Conv2d(inside, outgoing, 1, bias=False),
            nn.BatchNorm2d(outgoing),
        )
        self.shortcut = stride == 1 and incoming == outgoing

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block; add the input if the shapes allow it."""
        made: Tensor = self.layers(x)
        return x + made if self.shortcut else made


def mobilenet(
    shape: tuple[int, ...],
    n_outputs: int,
    *,
    width: float = 1.0,
    stride: Stride | None = None,
    dropout: float = 0.2,
    seed: int = 0,
) -> Network:
    """Return a MobileNet-v2 whose weights follow from the seed alone.

    Table 2 of the paper, with fewer halvings for small images. Scale pixels to about 1: with pixels
    up to 255, running averages change so much in a round that the training is refused as diverged.

    Parameters
    ----------
    shape : tuple of int
        Shape of a row: (height, width) or (channels, height, width).
    n_outputs : int
        Number of scores.
    width : float
        Factor of the channels; the embedding keeps 1280 dimensions for factors below 1.
    stride : {8, 16, 32}, optional
        Ratio of the image's side to that of the last feature map. The paper has 32. Default: 8 for
        images with a side below 64 pixels, by omitting the first halvings; otherwise 32.
    dropout : float
        Fraction of the embedding that dropout hides from the head in training.
    seed : int
        Seed of the weights.

    Raises
    ------
    ValueError
        If rows are not images of at least 8 x 8 pixels, or a parameter is out of range.
    """
    if stride not in (None, 8, 16, 32):
        raise ValueError(f"expected stride 8, 16 or 32, got {stride!r}")
    if not 0 < width <= 4:
        raise ValueError(f"expected width above 0 and up to 4, got {width!r}")
    if not 0 <= dropout < 1:
        raise ValueError(f"expected dropout from 0 up to 1, got {dropout!r}")
    channels, *sides = image_sides(shape, least=8)
    last = _multiple(EMBEDDING * max(1.0, width))
    with torch_seed(seed):
        body = _inverted_residuals(
            channels, width, stride=stride or (8 if min(sides) < SMALL else 32), last=last
        )
        head = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, n_outputs))
        module = BodyAndHead(nn.Sequential(add_channel(shape), *body), head)
        _draw_weights(module)
    return Network(module, embedding="body")


def _inverted_residuals(
    channels: int, width: float, *, stride: Stride, last: int
) -> list[nn.Module]:
    """Return the layers from images to the embedding."""
    halve, incoming = _halvings(stride), _multiple(32 * width)
    layers = [_conv_block(channels, incoming, size=3, stride=next(halve)), ChannelsLast()]
    for expansion, base, n_blocks, step in STAGES:
        outgoing = _multiple(base * width)
        for number in range(n_blocks):
            pace = next(halve) if step == 2 and number == 0 else 1
            layers.append(InvertedResidual(incoming, outgoing, stride=pace, expansion=expansion))
            incoming = outgoing
    return [*layers, _conv_block(incoming, last, size=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]


def _draw_weights(module: nn.Module) -> None:
    """Draw initial weights like torchvision's reference."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0.0, 0.01)
            nn.init.zeros_(layer.bias)


def _conv_block(
    incoming: int, outgoing: int, *, size: int, stride: int = 1, groups: int = 1
) -> nn.Module:
    """Return a convolution, batch normalization and ReLU6."""
    return nn.Sequential(
        nn.Conv2d(incoming, outgoing, size, stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outgoing),
        nn.ReLU6(inplace=True),
    )


def _halvings(stride: Stride) -> Iterator[int]:
    """Return the strides of the paper's five halving layers.

    If the total stride is less than 32, the first layers do not halve.
    """
    kept = stride.bit_length() - 1
    return iter([1] * (5 - kept) + [2] * kept)


def _multiple(channels: float) -> int:
    """Round to a multiple of 8 that loses at most 10 %.

    The reference implementation rounds in this way.
    """
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near
