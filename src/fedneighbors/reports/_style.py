"""Colours, fonts, scales and labels of figures.

The colours are based on Paul Tol's "bright" and "rainbow discrete" schemes, which were designed to
be distinguishable with the common colour vision deficiencies. Lines and points of two groups also
differ in their markers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import Formatter, LogLocator, NullFormatter, NullLocator

from fedneighbors.reports._formatting import (
    format_bytes,
    format_heading,
    format_number,
    is_bytes,
    is_seconds,
    to_printable,
)

TEXT = "#1d2733"
MUTED = "#5b6775"
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
_MAX_TICK_NAMES = 24

RC_PARAMS: Mapping[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": FRAME,
    "axes.grid": False,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": TEXT,
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
    "text.color": TEXT,
    "text.parse_math": False,
    "xtick.color": FRAME,
    "xtick.labelcolor": MUTED,
    "xtick.labelsize": 8.5,
    "xtick.major.size": 3,
    "ytick.color": FRAME,
    "ytick.labelcolor": MUTED,
    "ytick.labelsize": 8.5,
    "ytick.major.size": 3,
}
"""Settings of matplotlib while a figure is drawn.

``text.parse_math`` is off, so that dollar signs in a record's strings do not begin a formula.
"""


def darken(color: str) -> str:
    """Make a hexadecimal colour dark enough for text on white.

    Examples
    --------
    >>> darken("#EE6677")
    '#b24c59'
    """
    channels = (int(color[start : start + 2], 16) * 3 // 4 for start in (1, 3, 5))
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def list_colors(n_colors: int, *, ordered: bool = False) -> list[str]:
    """Return hexadecimal colours, one for each group.

    Parameters
    ----------
    n_colors : int
        Number of groups. Above 7 the rainbow scheme is used, from cold to warm colours; above 14
        its colours repeat.
    ordered : bool
        Use the rainbow scheme also for fewer groups.
    """
    if n_colors <= len(_BRIGHT) and not ordered:
        return list(_BRIGHT[:n_colors])
    if n_colors > len(_RAINBOW):
        return [_LONG_RAINBOW[index % len(_LONG_RAINBOW)] for index in range(n_colors)]
    step = (len(_RAINBOW) - 1) / max(1, n_colors - 1)
    return [_RAINBOW[round(index * step)] for index in range(n_colors)]


class TickLabels(Formatter):
    """Tick labels with as many digits as the step between ticks needs, and units of bytes.

    Parameters
    ----------
    column : str
        Column name. If it is a name for bytes, labels have a unit such as kB; other labels have no
        unit.
    log : bool
        True for a logarithmic axis.
    """

    def __init__(self, column: str, *, log: bool) -> None:
        self.column = column
        self.log = log

    def __call__(self, value: float, pos: int | None = None) -> str:  # noqa: ARG002 - matplotlib's
        """Return the label of one tick."""
        return format_bytes(value) if is_bytes(self.column) else format_number(value)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the labels of all ticks of an axis."""
        step = float(np.diff(values).min()) if len(values) > 1 else 0.0
        if self.log or is_bytes(self.column) or step <= 0 or not 1e-4 <= step < 1e6:
            return [self(value) for value in values]
        decimals = max(0, math.ceil(-math.log10(step) - 1e-9))
        if not math.isclose(step, round(step, decimals), rel_tol=1e-6):  # for example 0.025
            decimals += 1
        return [f"{value:,.{decimals}f}".replace("-", "\N{MINUS SIGN}") for value in values]


def label_axis(axis: Axis, column: str, *, log: bool = False) -> None:
    """Label an axis with its column and unit; format its ticks."""
    unit = " (s)" if is_seconds(column) and column != "seconds" else ""
    axis.set_label_text(to_printable(format_heading(column), 60) + unit)
    axis.set_major_formatter(TickLabels(column, log=log))
    if log:
        axis.set_minor_formatter(NullFormatter())


def set_log_scales(
    axes: Axes, *, x: bool, y: bool, nonpositive: Literal["mask", "clip"] = "mask"
) -> tuple[bool, bool]:
    """Set logarithmic scales where they are requested and possible.

    An axis stays linear if it has no positive value, or an infinite one.

    Parameters
    ----------
    axes : Axes
        Axes on which the data is already drawn.
    x, y : bool
        True for an axis to make logarithmic.
    nonpositive : str
        ``"mask"`` omits values that are not positive. ``"clip"`` replaces them by a small positive
        value, which bars need because they begin at 0.

    Returns
    -------
    tuple of bool
        True for each axis that is logarithmic.
    """
    limits = axes.dataLim
    log_x = x and 0 < limits.minposx <= limits.xmax < math.inf
    log_y = y and 0 < limits.minposy <= limits.ymax < math.inf
    if log_x:
        axes.set_xscale("log", nonpositive=nonpositive)
        axes.xaxis.set_major_locator(_choose_log_ticks(limits.minposx, limits.xmax))
    if log_y:
        axes.set_yscale("log", nonpositive=nonpositive)
        axes.yaxis.set_major_locator(_choose_log_ticks(limits.minposy, limits.ymax))
    return log_x, log_y


def _choose_log_ticks(low: float, high: float) -> LogLocator:
    """Return ticks at powers of ten, and between them on short axes."""
    multiples = (2.0, 5.0) if high / low < 100 else (3.0,) if high / low < 2000 else ()
    return LogLocator(subs=(1.0, *multiples))


def label_ticks(axis: Axis, names: Sequence[str], *, max_length: int = 24) -> None:
    """Write category names at positions 0, 1, ...

    If they are more than `_MAX_TICK_NAMES`, only every second, third, ... is written.
    """
    step = math.ceil(len(names) / _MAX_TICK_NAMES)
    written = range(0, len(names), max(1, step))
    axis.set_ticks(list(written), [to_printable(names[index], max_length) for index in written])
    axis.set_minor_locator(NullLocator())
    axis.set_tick_params(length=0)
