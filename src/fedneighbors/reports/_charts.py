"""Charts on axes: lines, points, reliability diagrams and bars."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedneighbors._typing import Floats
from fedneighbors.reports._formatting import format_cells
from fedneighbors.reports._series import Chart, Panel, Series
from fedneighbors.reports._style import (
    DASHES,
    MARKERS,
    MUTED,
    TEXT,
    darken,
    label_axis,
    label_ticks,
    list_colors,
    set_log_scales,
)

_MAX_VECTOR_POINTS = 2_000  # more points of a series are drawn as pixels, for smaller files
_UNIT_LIMITS = (-0.015, 1.015)  # the unit interval, with room for markers at its ends
_LABEL_HEIGHT = 0.068  # as a fraction of the axes' height, in a figure with one panel
_MAX_VERTICAL_NAME = 11  # characters of a name below a vertical bar
_MAX_BARS_WITH_VALUES = 16
_BAR_MARGIN = 0.1  # room for values beyond the bars, as a fraction of the axis


def draw_lines(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Draw one line per series, with an optional error band."""
    palette = list_colors(len(chart.hues))
    for series in panel.series:
        order = np.argsort(series.x, kind="stable")
        x, y, error = series.x[order], series.y[order], series.error[order]
        color, style = palette[series.order], _choose_line_style(series)
        axes.plot(x, y, color=color, label=series.name, **style)
        if np.isfinite(error).any():
            axes.fill_between(x, y - error, y + error, color=color, alpha=0.16, linewidth=0)
    _finish_axes(axes, chart, panel)


