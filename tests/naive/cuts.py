"""Slow twin of the cut rule of FedPNN: all unions of sets of a table's cells, and exact ranks."""

from fractions import Fraction

import numpy as np


def smallest_difference(first, second):
    """Return the fewest cells in a difference of a union of first sets and one of second sets.

    ``first`` and ``second`` have the set of each cell. Differences of no cells are not counted;
    the result is the number of cells if there is no other.
    """
    names = [sorted(set(first)), sorted(set(second))]
    n_unions = 1 << len(names[0]) + len(names[1])
    chosen = np.arange(n_unions)[:, None] >> np.arange(len(names[0]) + len(names[1])) & 1
    in_first = chosen[:, [names[0].index(cell) for cell in first]]
    in_second = chosen[:, [len(names[0]) + names[1].index(cell) for cell in second]]
    n_cells = (in_first != in_second).sum(axis=1)
    return int(n_cells[n_cells > 0].min(initial=len(first)))


def reduce_rows(rows):
    """Return the reduced row echelon form of a matrix of rational numbers, without zero rows."""
    reduced = []
    for row in rows:
        rest = [Fraction(value) for value in row]
        for pivot, earlier in reduced:
            factor = rest[pivot]
            rest = [a - factor * b for a, b in zip(rest, earlier, strict=True)]
        pivot = next((k for k, value in enumerate(rest) if value), None)
        if pivot is None:
            continue
        rest = [value / rest[pivot] for value in rest]
        reduced = [
            (p, [a - r[pivot] * b for a, b in zip(r, rest, strict=True)]) for p, r in reduced
        ]
        reduced.append((pivot, rest))
    return [row for _, row in reduced]


def isolated_cells(sums):
    """Return the cells whose value is a linear combination of sums.

    Each sum is a row of coefficients of the cells. A unit vector is in the row space exactly if it
    is a row of the reduced form.
    """
    return sorted(
        next(k for k, value in enumerate(row) if value)
        for row in reduce_rows(sums)
        if sum(value != 0 for value in row) == 1
    )
