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

from fedneighbors.cli._console import complain, say
from fedneighbors.errors import MissingExtraError
from fedneighbors.records import ResultTable, RunRecord, replace_file, write_record
from fedneighbors.reports import save_figures, write_report
from fedneighbors.reports._formatting import printable
from fedneighbors.reports._html import to_text

if TYPE_CHECKING:
    from fedneighbors.datasets import Dataset


_MAX_ROWS = 24
_LONGEST_CELL = 60
_LONGEST_SENTENCE = 1000
_SHORT_CELL = 20
_SHORT_NAME = 40  # the first column has the names of rows
_FILE_WIDTH = 1000


def print_tables(record: RunRecord, names: Sequence[str] | None = None) -> None:
    """Print the tables of a record, except tables of images.

    Or only the named ones.
    """
    pictures = {figure.table for figure in record.figures if figure.kind == "images"}
    for table in record.tables:
        if table.name not in pictures and (names is None or table.name in names):
            print_grid(table)
    for note in record.notes:
        say(f"\N{BULLET} {printable(note, _LONGEST_SENTENCE)}")


def print_grid(table: ResultTable) -> None:
    """Print one table with its title above and its caption below."""
    shown = to_text(table, limit=_MAX_ROWS)
    printed = PrintedTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold cyan")
    for place, (heading, numeric) in enumerate(zip(shown.headings, shown.numeric, strict=True)):
        longest = max((len(row[place]) for row in shown.rows), default=0)
        printed.add_column(
            Text(printable(heading)),
            justify="right" if numeric else "left",
            no_wrap=numeric or longest <= (_SHORT_CELL if place else _SHORT_NAME),
        )
    for row in shown.rows:
        printed.add_row(*(Text(printable(cell, _LONGEST_CELL)) for cell in row))
    say(printable(table.title, _LONGEST_SENTENCE), "bold")
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _FILE_WIDTH  # do not truncate cells in a file
    console.print(printed)
    if table.caption:
        say(printable(table.caption, _LONGEST_SENTENCE))
    if shown.n_hidden:
        say(f"{shown.n_hidden} more rows are in the record.")


def keep(record: RunRecord, folder: Path, *, name: str, figures: bool = False) -> None:
    """Write a run's record and report to a folder; print the paths.

    Parameters
    ----------
    record : RunRecord
        Record of the run.
    folder : path
        Created if missing.
    name : str
        File name of the record, without ending.
    figures : bool
        Save each figure as PNG and SVG too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_record(record, folder / f"{name}.jsonl")
    say(f"record  {folder / f'{name}.jsonl'}", "green")
    try:
        write_report([record], folder / "report.html")
        saved = save_figures(record, folder / "figures") if figures else []
    except MissingExtraError as error:
        complain(f"the report could not be drawn: {error}")
        return
    say(f"report  {folder / 'report.html'}", "green")
    if saved:
        say(f"figures {folder / 'figures'}", "green")


def keep_model(
    model: Any,
    record: RunRecord,
    data: "Dataset",
    path: Path,
    *,
    source: Mapping[str, str],
    shown: Sequence[str],
    encoded: str,
) -> None:
    """Print a training's results; write its record, report, model and encoder.

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
    shown : sequence of str
        Tables to print.
    encoded : str
        Note for the record if cells were encoded; empty for none.
    """
    notes = (*record.notes, encoded) if encoded else record.notes
    record = replace(record, parameters={**source, **record.parameters}, notes=notes)
    print_tables(record, shown)
    keep(record, path.parent, name="record")
    model.save(path)
    say(f"model   {path}", "green")
    if data.encoder is not None:
        rules = path.with_name("encoder.json")
        replace_file(rules, data.encoder.to_json().encode("utf-8"))
        say(f"encoder {rules}", "green")
