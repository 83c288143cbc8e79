"""Objects of a search from columns of Python values, as databases, JSON and Arrow have them."""

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._graphs import graph_from_text
from fedneighbors.datasets._molecules import fingerprint_from_smiles, graph_from_smiles
from fedneighbors.datasets._table import check_present
from fedneighbors.errors import DataError

Kind = Literal["vectors", "places", "strings", "sets", "graphs", "fingerprints", "rows"]
Cells = Mapping[str, Sequence[Any]]
"""Columns of Python values, None for missing ones."""

_HAS_SRID = 0x20000000  # flag of the type of a point in PostGIS's binary format
_DEGREES = 4326  # spatial reference of longitude and latitude


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


def _parse_point(text: str, n_columns: int) -> npt.NDArray[np.float64]:
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
    is_single = len(names) == 1 and not _is_number(next(iter(cells[names[0]]), None))
    parse: Callable[[Any], Any] = _PARSERS[kind] if is_single or not is_matrix else _parse_number
    columns = [_parse_column(cells[name], parse, name=name, source=source) for name in names]
    if not is_matrix:
        return columns[0]
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
    parsed = []
    for row, cell in enumerate(cells, start=1):
        try:
            if cell is None:
                raise DataError("the cell is missing; leave such rows out")
            parsed.append(parse(cell))
        except DataError as error:
            raise DataError(f"{source}, data row {row}, column {name!r}: {error}") from None
    return parsed


def _is_number(cell: Any) -> bool:
    return not isinstance(cell, str | bytes) and hasattr(cell, "__float__") and np.ndim(cell) == 0


def _parse_number(cell: Any) -> float:
    if not _is_number(cell) or not math.isfinite(cell):
        raise DataError(f"expected a finite number, got {cell!r:.60}")
    return float(cell)


def _parse_vector(cell: Any) -> npt.NDArray[np.float64]:
    if isinstance(cell, bytes):
        return _parse_ewkb(cell, in_degrees=False)
    if isinstance(cell, str):  # as in SQLite
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            raise DataError(f"expected numbers in brackets, got {cell!r:.60}") from None
    try:
        vector = np.array(cell, np.float64)
    except (TypeError, ValueError):
        vector = np.empty(0)
    if vector.ndim != 1 or not len(vector):
        raise DataError(f"expected a list of numbers, got {cell!r:.60}")
    if not np.isfinite(vector).all():
        raise DataError("expected finite numbers")
    return vector


def _parse_place(cell: Any) -> npt.NDArray[np.float64]:
    return _parse_ewkb(cell, in_degrees=True) if isinstance(cell, bytes) else _parse_vector(cell)


def _parse_ewkb(content: bytes, *, in_degrees: bool) -> npt.NDArray[np.float64]:
    """Return the coordinates of a point in PostGIS's binary format (EWKB)."""
    order = "<" if content[:1] == b"\x01" else ">"
    try:
        (kind,) = struct.unpack_from(f"{order}I", content, 1)
        has_srid = bool(kind & _HAS_SRID)
        srid = struct.unpack_from(f"{order}I", content, 5)[0] if has_srid else _DEGREES
        point = np.array(struct.unpack(f"{order}2d", content[9 if has_srid else 5 :]))
    except struct.error:
        kind, point, srid = 0, np.empty(0), _DEGREES
    if kind & ~_HAS_SRID != 1 or not np.isfinite(point).all():
        raise DataError("expected a point of two coordinates")
    if in_degrees and srid != _DEGREES:
        raise DataError(
            f"expected a point in degrees (SRID 4326), got SRID {srid}; use ST_Transform(..., 4326)"
        )
    return point


def _parse_string(cell: Any) -> str:
    if not isinstance(cell, str):
        raise DataError(f"expected text, got {cell!r:.60}")
    return cell


def _parse_set(cell: Any) -> frozenset[Any]:
    if isinstance(cell, str):
        return frozenset(cell.split())
    if isinstance(cell, list | tuple) and all(type(element) in (str, int) for element in cell):
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
    return [None if cell is None else str(cell) for cell in cells]
