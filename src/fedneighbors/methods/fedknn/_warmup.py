"""Compilation of the search kernels by sample searches with every metric."""

from typing import Any

import numpy as np

from fedneighbors.datasets._graphs import Graph
from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._schema_columns import NumericColumn
from fedneighbors.kernels.vectors._lists import NearestLists
from fedneighbors.kernels.vectors._table import TableRows
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.private._oblivious import warm_up

_INDEXED_ROWS = 1100  # enough for an index with a tree or with codes (1024)


def warmup() -> None:
    """Compile every kernel that searches use."""
    for metric, objects in _samples():
        index = metric_of(metric).index(objects, ranks=np.arange(len(objects)))
        session = index.open(objects[0])
        session.bounds()
        session.next(2)
        session.next(2, cutoff=3.0)
        session.count(2.0)
        if hasattr(index, "nearest"):
            rows = np.array(objects[:], np.float64)
            rows.flags.writeable = False  # as decoded from a request
            distances, positions = index.nearest(rows, 2, peak=float(rows.max()))
            found, keys = positions.astype(np.int32), np.arange(len(rows))
            distances.flags.writeable = found.flags.writeable = False  # as decoded from a reply
            NearestLists(len(rows), 2).add(distances, found, ties=keys, rows=keys)
    warm_up()


def _samples() -> list[tuple[Any, Any]]:
    """Return (metric, objects) for each way in which a metric searches."""
    line = np.linspace(0, 1, _INDEXED_ROWS)
    wide = np.cos(np.arange(_INDEXED_ROWS * 64.0)).reshape(-1, 64)
    part = np.arange(1, _INDEXED_ROWS)  # rows of a party in the table of all
    tables = wide, wide.astype("f4")
    ring = Graph("CCO", [(0, 1), (1, 2), (2, 0)])
    graphs = [ring, Graph("CC", [(0, 1)]), Graph("CCCC", [(0, 1), (1, 2), (2, 3)]), ring]
    vectors: list[tuple[str, Any]] = [
        (metric, rows)
        for metric in ("euclidean", "manhattan", "cosine", "inner_product")
        for rows in (
            *(np.eye(5), np.column_stack([line, line**2 + 1]), *tables),
            *(TableRows(table, part) for table in tables),
        )
    ]
    places = [("haversine", 50 * np.column_stack([line, line])[:n]) for n in (5, _INDEXED_ROWS)]
    strings = [("edit", [letter * n for letter in "abcab"]) for n in (3, 100, 2000)]
    bits = [("tanimoto", np.eye(5, n, dtype=np.uint8)) for n in (8, 256)]
    sets = [{1}, {2}, {1, 2}]
    schema = Schema((NumericColumn("x", 0, 1), NumericColumn("y", 0, 1)))
    rows = [(schema, np.eye(2))]
    return [*vectors, *places, *strings, *bits, *rows, ("graph_edit", graphs), ("jaccard", sets)]
