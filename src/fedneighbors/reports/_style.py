"""Colours, markers and fonts of figures.

The colours are Paul Tol's "bright" and "rainbow discrete" schemes, which are distinguishable with
any of the common colour vision deficiencies; markers and dashes repeat the information of the
colours.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import Formatter, LogLocator, NullFormatter, NullLocator

from fedneighbors.reports._formatting import heading, is_bytes, is_seconds, number, printable, size

INK = "#1d2733"
QUIET = "#5b6775"
FRAME = "#9aa5b1"
_GRID = "#e3e8ee"
_BRIGHT = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#CC8800", "#33A5C8", "#777777")
_RAINBOW = (
    *("#882E72", "#1965B0", "#5289C7", "#7BAFDE", "#4EB265", "#90C987"),
    *("#CAE0AB", "#F7F056", "#F6C141", "#F1932D", "#E8601C", "#DC050C"),
)
_LONG_RAINBOW = ("#D1BBD7", "#AE76A3", *_RAINBOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
_MAX_NAMES = 24

RULES: Mapping[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": FRAME,
    "axes.grid": False,
    "axes.labelcolor": QUIET,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "fedneighbors",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": FRAME,
    "xtick.labelcolor": QUIET,
    "xtick.labelsize": 8.5,
    "xtick.major.size": 3,
    "ytick.color": FRAME,
    "ytick.labelcolor": QUIET,
    "ytick.labelsize": 8.5,
    "ytick.major.size": 3,
}
"""Settings of matplotlib while a picture is drawn.

``text.parse_math`` is off: a record's strings are plain text, never formulas.
"""


def darker(color: str) -> str:
    """Return a shade of a colour that is readable on white.

    Examples
    --------
    >>> darker("#EE6677")
    '#b24c59'
    """
    parts = (int(color[place : place + 2], 16) * 3 // 4 for place in (1, 3, 5))
    return "#" + "".join(f"{part:02x}" for part in parts)


def colors(n_colors: int, *, ordered: bool = False) -> list[str]:
    """Return hexadecimal colours for a number of groups.

    Parameters
    ----------
    n_colors : int
        Number of groups; beyond 14 the colours repeat.
    ordered : bool
        Use a scheme from cold to warm for any number of groups.
    """
    if n_colors <= len(_BRIGHT) and not ordered:
        return list(_BRIGHT[:n_colors])
    if n_colors > len(_RAINBOW):
        return [_LONG_RAINBOW[index % len(_LONG_RAINBOW)] for index in range(n_colors)]
    step = (len(_RAINBOW) - 1) / max(1, n_colors - 1)
    return [_RAINBOW[round(index * step)] for index in range(n_colors)]


class Ticks(Formatter):
    """Tick labels with units and the digits that their spacing needs.

    Parameters
    ----------
    column : str
        Column name; determines whether the values are bytes; seconds below 1 are shown unchanged.
    log : bool
        True for a logarithmic axis.
    """

    def __init__(self, column: str, *, log: bool) -> None:
        self.column = column
        self.log = log

    def __call__(self, value: float, pos: int | None = None) -> str:  # noqa: ARG002 - matplotlib's
        """Return the label of one tick."""
        return size(value) if is_bytes(self.column) else number(value)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the labels of all ticks of an axis."""
        step = float(np.diff(values).min()) if len(values) > 1 else 0.0
        if self.log or is_bytes(self.column) or step <= 0 or not 1e-4 <= step < 1e6:
            return [self(value) for value in values]
        decimals = max(0, math.ceil(-math.log10(step) - 1e-9))
        if not math.isclose(step, round(step, decimals), rel_tol=1e-6):  # for example 0.025
            decimals += 1
        return [f"{value:,.{decimals}f}".replace("-", "\N{MINUS SIGN}") for value in values]


def dress(axis: Axis, column: str, *, log: bool = False) -> None:
    """Label an axis with column and unit, and format its ticks."""
    unit = " (s)" if is_seconds(column) and column != "seconds" else ""
    axis.set_label_text(printable(heading(column), 60) + unit)
    axis.set_major_formatter(Ticks(column, log=log))
    if log:
        axis.set_minor_formatter(NullFormatter())


def use_log(
    axes: Axes, *, x: bool, y: bool, nonpositive: Literal["mask", "clip"] = "mask"
) -> tuple[bool, bool]:
    """Make axes logarithmic where requested and a value is positive.

    Parameters
    ----------
    axes : Axes
        Axes with their data.
    x, y : bool
        Requested axes.
    nonpositive : str
        ``"mask"`` omits values that are not positive, ``"clip"`` draws them at the edge, where bars
        begin.

    Returns
    -------
    tuple of bool
        Whether x and y are logarithmic now.
    """
    limits = axes.dataLim
    log_x = x and 0 < limits.minposx <= limits.xmax < math.inf
    log_y = y and 0 < limits.minposy <= limits.ymax < math.inf
    if log_x:
        axes.set_xscale("log", nonpositive=nonpositive)
        axes.xaxis.set_major_locator(_decades(limits.minposx, limits.xmax))
    if log_y:
        axes.set_yscale("log", nonpositive=nonpositive)
        axes.yaxis.set_major_locator(_decades(limits.minposy, limits.ymax))
    return log_x, log_y


def _decades(low: float, high: float) -> LogLocator:
    """Return ticks at powers of ten, and between few of them."""
    between = (2.0, 5.0) if high / low < 100 else (3.0,) if high / low < 2000 else ()
    return LogLocator(subs=(1.0, *between))


def name_positions(axis: Axis, names: Sequence[str], *, longest: int = 24) -> None:
    """Write category names at positions 0, 1, ...

    Some names are skipped if there are many.
    """
    step = math.ceil(len(names) / _MAX_NAMES)
    shown = range(0, len(names), max(1, step))
    axis.set_ticks(list(shown), [printable(names[index], longest) for index in shown])
    axis.set_minor_locator(NullLocator())
    axis.set_tick_params(length=0)
