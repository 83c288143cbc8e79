"""Draws heat maps and sheets of small images."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Picture

from fedneighbors.records import Figure, Scalar, Table, decode_pixels
from fedneighbors.reports.axes import dress, name_positions
from fedneighbors.reports.numbers import cells
from fedneighbors.reports.palette import INK, QUIET, colors
from fedneighbors.reports.series import clean, column

__all__ = ["draw_heatmap", "draw_images", "heatmap_size", "sheet_size"]

_PER_LINE = 10
_PITCH_X, _PITCH_Y = 1.14, 1.42  # images are 1 wide and high
_MOST_IMAGES = 200
_FEW_CELLS = 200
_BLUES = LinearSegmentedColormap.from_list("blues", ["#f4f8fc", "#a9cbe3", "#3f7fb5", "#123a66"])


def heatmap_size(figure: Figure, table: Table) -> tuple[float, float]:
    """Width and height of a heat map in inches."""
    n_rows, n_columns = len(_names(figure.y, table)), len(_names(figure.x, table))
    return min(2.4 + 0.5 * n_columns, 8.0), min(1.4 + 0.34 * n_rows, 9.0)


def sheet_size(figure: Figure, table: Table) -> tuple[float, float]:
    """Width and height of a sheet of images in inches."""
    lines = _lines(figure, table)
    width = max((len(members) for _, members in lines), default=1)
    return 0.66 * _PITCH_X * width, 0.66 * _PITCH_Y * max(1, len(lines))


def draw_heatmap(drawn: Picture, figure: Figure, table: Table) -> None:
    """Draw a cell per pair of x and y, its colour the value in column ``hue``."""
    axes = drawn.subplots()
    rows, columns = _names(figure.y, table), _names(figure.x, table)
    values: npt.NDArray[np.float64] = np.full((len(rows), len(columns)), np.nan)
    for y, x, value in zip(
        _texts(figure.y, table),
        _texts(figure.x, table),
        column(figure.hue or figure.y, table),
        strict=True,
    ):
        if isinstance(value, int | float) and abs(value) < 1e100:
            values[rows[y], columns[x]] = value
    image = axes.imshow(values, cmap=_BLUES, aspect="auto")
    if values.size <= _FEW_CELLS:
        _write_cells(axes, values, figure.hue)
    dress(axes.xaxis, figure.x)
    dress(axes.yaxis, figure.y)
    name_positions(axes.xaxis, list(columns))
    name_positions(axes.yaxis, list(rows))
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = drawn.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.outline.set_visible(False)
    dress(bar.ax.yaxis, figure.hue or figure.y)


def _lines(figure: Figure, table: Table) -> list[tuple[str, list[int]]]:
    """Return the lines of a sheet of images: a name and the rows of the table that it shows.

    Images of one facet stand together; a facet begins a new line.
    """
    facets = _texts(figure.facet, table)[:_MOST_IMAGES]
    lines = []
    for facet in dict.fromkeys(facets):
        members = [row for row, name in enumerate(facets) if name == facet]
        for start in range(0, len(members), _PER_LINE):
            lines.append((facet if start == 0 else "", members[start : start + _PER_LINE]))
    return lines


def draw_images(axes: Axes, figure: Figure, table: Table) -> None:
    """Draw one small image per row of the table, with its text below.

    Raises
    ------
    RecordError
        If a cell holds no image.
    """
    lines = _lines(figure, table)
    names = list(dict.fromkeys(_texts(figure.hue, table)))
    palette = dict(zip(names, colors(len(names)), strict=False))
    below, hues = _texts(figure.x, table), _texts(figure.hue, table)
    cells_of = column(figure.y, table)
    for line, (name, members) in enumerate(lines):
        top = _PITCH_Y * line
        axes.text(-0.2, top + 0.5, name, ha="right", va="center", fontsize=8.5, color=INK)
        for place, row in enumerate(members):
            _draw_image(axes, cells_of[row], left=_PITCH_X * place, top=top)
            axes.text(
                _PITCH_X * place + 0.5,
                top + 1.06,
                clean(below[row], 16),
                ha="center",
                va="top",
                fontsize=7.5,
                color=palette.get(hues[row], QUIET) if figure.hue else QUIET,
            )
    width = max((len(members) for _, members in lines), default=1)
    axes.set(
        xlim=(-0.05, _PITCH_X * width), ylim=(_PITCH_Y * max(1, len(lines)), -0.05), aspect="equal"
    )
    axes.set_axis_off()


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


def _write_cells(axes: Axes, values: npt.NDArray[np.float64], name: str) -> None:
    finite = values[np.isfinite(values)]
    middle = (finite.min() + finite.max()) / 2 if finite.size else 0.0
    flat: Sequence[Scalar] = [None if np.isnan(value) else float(value) for value in values.flat]
    for (y, x), text in zip(np.ndindex(values.shape), cells(name, flat), strict=True):
        color = "white" if values[y, x] > middle else INK
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color=color)


def _texts(name: str, table: Table) -> list[str]:
    values = column(name, table)
    return [clean(text) for text in cells(name, values)] if name else [""] * len(values)


def _names(name: str, table: Table) -> dict[str, int]:
    """Different texts of a column, each with its position, in order of appearance."""
    return {text: place for place, text in enumerate(dict.fromkeys(_texts(name, table)))}
