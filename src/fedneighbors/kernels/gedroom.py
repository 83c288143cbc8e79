"""Makes the room in which a graph edit distance is searched, before a query's first verification."""

import numpy as np
import numpy.typing as npt

from fedneighbors.kernels.ged import GedPrices, GedSearch, GedSide, GraphTable

__all__ = ["new_search"]


def new_search(table: GraphTable, query: GraphTable) -> GedSearch:
    """Return room for the pairs of one query with the graphs of a table.

    Parameters
    ----------
    table, query : GraphTable
        The query is a table of one graph. Labels of both count alike.
    """
    n = 1 + max(_largest(table.first_node), _largest(query.first_node))
    n_arcs = 1 + max(_largest(part.first_arc[part.first_node]) for part in (table, query))
    kinds, n_kinds = _names(table.label, query.label)
    bonds, n_bonds = _names(table.bond, query.bond)

    def side() -> GedSide:
        return GedSide(
            _grid(n), _grid(n + 1), _grid(n_arcs), _grid(n_arcs), _grid(n, n),
            _grid(n), _grid(n), _grid(n), _grid(n_bonds + 1, n), _grid(n),
        )  # fmt: skip

    prices = GedPrices(
        *(_grid(n, n) for _ in range(4)),
        *(_grid(n) for _ in range(5)),
        _grid(n, n),
        *(_grid(n) for _ in range(3)),
    )
    head = np.array([-1, 0, 0, 0, 0, 0, 0, n_kinds, n_bonds], np.int64)
    tally = _grid(4, max(n_kinds, n_bonds) + 2)
    return GedSearch(head, side(), side(), prices, _grid(n, n), _grid(n, n), tally, kinds, bonds)


def _grid(*shape: int) -> npt.NDArray[np.int32]:
    return np.zeros(shape, np.int32)


def _largest(starts: npt.NDArray[np.int64]) -> int:
    return int(np.diff(starts).max(initial=0))


def _names(
    labels: npt.NDArray[np.int32], own: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], int]:
    """Return for each label its number among those of the query, from 1, or 0."""
    names = _grid(1 + max(int(labels.max(initial=0)), int(own.max(initial=0))))
    distinct = np.unique(own)
    names[distinct] = np.arange(1, len(distinct) + 1)
    return names, len(distinct)
