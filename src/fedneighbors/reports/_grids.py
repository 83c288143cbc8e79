"""Grids of pictures: sheets of small images, heat maps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Picture
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from fedneighbors._typing import Floats
from fedneighbors.records import Figure, ResultTable, Scalar, decode_pixels
from fedneighbors.reports._formatting import cells, printable
from fedneighbors.reports._series import column, floats, labels
from fedneighbors.reports._style import FRAME, INK, QUIET, colors, darker, dress, name_positions

_MAX_IMAGES = 200
_PER_LINE = 10
_PITCH_X, _PITCH_Y = 1.14, 1.42  # an image is 1 wide and 1 high
_INCHES = 0.66
_FEW_CELLS = 200
_LETTER = 0.075  # width of a letter in inches
_LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
_BLUES = LinearSegmentedColormap.from_list("blues", ["#f4f8fc", "#a9cbe3", "#3f7fb5", "#123a66"])
_TWO_SIDED = LinearSegmentedColormap.from_list(
    "two-sided", ["#8a1f3d", "#ee8fa0", "#f7f7f7", "#8fbadb", "#123a66"]
)


@dataclass(frozen=True)
class _Line:
    """A line of images: its label and their rows in the table."""

    name: str
    rows: tuple[int, ...]


def sheet_size(figure: Figure, table: ResultTable) -> tuple[float, float]:
    """Return the size of a sheet of images in inches."""
    lines = _lines(figure, table)
    return _INCHES * _PITCH_X * _width(lines), _INCHES * _PITCH_Y * len(lines)


def draw_images(axes: Axes, figure: Figure, table: ResultTable) -> None:
    """Draw one captioned thumbnail per row of the table.

    Raises
    ------
    RecordError
        If an image cell is not an image.
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
    if len(table.rows) > _MAX_IMAGES:
        note = f"drawn: the first {_MAX_IMAGES} of {len(table.rows)} images"
        axes.text(0, _PITCH_Y * len(lines), note, va="top", fontsize=8, color=QUIET)


def _lines(figure: Figure, table: ResultTable) -> list[_Line]:
    """Arrange images in lines; each facet starts a new line."""
    facets = labels(figure.facet, table)[:_MAX_IMAGES]
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
    """Write the legend of text colours above the sheet; return colours."""
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
    """Draw an image into a unit square, scaled to its longer side."""
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


def heatmap_size(figure: Figure, table: ResultTable) -> tuple[float, float]:
    """Return the size of a heat map in inches."""
    n_rows, n_columns = len(set(labels(figure.y, table))), len(set(labels(figure.x, table)))
    return min(2.4 + 0.5 * n_columns, 8.0), min(1.4 + 0.34 * n_rows, 9.0)


def draw_heatmap(drawn: Picture, figure: Figure, table: ResultTable) -> None:
    """Draw a heat map with a coloured cell per (x, y) pair.

    The column ``hue`` gives the colour.

    Values on both sides of 0 get a diverging colour scale.
    """
    axes = drawn.subplots()
    value_column = figure.hue or figure.y
    rows, columns = _places(figure.y, table), _places(figure.x, table)
    values: Floats = np.full((len(rows), len(columns)), np.nan)
    y = [rows[name] for name in labels(figure.y, table)]
    x = [columns[name] for name in labels(figure.x, table)]
    values[y, x] = floats(column(value_column, table))
    finite = values[np.isfinite(values)]
    if finite.size and finite.min() < 0 < finite.max():
        most = float(np.abs(finite).max())
        image = axes.imshow(values, cmap=_TWO_SIDED, aspect="auto", vmin=-most, vmax=most)
    else:
        image = axes.imshow(values, cmap=_BLUES, aspect="auto")
    if values.size <= _FEW_CELLS:
        _write_cells(axes, image, values, value_column)
    dress(axes.xaxis, figure.x)
    dress(axes.yaxis, figure.y)
    name_positions(axes.xaxis, list(columns))
    name_positions(axes.yaxis, list(rows))
    if max(map(len, columns), default=0) * _LETTER * len(columns) > drawn.get_figwidth() * 0.7:
        for label in axes.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")
    axes.spines[:].set_visible(False)
    bar = drawn.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.outline.set_visible(False)
    dress(bar.ax.yaxis, value_column)


def _places(name: str, table: ResultTable) -> dict[str, int]:
    """Return the distinct names of a column with their positions.

    In order of appearance.
    """
    return {text: place for place, text in enumerate(dict.fromkeys(labels(name, table)))}


def _write_cells(axes: Axes, image: AxesImage, values: Floats, name: str) -> None:
    """Write the value into each cell, in a contrasting colour."""
    flat: Sequence[Scalar] = [None if np.isnan(value) else float(value) for value in values.flat]
    colors = image.to_rgba(values)
    for (y, x), text in zip(np.ndindex(values.shape), cells(name, flat), strict=True):
        dark = np.isfinite(values[y, x]) and colors[y, x, :3] @ _LUMINANCE < 0.55
        color = "white" if dark else INK
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color=color)
