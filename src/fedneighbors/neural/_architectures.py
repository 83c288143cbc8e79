"""Built-in networks for images and texts: a small CNN, MobileNet-v2 and a character LSTM."""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedneighbors.neural._blueprint import BodyAndHead, torch_seed
from fedneighbors.neural._network import Network

_CHANNELS = (1, 3, 4)  # gray, RGB, RGBA


def image_sides(shape: tuple[int, ...], *, min_side: int) -> tuple[int, int, int]:
    """Return channels, height and width of an image.

    Parameters
    ----------
    shape : tuple of int
        Shape of a row: (height, width) or (channels, height, width).
    min_side : int
        Minimum height and width in pixels.

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
    if width in _CHANNELS and channels not in _CHANNELS:
        raise ValueError(
            f"rows of shape {shape} look like (height, width, channels); expected channels first: "
            "move the axis with x.transpose(0, 3, 1, 2)"
        )
    if channels < 1 or min(height, width) < min_side:
        raise ValueError(
            f"expected images of {min_side} x {min_side} pixels or more, got rows of shape {shape}"
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
    """Return a small CNN whose initial weights depend on the seed alone.

    A pooling layer after each 3 x 3 convolution halves the image; a linear layer computes the
    embedding.

    Parameters
    ----------
    shape : tuple of int
        Shape of a row: (height, width) or (channels, height, width).
    n_outputs : int
        Number of scores per row.
    channels : sequence of int
        Output channels of each convolution.
    width : int
        Number of embedding dimensions.
    seed : int
        Seed of the weights.

    Raises
    ------
    ValueError
        If rows of this shape are not images, or a side is below 2 to the power of the number of
        convolutions.
    """
    incoming, high, wide = image_sides(shape, min_side=2 ** len(channels))
    layers: list[nn.Module] = [add_channel(shape)]
    with torch_seed(seed):
        for outgoing in channels:
            layers += [nn.Conv2d(incoming, outgoing, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            incoming, high, wide = outgoing, high // 2, wide // 2
        layers += [nn.Flatten(), nn.Linear(incoming * high * wide, width), nn.ReLU()]
        module = BodyAndHead(nn.Sequential(*layers), nn.Linear(width, n_outputs))
    return Network(module, embedding="body")


class CharacterLSTM(nn.Module):
    """Character embeddings, LSTM layers, and a linear head on the last output.

    The embedding of a row consists of the final hidden states of all LSTM layers, then their final
    cell states.

    Parameters
    ----------
    n_tokens : int
        Number of distinct characters.
    n_outputs : int
        Number of scores.
    width : int
        Number of dimensions of a character's embedding.
    hidden : int
        Number of units per LSTM layer.
    n_layers : int
        Number of LSTM layers.
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
"""Characters of the LEAF benchmark [1]_; the token of a character is its index.

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
    """Return an LSTM network whose initial weights depend on the seed alone.

    The defaults are those of the kNN-Per paper: two layers of 256 units, and thus an embedding of
    1024 dimensions.

    Parameters
    ----------
    shape : tuple of int
        Shape of a row: (length of a window of characters,).
    n_outputs, n_tokens, width, hidden, n_layers
        As in :class:`CharacterLSTM`.
    seed : int
        Seed of the weights.

    Raises
    ------
    ValueError
        If rows of this shape are not windows of tokens.
    """
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(f"expected rows that are windows of tokens, got rows of shape {shape}")
    with torch_seed(seed):
        module = CharacterLSTM(n_tokens, n_outputs, width=width, hidden=hidden, n_layers=n_layers)
    return Network(module, embedding="body", n_tokens=n_tokens)


STAGES = (
    # expansion t, channels c, blocks n, stride s of Table 2 of the MobileNet-v2 paper
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
EMBEDDING_SIZE = 1280
SMALL_SIDE = 64
"""Images with a side below this are halved three times instead of five, which keeps more detail."""

Stride = Literal[8, 16, 32]


class ChannelsLast(nn.Module):
    """Layer that converts feature maps to channels-last: a training step on a CPU is faster."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with channels last in memory."""
        return x.contiguous(memory_format=torch.channels_last)


