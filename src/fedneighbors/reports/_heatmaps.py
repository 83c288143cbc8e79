"""Draws heat maps: a cell per pair of names, its colour a value."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Picture
from matplotlib.image import AxesImage

from fedneighbors._typing import Floats
from fedneighbors.records import Figure, Scalar, Table
from fedneighbors.reports._axes import dress, name_positions
from fedneighbors.reports._numbers import cells
from fedneighbors.reports._palette import INK
from fedneighbors.reports._series import column, floats, labels

_FEW_CELLS = 200
_LETTER = 0.075  # inches of a letter
_BLUES = LinearSegmentedColormap.from_list("blues", ["#f4f8fc", "#a9cbe3", "#3f7fb5", "#123a66"])
_LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
_TWO_SIDED = LinearSegmentedColormap.from_list(
    "two-sided", ["#8a1f3d", "#ee8fa0", "#f7f7f7", "#8fbadb", "#123a66"]
)


def heatmap_size(figure: Figure, table: Table) -> tuple[float, float]:
    """Width and height of a heat map in inches."""
    n_rows, n_columns = len(set(labels(figure.y, table))), len(set(labels(figure.x, table)))
    return min(2.4 + 0.5 * n_columns, 8.0), min(1.4 + 0.34 * n_rows, 9.0)


def draw_heatmap(drawn: Picture, figure: Figure, table: Table) -> None:
    """Draw a cell per pair of x and y, its colour the value in column ``hue``.

    Values on both sides of 0 have a colour for each side.
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


def _places(name: str, table: Table) -> dict[str, int]:
    """Different names in a column, each with its position, in order of appearance."""
    return {text: place for place, text in enumerate(dict.fromkeys(labels(name, table)))}


def _write_cells(axes: Axes, image: AxesImage, values: Floats, name: str) -> None:
    """Write the value into each cell, in the ink that stands out from its colour."""
    flat: Sequence[Scalar] = [None if np.isnan(value) else float(value) for value in values.flat]
    colors = image.to_rgba(values)
    for (y, x), text in zip(np.ndindex(values.shape), cells(name, flat), strict=True):
        dark = np.isfinite(values[y, x]) and colors[y, x, :3] @ _LUMINANCE < 0.55
        color = "white" if dark else INK
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color=color)
