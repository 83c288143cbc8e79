"""Objects of a search from files: vectors, places, strings, sets, graphs, rows and others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._arrays import is_arrays, read_array_rows
from fedneighbors.datasets._catalog import find_file, load
from fedneighbors.datasets._cells import has_values, read_all_cells
from fedneighbors.datasets._files import read_fasta, read_lines
from fedneighbors.datasets._graphs import Graph, read_graphs
from fedneighbors.datasets._molecules import read_fingerprints, read_molecules
from fedneighbors.datasets._object_cells import Cells, Kind, items_from_cells, parse_object
from fedneighbors.datasets._reading import read_columns, read_declared_cells
from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._table import Table, check_present
from fedneighbors.datasets._text_format import TextFormat
from fedneighbors.errors import DataError

METRIC_KINDS: dict[str, Kind] = {
    "euclidean": "vectors",
    "manhattan": "vectors",
    "cosine": "vectors",
    "inner_product": "vectors",
    "haversine": "places",
    "edit": "strings",
    "jaccard": "sets",
    "graph_edit": "graphs",
    "tanimoto": "fingerprints",
}
"""Kind of object that each metric compares."""

_TABLES = {".csv", ".parquet", ".pq"}
_DECLARED_TABLES = _TABLES | {".arff", ".jsonl", ".ndjson"}
_MOLECULES = {".smi", ".smiles", ".sdf"}
_FASTA = {".fasta", ".fa", ".fna", ".faa"}
_PLACES = (("lon", "lat"), ("longitude", "latitude"))


@dataclass(frozen=True, eq=False)
class Objects:
    """Objects of one source.

    Parameters
    ----------
    items : sequence
        A float64 matrix of vectors or places, or a list of str, frozenset, Graph, packed bits, or
        tuples with the cells of rows.
    labels : tuple of str
        Label of each object for display; labels may repeat.
    source : str
        Source of the objects.
    owners : array of shape (n_objects,), optional
        Cells of the owner column.
    rows : tuple of int, optional
        Row of each object in the source, from 1; by default all rows in order.
    notes : tuple of str
        Sentences about cells and rows that a schema changed or dropped.
    columns : tuple of str
        Columns of a table that were read; empty for other sources.
    is_named : bool
        Whether labels are unique names in the source.
    """

    items: Any
    labels: tuple[str, ...]
    source: str
    owners: npt.NDArray[Any] | None = None
    rows: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    is_named: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, n: int) -> "Objects":
        """Return the first ``n`` objects, or all if there are fewer."""
        owners = None if self.owners is None else self.owners[:n]
        rows = None if self.rows is None else self.rows[:n]
        return replace(self, items=self.items[:n], labels=self.labels[:n], owners=owners, rows=rows)

    def owner_of(self, position: int) -> Any:
        """Return the owner of an object, None if unknown."""
        return None if self.owners is None else self.owners[position]

    def find_row(self, row: int, owner: str | None = None) -> int | None:
        """Return the position of a source row's object, or None.

        In the files of several parties, each owner has its own rows.
        """
        for position, own in enumerate(self.rows or range(1, len(self) + 1)):
            if own == row and owner in (None, self.owner_of(position)):
                return position
        return None


def read_objects(
    source: str | Path,
    kind: Kind,
    *,
    columns: Sequence[str] = (),
    owner: str | None = None,
    label: str | None = None,
    schema: Schema | None = None,
    complete: bool = False,
    text_format: TextFormat | None = None,
) -> Objects:
    """Read the objects of a file or of a named data set.

    Parameters
    ----------
    source : str or path
        A table: CSV or Parquet, or JSON lines or Arrow (``.arrow``, ``.feather``), in which an
        object may be a list. For strings also FASTA (``.fasta``, ``.fa``) or text with one string
        per line, for sets text with the words of one set per line; for graphs and fingerprints
        SMILES (``.smi``) or SDF; for graphs the ``t/v/e`` format; for vectors ``.npz`` with the
        array ``x``. Or a name: of a data set of :func:`load` for vectors, otherwise of a file in
        the data folder.
    kind : {"vectors", "places", "strings", "sets", "graphs", "fingerprints", "rows"}
        Kind of the objects; rows are those of a table with a schema.
    columns : sequence of str
        Columns of a table: vector components (by default all numeric columns), longitude and
        latitude in degrees, or the column of strings, words or SMILES.
    owner, label : str, optional
        Columns of a table with each object's owner, and with its label for display.
    schema : Schema, optional
        Columns of a table of vectors or rows: rows that the schema does not allow are dropped; in
        vectors, categories become components, and missing cells are filled. In place of
        ``columns``; the file may also be ARFF or JSON lines.
    complete : bool
        Raise an error instead of dropping rows.
    text_format : TextFormat, optional
        Separators and encoding of a text table; encoding of strings and sets.

    Raises
    ------
    MissingDataError
        If there is no such file or data set.
    DataError
        If the file is invalid; the error names the line, row or column. If a column or a schema is
        given, but the source has no columns, objects of a schema are neither vectors nor rows, rows
        have no schema, or rows would be dropped under ``complete``.
    MissingExtraError
        If RDKit (for SMILES) or pyarrow (for Parquet) is required and not installed.
    """
    path = Path(source)
    is_name = not (path.is_file() or path.suffix or len(path.parts) > 1)
    if is_name and kind == "vectors":
        if columns or owner or label or schema:
            raise DataError(
                f"only files have columns, and {str(source)!r} is not a file: it is read as a data "
                "set; omit the columns, or give a file"
            )
        data = load(str(source))
        return Objects(data.x, _row_labels(data.n_rows), str(source))
    file = find_file(str(source)) if is_name else path
    if is_arrays(file) and kind == "vectors" and not (columns or owner or label or schema):
        x = read_array_rows(file)
        return Objects(x.astype(np.float64), _row_labels(len(x)), str(file))
    if set(file.suffixes) & (_TABLES if schema is None else _DECLARED_TABLES):
        if schema is None:
            if kind == "rows":
                raise DataError("rows of numbers and categories need a schema, which scales them")
            return _read_table(
                file, kind, columns=columns, owner=owner, label=label, text_format=text_format
            )
        if columns or kind not in ("vectors", "rows"):
            raise DataError(
                "a schema describes the columns of vectors or rows, in place of columns"
            )
        return _read_declared(
            file, kind, schema, owner=owner, label=label, complete=complete, text_format=text_format
        )
    if schema is None and has_values(file):
        cells = read_all_cells(file)
        return objects_from_cells(cells, kind, str(file), columns=columns, owner=owner, label=label)
    if columns or owner or label or schema:
        raise DataError(f"{file} has no columns; only tables have them, such as CSV or Parquet")
    return _read_text(file, kind, encoding=(text_format or TextFormat()).encoding)


def read_party_objects(
    files: Mapping[str, str | Path],
    kind: Kind,
    *,
    columns: Sequence[str] = (),
    limit: int | None = None,
    **options: Any,
) -> Objects:
    """Read the objects of one file for each party.

    Parameters
    ----------
    files : mapping of str to path
        Name of each party and its file.
    kind, columns
        As for `read_objects`.
    limit : int, optional
        Use only the first objects of each file, at most this number.
    **options
        Further arguments of `read_objects`.

    Returns
    -------
    Objects
        In the order of the files; ``owners`` are the names, ``rows`` those of each file.

    Raises
    ------
    MissingDataError, DataError, MissingExtraError
        As for `read_objects`; also if columns or lengths of vectors differ between files.
    """
    parts: list[Objects] = []
    for file in files.values():
        part = read_objects(file, kind, columns=columns, **options)
        if parts and part.columns != parts[0].columns:
            first = parts[0]
            for one, other in ((part, first), (first, part)):
                check_present(other.columns, one.columns, source=one.source)
            part = read_objects(file, kind, columns=first.columns, **options)  # in the same order
        parts.append(part if limit is None else part.first(limit))
    items: Any = [item for part in parts for item in part.items]
    is_matrix = kind in ("vectors", "places")
    # labels are such as "row 3"
    is_numbered = (is_matrix or kind == "rows") and options.get("label") is None
    if is_matrix:
        widths = {part.items.shape[1] for part in parts}
        if len(widths) > 1:
            raise DataError(f"vectors have different lengths in {', '.join(map(str, files))}")
        items = np.vstack([part.items for part in parts])
    return Objects(
        items,
        tuple(
            f"{name} {label}" if is_numbered else label
            for name, part in zip(files, parts, strict=True)
            for label in part.labels
        ),
        ", ".join(part.source for part in parts),
        np.repeat(np.array([*map(str, files)], dtype=object), [len(part) for part in parts]),
        tuple(row for part in parts for row in part.rows or range(1, len(part) + 1)),
        tuple(f"{part.source}: {note}" for part in parts for note in part.notes),
        parts[0].columns,
    )


def object_from_json(value: Any, kind: Kind) -> Any:
    """Return an object of a JSON value.

    Parameters
    ----------
    value : object
        A list of numbers for a vector or a place (longitude, latitude); a string; a list of the
        elements of a set; SMILES; or, for a graph, SMILES or a mapping with ``nodes``, a list of
        labels, and ``edges``, a list of first node, second node and label.
    kind : {"vectors", "places", "strings", "sets", "graphs", "fingerprints"}
        Kind of the object.

    Raises
    ------
    DataError
        If the value is not such an object.
    MissingExtraError
        If the value is SMILES and RDKit is not installed.

    Examples
    --------
    >>> sorted(object_from_json(["graph", "search"], "sets"))
    ['graph', 'search']
    """
    if isinstance(value, str) and kind in ("strings", "graphs", "fingerprints"):
        return parse_object(value, kind)
    if kind == "graphs" and isinstance(value, dict) and set(value) == {"nodes", "edges"}:
        try:
            edges = [(first, second) for first, second, _ in value["edges"]]
            return Graph(value["nodes"], edges, [label for *_, label in value["edges"]])
        except (TypeError, ValueError) as error:
            raise DataError(f"the graph is invalid: {error}") from None
    if isinstance(value, list) and kind == "sets" and all(type(e) in (str, int) for e in value):
        return frozenset(value)
    is_numbers = isinstance(value, list) and all(type(e) in (int, float) for e in value)
    if is_numbers and kind in ("vectors", "places"):
        return np.array(value, np.float64)
    expected = {
        "vectors": "a list of numbers",
        "places": "[longitude, latitude]",
        "strings": "a string",
        "sets": "a list of strings and integers",
        "graphs": "SMILES, or a mapping with nodes and edges",
        "fingerprints": "SMILES",
    }
    raise DataError(f"expected {expected[kind]} as query")


def objects_from_cells(
    cells: Cells,
    kind: Kind,
    source: str,
    *,
    columns: Sequence[str] = (),
    owner: str | None = None,
    label: str | None = None,
    others: Sequence[str] = (),
) -> Objects:
    """Return the objects in columns of Python values.

    Parameters
    ----------
    cells : mapping of str to sequence
        Columns of equal length, None for missing cells. An object is a list of numbers, a point in
        EWKB, text, a list of words, SMILES, the lines of a graph, or packed bits; or its numbers
        are in several columns.
    kind, columns, owner, label
        As for `read_objects`; by default an object has all columns but the owner, the label and
        others.
    source : str
        Source of the columns, for messages.
    others : sequence of str
        Columns that are no part of an object by default.

    Raises
    ------
    DataError
        If a column is missing, or a cell is no object; the error names its row and column.
    MissingExtraError
        If a cell is SMILES and RDKit is not installed.
    """
    special = [name for name in (owner, label) if name is not None]
    check_present(special, list(cells), source=source)
    for name in special:
        if None in cells[name]:
            row = list(cells[name]).index(None) + 1
            raise DataError(f"{source}, data row {row}: column {name!r} is missing")
    names = tuple(columns) or tuple(n for n in cells if n not in (*special, *others))
    items = items_from_cells(cells, names, kind, source=source)
    return Objects(
        items,
        _row_labels(len(items)) if label is None else tuple(map(str, cells[label])),
        source,
        None if owner is None else np.array(list(map(str, cells[owner])), dtype=object),
        columns=names,
    )


def _read_text(file: Path, kind: Kind, *, encoding: str) -> Objects:
    named: Mapping[str, Any] | None = None
    if kind == "graphs":
        is_molecules = bool(set(file.suffixes) & _MOLECULES)
        graphs = read_molecules(file) if is_molecules else read_graphs(file)
        named = dict(zip(graphs.names, graphs.graphs, strict=True))
    elif kind == "fingerprints" and set(file.suffixes) & _MOLECULES:
        named = read_fingerprints(file)
    elif kind == "strings" and set(file.suffixes) & _FASTA:
        named = read_fasta(file)
    if named is not None:
        return Objects(list(named.values()), tuple(named), str(file), is_named=True)
    if kind not in ("strings", "sets"):
        raise DataError(
            f"{file}: expected a table of {kind}, a file that ends in .csv, .csv.gz or .parquet"
        )
    lines = read_lines(file, encoding=encoding)
    return Objects(_parse_cells(lines, kind, source=str(file)), tuple(lines), str(file))


def _read_table(
    file: Path,
    kind: Kind,
    *,
    columns: Sequence[str],
    owner: str | None,
    label: str | None,
    text_format: TextFormat | None,
) -> Objects:
    is_text = kind not in ("vectors", "places")
    if is_text and len(columns) != 1:
        raise DataError(f"{file} is a table; name its column of {kind} with columns")
    label_columns = [name for name in (owner, label) if name is not None]
    nominal, names = [*label_columns, *(columns if is_text else ())], tuple(columns)
    table = read_columns(file, nominal=nominal, text_format=text_format)
    items: Sequence[Any] | npt.NDArray[np.float64]
    if is_text:
        cells = _text_cells(table, columns[0])
        items = _parse_cells(cells, kind, source=f"{file}, column {columns[0]!r}")
        labels = tuple(cells)
    else:
        names = names or _default_columns(table, kind, exclude=label_columns)
        if kind == "places" and len(names) != 2:
            raise DataError(f"expected two columns, longitude and latitude, got {list(names)}")
        items, labels = _build_matrix(table, names), _row_labels(table.n_rows)
    return Objects(
        items,
        labels if label is None else tuple(str(cell) for cell in table.columns[label]),
        str(file),
        None if owner is None else table.columns[owner],
        columns=names,
    )


def _read_declared(
    file: Path,
    kind: Kind,
    schema: Schema,
    *,
    owner: str | None,
    label: str | None,
    complete: bool,
    text_format: TextFormat | None,
) -> Objects:
    """Read the rows that a schema allows, as vectors or cells."""
    names = [name for name in (owner, label) if name is not None]
    cells, n_unreadable = read_declared_cells(file, schema, names, text_format)
    encoded = replace(schema, label="", classes=()).encode(cells)
    if complete:
        schema.check_complete(replace(encoded, n_unreadable=n_unreadable))
    kept = np.flatnonzero(encoded.kept).tolist()
    rows = tuple(position + 1 for position in kept)
    items: Any = encoded.x
    if kind == "rows":
        items = list(zip(*(cells[name] for name in schema.column_names), strict=True))
        items = [items[position] for position in kept]
        n_missing = {c.name: 0 for c in schema.columns if c.missing == "keep"}
        encoded = replace(encoded, missing={**encoded.missing, **n_missing})  # they stay missing
    notes = schema.notes(replace(encoded, n_unreadable=n_unreadable))
    owners = None if owner is None else [cells[owner][position] for position in kept]
    return Objects(
        items,
        tuple(f"row {row}" if label is None else str(cells[label][row - 1]) for row in rows),
        str(file),
        None if owners is None else np.array(owners, dtype=object),
        rows,
        notes,
    )


def _default_columns(table: Table, kind: Kind, *, exclude: Sequence[str]) -> tuple[str, ...]:
    if kind == "places":
        for pair in _PLACES:
            if set(pair) <= set(table.names):
                return pair
        raise DataError(
            f"{table.source} has no columns lon and lat; name the longitude and latitude columns"
        )
    numeric = tuple(
        name
        for name in table.names
        if name not in exclude and table.columns[name].dtype != np.object_
    )
    if not numeric:
        raise DataError(f"{table.source} has no numeric column for vectors")
    return numeric


def _build_matrix(table: Table, columns: Sequence[str]) -> npt.NDArray[np.float64]:
    table.require(columns)
    for name in columns:
        column = table.columns[name]
        for row, cell in enumerate(column.tolist(), start=1):
            if not _is_number(cell):
                raise DataError(
                    f"{table.source}, data row {row}: expected a number in column {name!r}, got "
                    f"{'a missing cell' if cell is None or cell != cell else repr(cell)}"
                )
    return np.column_stack([np.asarray(table.columns[name], np.float64) for name in columns])


def _is_number(cell: Any) -> bool:
    try:
        return cell is not None and math.isfinite(float(cell))
    except ValueError:
        return False


def _text_cells(table: Table, column: str) -> list[str]:
    cells = table.columns[column].tolist()
    if None in cells:
        row = cells.index(None) + 1
        raise DataError(f"{table.source}, data row {row}: expected text in column {column!r}")
    return list(map(str, cells))


def _parse_cells(cells: Sequence[str], kind: Kind, *, source: str) -> list[Any]:
    parsed: dict[str, Any] = {}  # equal cells share an object: a set takes 200 bytes
    for row, cell in enumerate(cells, start=1):
        try:
            if cell not in parsed:
                parsed[cell] = parse_object(cell, kind)
        except DataError as error:
            raise DataError(f"{source}, data row {row}: {error}") from None
    return [parsed[cell] for cell in cells]


def _row_labels(n: int) -> tuple[str, ...]:
    return tuple(f"row {row}" for row in range(1, n + 1))
