"""Data of a figure, read from its table: panels, series and categories."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.records import Figure, ResultTable, Scalar
from fedneighbors.reports._formatting import format_cells, to_printable

_MAX_PANELS = 24
_MAX_SERIES = 24
_MAX_CATEGORIES = 500
_MAX_NUMBER = 1e100  # larger numbers overflow the arithmetic of the axes


@dataclass(frozen=True)
class Series:
    """Points of one colour; a missing number is NaN.

    ``order`` is the index of the series among all of the chart, ``x`` are positions, ``y`` heights,
    and ``error`` half-widths of error bars or bands.
    """

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
        A single panel without a title if the figure has no facets.
    hues : tuple of str
        Names of all series in all panels, in order of appearance; ``("",)`` without a hue column.
    categories : tuple of str
        Names of the positions 0, 1, ... on the x axis; empty if x is numeric.
    omitted : tuple of str
        Notes on limits that omit data, such as "the first 24 of 30 panels".
    """

    figure: Figure
    panels: tuple[Panel, ...]
    hues: tuple[str, ...]
    categories: tuple[str, ...]
    omitted: tuple[str, ...] = ()


def build_chart(figure: Figure, table: ResultTable, *, categorical: bool = False) -> Chart:
    """Read the data of a figure from its table.

    Parameters
    ----------
    figure : Figure
        Description with the names of the columns.
    table : ResultTable
        Table with the columns.
    categorical : bool
        Treat the values of x as names even if all are numbers, as bar charts do.
    """
    hues, hue = _encode_labels(figure.hue, table)
    facets, facet = _encode_labels(figure.facet, table)
    values = read_column(figure.x, table)
    is_categorical = categorical or not all(_is_number(value) for value in values)
    categories, x = _encode_labels(figure.x, table) if is_categorical else ((), to_floats(values))
    points = _PointArrays(hue, facet, x.astype(np.float64), figure, table)
    if is_categorical:
        points.x[points.x >= _MAX_CATEGORIES] = np.nan
    return Chart(
        figure,
        tuple(
            Panel(title, points.select_series(index, hues[:_MAX_SERIES]))
            for index, title in enumerate(facets[:_MAX_PANELS])
        ),
        hues[:_MAX_SERIES],
        categories[:_MAX_CATEGORIES],
        _describe_omissions(len(facets), len(hues), len(categories)),
    )


def read_column(name: str, table: ResultTable) -> Sequence[Scalar]:
    """Return a column's values, or only None if ``name`` is empty."""
    if not name:
        return (None,) * len(table.rows)
    index = table.columns.index(name)
    return [row[index] for row in table.rows]


def format_column(name: str, table: ResultTable) -> list[str]:
    """Return a column's values as text, empty if ``name`` is empty."""
    values = read_column(name, table)
    texts = format_cells(name, values) if name else [""] * len(values)
    return [to_printable(text) for text in texts]


class _PointArrays:
    """Rows of a table as arrays, to be split by panel and colour.

    ``hue`` and ``facet`` are the indices of each row's colour and panel.
    """

    def __init__(
        self, hue: Integers, facet: Integers, x: Floats, figure: Figure, table: ResultTable
    ) -> None:
        self.hue = hue
        self.facet = facet
        self.x = x
        self.y = to_floats(read_column(figure.y, table))
        self.error = np.abs(to_floats(read_column(figure.error, table)))

    def select_series(self, facet: int, hues: Sequence[str]) -> tuple[Series, ...]:
        """Return a panel's non-empty series."""
        series = []
        for order, name in enumerate(hues):
            mask = (self.hue == order) & (self.facet == facet)
            if mask.any():
                series.append(Series(name, order, self.x[mask], self.y[mask], self.error[mask]))
        return tuple(series)


def _encode_labels(name: str, table: ResultTable) -> tuple[tuple[str, ...], Integers]:
    """Return a column's distinct labels, and each row's label index.

    The distinct labels are in order of first appearance.
    """
    labels = format_column(name, table)
    index_of = {label: index for index, label in enumerate(dict.fromkeys(labels))}
    return tuple(index_of), np.array([index_of[label] for label in labels], dtype=np.int64)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def to_floats(values: Sequence[Scalar]) -> Floats:
    """Convert numbers to an array; other values become NaN.

    So do infinity and numbers that are too large to draw.
    """
    drawable = [
        value
        if isinstance(value, int | float) and abs(value) < _MAX_NUMBER  # false for NaN
        else np.nan
        for value in values
    ]
    return np.array(drawable, dtype=np.float64)


def _describe_omissions(n_facets: int, n_hues: int, n_categories: int) -> tuple[str, ...]:
    return tuple(
        f"the first {limit} of {count} {items}"
        for count, limit, items in (
            (n_facets, _MAX_PANELS, "panels"),
            (n_hues, _MAX_SERIES, "groups"),
            (n_categories, _MAX_CATEGORIES, "positions"),
        )
        if count > limit
    )
