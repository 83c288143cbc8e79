"""Removal of values that few records hold, before a synthesizer is fitted."""

import warnings
from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.datasets._table import Column, Table, join_names, missing_cells, word_column
from fedneighbors.methods.fedpnn.synthesis._encoding import split_repeated

OTHER = "other"
_MAX_DISTINCT = 0.5  # a text column with more distinct cells per cell is an identifier


def merge_categories(table: Table, min_count: int, coded: Collection[str] = ()) -> Table:
    """Merge the rare categories of each nominal column; warn of identifiers.

    While the merged cells are fewer than ``min_count``, the next rarest category joins them. A
    missing cell counts as a category. All categories of a column are merged if more than half of
    its cells are distinct.

    Parameters
    ----------
    table : Table
        All rows.
    min_count : int
        Minimum number of records with a category; 0 returns the table unchanged.
    coded : collection of str
        Nominal columns of numbers: their merged cells become missing, not ``"other"``.
    """
    columns, identifiers, numbers = dict(table.columns), [], []
    for name, column in table.columns.items() if min_count else ():
        if column.dtype != np.object_:
            numbers += [name] if _are_distinct_integers(column, 2 * min_count) else []
            continue
        counts = Counter(column.tolist())
        other = None if name in coded else OTHER
        merged = _find_rare(counts, min_count, other)
        values = {value for value in counts if value is not None}
        if len(values) > _MAX_DISTINCT * (table.n_rows - counts[None]) or values <= merged:
            merged |= values
            identifiers += [name] if len(values) > 1 else []
        columns[name] = word_column(other if cell in merged else cell for cell in column)
    _warn_of_columns(
        identifiers,
        f"have too many distinct texts, or each in fewer than min_count={min_count} records; all "
        "cells are merged. Leave identifiers such as names out; convert dates to numbers",
        stacklevel=4,
    )
    _warn_of_columns(
        numbers,
        "have another integer in each record, and synthetic rows may contain the same ones by "
        "chance. Leave identifiers such as account numbers out",
        stacklevel=4,
    )
    return Table(columns, table.source)


def _are_distinct_integers(column: Column, min_rows: int) -> bool:
    values = column.astype(np.float64)
    present = values[np.isfinite(values)]
    if len(present) < min_rows or (present != np.round(present)).any():
        return False
    return len(np.unique(present)) == len(present)


def _find_rare(
    counts: Mapping[str | None, int], min_count: int, other: str | None
) -> set[str | None]:
    """Return the categories to merge with ``other``, rarest first."""
    rare: set[str | None] = set()
    n_merged = counts.get(other, 0)
    for category in sorted(counts, key=lambda category: (counts[category], category or "")):
        if counts[category] >= min_count and (n_merged == 0 or n_merged >= min_count):
            break
        if category != other:
            rare.add(category)
            n_merged += counts[category]
    return rare


def replace_rare_numbers(table: Table, min_count: int, repeated_share: float | None) -> Table:
    """Clip tails of numeric columns; round rare numbers to repeated ones.

    There are ``min_count`` records beyond each bound, which lies between two values and is thus no
    record's value unless values are tied or integers. If fewer records remain without a repeated
    value, they take the nearest one.

    Parameters
    ----------
    table : Table
        Training rows of one generator.
    min_count : int
        Number of records beyond each bound; 0 returns the table unchanged. A column with fewer than
        twice as many numbers becomes missing, with a warning.
    repeated_share : float or None
        Minimum share of records of a repeated value, see :func:`~._encoding.fit_transform`.
    """
    columns, emptied = dict(table.columns), []
    for name, column in table.columns.items() if min_count else ():
        if column.dtype == np.object_:
            continue
        values = column.astype(np.float64)
        present = np.sort(values[np.isfinite(values)])
        if len(present) >= 2 * min_count:
            clipped = np.clip(values, *_find_bounds(present, min_count))
            clipped[np.isinf(values)] = np.inf  # raises
            repeated, rest = split_repeated(name, clipped, repeated_share, min_count)
            if len(rest) < min_count and len(repeated):
                rare = ~np.isnan(clipped) & ~np.isin(clipped, repeated)
                gaps = np.abs(clipped[rare, None] - repeated)
                clipped[rare] = repeated[gaps.argmin(axis=1)]
            columns[name] = clipped
        elif not missing_cells(column).all():
            columns[name] = np.full(len(values), np.nan)
            emptied.append(name)
    _warn_of_columns(
        emptied,
        f"have fewer than {2 * min_count} numbers, twice min_count; they are generated as missing",
        stacklevel=5,
    )
    return Table(columns, table.source)


def _find_bounds(present: Floats, min_count: int) -> tuple[float, float]:
    """Return the bounds of sorted values, rounded inwards if all are integers."""
    low = 0.5 * present[min_count - 1] + 0.5 * present[min_count]
    high = 0.5 * present[-min_count] + 0.5 * present[-min_count - 1]
    if (present == np.round(present)).all():
        low, high = np.ceil(low), np.floor(high)
    return float(min(low, high)), float(high)


def _warn_of_columns(names: list[str], reason: str, *, stacklevel: int) -> None:
    if names:
        warnings.warn(f"the columns {join_names(names)} {reason}", stacklevel=stacklevel)
