"""Objects of a search from files, and queries from text."""

import csv
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.datasets._arrays import is_arrays, read_array_rows
from fedneighbors.datasets._catalog import find_file, load
from fedneighbors.datasets._cells import has_values, read_all_cells, row_labels
from fedneighbors.datasets._files import read_fasta, read_lines
from fedneighbors.datasets._graphs import read_graphs
from fedneighbors.datasets._molecules import (
    MOLECULE_COLUMNS,
    MOLECULES,
    read_fingerprints,
    read_molecules,
    read_smiles,
)
from fedneighbors.datasets._object_cells import (
    Kind,
    Objects,
    objects_from_cells,
    objects_from_rows,
    parse_object,
)
from fedneighbors.datasets._reading import read_columns, read_declared_cells
from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._table import Table, check_present, list_numbers, list_others
from fedneighbors.datasets._text_format import TextFormat
from fedneighbors.errors import DataError

_TABLES = {".csv", ".parquet", ".pq"}
_DECLARED_TABLES = _TABLES | {".arff", ".jsonl", ".ndjson"}
MOLECULE_FILES = {".smi", ".smiles", ".sdf"}
_FASTA = {".fasta", ".fa", ".fna", ".faa"}
_PLACES = (("lon", "lat"), ("longitude", "latitude"))


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
    skip_unreadable: bool = False,
    others: Sequence[str] = (),
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
        latitude in degrees, or the column of strings, words or SMILES (by default ``smiles``).
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
    skip_unreadable : bool
        Leave out molecules of SMILES and SDF files that cannot be read, with a note.
    others : sequence of str
        Columns that are no part of an object by default.

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
        return Objects(data.x, row_labels(range(1, data.n_rows + 1)), str(source))
    file = find_file(str(source)) if is_name else path
    if is_arrays(file) and kind == "vectors" and not (columns or owner or label or schema):
        x = read_array_rows(file)
        return Objects(x.astype(np.float64), row_labels(range(1, len(x) + 1)), str(file))
    if schema is None and has_values(file):
        cells = read_all_cells(file)
        return objects_from_cells(
            cells, kind, str(file), columns=columns, owner=owner, label=label, others=others
        )
    if set(file.suffixes) & (_TABLES if schema is None else _DECLARED_TABLES):
        if schema is None:
            if kind == "rows":
                raise DataError("rows of numbers and categories need a schema, which scales them")
            return _read_table(
                file,
                kind,
                columns=columns,
                owner=owner,
                label=label,
                text_format=text_format,
                others=others,
            )
        if columns or kind not in ("vectors", "rows"):
            raise DataError(
                "a schema describes the columns of vectors or rows, in place of columns"
            )
        return _read_declared(
            file, kind, schema, owner=owner, label=label, complete=complete, text_format=text_format
        )
    if kind in MOLECULES and set(file.suffixes) & MOLECULE_FILES:
        check_present(columns, MOLECULE_COLUMNS, source=str(file))
        columns = ()
    if columns or owner or label or schema:
        raise DataError(f"{file} has no columns; only tables have them, such as CSV or Parquet")
    encoding = (text_format or TextFormat()).encoding
    return _read_text(file, kind, encoding=encoding, skip_unreadable=skip_unreadable)


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
        if parts and part.columns != parts[0].columns and kind not in MOLECULES:
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


def read_filter_cells(
    file: Path,
    names: Collection[str],
    *,
    labels: Sequence[str],
    nominal: Collection[str] = (),
    text_format: TextFormat | None = None,
) -> dict[str, list[Any]]:
    """Read columns of a table by name.

    A file of molecules has the column ``smiles``, of the molecules with these labels. Other options
    are those of `read_columns`.

    Raises
    ------
    DataError
        If the table lacks a column, or cannot be read.
    """
    if set(file.suffixes) & MOLECULE_FILES:
        check_present(names, MOLECULE_COLUMNS, source=str(file))
        return {"smiles": read_smiles(file, labels)} if "smiles" in names else {}
    if has_values(file):
        cells = read_all_cells(file)
        check_present(names, list(cells), source=str(file))
        return {name: cells[name] for name in names}
    table = read_columns(file, nominal=nominal, text_format=text_format)
    check_present(names, table.names, source=table.source)
    return {name: table.columns[name].tolist() for name in names}


