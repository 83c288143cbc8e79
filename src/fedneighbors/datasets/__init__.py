"""Data sets: bundled, local or generated; nothing is downloaded unless the user asks."""

from fedneighbors.datasets.catalog import Entry, available, load, load_columns
from fedneighbors.datasets.dataset import Dataset
from fedneighbors.datasets.encoder import NominalColumn, NumericColumn, TableEncoder
from fedneighbors.datasets.reading import read_columns, read_features, read_table
from fedneighbors.datasets.table import Table

__all__ = [
    "Dataset",
    "Entry",
    "NominalColumn",
    "NumericColumn",
    "Table",
    "TableEncoder",
    "available",
    "load",
    "load_columns",
    "read_columns",
    "read_features",
    "read_table",
]