def draw_points(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Draw the points of each series, with optional error bars."""
    palette = list_colors(len(chart.hues))
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
            rasterized=len(series.x) > _MAX_VECTOR_POINTS,
        )
    _finish_axes(axes, chart, panel)


def draw_reliability(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Draw observed frequency against predicted probability, on the unit square."""
    axes.fill_between([0, 1], [0, 1], color=MUTED, alpha=0.06, linewidth=0)
    palette = list_colors(len(chart.hues))
    for series in panel.series:
        order = np.argsort(series.x, kind="stable")
        axes.errorbar(
            series.x[order],
            series.y[order],
            yerr=series.error[order] if np.isfinite(series.error).any() else None,
            label=series.name,
            color=palette[series.order],
            elinewidth=1,
            **_choose_line_style(series),
        )
    axes.plot([0, 1], [0, 1], color=MUTED, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
    axes.set(xlim=_UNIT_LIMITS, ylim=_UNIT_LIMITS, aspect="equal")
    axes.grid(True)
    label_axis(axes.xaxis, chart.figure.x)
    label_axis(axes.yaxis, chart.figure.y)


def draw_bars(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Draw one bar per category and series, with errors and values."""
    palette = list_colors(len(chart.hues))
    width = 0.8 / max(1, len(chart.hues))
    horizontal = has_horizontal_bars(chart)
    for series in panel.series:
        positions = series.x + (series.order - (len(chart.hues) - 1) / 2) * width
        style: dict[str, Any] = {"color": palette[series.order], "label": series.name}
        if horizontal:
            axes.barh(positions, series.y, height=width * 0.92, **style)
        else:
            axes.bar(positions, series.y, width=width * 0.92, **style)
        _draw_errors(axes, positions, series, horizontal=horizontal)
        if len(chart.categories) * len(chart.hues) <= _MAX_BARS_WITH_VALUES:
            _write_values(axes, positions, series, chart.figure.y, horizontal=horizontal)
    _finish_bars(axes, chart, horizontal=horizontal)


def draw_stacked(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Draw one stacked bar per category, with one segment per series."""
    palette = list_colors(len(chart.hues), ordered=len(chart.hues) > 4)
    horizontal = has_horizontal_bars(chart)
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
        positions = np.arange(len(chart.categories))
        if horizontal:
            axes.barh(positions, heights, left=base, height=0.78, **style)
        else:
            axes.bar(positions, heights, bottom=base, width=0.78, **style)
        base += heights
    _finish_bars(axes, chart, horizontal=horizontal)


def label_series_ends(axes: Axes, panel: Panel, palette: Sequence[str]) -> None:
    """Label each series at the right edge, near its last point's height."""
    axes.autoscale_view()
    ends = sorted(((_find_end_height(axes, s), s) for s in panel.series), key=lambda end: end[0])
    for height, (_, series) in zip(_spread_labels([end for end, _ in ends]), ends, strict=True):
        axes.annotate(
            series.name,
            xy=(1.015, height),
            xycoords="axes fraction",
            va="center",
            color=darken(palette[series.order]),
            fontweight="bold",
            fontsize=8.5,
            annotation_clip=False,
        )


def _spread_labels(heights: Sequence[float]) -> list[float]:
    """Move ascending heights at least a label's height apart.

    Labels move up first; those above 1 then move down, to at most 1.
    """
    spread = list(heights)
    for index in range(1, len(spread)):
        spread[index] = max(spread[index], spread[index - 1] + _LABEL_HEIGHT)
    ceiling = 1.0
    for index in reversed(range(len(spread))):
        spread[index] = min(spread[index], ceiling)
        ceiling = spread[index] - _LABEL_HEIGHT
    return spread


def _find_end_height(axes: Axes, series: Series) -> float:
    """Return the height of the last drawable point, relative to the axes."""
    drawable = np.isfinite(series.x) & np.isfinite(series.y)
    if not drawable.any():
        return 0.0
    last_point = np.flatnonzero(drawable)[np.argmax(series.x[drawable])]
    pixels = axes.transData.transform((series.x[last_point], series.y[last_point]))
    height = float(axes.transAxes.inverted().transform(pixels)[1])
    return min(max(height, 0.0), 1.0) if np.isfinite(height) else 0.0


def _choose_line_style(series: Series) -> dict[str, Any]:
    draw_markers = len(series.x) <= 40  # more markers would overlap
    return {
        "linestyle": DASHES[series.order // len(MARKERS) % len(DASHES)],
        "marker": MARKERS[series.order % len(MARKERS)] if draw_markers else None,
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }


def _finish_axes(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Add scales, diagonal, grid and labels to lines or points."""
    figure = chart.figure
    log_x, log_y = set_log_scales(axes, x=figure.log_x and not chart.categories, y=figure.log_y)
    if figure.diagonal and not chart.categories and log_x == log_y:
        _draw_diagonal(axes, log=log_x)
    axes.grid(True, axis="both" if not chart.categories else "y")
    label_axis(axes.xaxis, figure.x, log=log_x)
    label_axis(axes.yaxis, figure.y, log=log_y)
    if chart.categories:
        label_ticks(axes.xaxis, chart.categories)
    elif not log_x and all((np.floor(one.x) == one.x).all() for one in panel.series):
        locator = MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True)  # such as of ranks
        axes.xaxis.set_major_locator(locator)


def _draw_diagonal(axes: Axes, *, log: bool) -> None:
    """Draw the line x = y.

    The limits stay automatic, so that panels with shared axes show the data of all panels.
    """
    limits = axes.dataLim
    low = min(limits.minposx, limits.minposy) if log else min(limits.xmin, limits.ymin)
    high = max(limits.xmax, limits.ymax)
    if np.isfinite([low, high]).all() and low < high:
        style: dict[str, Any] = {"linestyle": (0, (4, 3)), "linewidth": 1, "zorder": 1}
        axes.axline((low, low), (high, high), color=TEXT, **style)
    axes.set_aspect("equal")


def has_horizontal_bars(chart: Chart) -> bool:
    """Return whether bars are horizontal, as they are for long names."""
    longest = max((len(name) for name in chart.categories), default=0)
    # a panel is wide enough for 90 characters below vertical bars
    return longest > _MAX_VERTICAL_NAME or longest * len(chart.categories) > 90


def measure_bars(chart: Chart) -> float:
    """Return the height of a panel of horizontal bars, in inches."""
    n_adjacent = 1 if chart.figure.kind == "stacked" else len(chart.hues)
    return min(0.9 + len(chart.categories) * max(0.3, 0.2 * n_adjacent), 14.0)


def _draw_errors(axes: Axes, positions: Floats, series: Series, *, horizontal: bool) -> None:
    if not np.isfinite(series.error).any():
        return
    style: dict[str, Any] = {"fmt": "none", "ecolor": TEXT, "elinewidth": 1, "capsize": 2.5}
    if horizontal:
        axes.errorbar(series.y, positions, xerr=series.error, **style)
    else:
        axes.errorbar(positions, series.y, yerr=series.error, **style)


def _write_values(
    axes: Axes, positions: Floats, series: Series, column: str, *, horizontal: bool
) -> None:
    """Write the value of each bar beyond its error bar."""
    ends = np.maximum(series.y + np.nan_to_num(series.error), 0.0)  # next to a negative bar
    texts = format_cells(column, list(series.y))
    for position, end, text in zip(positions, ends, texts, strict=True):
        if np.isfinite(position) and np.isfinite(end):
            axes.annotate(
                text,
                xy=(end, position) if horizontal else (position, end),
                xytext=(4, 0) if horizontal else (0, 3),
                textcoords="offset points",
                ha="left" if horizontal else "center",
                va="center" if horizontal else "bottom",
                fontsize=8,
                color=MUTED,
            )


def _finish_bars(axes: Axes, chart: Chart, *, horizontal: bool) -> None:
    """Add scale, grid and labels to a panel of bars."""
    figure = chart.figure
    log_x, log_y = figure.log_y and horizontal, figure.log_y and not horizontal
    is_log = any(set_log_scales(axes, x=log_x, y=log_y, nonpositive="clip"))
    if horizontal:
        axes.margins(x=_BAR_MARGIN)
        axes.spines["left"].set_visible(False)
    else:
        axes.margins(y=_BAR_MARGIN)
    value_axis, name_axis = (axes.xaxis, axes.yaxis) if horizontal else (axes.yaxis, axes.xaxis)
    axes.grid(True, axis="x" if horizontal else "y")
    label_axis(value_axis, figure.y, log=is_log)
    label_axis(name_axis, figure.x)
    label_ticks(name_axis, chart.categories, max_length=36 if horizontal else 24)
    if horizontal and not axes.yaxis_inverted():  # panels may share this axis: invert it only once
        axes.invert_yaxis()
