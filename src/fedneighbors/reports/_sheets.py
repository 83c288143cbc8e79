"""Draws sheets of small images."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from fedneighbors.records import Figure, Scalar, Table, decode_pixels
from fedneighbors.reports._palette import FRAME, QUIET, colors, darker
from fedneighbors.reports._series import column, labels
from fedneighbors.reports._text import printable

_MOST_IMAGES = 200
_PER_LINE = 10
_PITCH_X, _PITCH_Y = 1.14, 1.42  # an image is 1 wide and 1 high
_INCHES = 0.66


@dataclass(frozen=True)
class _Line:
    """Images side by side: what stands left of them, and their rows in the table."""

    name: str
    rows: tuple[int, ...]


def sheet_size(figure: Figure, table: Table) -> tuple[float, float]:
    """Width and height of a sheet of images in inches."""
    lines = _lines(figure, table)
    return _INCHES * _PITCH_X * _width(lines), _INCHES * _PITCH_Y * len(lines)


def draw_images(axes: Axes, figure: Figure, table: Table) -> None:
    """Draw one small image per row of the table, with its text below.

    Raises
    ------
    RecordError
        If a cell holds no image.
    """
    lines = _lines(figure, table)
    hues, texts = labels(figure.hue, table), labels(figure.x, table)
    palette = _name_hues(axes, hues) if figure.hue else {}
    pixels = column(figure.y, table)
    for number, line in enumerate(lines):
        top = _PITCH_Y * number
        axes.text(-0.2, top + 0.5, line.name, ha="right", va="center", fontsize=8.5)
        for place, row in enumerate(line.rows):
            _draw_image(axes, pixels[row], left=_PITCH_X * place, top=top)
            middle, color = _PITCH_X * place + 0.5, palette.get(hues[row], QUIET)
            below = printable(texts[row], 16)
            axes.text(middle, top + 1.06, below, ha="center", va="top", fontsize=7.5, color=color)
    axes.set(xlim=(-0.05, _PITCH_X * _width(lines)), ylim=(_PITCH_Y * len(lines), -0.05))
    axes.set_aspect("equal")
    axes.set_axis_off()
    if len(table.rows) > _MOST_IMAGES:
        said = f"drawn: the first {_MOST_IMAGES} of {len(table.rows)} images"
        axes.text(0, _PITCH_Y * len(lines), said, va="top", fontsize=8, color=QUIET)


def _lines(figure: Figure, table: Table) -> list[_Line]:
    """Images of one facet stand together; a facet begins a new line."""
    facets = labels(figure.facet, table)[:_MOST_IMAGES]
    lines = []
    for facet in dict.fromkeys(facets):
        rows = [row for row, name in enumerate(facets) if name == facet]
        for start in range(0, len(rows), _PER_LINE):
            name = facet if start == 0 else ""
            lines.append(_Line(name, tuple(rows[start : start + _PER_LINE])))
    return lines


def _width(lines: list[_Line]) -> int:
    return max(len(line.rows) for line in lines)


def _name_hues(axes: Axes, hues: list[str]) -> dict[str, str]:
    """Write what each colour of text means above the sheet; return the colours."""
    names = list(dict.fromkeys(hues))
    palette = dict(zip(names, map(darker, colors(len(names))), strict=True))
    for place, name in enumerate(names[: _PER_LINE // 2]):
        axes.text(
            2 * _PITCH_X * place,
            -0.16,
            f"\N{BLACK SQUARE} {printable(name, 16)}",
            va="bottom",
            fontsize=8.5,
            color=palette[name],
        )
    return palette


def _draw_image(axes: Axes, cell: Scalar, *, left: float, top: float) -> None:
    """Draw an image into a unit square, its longer side as long as the square's."""
    pixels = np.array([list(row) for row in decode_pixels(cell)], dtype=np.uint8)
    height, width = (side / max(pixels.shape) for side in pixels.shape)
    left, top = left + (1 - width) / 2, top + (1 - height) / 2
    axes.imshow(
        pixels,
        cmap="gray",
        vmin=0,
        vmax=255,
        extent=(left, left + width, top + height, top),
        interpolation="nearest",
    )
    axes.add_patch(
        Rectangle((left, top), width, height, fill=False, edgecolor=FRAME, linewidth=0.6)
    )
