"""Draws lines with bands, clouds of points and reliability diagrams."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedneighbors.reports._axes import dress, name_positions, use_log
from fedneighbors.reports._palette import DASHES, INK, MARKERS, QUIET, colors, darker
from fedneighbors.reports._series import Chart, Panel, Series

_MANY_POINTS = 2_000
_UNIT = (-0.015, 1.015)  # the unit interval, with room for markers at its ends
_TEXT_LINE = 0.068  # height of a label, as a fraction of a panel that stands alone


def draw_lines(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Draw one line per series, with a band of the half-width ``error`` around it."""
    palette = colors(len(chart.hues))
    for series in panel.series:
        order = np.argsort(series.x, kind="stable")
        x, y, error = series.x[order], series.y[order], series.error[order]
        color, style = palette[series.order], _style(series)
        axes.plot(x, y, color=color, label=series.name, **style)
        if np.isfinite(error).any():
            axes.fill_between(x, y - error, y + error, color=color, alpha=0.16, linewidth=0)
    _finish(axes, chart)


def draw_points(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Draw one cloud of points per series, with error bars where there are errors."""
    palette = colors(len(chart.hues))
    for series in panel.series:
        color, marker = palette[series.order], MARKERS[series.order % len(MARKERS)]
        axes.errorbar(
            series.x,
            series.y,
            yerr=series.error if np.isfinite(series.error).any() else None,
            label=series.name,
            linestyle="none",
            marker=marker,
            markersize=5.5,
            markeredgecolor="white",
            markeredgewidth=0.5,
            color=color,
            elinewidth=1,
            rasterized=len(series.x) > _MANY_POINTS,
        )
    _finish(axes, chart)


def draw_reliability(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Draw observed frequency over predicted probability, on the unit square."""
    axes.fill_between([0, 1], [0, 1], color=QUIET, alpha=0.06, linewidth=0)
    palette = colors(len(chart.hues))
    for series in panel.series:
        order = np.argsort(series.x, kind="stable")
        axes.errorbar(
            series.x[order],
            series.y[order],
            yerr=series.error[order] if np.isfinite(series.error).any() else None,
            label=series.name,
            color=palette[series.order],
            elinewidth=1,
            **_style(series),
        )
    axes.plot([0, 1], [0, 1], color=QUIET, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
    axes.set(xlim=_UNIT, ylim=_UNIT, aspect="equal")
    axes.grid(True)
    dress(axes.xaxis, chart.figure.x)
    dress(axes.yaxis, chart.figure.y)


def label_ends(axes: Axes, panel: Panel, palette: Sequence[str]) -> None:
    """Write the name of each series right of its last point, pushed apart where they are close."""
    axes.autoscale_view()
    ends = sorted(((_end_height(axes, series), series) for series in panel.series), key=_first)
    for height, (_, series) in zip(_apart([end for end, _ in ends]), ends, strict=True):
        axes.annotate(
            series.name,
            xy=(1.015, height),
            xycoords="axes fraction",
            va="center",
            color=darker(palette[series.order]),
            fontweight="bold",
            fontsize=8.5,
            annotation_clip=False,
        )


def _first(end: tuple[float, Series]) -> float:
    return end[0]


def _apart(heights: Sequence[float]) -> list[float]:
    """Heights in the same order, moved as little as needed to lie a line of text apart below 1."""
    moved = list(heights)
    for place in range(1, len(moved)):
        moved[place] = max(moved[place], moved[place - 1] + _TEXT_LINE)
    ceiling = 1.0
    for place in reversed(range(len(moved))):
        moved[place] = min(moved[place], ceiling)
        ceiling = moved[place] - _TEXT_LINE
    return moved


def _end_height(axes: Axes, series: Series) -> float:
    """Height of the last drawable point, as a fraction of the axes."""
    drawable = np.isfinite(series.x) & np.isfinite(series.y)
    if not drawable.any():
        return 0.0
    last = np.flatnonzero(drawable)[np.argmax(series.x[drawable])]
    pixels = axes.transData.transform((series.x[last], series.y[last]))
    height = float(axes.transAxes.inverted().transform(pixels)[1])
    return min(max(height, 0.0), 1.0) if np.isfinite(height) else 0.0


def _style(series: Series) -> dict[str, Any]:
    few = len(series.x) <= 40
    return {
        "linestyle": DASHES[series.order // len(MARKERS) % len(DASHES)],
        "marker": MARKERS[series.order % len(MARKERS)] if few else None,
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }


def _finish(axes: Axes, chart: Chart) -> None:
    """Scales, diagonal, grid and labels of a panel whose data is drawn."""
    figure = chart.figure
    log_x, log_y = use_log(axes, x=figure.log_x and not chart.categories, y=figure.log_y)
    if figure.diagonal and not chart.categories and log_x == log_y:
        _draw_diagonal(axes, log=log_x)
    axes.grid(True, axis="both" if not chart.categories else "y")
    dress(axes.xaxis, figure.x, log=log_x)
    dress(axes.yaxis, figure.y, log=log_y)
    if chart.categories:
        name_positions(axes.xaxis, chart.categories)


def _draw_diagonal(axes: Axes, *, log: bool) -> None:
    """Draw x = y; limits stay automatic, so that panels that share them all show their data."""
    limits = axes.dataLim
    low = min(limits.minposx, limits.minposy) if log else min(limits.xmin, limits.ymin)
    high = max(limits.xmax, limits.ymax)
    if np.isfinite([low, high]).all() and low < high:
        style: dict[str, Any] = {"linestyle": (0, (4, 3)), "linewidth": 1, "zorder": 1}
        axes.axline((low, low), (high, high), color=INK, **style)
    axes.set_aspect("equal")
