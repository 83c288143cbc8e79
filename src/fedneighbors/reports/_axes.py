"""Axes with their units: labels, ticks, scales, names of categories."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import Formatter, LogLocator, NullFormatter, NullLocator

from fedneighbors.reports._numbers import heading, is_bytes, is_seconds, number, size
from fedneighbors.reports._text import printable

_MOST_NAMES = 24


class Ticks(Formatter):
    """Tick labels with the unit of their column, as many digits as the step between ticks needs.

    Parameters
    ----------
    column : str
        Says whether the values are bytes; seconds below 1 are shown as they are.
    log : bool
        Whether the ticks lie on a logarithmic axis.
    """

    def __init__(self, column: str, *, log: bool) -> None:
        self.column = column
        self.log = log

    def __call__(self, value: float, pos: int | None = None) -> str:  # noqa: ARG002 - matplotlib's
        """Label of one tick."""
        return size(value) if is_bytes(self.column) else number(value)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Labels of all ticks of an axis."""
        step = float(np.diff(values).min()) if len(values) > 1 else 0.0
        if self.log or is_bytes(self.column) or step <= 0 or not 1e-4 <= step < 1e6:
            return [self(value) for value in values]
        decimals = max(0, math.ceil(-math.log10(step) - 1e-9))
        if not math.isclose(step, round(step, decimals), rel_tol=1e-6):  # as of 0.025
            decimals += 1
        return [f"{value:,.{decimals}f}".replace("-", "\N{MINUS SIGN}") for value in values]


def dress(axis: Axis, column: str, *, log: bool = False) -> None:
    """Label an axis with the column and its unit and format its ticks."""
    unit = " (s)" if is_seconds(column) and column != "seconds" else ""
    axis.set_label_text(printable(heading(column), 60) + unit)
    axis.set_major_formatter(Ticks(column, log=log))
    if log:
        axis.set_minor_formatter(NullFormatter())


def use_log(
    axes: Axes, *, x: bool, y: bool, nonpositive: Literal["mask", "clip"] = "mask"
) -> tuple[bool, bool]:
    """Make axes logarithmic where asked and where there is a positive value to show.

    Parameters
    ----------
    axes : Axes
        Holds its data already.
    x, y : bool
        Which are asked for.
    nonpositive : str
        ``"mask"`` leaves out what is not positive, ``"clip"`` draws it at the edge, where bars
        begin.

    Returns
    -------
    tuple of bool
        Which of x and y are logarithmic now.
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
    """Ticks at powers of ten, and between them where these are few."""
    between = (2.0, 5.0) if high / low < 100 else (3.0,) if high / low < 2000 else ()
    return LogLocator(subs=(1.0, *between))


def name_positions(axis: Axis, names: Sequence[str], *, longest: int = 24) -> None:
    """Write the names of categories at positions 0, 1, ...; not all of them if there are many."""
    step = math.ceil(len(names) / _MOST_NAMES)
    shown = range(0, len(names), max(1, step))
    axis.set_ticks(list(shown), [printable(names[index], longest) for index in shown])
    axis.set_minor_locator(NullLocator())
    axis.set_tick_params(length=0)
