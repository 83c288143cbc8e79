"""Objects of a search, from columns of Python values as databases, JSON and Arrow have them."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Floats
from fedneighbors.datasets._cells import cell_to_text, parse_ewkb, read_srid, row_labels
from fedneighbors.datasets._graphs import Graph, graph_from_text
from fedneighbors.datasets._molecules import (
    MOLECULE_COLUMNS,
    MOLECULES,
    fingerprint_from_smiles,
    graph_from_smiles,
)
from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._table import MAX_LISTED, check_present, join_names, list_others
from fedneighbors.errors import DataError

Kind = Literal["vectors", "places", "strings", "sets", "graphs", "fingerprints", "rows"]
Cells = Mapping[str, Sequence[Any]]
"""Columns of Python values, None for missing ones."""

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
    "tabular": "rows",
}
"""Kind of object that each metric compares."""

SIMILARITIES = frozenset({"cosine", "jaccard", "tanimoto"})
"""Metrics whose distance is 1 minus a similarity, which people know better."""

FEW_CELLS = (
    "A column that is missing in the query or in a row is left out of their distance: rows with "
    "few cells can be near by chance. A filter on the columns that matter excludes them."
)
"""Hint to readers of the nearest rows."""


def parse_object(text: str, kind: Kind, *, n_columns: int = 2) -> Any:
    """Parse an object from a line of text.

    Parameters
    ----------
    text : str
        Comma-separated numbers for a vector or a place (longitude, latitude); otherwise a string,
        the words of a set, or SMILES.
    kind : {"vectors", "places", "strings", "sets", "graphs", "fingerprints"}
        Kind of the object.
    n_columns : int
        Number of vector components.

    Raises
    ------
    DataError
        If the text is invalid.
    MissingExtraError
        If the text is SMILES and RDKit is not installed.

    Examples
    --------
    >>> parse_object("2.35, 48.86", "places").tolist()
    [2.35, 48.86]
    >>> sorted(parse_object("exact graph search", "sets"))
    ['exact', 'graph', 'search']
    """
    if kind == "strings":
        return text
    if kind == "sets":
        return frozenset(text.split())
    if kind == "graphs":
        return graph_from_smiles(text)
    if kind == "fingerprints":
        return fingerprint_from_smiles(text)
    return _parse_point(text, 2 if kind == "places" else n_columns)


def _parse_point(text: str, n_columns: int) -> Floats:
    try:
        point = [float(part) for part in text.split(",")]
    except ValueError:
        point = []
    if len(point) != n_columns or not all(map(math.isfinite, point)):
        raise DataError(f"expected {n_columns} comma-separated numbers, got {text!r}")
    return np.array(point)


def items_from_cells(cells: Cells, names: Sequence[str], kind: Kind, *, source: str) -> Any:
    """Return the objects in columns of values.

    Parameters
    ----------
    cells : mapping of str to sequence
        Columns of equal length.
    names : sequence of str
        Columns of the objects: one with an object in each cell, or one for each number of vectors
        and places.
    kind : {"vectors", "places", "strings", "sets", "graphs", "fingerprints"}
        Kind of the objects.
    source : str
        Source of the columns, for messages.

    Returns
    -------
    float64 array of shape (n_objects, n_numbers) for vectors and places, otherwise list

    Raises
    ------
    DataError
        If a column does not exist, or a cell is missing or no object of this kind; the error names
        its row and column.
    MissingExtraError
        If a cell is SMILES and RDKit is not installed.
    """
    check_present(names, list(cells), source=source)
    is_matrix = kind in ("vectors", "places")
    if not names or (len(names) > 1 and not is_matrix) or (kind == "places" and len(names) > 2):
        expected = "two columns, or one of points" if kind == "places" else f"one column of {kind}"
        raise DataError(f"expected {expected} in {source}, got {list(names)}; name it with columns")
    if is_matrix and not len(cells[names[0]]):
        return np.empty((0, 2 if kind == "places" else len(names)))
    for name in names if len(names) > 1 else ():
        if isinstance(cells[name][0], bytes | list | np.ndarray):
            raise DataError(
                f"column {name!r} of {source} has a whole object in each cell, and the object has "
                f"{len(names)} columns, {join_names(names)}: name it alone with columns"
            )
    is_single = len(names) == 1 and not _is_number(next(iter(cells[names[0]]), None))
    parse: Callable[[Any], Any] = _PARSERS[kind] if is_single or not is_matrix else _parse_number
    columns = [_parse_column(cells[name], parse, name=name, source=source) for name in names]
    if not is_matrix:
        return columns[0]
    srids = {read_srid(cell) for cell in cells[names[0]] if isinstance(cell, bytes)}
    if len(srids) > 1 and kind != "places":  # points without one are in degrees, too
        found = ", ".join(map(str, sorted(srids)))
        raise DataError(
            f"expected one SRID in column {names[0]!r} of {source}, got {found}; use ST_Transform"
        )
    if not is_single:
        return np.column_stack([np.array(column, np.float64) for column in columns])
    widths = sorted({len(vector) for vector in columns[0]})
    if len(widths) > 1 or (kind == "places" and widths != [2]):
        expected = "two numbers" if kind == "places" else "vectors of one length"
        raise DataError(f"expected {expected} in column {names[0]!r} of {source}, got {widths}")
    return np.array(columns[0], np.float64)


def _parse_column(
    cells: Sequence[Any], parse: Callable[[Any], Any], *, name: str, source: str
) -> list[Any]:
    parsed, wrong, text = list[Any](), list[int](), ""
    for row, cell in enumerate(cells, start=1):
        try:
            if cell is None:
                raise DataError("the cell is missing; leave such rows out")
            parsed.append(parse(cell))
        except DataError as error:
            text = text or f"{source}, data row {row}, column {name!r}: {error}"
            if len(wrong := [*wrong, row]) > MAX_LISTED:
                break
    if wrong:
        raise DataError(text + list_others(wrong[1:]))
    return parsed


def _is_number(cell: Any) -> bool:
    return not isinstance(cell, str | bytes) and hasattr(cell, "__float__") and np.ndim(cell) == 0


def _parse_number(cell: Any) -> float:
    try:
        number = float(cell) if _is_number(cell) else math.nan
    except OverflowError:  # a long integer
        number = math.inf
    if not math.isfinite(number):
        raise DataError(f"expected a finite number, got {cell!r:.60}")
    return number


def _parse_vector(cell: Any) -> Floats:
    if isinstance(cell, bytes):
        return parse_ewkb(cell, in_degrees=False)
    if isinstance(cell, str):  # as in SQLite
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            raise DataError(f"expected numbers in brackets, got {cell!r:.60}") from None
    try:
        vector = np.array(cell, np.float64)
    except (TypeError, ValueError, OverflowError):
        vector = np.empty(0)
    if vector.ndim != 1 or not len(vector):
        raise DataError(f"expected a list of numbers, got {cell!r:.60}")
    if not np.isfinite(vector).all():
        raise DataError("expected finite numbers")
    return vector


def _parse_place(cell: Any) -> Floats:
    return parse_ewkb(cell, in_degrees=True) if isinstance(cell, bytes) else _parse_vector(cell)


def _parse_string(cell: Any) -> str:
    if not isinstance(cell, str):
        raise DataError(f"expected text, got {cell!r:.60}")
    _check_unicode(cell)
    return cell


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(f"expected valid Unicode, got {text!r:.60}") from None


def _parse_set(cell: Any) -> frozenset[Any]:
    if isinstance(cell, str):
        return frozenset(cell.split())
    if isinstance(cell, list | tuple) and all(type(element) in (str, int) for element in cell):
        _check_unicode("".join(map(str, cell)))
        return frozenset(cell)
    raise DataError(f"expected words, or a list of words or integers, got {cell!r:.60}")


def _parse_graph(cell: Any) -> Any:
    text = _parse_string(cell)
    return graph_from_text(text) if "\n" in text else graph_from_smiles(text)


def _parse_fingerprint(cell: Any) -> npt.NDArray[np.uint8]:
    if isinstance(cell, bytes) and cell:
        return np.frombuffer(cell, np.uint8)
    if isinstance(cell, str) and len(cell) >= 8 and set(cell) <= {"0", "1"}:
        return np.packbits([bit == "1" for bit in cell], bitorder="little")
    return fingerprint_from_smiles(_parse_string(cell))


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "vectors": _parse_vector,
    "places": _parse_place,
    "strings": _parse_string,
    "sets": _parse_set,
    "graphs": _parse_graph,
    "fingerprints": _parse_fingerprint,
}


def type_filter_cells(cells: Sequence[Any], kind: str) -> list[Any]:
    """Convert the cells of a column to a kind, where possible."""
    if kind == "number":
        return [
            float(cell) if _is_number(cell) and not isinstance(cell, bool | int) else cell
            for cell in cells
        ]
    if kind == "boolean":
        names: dict[Any, bool] = {0: False, 1: True, "false": False, "true": True}
        return [
            names.get(cell.lower() if isinstance(cell, str) else cell, cell)
            if isinstance(cell, str | int)
            else cell
            for cell in cells
        ]
    return [None if cell is None else cell_to_text(cell) for cell in cells]


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
    examples : mapping of str to str
        A cell of each column that has some outside of the schema; for the owner alone.
    """

    items: Any
    labels: tuple[str, ...]
    source: str
    owners: Array | None = None
    rows: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    is_named: bool = False
    examples: Mapping[str, str] = field(default_factory=dict)

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


