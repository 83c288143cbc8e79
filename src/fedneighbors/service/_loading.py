"""Objects of a provider's collection from a file or a database."""

import hmac
import io
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Integers
from fedneighbors.datasets._cells import cell_to_json, cell_to_text, has_values, read_all_cells
from fedneighbors.datasets._object_cells import (
    METRIC_KINDS,
    Cells,
    Objects,
    objects_from_cells,
    objects_from_rows,
    type_filter_cells,
)
from fedneighbors.datasets._objects import read_filter_cells, read_objects
from fedneighbors.datasets._reading import read_declared_cells
from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._schema_columns import cell_text
from fedneighbors.datasets._table import check_present
from fedneighbors.datasets._text_format import parse_number
from fedneighbors.errors import DataError
from fedneighbors.methods.fedknn._filters import FilterColumns
from fedneighbors.methods.fedknn._queries import objects_digest
from fedneighbors.methods.fedknn.metrics._mixed import TabularMetric
from fedneighbors.methods.fedknn.private._padding import EPOCH_BYTES
from fedneighbors.records._storage import sweep_parts, write_part
from fedneighbors.service._config import OfferSection
from fedneighbors.service._source_config import PatientsSection, SourceSection
from fedneighbors.sources._patients import read_fhir, read_omop, read_omop_files
from fedneighbors.sources._sql import SqlQuery

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Forgotten:
    """Objects of a collection that a provider no longer offers, by digests of their names.

    A file has a random secret in its first line, so that nobody can try names without it, and then
    a collection and a digest in each line.

    Parameters
    ----------
    secret : bytes
        Secret of the file.
    digests : frozenset of str
        Digests of the names.
    """

    secret: bytes
    digests: frozenset[str]

    @classmethod
    def read(cls, path: Path, collection: str) -> "Forgotten":
        """Return the objects of a collection, if any.

        Raises
        ------
        DataError
            If the file is damaged: forgotten objects would be offered again.
        """
        if not path.exists():
            return cls(b"", frozenset())
        try:
            first, *lines = path.read_text("ascii").splitlines()
            pairs = [line.split(" ") for line in lines]
            digests = frozenset(digest for name, digest in pairs if name == collection)
            return cls(bytes.fromhex(first), digests)
        except ValueError:
            raise DataError(f"{path} is damaged; restore it from a backup") from None

    @classmethod
    def add(cls, path: Path, collection: str, names: Sequence[str]) -> int:
        """Add names of objects; return the number of new ones."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            path.write_text(f"{secrets.token_hex(32)}\n", "ascii")
        known = cls.read(path, collection)
        new = [name for name in dict.fromkeys(names) if not known.has(name)]
        with path.open("a", encoding="ascii") as file:
            file.writelines(f"{collection} {known._digest(name)}\n" for name in new)
        return len(new)

    def has(self, name: str) -> bool:
        """Return whether an object is forgotten."""
        return self._digest(name) in self.digests

    def _digest(self, name: str) -> str:
        return hmac.digest(self.secret, name.encode(), "sha256").hex()


NOTHING_FORGOTTEN = Forgotten(b"", frozenset())


@dataclass(frozen=True)
class SourceContent:
    """Objects of a source, with their names, columns for filters and payload, if any.

    Notes are sentences about cells outside of a schema, without values; ``examples``, which the
    owner alone may see, has one of each column.
    """

    items: Any
    ids: list[str] | None
    columns: FilterColumns | None
    payload: dict[str, list[Any]]
    notes: tuple[str, ...] = ()
    examples: Mapping[str, str] = field(default_factory=dict)

    def without(self, forgotten: Forgotten) -> "SourceContent":
        """Return the objects that are not forgotten.

        Raises
        ------
        DataError
            If objects are forgotten, but have no names.
        """
        if not forgotten.digests:
            return self
        if self.ids is None:
            raise DataError("objects without id cannot be forgotten; name the column with id")
        left = [row for row, name in enumerate(self.ids) if not forgotten.has(name)]
        return self if len(left) == len(self.ids) else self.select(np.array(left, np.int64))

    def select(self, rows: Integers) -> "SourceContent":
        """Return some of the objects, which have names."""
        items, ids = self.items, self.ids or []
        return SourceContent(
            items[rows] if isinstance(items, np.ndarray) else [items[row] for row in rows],
            [ids[row] for row in rows],
            None if self.columns is None else self.columns.select(rows),
            {name: [column[row] for row in rows] for name, column in self.payload.items()},
            self.notes,
            self.examples,
        )


def read_source(
    section: OfferSection,
    source: SourceSection,
    folder: Path,
    on_query: Callable[[SqlQuery], None],
    schema: Schema | None = None,
) -> SourceContent:
    """Read the objects of a collection.

    Those of a query are in the order of their names.

    Parameters
    ----------
    section : OfferSection
        Configuration of the collection.
    source : SourceSection
        Its file or query.
    folder : path
        Folder to which files are relative.
    on_query : callable
        Called with a query before it is run.
    schema : Schema, optional
        Columns of rows.

    Raises
    ------
    DataError
        If the source is invalid.
    """
    kinds, kind = dict(section.filters), METRIC_KINDS[section.metric]
    shown = {name: kinds.get(name, "text") for name in section.policy.payload}
    file = folder / str(source.file)
    cells, place = _read_cells(source, folder, on_query, kinds)
    if schema is not None:
        others = dict.fromkeys([*([source.id] if source.id else []), *kinds, *shown])
        names = [name for name in others if name not in schema.column_names]
        rows = file if cells is None else cells
        objects, cells = _read_rows(rows, schema, names, kinds, source, place)
    elif cells is None:
        objects = read_objects(
            file,
            kind,
            columns=source.columns,
            label=source.id,
            skip_unreadable=source.unreadable == "skip",
            others=[*kinds, *shown],
        )
    else:
        check_present([*kinds, *shown], list(cells), source=place)
        objects = objects_from_cells(
            cells, kind, place, columns=source.columns, label=source.id, others=[*kinds, *shown]
        )
    for note in objects.notes:
        log.warning("%s: %s", place, note)
    ids = list(objects.labels) if source.id or objects.is_named else None
    if ids is None and schema is not None:  # the rows that are left keep their numbers
        ids = [str(row - 1) for row in objects.rows or ()]
    if ids is not None and len(set(ids)) < len(ids):
        raise DataError(f"{place}: column {source.id!r} has equal names; ids must be unique")
    try:
        "".join(ids or ()).encode()
    except UnicodeEncodeError:
        raise DataError(f"{place}: a name in column {source.id!r} is no valid Unicode") from None
    columns = None
    if kinds:
        table = _read_columns(file, kinds, objects.labels) if cells is None else cells
        columns = _type_filters(table, kinds, len(objects), place)
    payload: dict[str, list[Any]] = {}
    if shown:
        table = _read_columns(file, shown, objects.labels) if cells is None else cells
        payload = _read_payload(table, section.policy.payload, place)
    content = SourceContent(
        objects.items, ids, columns, payload, objects.notes, dict(objects.examples)
    )
    if ids is None or (source.sql is None and not isinstance(source, PatientsSection)):
        return content
    # a database has no order, but the content of an epoch has
    return content.select(np.array(sorted(range(len(ids)), key=ids.__getitem__), np.int64))


def _read_cells(
    source: SourceSection,
    folder: Path,
    on_query: Callable[[SqlQuery], None],
    kinds: Mapping[str, str] | None = None,
) -> tuple[Cells | None, str]:
    """Return the columns of a source, None for text, and its name."""

    def make_query(sql: str) -> SqlQuery:
        query = SqlQuery(
            str(source.database),
            sql,
            folder,
            password_file=source.password_file,
            timeout_s=source.timeout_s,
            id=source.id,
            kinds=None if isinstance(source, PatientsSection) else kinds,
        )
        on_query(query)
        return query

    if isinstance(source, PatientsSection):
        return _read_patients(source, folder / str(source.file), make_query)
    if source.sql is not None:
        query = make_query(source.sql)
        return query.read(), str(query)
    file = folder / str(source.file)
    return read_all_cells(file) if has_values(file) else None, str(file)


def _read_patients(
    source: PatientsSection, file: Path, make_query: Callable[[str], SqlQuery]
) -> tuple[Cells, str]:
    day, codes = source.reference_date, source.codes
    if source.database is not None:
        cells = read_omop(make_query, day, schema=source.cdm_schema, codes=codes)
        return cells, f"OMOP in {source.database}"
    if source.kind == "omop":
        return read_omop_files(file, day, codes=codes), str(file)
    return read_fhir(file, day, system=source.system), str(file)


def write_snapshot(
    source: SourceSection, folder: Path, path: Path, *, forgotten: Forgotten = NOTHING_FORGOTTEN
) -> int:
    """Write the result of a source's query into an Arrow file.

    Parameters
    ----------
    source, folder : SourceSection and path
        As for :func:`read_source`.
    path : path
        The file, ``.arrow``, which is replaced as a whole; others cannot read it.
    forgotten : Forgotten
        Objects that are left out.

    Returns
    -------
    int
        Number of rows.

    Raises
    ------
    DataError, SourceError
        If the source is a file, the query fails, a column has values of several types, or the path
        has another suffix.
    MissingExtraError
        If pyarrow is not installed.
    """
    arrow = optional_module("pyarrow", "data")
    if path.suffix != ".arrow":
        raise DataError(f"expected a file name that ends in .arrow, got {path.name}")
    if source.file is not None and not isinstance(source, PatientsSection):
        raise DataError(f"the source is the file {source.file}: copy it")
    cells, query = _read_cells(source, folder, lambda _: None)
    assert cells is not None  # it is no file
    if source.id is None or source.id not in cells:
        raise DataError(f"{query} has no column {source.id!r}; it has {', '.join(cells)}")
    names = list(map(cell_to_text, cells[source.id]))
    kept = [row for row, name in enumerate(names) if not forgotten.has(name)]
    rows = sorted(kept, key=names.__getitem__)  # the order of `read_source`
    columns = {}
    for name, column in cells.items():
        try:
            columns[name] = arrow.array([column[row] for row in rows])
        except arrow.ArrowException as error:
            raise DataError(
                f"{query}: column {name!r} has values of several types: {error}"
            ) from None
    table, content = arrow.table(columns), io.BytesIO()
    with arrow.ipc.new_file(content, table.schema) as writer:
        writer.write_table(table)
    sweep_parts(path.parent, path.name)
    with write_part(path, content.getvalue(), mode=0o600) as part:
        os.replace(part, path)
    return len(rows)


def _read_rows(
    table: Path | Cells,
    schema: Schema,
    names: Sequence[str],
    kinds: Mapping[str, str],
    source: SourceSection,
    place: str,
) -> tuple[Objects, Cells]:
    """Return the coded rows that a schema allows, and their cells."""
    n_unreadable, cells = 0, table if isinstance(table, Mapping) else {}
    read = cells
    if isinstance(table, Path):
        texts, n_unreadable = read_declared_cells(table, schema, names, None, strict=True)
        numbers = set(schema.column_names).difference(schema.nominal_names)
        numbers.update(name for name in names if kinds.get(name) == "number")
        cells = {
            name: _read_texts(column, parse_number if name in numbers else cell_text)
            for name, column in texts.items()
        }
        # texts that are no numbers are counted
        read = {**cells, **{name: texts[name] for name in numbers if name != source.id}}
    objects = objects_from_rows(
        read, "rows", place, schema, label=source.id, n_unreadable=n_unreadable
    )
    positions = [row - 1 for row in objects.rows or ()]
    kept = {name: [column[row] for row in positions] for name, column in cells.items()}
    return replace(objects, items=TabularMetric(schema).read(objects.items)), kept


def _read_texts(cells: Sequence[Any], read: Callable[[str], Any]) -> list[Any]:
    """Return cells, and texts as numbers or stripped texts, None if missing."""
    return [read(cell) if isinstance(cell, str) else cell for cell in cells]


def _read_payload(cells: Cells, names: Sequence[str], place: str) -> dict[str, list[Any]]:
    """Return columns as values of JSON."""
    check_present(names, list(cells), source=place)
    return {name: list(map(cell_to_json, cells[name])) for name in names}


def _read_columns(file: Path, kinds: Mapping[str, str], labels: Sequence[str]) -> Cells:
    nominal = [name for name, kind in kinds.items() if kind != "number"]
    return read_filter_cells(file, list(kinds), labels=labels, nominal=nominal)


def _type_filters(
    cells: Cells, kinds: Mapping[str, str], n_objects: int, place: str
) -> FilterColumns:
    """Return the columns for filters."""
    check_present(kinds, list(cells), source=place)
    typed = {name: type_filter_cells(cells[name], kind) for name, kind in kinds.items()}
    try:
        return FilterColumns.of(typed, n_objects, kinds=kinds)
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None


def compute_epoch(
    secret: bytes, name: str, section: OfferSection, source: SourceContent
) -> str | None:
    """Return the epoch of objects; None for objects without canonical bytes."""
    filters = "" if source.columns is None else source.columns.digest()
    settings = f"{name} {section.metric} {section.tie_key} {filters}"
    content = objects_digest(source.items, source.ids or [], settings)
    return None if content is None else hmac.digest(secret, content, "sha256")[:EPOCH_BYTES].hex()
