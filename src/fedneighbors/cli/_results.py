"""Output of results: tables on the terminal, record and report in a folder."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table as PrintedTable
from rich.text import Text

from fedneighbors.cli._console import echo, print_error
from fedneighbors.errors import MissingExtraError
from fedneighbors.records import ResultTable, RunRecord, replace_file, write_record
from fedneighbors.reports import save_figures, write_report
from fedneighbors.reports._formatting import to_printable
from fedneighbors.reports._html import to_text

if TYPE_CHECKING:
    from fedneighbors.datasets._dataset import Dataset


_MAX_ROWS = 24
_MAX_CELL = 60  # characters; longer cells are cut
_MAX_TEXT = 1000  # characters of a title, caption or note
_MAX_UNWRAPPED_CELL = 20
_MAX_UNWRAPPED_NAME = 40  # for the first column, which has the names of rows
_REDIRECTED_WIDTH = 1000


def print_tables(record: RunRecord, names: Sequence[str] | None = None) -> None:
    """Print the named tables of a record, and all its notes.

    By default, all tables are printed. Tables of images are always omitted.
    """
    image_tables = {figure.table for figure in record.figures if figure.kind == "images"}
    for table in record.tables:
        if table.name not in image_tables and (names is None or table.name in names):
            print_grid(table)
    for note in record.notes:
        echo(f"\N{BULLET} {to_printable(note, _MAX_TEXT)}")


def print_grid(table: ResultTable) -> None:
    """Print one table with its title above and its caption below."""
    text_table = to_text(table, limit=_MAX_ROWS)
    printed = PrintedTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold cyan")
    for column, (heading, numeric) in enumerate(
        zip(text_table.headings, text_table.numeric, strict=True)
    ):
        longest = max((len(row[column]) for row in text_table.rows), default=0)
        printed.add_column(
            Text(to_printable(heading)),
            justify="right" if numeric else "left",
            no_wrap=numeric or longest <= (_MAX_UNWRAPPED_CELL if column else _MAX_UNWRAPPED_NAME),
        )
    for row in text_table.rows:
        printed.add_row(*(Text(to_printable(cell, _MAX_CELL)) for cell in row))
    echo(to_printable(table.title, _MAX_TEXT), "bold")
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _REDIRECTED_WIDTH  # so that redirected output is not truncated
    console.print(printed)
    if table.caption:
        echo(to_printable(table.caption, _MAX_TEXT))
    if text_table.n_hidden:
        echo(f"{text_table.n_hidden} more rows are in the record.")


def write_results(record: RunRecord, folder: Path, *, name: str, figures: bool = False) -> None:
    """Write a run's record and report to a folder; print the paths.

    Parameters
    ----------
    record : RunRecord
        Record of the run.
    folder : path
        Created if missing.
    name : str
        File name of the record, without extension.
    figures : bool
        Also save each figure as PNG and SVG.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_record(record, folder / f"{name}.jsonl")
    echo(f"record  {folder / f'{name}.jsonl'}", "green")
    try:
        write_report([record], folder / "report.html")
        saved = save_figures(record, folder / "figures") if figures else []
    except MissingExtraError as error:
        print_error(f"the report or its figures could not be written: {error}")
        return
    echo(f"report  {folder / 'report.html'}", "green")
    if saved:
        echo(f"figures {folder / 'figures'}", "green")


def write_table(table: ResultTable, path: Path) -> None:
    """Write a result table as CSV; print the path."""
    from fedneighbors.datasets._text_tables import serialize_csv

    cells = zip(*table.rows, strict=True) if table.rows else ([] for _ in table.columns)
    columns = dict(zip(table.columns, map(list, cells), strict=True))
    replace_file(path, serialize_csv(columns))
    echo(f"table   {path}", "green")


def print_and_save_model(
    model: Any,
    record: RunRecord,
    data: "Dataset",
    path: Path,
    *,
    source: Mapping[str, str],
    tables: Sequence[str],
    note: str,
) -> None:
    """Print a training's results; write its record, report, model and schema.

    Parameters
    ----------
    model : classifier with a method ``save``
        The trained model.
    record : RunRecord
        Record of the run.
    data : Dataset
        Training data.
    path : path
        Path of the model; the other files are written to its folder.
    source : mapping of str to str
        Source of the rows, for the record.
    tables : sequence of str
        Names of the tables to print.
    note : str
        Note to add to the record; empty for none.
    """
    notes = (*record.notes, note) if note else record.notes
    record = replace(record, parameters={**source, **record.parameters}, notes=notes)
    print_tables(record, tables)
    write_results(record, path.parent, name="record")
    model.save(path)
    echo(f"model   {path}", "green")
    if data.schema is not None:
        schema = path.with_name("schema.toml")
        replace_file(schema, data.schema.to_toml().encode("utf-8"))
        echo(f"schema  {schema}", "green")
