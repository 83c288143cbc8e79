"""Data sets: bundled or local; nothing is downloaded unless the user asks."""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "available": "fedneighbors.datasets._catalog",
    "CategoricalColumn": "fedneighbors.datasets._schema_columns",
    "Dataset": "fedneighbors.datasets._dataset",
    "dataset_from_table": "fedneighbors.datasets._reading",
    "EncodedRows": "fedneighbors.datasets._schema",
    "Entry": "fedneighbors.datasets._catalog",
    "fetch_openml": "fedneighbors.datasets._catalog",
    "Graph": "fedneighbors.datasets._graphs",
    "load": "fedneighbors.datasets._catalog",
    "load_columns": "fedneighbors.datasets._catalog",
    "Molecules": "fedneighbors.datasets._molecules",
    "NumericColumn": "fedneighbors.datasets._schema_columns",
    "read_columns": "fedneighbors.datasets._reading",
    "read_features": "fedneighbors.datasets._reading",
    "read_objects": "fedneighbors.datasets._objects",
    "read_party_files": "fedneighbors.datasets._party_files",
    "read_rows": "fedneighbors.datasets._reading",
    "read_table": "fedneighbors.datasets._reading",
    "Schema": "fedneighbors.datasets._schema",
    "SetColumn": "fedneighbors.datasets._schema_columns",
    "Table": "fedneighbors.datasets._table",
    "TextFormat": "fedneighbors.datasets._text_format",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
