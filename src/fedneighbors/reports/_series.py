"""Data of a figure: panels, series and numbers from its table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.records import Figure, ResultTable, Scalar
from fedneighbors.reports._formatting import cells, printable

_MAX_PANELS = 24
_MAX_SERIES = 24
_MAX_POSITIONS = 500
_MAX_NUMBER = 1e100  # larger numbers overflow the arithmetic of the axes


@dataclass(frozen=True)
class Series:
    """Points of one colour: positions, heights and half-widths, with NaN for missing numbers."""

    name: str
    order: int
    x: Floats
    y: Floats
    error: Floats


@dataclass(frozen=True)
class Panel:
    """One facet of a figure."""

    title: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Chart:
    """Data of a figure.

    Parameters
    ----------
    figure : Figure
        The description.
    panels : tuple of Panel
        One without a title if the figure has no facets.
    hues : tuple of str
        Names of all series, over all panels, in order of appearance.
    categories : tuple of str
        Names of the positions 0, 1, ... on the x axis; empty if x is numeric.
    left_out : tuple of str
        Notes on data that was not drawn.
    """

    figure: Figure
    panels: tuple[Panel, ...]
    hues: tuple[str, ...]
    categories: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def chart(figure: Figure, table: ResultTable, *, categorical: bool = False) -> Chart:
    """Take the data of a figure from its table.

    Parameters
    ----------
    figure : Figure
        Description with the names of the columns.
    table : Table
        Table with the columns.
    categorical : bool
        Treat values of x as names even if they are numbers, as for bars.
    """
    hues, hue = _codes(figure.hue, table)
    facets, facet = _codes(figure.facet, table)
    values = column(figure.x, table)
    named = categorical or not all(_is_number(value) for value in values)
    categories, positions = _codes(figure.x, table) if named else ((), floats(values))
    points = _Points(hue, facet, positions.astype(np.float64), figure, table)
    if named:
        points.x[points.x >= _MAX_POSITIONS] = np.nan
    return Chart(
        figure,
        tuple(
            Panel(title, points.series(number, hues[:_MAX_SERIES]))
            for number, title in enumerate(facets[:_MAX_PANELS])
        ),
        hues[:_MAX_SERIES],
        categories[:_MAX_POSITIONS],
        _left_out(len(facets), len(hues), len(categories)),
    )


def column(name: str, table: ResultTable) -> Sequence[Scalar]:
    """Return a column's values; None in every row without a name."""
    if not name:
        return (None,) * len(table.rows)
    index = table.columns.index(name)
    return [row[index] for row in table.rows]


def labels(name: str, table: ResultTable) -> list[str]:
    """Return a column's values as text; empty text without a name."""
    values = column(name, table)
    return [printable(text) for text in cells(name, values)] if name else [""] * len(values)


class _Points:
    """Rows of a table as arrays, for splitting by panel and colour."""

    def __init__(
        self, hue: Integers, facet: Integers, x: Floats, figure: Figure, table: ResultTable
    ) -> None:
        self.hue = hue
        self.facet = facet
        self.x = x
        self.y = floats(column(figure.y, table))
        self.error = np.abs(floats(column(figure.error, table)))

    def series(self, facet: int, hues: Sequence[str]) -> tuple[Series, ...]:
        """Return a panel's non-empty series."""
        found = []
        for order, name in enumerate(hues):
            mine = (self.hue == order) & (self.facet == facet)
            if mine.any():
                found.append(Series(name, order, self.x[mine], self.y[mine], self.error[mine]))
        return tuple(found)


def _codes(name: str, table: ResultTable) -> tuple[tuple[str, ...], Integers]:
    """Return a column's distinct labels and each row's label position.

    In order of appearance.
    """
    names = labels(name, table)
    distinct = {label: code for code, label in enumerate(dict.fromkeys(names))}
    return tuple(distinct), np.array([distinct[label] for label in names], dtype=np.int64)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def floats(values: Sequence[Scalar]) -> Floats:
    """Convert numbers to an array; NaN for all other values.

    Numbers too large to draw become NaN too.
    """
    drawable = [
        value
        if isinstance(value, int | float) and abs(value) < _MAX_NUMBER  # false for NaN
        else np.nan
        for value in values
    ]
    return np.array(drawable, dtype=np.float64)


def _left_out(n_facets: int, n_hues: int, n_categories: int) -> tuple[str, ...]:
    return tuple(
        f"the first {most} of {count} {what}"
        for count, most, what in (
            (n_facets, _MAX_PANELS, "panels"),
            (n_hues, _MAX_SERIES, "groups"),
            (n_categories, _MAX_POSITIONS, "positions"),
        )
        if count > most
    )
