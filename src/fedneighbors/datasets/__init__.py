"""Data sets: bundled or local; nothing is downloaded unless the user asks."""

from fedneighbors.datasets._catalog import Entry, available, fetch_openml, load, load_columns
from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._graphs import Graph
from fedneighbors.datasets._objects import read_objects
from fedneighbors.datasets._reading import (
    dataset_from_table,
    read_columns,
    read_features,
    read_rows,
    read_table,
)
from fedneighbors.datasets._schema import EncodedRows, Schema
from fedneighbors.datasets._schema_columns import CategoricalColumn, NumericColumn
from fedneighbors.datasets._table import Table

__all__ = [
    "CategoricalColumn",
    "Dataset",
    "EncodedRows",
    "Entry",
    "Graph",
    "NumericColumn",
    "Schema",
    "Table",
    "available",
    "dataset_from_table",
    "fetch_openml",
    "load",
    "load_columns",
    "read_columns",
    "read_features",
    "read_objects",
    "read_rows",
    "read_table",
]
