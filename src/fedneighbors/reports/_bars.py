"""Draws grouped bars and bars made of parts."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedneighbors._typing import Floats
from fedneighbors.reports._axes import dress, name_positions, use_log
from fedneighbors.reports._numbers import cells
from fedneighbors.reports._palette import INK, QUIET, colors
from fedneighbors.reports._series import Chart, Panel, Series

_LONG_NAME = 11
_FEW_BARS = 16
_HEADROOM = 0.1  # for the values beyond the bars, as a fraction of the axis


def lies_flat(chart: Chart) -> bool:
    """Whether bars run to the right because their names are too long to stand below them."""
    longest = max((len(name) for name in chart.categories), default=0)
    return longest > _LONG_NAME or longest * len(chart.categories) > 90


def flat_height(chart: Chart) -> float:
    """Height in inches that a panel of bars running to the right needs."""
    beside = 1 if chart.figure.kind == "stacked" else len(chart.hues)
    return min(0.9 + len(chart.categories) * max(0.3, 0.2 * beside), 14.0)


def draw_bars(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Draw bars side by side, one per series at each position, with their errors and values."""
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
    _finish(axes, chart, flat=flat)


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
    _finish(axes, chart, flat=flat)


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


def _finish(axes: Axes, chart: Chart, *, flat: bool) -> None:
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
    if flat and not axes.yaxis_inverted():  # panels that share the axis turn it once
        axes.invert_yaxis()
