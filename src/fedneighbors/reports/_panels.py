"""Lays out the panels of a chart: their size, shared axes, and the names of the series."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from fedneighbors._typing import Floats
from fedneighbors.records import Figure, Table
from fedneighbors.reports._bars import draw_bars, draw_stacked, flat_height, lies_flat
from fedneighbors.reports._lines import draw_lines, draw_points, draw_reliability, label_ends
from fedneighbors.reports._palette import QUIET, colors
from fedneighbors.reports._series import Chart, Panel, chart

_DRAW: Mapping[str, Callable[[Axes, Chart, Panel], None]] = {
    "line": draw_lines,
    "scatter": draw_points,
    "bar": draw_bars,
    "stacked": draw_stacked,
    "reliability": draw_reliability,
}
_BARS = ("bar", "stacked")
_SQUARE = ("reliability",)
_MOST_END_LABELS = 8
_LETTER = 0.08  # inches of a letter of a name at the end of a line


def draw_panels(figure: Figure, table: Table) -> Picture:
    """Picture of a figure that has axes, one panel per facet."""
    data = chart(figure, table, categorical=figure.kind in _BARS)
    n_columns = _columns(len(data.panels))
    n_lines = math.ceil(len(data.panels) / n_columns)
    width, height = _panel_size(data, n_columns)
    size = (width * n_columns + _beside(data), height * n_lines)
    drawn = Picture(figsize=size, layout="constrained")
    share_x, share_y = _shared(data)
    grid = drawn.subplots(n_lines, n_columns, squeeze=False, sharex=share_x, sharey=share_y)
    for axes, panel in zip(grid.flat, data.panels, strict=False):
        _DRAW[figure.kind](axes, data, panel)
        axes.set_title(panel.title)
    _tidy(grid, len(data.panels), share_x=share_x, share_y=share_y)
    _name_series(drawn, list(grid.flat[: len(data.panels)]), data)
    if data.left_out:
        drawn.supxlabel(f"drawn: {', '.join(data.left_out)}", fontsize=8, color=QUIET)
    return drawn


def _columns(n_panels: int) -> int:
    return {1: 1, 2: 2, 4: 2}.get(n_panels, 3)


def _panel_size(data: Chart, n_columns: int) -> tuple[float, float]:
    """Width and height of a panel in inches."""
    if data.figure.kind in _SQUARE or data.figure.diagonal:
        side = {1: 3.8, 2: 3.3, 3: 2.5}[n_columns]
        return side, side
    width = {1: 6.6, 2: 3.7, 3: 2.7}[n_columns]
    if data.figure.kind in _BARS and lies_flat(data):
        return width, flat_height(data)
    return width, {1: 3.3, 2: 2.7, 3: 2.3}[n_columns]


def _beside(data: Chart) -> float:
    """Inches to add for names right of a square panel, which would else shrink it."""
    if not (data.figure.diagonal and _named_at_ends(data)):
        return 0.0
    return max(map(len, data.hues)) * _LETTER


def _named_at_ends(data: Chart) -> bool:
    """Whether series are named right of their last points rather than in a legend."""
    return (
        data.figure.kind == "line"
        and len(data.panels) == 1
        and len(data.hues) <= _MOST_END_LABELS
        and data.hues != ("",)
    )


def _shared(data: Chart) -> tuple[bool, bool]:
    """Whether all panels have the same x axis and the same y axis."""
    flat = data.figure.kind in _BARS and lies_flat(data)
    heights = [np.concatenate([series.y for series in panel.series]) for panel in data.panels]
    same_values = data.figure.kind == "stacked" or _alike(heights, log=data.figure.log_y)
    if flat:
        return same_values, True
    if data.categories:
        return True, same_values
    places = [np.concatenate([series.x for series in panel.series]) for panel in data.panels]
    return _alike(places, log=data.figure.log_x), same_values


def _alike(panels: list[Floats], *, log: bool) -> bool:
    """Whether one scale suits all panels: each fills at least a quarter of it."""
    spans = []
    for values in panels:
        drawable = values[np.isfinite(values) & (values > 0 if log else True)]
        if drawable.size:
            shown = np.log10(drawable) if log else drawable
            spans.append((float(shown.min()), float(shown.max())))
    if not spans:
        return True
    whole = max(high for _, high in spans) - min(low for low, _ in spans)
    return all(high - low >= whole / 4 for low, high in spans)


def _tidy(grid: np.ndarray, n_panels: int, *, share_x: bool, share_y: bool) -> None:
    """Remove empty places and labels that the neighbouring panel repeats."""
    n_lines, n_columns = grid.shape
    for place, axes in enumerate(grid.flat):
        if place >= n_panels:
            axes.remove()
            continue
        if share_y and place % n_columns > 0:
            axes.set_ylabel("")
        if share_x and place + n_columns < n_panels:
            axes.set_xlabel("")
        elif place // n_columns < n_lines - 1:
            axes.tick_params(axis="x", labelbottom=True)


def _name_series(drawn: Picture, panels: list[Axes], data: Chart) -> None:
    """Name the series where no data lies: right of their ends, or in a legend outside."""
    if len(data.hues) == 1 and not data.hues[0]:
        return
    if _named_at_ends(data):
        label_ends(panels[0], data.panels[0], colors(len(data.hues)))
        return
    handles: dict[str, Artist] = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    names = [name for name in data.hues if name in handles]
    beside = data.figure.kind == "stacked" or len(names) > 6
    drawn.legend(
        [handles[name] for name in names],
        names,
        loc="outside right upper" if beside else "outside upper left",
        ncols=1 if beside else len(names),
        title=data.figure.hue.replace("_", " ") if beside else None,
        alignment="left",
    )