def object_from_json(value: Any, kind: Kind, *, sets: Collection[str] = ()) -> Any:
    """Return an object of a JSON value.

    Parameters
    ----------
    value : object
        A list of numbers for a vector or a place (longitude, latitude); a string; a list of the
        elements of a set; SMILES; or, for a graph, SMILES or a mapping with ``nodes``, a list of
        labels, and ``edges``, a list of first node, second node and label.
    kind : {"vectors", "places", "strings", "sets", "graphs", "fingerprints", "rows"}
        Kind of the object; a row is a mapping of columns to cells.
    sets : collection of str
        Columns of a row whose cells are lists.

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
    if kind == "rows" and isinstance(value, dict):
        nested = [name for name, cell in value.items() if type(cell) in (list, dict)]
        if all(name in sets and type(value[name]) is list for name in nested):
            return value
    expected = {
        "vectors": "a list of numbers",
        "places": "[longitude, latitude]",
        "strings": "a string",
        "sets": "a list of strings and integers",
        "graphs": "SMILES, or a mapping with nodes and edges",
        "fingerprints": "SMILES",
        "rows": "a mapping of columns to numbers, texts or null, and of sets to lists",
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
        As for `read_objects`; by default molecules are in a column ``smiles``, and other objects
        have all columns but the owner, the label and others.
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
    default = MOLECULE_COLUMNS if kind in MOLECULES and "smiles" in cells else ()
    names = tuple(columns) or default or tuple(n for n in cells if n not in (*special, *others))
    items = items_from_cells(cells, names, kind, source=source)
    labels = () if label is None else tuple(map(cell_to_text, cells[label]))
    return Objects(
        items,
        labels or row_labels(range(1, len(items) + 1)),
        source,
        None if owner is None else np.array(list(map(str, cells[owner])), dtype=object),
        columns=names,
    )


def objects_from_rows(
    cells: Cells,
    kind: Kind,
    source: str,
    schema: Schema,
    *,
    owner: str | None = None,
    label: str | None = None,
    complete: bool = False,
    n_unreadable: int = 0,
) -> Objects:
    """Return the rows that a schema allows, as vectors or cells.

    Parameters
    ----------
    cells : mapping of str to sequence
        Columns of equal length, None for missing cells.
    kind : {"vectors", "rows"}
        Kind of the objects.
    source : str
        Source of the columns, for messages.
    schema, owner, label, complete
        As for `read_objects`.
    n_unreadable : int
        Number of rows that were left out, for the notes.

    Raises
    ------
    DataError
        If a column is missing, or rows would be dropped under ``complete``.
    """
    names = [name for name in (owner, label) if name is not None]
    check_present([*schema.column_names, *names], list(cells), source=source)
    unlabelled = replace(schema, label="", classes=())
    encoded = schema.check_cells(cells) if kind == "rows" else unlabelled.encode(cells)
    if complete:
        schema.check_complete(replace(encoded, n_unreadable=n_unreadable))
    rows = tuple((np.flatnonzero(encoded.kept) + 1).tolist())
    items: Any = encoded.x
    if kind == "rows":
        items = list(zip(*(cells[name] for name in schema.column_names), strict=True))
        items = [items[row - 1] for row in rows]
    encoded = replace(encoded, n_unreadable=n_unreadable)
    labels = [] if label is None else [cell_to_text(cells[label][row - 1]) for row in rows]
    return Objects(
        items,
        tuple(labels) or row_labels(rows),
        source,
        None if owner is None else np.array([cells[owner][row - 1] for row in rows], dtype=object),
        rows,
        schema.notes(encoded, are_rows=kind == "rows"),
        examples={name: one.example for name, one in encoded.faults.items() if one.example},
    )
