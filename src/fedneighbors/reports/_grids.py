"""Sheets of thumbnail images, and heat maps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as MplFigure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from fedneighbors._typing import Floats
from fedneighbors.records import Figure, ResultTable, Scalar, decode_pixels
from fedneighbors.reports._formatting import format_cells, to_printable
from fedneighbors.reports._series import format_column, read_column, to_floats
from fedneighbors.reports._style import (
    FRAME,
    MUTED,
    TEXT,
    darken,
    label_axis,
    label_ticks,
    list_colors,
)

_MAX_IMAGES = 200
_IMAGES_PER_LINE = 10
# distances between the left and the top edges of neighbouring images, which are 1 wide and 1 high
_PITCH_X, _PITCH_Y = 1.14, 1.42
_IMAGE_INCHES = 0.66  # width and height of an image
_MAX_CELLS_WITH_VALUES = 200
_LETTER_WIDTH = 0.075  # inches
_LUMINANCE = np.array([0.2126, 0.7152, 0.0722])  # weights of red, green and blue, from ITU-R BT.709
_BLUES = LinearSegmentedColormap.from_list("blues", ["#f4f8fc", "#a9cbe3", "#3f7fb5", "#123a66"])
_DIVERGING = LinearSegmentedColormap.from_list(
    "diverging", ["#8a1f3d", "#ee8fa0", "#f7f7f7", "#8fbadb", "#123a66"]
)


@dataclass(frozen=True)
class _Line:
    """One line of a sheet: its label and the table rows of its images."""

    label: str
    rows: tuple[int, ...]


def measure_sheet(figure: Figure, table: ResultTable) -> tuple[float, float]:
    """Return the width and height of a sheet of images in inches."""
    lines = _arrange_lines(figure, table)
    return _IMAGE_INCHES * _PITCH_X * _count_columns(lines), _IMAGE_INCHES * _PITCH_Y * len(lines)


def draw_images(axes: Axes, figure: Figure, table: ResultTable) -> None:
    """Draw one image with its caption per row of the table.

    Raises
    ------
    RecordError
        If an image cell is not an image.
    """
    lines = _arrange_lines(figure, table)
    hues, texts = format_column(figure.hue, table), format_column(figure.x, table)
    palette = _draw_color_legend(axes, hues) if figure.hue else {}
    pixels = read_column(figure.y, table)
    for line_index, line in enumerate(lines):
        top = _PITCH_Y * line_index
        axes.text(-0.2, top + 0.5, line.label, ha="right", va="center", fontsize=8.5)
        for column, row in enumerate(line.rows):
            _draw_image(axes, pixels[row], left=_PITCH_X * column, top=top)
            middle, color = _PITCH_X * column + 0.5, palette.get(hues[row], MUTED)
            caption = to_printable(texts[row], 16)
            axes.text(middle, top + 1.06, caption, ha="center", va="top", fontsize=7.5, color=color)
    axes.set(xlim=(-0.05, _PITCH_X * _count_columns(lines)), ylim=(_PITCH_Y * len(lines), -0.05))
    axes.set_aspect("equal")
    axes.set_axis_off()
    if len(table.rows) > _MAX_IMAGES:
        note = f"drawn: the first {_MAX_IMAGES} of {len(table.rows)} images"
        axes.text(0, _PITCH_Y * len(lines), note, va="top", fontsize=8, color=MUTED)


def _arrange_lines(figure: Figure, table: ResultTable) -> list[_Line]:
    """Arrange images in lines; each facet begins a new line."""
    facets = format_column(figure.facet, table)[:_MAX_IMAGES]
    lines = []
    for facet in dict.fromkeys(facets):
        rows = [row for row, label in enumerate(facets) if label == facet]
        for start in range(0, len(rows), _IMAGES_PER_LINE):
            label = facet if start == 0 else ""
            lines.append(_Line(label, tuple(rows[start : start + _IMAGES_PER_LINE])))
    return lines


def _count_columns(lines: list[_Line]) -> int:
    return max(len(line.rows) for line in lines)


def _draw_color_legend(axes: Axes, hues: list[str]) -> dict[str, str]:
    """Draw the legend of the first five colours; return all colours."""
    names = list(dict.fromkeys(hues))
    palette = dict(zip(names, map(darken, list_colors(len(names))), strict=True))
    for column, label in enumerate(names[: _IMAGES_PER_LINE // 2]):
        axes.text(
            2 * _PITCH_X * column,
            -0.16,
            f"\N{BLACK SQUARE} {to_printable(label, 16)}",
            va="bottom",
            fontsize=8.5,
            color=palette[label],
        )
    return palette


def _draw_image(axes: Axes, cell: Scalar, *, left: float, top: float) -> None:
    """Draw an image, centred and scaled to fit in a unit square."""
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


def measure_heatmap(figure: Figure, table: ResultTable) -> tuple[float, float]:
    """Return the width and height of a heat map in inches."""
    n_rows, n_columns = (len(set(format_column(c, table))) for c in (figure.y, figure.x))
    return min(2.4 + 0.5 * n_columns, 8.0), min(1.4 + 0.34 * n_rows, 9.0)


def draw_heatmap(fig: MplFigure, figure: Figure, table: ResultTable) -> None:
    """Draw a heat map with a coloured cell per (x, y) pair.

    The column ``hue`` gives the values, or ``y`` if there is none. If several table rows have the
    same (x, y), the last is drawn. The colour scale is diverging if there are values below and
    above 0.
    """
    axes = fig.subplots()
    value_column = figure.hue or figure.y
    rows, columns = _number_labels(figure.y, table), _number_labels(figure.x, table)
    values: Floats = np.full((len(rows), len(columns)), np.nan)
    y = [rows[label] for label in format_column(figure.y, table)]
    x = [columns[label] for label in format_column(figure.x, table)]
    values[y, x] = to_floats(read_column(value_column, table))
    finite = values[np.isfinite(values)]
    if finite.size and finite.min() < 0 < finite.max():
        largest = float(np.abs(finite).max())
        image = axes.imshow(values, cmap=_DIVERGING, aspect="auto", vmin=-largest, vmax=largest)
    else:
        image = axes.imshow(values, cmap=_BLUES, aspect="auto")
    if values.size <= _MAX_CELLS_WITH_VALUES:
        _write_cells(axes, image, values, value_column)
    label_axis(axes.xaxis, figure.x)
    label_axis(axes.yaxis, figure.y)
    label_ticks(axes.xaxis, list(columns))
    label_ticks(axes.yaxis, list(rows))
    # the cells take about 70 % of the width; labels and colour bar take the rest
    if max(map(len, columns), default=0) * _LETTER_WIDTH * len(columns) > fig.get_figwidth() * 0.7:
        for tick_label in axes.get_xticklabels():
            tick_label.set(rotation=40, ha="right", rotation_mode="anchor")
    axes.spines[:].set_visible(False)
    color_bar = fig.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    color_bar.outline.set_visible(False)
    label_axis(color_bar.ax.yaxis, value_column)


def _number_labels(column: str, table: ResultTable) -> dict[str, int]:
    """Return the position of each distinct label, in order of appearance."""
    return {label: i for i, label in enumerate(dict.fromkeys(format_column(column, table)))}


def _write_cells(axes: Axes, image: AxesImage, values: Floats, column: str) -> None:
    """Write the value into each cell, in a contrasting colour."""
    cells: Sequence[Scalar] = [None if np.isnan(value) else float(value) for value in values.flat]
    rgba = image.to_rgba(values)
    for (y, x), text in zip(np.ndindex(values.shape), format_cells(column, cells), strict=True):
        dark = np.isfinite(values[y, x]) and rgba[y, x, :3] @ _LUMINANCE < 0.55
        color = "white" if dark else TEXT
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color=color)
