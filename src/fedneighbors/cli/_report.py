"""``fedneighbors report``: draw a report from record files."""

from pathlib import Path
from typing import Annotated

import typer

from fedneighbors.cli._console import echo


def report(
    records: Annotated[
        list[Path], typer.Argument(metavar="RECORD...", help="Record files, such as demo.jsonl.")
    ],
    out: Annotated[Path, typer.Option(help="Report file (HTML).")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(help="Directory for the figures as PNG and SVG.")
    ] = None,
) -> None:
    """Draw one report from the record files of one or more runs."""
    from fedneighbors.records import read_record
    from fedneighbors.reports import save_figures, write_report

    run_records = [read_record(path) for path in records]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_report(run_records, out)
    echo(f"report  {out}", "green")
    if figures is not None:
        for path, record in zip(records, run_records, strict=True):
            folder = figures if len(run_records) == 1 else figures / path.stem
            save_figures(record, folder)
            echo(f"figures {folder}", "green")
