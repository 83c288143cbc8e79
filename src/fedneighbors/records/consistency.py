"""Whether the parts of a record fit together, so that what is written can be drawn."""

import re
from collections.abc import Iterator

from fedneighbors.records.schema import FIGURE_KINDS, Figure, RunRecord, Table

__all__ = ["problems"]

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def problems(record: RunRecord) -> Iterator[str]:
    """Sentences that say what does not fit; none for a sound record.

    Names of tables and figures become file names: they are unique, and letters, digits, dots,
    dashes and underscores alone. A row is as long as its table is wide. A figure is of a known
    kind and refers to a table and to columns of the same record.
    """
    yield from _names("table", [table.name for table in record.tables])
    yield from _names("figure", [figure.name for figure in record.figures])
    for table in record.tables:
        yield from _table_problems(table)
    tables = {table.name: table for table in record.tables}
    for figure in record.figures:
        yield from _figure_problems(figure, tables)


def _names(what: str, names: list[str]) -> Iterator[str]:
    for name in names:
        if not _FILE_NAME.fullmatch(name):
            yield (
                f"{what} {name!r}: expected a name of letters, digits, dots, dashes and "
                "underscores, at most 100, that starts with a letter or digit"
            )
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{what} {name!r}: expected one of this name, found {names.count(name)}"


def _table_problems(table: Table) -> Iterator[str]:
    if len(set(table.columns)) < len(table.columns):
        yield f"table {table.name!r}: expected columns of different names"
    for number, row in enumerate(table.rows):
        if len(row) != len(table.columns):
            yield (
                f"table {table.name!r}, row {number}: expected {len(table.columns)} cells, "
                f"found {len(row)}"
            )


def _figure_problems(figure: Figure, tables: dict[str, Table]) -> Iterator[str]:
    where = f"figure {figure.name!r}"
    if figure.kind not in FIGURE_KINDS:
        yield f"{where}: expected a kind among {', '.join(FIGURE_KINDS)}, found {figure.kind!r}"
    if figure.table not in tables:
        yield f"{where}: expected a table {figure.table!r} in the record"
        return
    columns = tables[figure.table].columns
    optional = [name for name in (figure.hue, figure.facet, figure.error) if name]
    for name in [figure.x, figure.y, *optional]:
        if name not in columns:
            yield f"{where}: expected a column {name!r} in table {figure.table!r}"
