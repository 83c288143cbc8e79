"""MobileNet-v2, whose 1280 averaged channels are the embedding; also for small images.

Written out after Table 2 of Sandler et al., because torchvision's wheels are built against one
build of torch and do not load beside another, such as the one for processors.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from fedneighbors.methods.knnper.networks.images import image_sides, with_channels
from fedneighbors.methods.knnper.networks.network import Network

__all__ = ["ChannelsLast", "InvertedResidual", "MobileNetV2", "mobilenet"]

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
"""Images with a side below this lose too much in five halvings; they are halved three times."""

Stride = Literal[8, 16, 32]


class ChannelsLast(nn.Module):
    """Lays maps with their channels last: a third fewer seconds a step on a processor."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the same numbers."""
        return x.contiguous(memory_format=torch.channels_last)


class InvertedResidual(nn.Module):
    """A block that widens, filters each channel, and narrows again (Figure 3d of [1]_).

    Parameters
    ----------
    incoming, outgoing : int
        Channels.
    stride : int
        Of the filter.
    expansion : int
        How many times as wide it is inside.

    References
    ----------
    .. [1] Sandler, Howard, Zhu, Zhmoginov and Chen, "MobileNetV2: Inverted Residuals and Linear
       Bottlenecks", CVPR 2018.
    """

    def __init__(self, incoming: int, outgoing: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        inside = incoming * expansion
        widen = [] if expansion == 1 else [_filtered(incoming, inside, size=1)]
        self.layers = nn.Sequential(
            *widen,
            _filtered(inside, inside, size=3, stride=stride, groups=inside),
            nn.Conv2d(inside, outgoing, 1, bias=False),
            nn.BatchNorm2d(outgoing),
        )
        self.shortcut = stride == 1 and incoming == outgoing

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's channels, added to what came in where shapes allow it."""
        made: Tensor = self.layers(x)
        return x + made if self.shortcut else made


class MobileNetV2(nn.Module):
    """Table 2 of the paper, with fewer halvings for small images.

    Pixels are numbers of about 1: running averages of pixels up to 255 move as far in a round as
    only a training that has diverged does, and are refused as such.

    Parameters
    ----------
    shape : tuple of int
        Of a row: (height, width) or (channels, height, width).
    n_outputs : int
        Number of scores.
    width : float
        Factor of the channels; the embedding keeps 1280 dimensions below 1.
    stride : {8, 16, 32}, optional
        How many times smaller the last map is than the image. 32 is the paper's; by default 8 for
        images with a side below 64 pixels. The first halvings are the ones left out.
    dropout : float
        Share of the embedding that is hidden from the head in training.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        n_outputs: int,
        *,
        width: float = 1.0,
        stride: Stride | None = None,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        channels, *sides = image_sides(shape, least=8)
        halve = _halvings(stride or (8 if min(sides) < SMALL else 32))
        last = _multiple(EMBEDDING * max(1.0, width))
        incoming = _multiple(32 * width)
        stem = _filtered(channels, incoming, size=3, stride=next(halve))
        layers = [with_channels(shape), stem, ChannelsLast()]
        for expansion, base, n_blocks, step in STAGES:
            outgoing = _multiple(base * width)
            for number in range(n_blocks):
                pace = next(halve) if step == 2 and number == 0 else 1
                block = InvertedResidual(incoming, outgoing, stride=pace, expansion=expansion)
                layers.append(block)
                incoming = outgoing
        layers += [_filtered(incoming, last, size=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, n_outputs))
        self._begin()

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of shape (n_rows, n_outputs)."""
        scores: Tensor = self.head(self.body(x))
        return scores

    def _begin(self) -> None:
        """Draw first weights as torchvision's reference does."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            elif isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, 0.0, 0.01)
                nn.init.zeros_(layer.bias)


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

    Parameters
    ----------
    shape, n_outputs, width, stride, dropout
        As :class:`MobileNetV2` takes them.
    seed : int
        Of the weights.

    Raises
    ------
    ValueError
        If rows of this shape are no images of 8 x 8 pixels or more, or a parameter is out of range.
    """
    if stride not in (None, 8, 16, 32):
        raise ValueError(f"expected stride 8, 16 or 32, got {stride!r}")
    if not 0 < width <= 4:
        raise ValueError(f"expected width above 0 and up to 4, got {width!r}")
    if not 0 <= dropout < 1:
        raise ValueError(f"expected dropout from 0 up to 1, got {dropout!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = MobileNetV2(shape, n_outputs, width=width, stride=stride, dropout=dropout)
    return Network(module, embedding="body")


def _filtered(
    incoming: int, outgoing: int, *, size: int, stride: int = 1, groups: int = 1
) -> nn.Module:
    """Return a convolution, its normalization over the batch, and a rectifier that ends at 6."""
    return nn.Sequential(
        nn.Conv2d(incoming, outgoing, size, stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outgoing),
        nn.ReLU6(inplace=True),
    )


def _halvings(stride: Stride) -> Iterator[int]:
    """Return the stride of each of the five layers that halve in the paper."""
    kept = stride.bit_length() - 1
    return iter([1] * (5 - kept) + [2] * kept)


def _multiple(channels: float) -> int:
    """Return the nearest multiple of 8 that takes away at most a tenth, as the reference does."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near