def read_text_query(
    text: str, kind: Kind, *, columns: Sequence[str] = (), n_columns: int | None = None
) -> Any:
    """Return the query of a user's text.

    Parameters
    ----------
    text : str
        Comma-separated numbers; a string; the words of a set; SMILES; or a row: JSON, or its cells
        in the order of the columns, between commas, of which empty ones are missing.
    kind : {"vectors", "places", "strings", "sets", "graphs", "fingerprints", "rows"}
        Kind of the objects.
    columns : sequence of str
        Columns of rows; without them, a row is JSON.
    n_columns : int, optional
        Number of vector components; by default any.

    Returns
    -------
    object
        SMILES as they are; a row as a mapping of columns to cells.

    Raises
    ------
    ValueError
        If the text is invalid.
    """
    if kind == "rows":
        if text.lstrip()[:1] == "{" or not columns:
            return read_json(text, "a row")
        cells = next(csv.reader([text], skipinitialspace=True), [])
        if len(cells) != len(columns):
            raise DataError(
                f"expected the cells {', '.join(columns)}, or a row as JSON, got {text!r}"
            )
        return {name: cell or None for name, cell in zip(columns, cells, strict=True)}
    if kind in MOLECULES:
        return text
    return parse_object(text, kind, n_columns=n_columns or text.count(",") + 1)


def read_json(text: str, name: str) -> Any:
    """Return the value of JSON; errors begin with a name."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: expected JSON, got {text!r:.60}: {error}") from None


def _read_text(file: Path, kind: Kind, *, encoding: str, skip_unreadable: bool) -> Objects:
    named: Mapping[str, Any] | None = None
    unreadable: list[int] = []
    skipped = unreadable if skip_unreadable else None
    is_molecules = bool(set(file.suffixes) & MOLECULE_FILES)
    if is_molecules and kind == "sets":
        raise DataError(f"{file} has molecules: compare them by tanimoto or graph_edit")
    if kind == "graphs":
        graphs = read_molecules(file, skipped=skipped) if is_molecules else read_graphs(file)
        named = dict(zip(graphs.names, graphs.graphs, strict=True))
    elif kind == "fingerprints" and is_molecules:
        named = read_fingerprints(file, skipped=skipped)
    elif kind == "strings" and set(file.suffixes) & _FASTA:
        named = read_fasta(file)
    if named is not None:
        notes: tuple[str, ...] = ()
        if unreadable:
            unit = "records" if ".sdf" in file.suffixes else "lines"
            places = f"{unit} {list_numbers(unreadable)}"
            notes = (f"{len(unreadable)} molecules cannot be read and are left out: {places}",)
        return Objects(list(named.values()), tuple(named), str(file), notes=notes, is_named=True)
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
    others: Sequence[str],
) -> Objects:
    is_text = kind not in ("vectors", "places")
    if kind in MOLECULES:
        columns = columns or MOLECULE_COLUMNS
    if is_text and len(columns) != 1:
        raise DataError(f"{file} is a table; name its column of {kind} with columns (--columns)")
    label_columns = [name for name in (owner, label) if name is not None]
    nominal, names = [*label_columns, *(columns if is_text else ())], tuple(columns)
    table = read_columns(file, nominal=nominal, text_format=text_format)
    items: Sequence[Any] | Floats
    if is_text:
        cells = _text_cells(table, columns[0])
        items = _parse_cells(cells, kind, source=f"{file}, column {columns[0]!r}")
        labels = tuple(cells)
    else:
        names = names or _default_columns(table, kind, exclude=[*label_columns, *others])
        if kind == "places" and len(names) != 2:
            raise DataError(f"expected two columns, longitude and latitude, got {list(names)}")
        items, labels = _build_matrix(table, names), row_labels(range(1, table.n_rows + 1))
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
    cells, n_unreadable = read_declared_cells(file, schema, names, text_format, strict=True)
    return objects_from_rows(
        cells,
        kind,
        str(file),
        schema,
        owner=owner,
        label=label,
        complete=complete,
        n_unreadable=n_unreadable,
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


def _build_matrix(table: Table, columns: Sequence[str]) -> Floats:
    check_present(columns, table.names, source=table.source)
    for name in columns:
        column = table.columns[name]
        wrong = [n for n, cell in enumerate(column.tolist(), start=1) if not _is_number(cell)]
        if wrong:
            cell = column[wrong[0] - 1]
            raise DataError(
                f"{table.source}, data row {wrong[0]}: expected a number in column {name!r}, got "
                + (
                    "a missing cell; fill it, leave the column out (--columns), or search with "
                    "--metric tabular, which compares the other cells"
                    if cell is None or cell != cell
                    else repr(cell)
                )
                + list_others(wrong[1:])
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
