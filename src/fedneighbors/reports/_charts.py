"""Charts on axes: lines, points, reliability diagrams and bars."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedneighbors._typing import Floats
from fedneighbors.reports._formatting import cells
from fedneighbors.reports._series import Chart, Panel, Series
from fedneighbors.reports._style import (
    DASHES,
    INK,
    MARKERS,
    QUIET,
    colors,
    darker,
    dress,
    name_positions,
    use_log,
)

_MANY_POINTS = 2_000
_UNIT = (-0.015, 1.015)  # the unit interval, with room for markers at its ends
_TEXT_LINE = 0.068  # height of a label, as a fraction of a single panel
_LONG_NAME = 11
_FEW_BARS = 16
_HEADROOM = 0.1  # room for values beyond the bars, as a fraction of the axis


def draw_lines(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Draw one line per series, with an optional error band.

    ``error`` is its half-width.
    """
    palette = colors(len(chart.hues))
    for series in panel.series:
        order = np.argsort(series.x, kind="stable")
        x, y, error = series.x[order], series.y[order], series.error[order]
        color, style = palette[series.order], _style(series)
        axes.plot(x, y, color=color, label=series.name, **style)
        if np.isfinite(error).any():
            axes.fill_between(x, y - error, y + error, color=color, alpha=0.16, linewidth=0)
    _finish_lines(axes, chart)


def draw_points(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Draw one point cloud per series, with optional error bars."""
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
    _finish_lines(axes, chart)


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


def draw_bars(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Draw grouped bars, one per series, with errors and values."""
    palette = colors(len(chart.hues))
    width = 0.8 / max(1, len(chart.hues))
    flat = lies_flat(chart)
    for series in panel.series:
        positions = series.x + (series.order - (len(chart.hues) - 1) / 2) * width
        style: dict[str, Any] = {"color": palette[series.order], "label": series.name}
        if flat:
            axes.barh(positions, series.y, height=width * 0.92, **style)
        else:
            axes.bar(positions, series.y, width=width * 0.92, **style)
        _draw_errors(axes, positions, series, flat=flat)
        if len(chart.categories) * len(chart.hues) <= _FEW_BARS:
            _write_values(axes, positions, series, chart.figure.y, flat=flat)
    _finish_bars(axes, chart, flat=flat)


def draw_stacked(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Draw one bar per position, made of one part per series."""
    palette = colors(len(chart.hues), ordered=len(chart.hues) > 4)
    flat = lies_flat(chart)
    base = np.zeros(len(chart.categories))
    for series in panel.series:
        heights = np.zeros(len(chart.categories))
        drawable = np.isfinite(series.x) & np.isfinite(series.y)
        np.add.at(heights, series.x[drawable].astype(np.int64), series.y[drawable])
        style: dict[str, Any] = {
            "color": palette[series.order],
            "label": series.name,
            "edgecolor": "white",
            "linewidth": 0.6,
        }
        places = np.arange(len(chart.categories))
        if flat:
            axes.barh(places, heights, left=base, height=0.78, **style)
        else:
            axes.bar(places, heights, bottom=base, width=0.78, **style)
        base += heights
    _finish_bars(axes, chart, flat=flat)


def label_ends(axes: Axes, panel: Panel, palette: Sequence[str]) -> None:
    """Label each series right of its last point, without overlaps."""
    axes.autoscale_view()
    ends = sorted(((_end_height(axes, series), series) for series in panel.series), key=_first)
    for height, (_, series) in zip(_spread_labels([end for end, _ in ends]), ends, strict=True):
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


def _spread_labels(heights: Sequence[float]) -> list[float]:
    """Move heights apart by a line of text, as little as needed.

    All stay below 1.
    """
    moved = list(heights)
    for place in range(1, len(moved)):
        moved[place] = max(moved[place], moved[place - 1] + _TEXT_LINE)
    ceiling = 1.0
    for place in reversed(range(len(moved))):
        moved[place] = min(moved[place], ceiling)
        ceiling = moved[place] - _TEXT_LINE
    return moved


def _end_height(axes: Axes, series: Series) -> float:
    """Return the height of the last drawable point, relative to the axes."""
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


def _finish_lines(axes: Axes, chart: Chart) -> None:
    """Add scales, diagonal, grid and labels to a drawn panel."""
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
    """Draw x = y without fixing the limits.

    Panels with shared axes then all show their data.
    """
    limits = axes.dataLim
    low = min(limits.minposx, limits.minposy) if log else min(limits.xmin, limits.ymin)
    high = max(limits.xmax, limits.ymax)
    if np.isfinite([low, high]).all() and low < high:
        style: dict[str, Any] = {"linestyle": (0, (4, 3)), "linewidth": 1, "zorder": 1}
        axes.axline((low, low), (high, high), color=INK, **style)
    axes.set_aspect("equal")


def lies_flat(chart: Chart) -> bool:
    """Return whether bars are horizontal because names are long."""
    longest = max((len(name) for name in chart.categories), default=0)
    return longest > _LONG_NAME or longest * len(chart.categories) > 90


def flat_height(chart: Chart) -> float:
    """Return the height in inches of a panel of horizontal bars."""
    beside = 1 if chart.figure.kind == "stacked" else len(chart.hues)
    return min(0.9 + len(chart.categories) * max(0.3, 0.2 * beside), 14.0)


def _draw_errors(axes: Axes, positions: Floats, series: Series, *, flat: bool) -> None:
    if not np.isfinite(series.error).any():
        return
    style: dict[str, Any] = {"fmt": "none", "ecolor": INK, "elinewidth": 1, "capsize": 2.5}
    if flat:
        axes.errorbar(series.y, positions, xerr=series.error, **style)
    else:
        axes.errorbar(positions, series.y, yerr=series.error, **style)


def _write_values(
    axes: Axes, positions: Floats, series: Series, column: str, *, flat: bool
) -> None:
    """Write the value of each bar beyond its end and its error."""
    ends = series.y + np.nan_to_num(series.error)
    for position, end, text in zip(positions, ends, cells(column, list(series.y)), strict=True):
        if np.isfinite(position) and np.isfinite(end):
            axes.annotate(
                text,
                xy=(end, position) if flat else (position, end),
                xytext=(4, 0) if flat else (0, 3),
                textcoords="offset points",
                ha="left" if flat else "center",
                va="center" if flat else "bottom",
                fontsize=8,
                color=QUIET,
            )


def _finish_bars(axes: Axes, chart: Chart, *, flat: bool) -> None:
    """Scale, grid and labels of a panel whose bars are drawn."""
    figure = chart.figure
    logs = use_log(axes, x=figure.log_y and flat, y=figure.log_y and not flat, nonpositive="clip")
    if flat:
        axes.margins(x=_HEADROOM)
        axes.spines["left"].set_visible(False)
    else:
        axes.margins(y=_HEADROOM)
    values, names = (axes.xaxis, axes.yaxis) if flat else (axes.yaxis, axes.xaxis)
    axes.grid(True, axis="x" if flat else "y")
    dress(values, figure.y, log=any(logs))
    dress(names, figure.x)
    name_positions(names, chart.categories, longest=36 if flat else 24)
    if flat and not axes.yaxis_inverted():  # invert an axis shared by panels only once
        axes.invert_yaxis()