class InvertedResidual(nn.Module):
    """Block that expands channels, filters each one and projects them (Figure 3d of [1]_).

    Parameters
    ----------
    incoming, outgoing : int
        Numbers of input and output channels.
    stride : int
        Stride of the filter.
    expansion : int
        Ratio of inner to input channels.

    References
    ----------
    .. [1] Sandler, Howard, Zhu, Zhmoginov and Chen, "MobileNetV2: Inverted Residuals and Linear
       Bottlenecks", CVPR 2018.
    """

    def __init__(self, incoming: int, outgoing: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        inner = incoming * expansion
        expand = [] if expansion == 1 else [_conv_block(incoming, inner, size=1)]
        self.layers = nn.Sequential(
            *expand,
            _conv_block(inner, inner, size=3, stride=stride, groups=inner),
            nn.Conv2d(inner, outgoing, 1, bias=False),
            nn.BatchNorm2d(outgoing),
        )
        self.shortcut = stride == 1 and incoming == outgoing

    def forward(self, x: Tensor) -> Tensor:
        """Return the output; the input is added if the shapes are equal."""
        output: Tensor = self.layers(x)
        return x + output if self.shortcut else output


def mobilenet(
    shape: tuple[int, ...],
    n_outputs: int,
    *,
    width: float = 1.0,
    stride: Stride | None = None,
    dropout: float = 0.2,
    seed: int = 0,
) -> Network:
    """Return a MobileNet-v2 whose initial weights depend on the seed alone.

    The layers are those of Table 2 of the paper, with fewer halvings for small images. Scale pixels
    to [0, 1]: with pixels up to 255, running averages change so much in a round that the training
    is refused as diverged.

    Parameters
    ----------
    shape : tuple of int
        Shape of a row: (height, width) or (channels, height, width).
    n_outputs : int
        Number of scores.
    width : float
        Factor of the numbers of channels. The embedding has at least 1280 dimensions.
    stride : {8, 16, 32}, optional
        Ratio of the image's side to that of the last feature map; 32 in the paper. Below 32, the
        first layers do not halve. Default: 8 for images with a side below 64 pixels, otherwise 32.
    dropout : float
        Fraction of the embedding that is set to 0 before the head in training.
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
    channels, *sides = image_sides(shape, min_side=8)
    last = _round_channels(EMBEDDING_SIZE * max(1.0, width))
    with torch_seed(seed):
        body = _inverted_residuals(
            channels, width, stride=stride or (8 if min(sides) < SMALL_SIDE else 32), last=last
        )
        head = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, n_outputs))
        module = BodyAndHead(nn.Sequential(add_channel(shape), *body), head)
        _draw_weights(module)
    return Network(module, embedding="body")


def _inverted_residuals(
    channels: int, width: float, *, stride: Stride, last: int
) -> list[nn.Module]:
    """Return the layers from images to the embedding, of ``last`` dimensions."""
    strides, incoming = _halving_strides(stride), _round_channels(32 * width)
    layers = [_conv_block(channels, incoming, size=3, stride=next(strides)), ChannelsLast()]
    for expansion, base, n_blocks, stage_stride in STAGES:
        outgoing = _round_channels(base * width)
        for block in range(n_blocks):
            step = next(strides) if stage_stride == 2 and block == 0 else 1
            layers.append(InvertedResidual(incoming, outgoing, stride=step, expansion=expansion))
            incoming = outgoing
    return [*layers, _conv_block(incoming, last, size=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]


def _draw_weights(module: nn.Module) -> None:
    """Draw initial weights from the distributions that torchvision uses."""
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


def _halving_strides(stride: Stride) -> Iterator[int]:
    """Return the strides of the five layers that halve in the paper.

    If the total stride is less than 32, the first of these have stride 1.
    """
    n_halving = stride.bit_length() - 1
    return iter([1] * (5 - n_halving) + [2] * n_halving)


def _round_channels(channels: float) -> int:
    """Round to a multiple of 8 that is at least 90 %.

    The reference implementation rounds in this way.
    """
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded
