"""``fedneighbors synthesize``: learn a table, write synthetic rows and their quality."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedneighbors.datasets._table import Table
    from fedneighbors.records import RunRecord


class NoiseName(StrEnum):
    """Noise distributions on the command line."""

    NORMAL = "normal"
    MIXTURE = "mixture"
    CONCAT = "concat"


def synthesize(
    data: Annotated[
        str | None,
        typer.Option(
            help="Data to learn: name of a data set, CSV or Parquet file. Without it, "
            "--model is read."
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Label column; each class gets its own generator.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Number of rows; by default as many as in the data.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Output file (CSV); labels come last.")] = Path(
        "synthetic.csv"
    ),
    report: Annotated[
        Path | None, typer.Option(help="HTML report on the quality of the rows; needs --data.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Model file, written after training, or read without --data."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Number of epochs; 300 by default.")
    ] = None,
    noise: Annotated[
        NoiseName | None, typer.Option(help="Noise of the generators; 'mixture' by default.")
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="One generator for all classes.")
    ] = False,
    test_size: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.99, help="Share of rows held out for the quality test; 0 for none."
        ),
    ] = 0.25,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
) -> None:
    """Make a synthetic table that resembles a real one.

    Learns the rows of --data and measures the quality of the synthetic rows:
    similarity of columns and pairs of columns, usefulness for a classifier,
    copies of real rows. The rows are not differentially private. Training needs
    the extra 'torch'; a saved model does not.
    """
    if data is None:
        _check_options(model, report, epochs, noise, together=together)
        assert model is not None
        _write(_from_model(model, label or "target", rows, seed), out)
        return
    from fedneighbors.cli._console import progress_bar, say
    from fedneighbors.runs._synthesis import synthesize as learn

    given = {"per_class": not together, "epochs": epochs, "noise": noise and noise.value}
    with progress_bar() as progress:
        made = learn(
            _read(data, label),
            label,
            n_rows=rows,
            test_size=test_size,
            seed=seed,
            parameters={name: value for name, value in given.items() if value is not None},
            progress=progress,
        )
    _show(made.record, Path(data).name, report)
    _write(made.table, out)
    if model is not None:
        model.parent.mkdir(parents=True, exist_ok=True)
        made.synthesizer.save(model)
        say(f"model   {model}", "green")


def _check_options(
    model: Path | None,
    report: Path | None,
    epochs: int | None,
    noise: NoiseName | None,
    *,
    together: bool,
) -> None:
    """Raise for options that need rows to learn from."""
    if model is None:
        raise typer.BadParameter("give a table with --data, or a saved --model")
    if report is not None:
        raise typer.BadParameter("--report compares with real rows; give them with --data")
    if epochs is not None or noise is not None or together:
        raise typer.BadParameter(
            "--epochs, --noise and --together are for training, but a saved --model is trained; "
            "give a table with --data, or omit them"
        )


def _read(data: str, label: str | None) -> "Table":
    """Return the unchanged columns of a file or data set."""
    from fedneighbors.datasets._catalog import load_columns
    from fedneighbors.datasets._reading import read_columns

    path = Path(data)
    if path.is_file() or path.suffix or len(path.parts) > 1:
        return read_columns(path, nominal=[] if label is None else [label])
    return load_columns(data)


def _from_model(model: Path, label: str, rows: int | None, seed: int) -> "Table":
    from fedneighbors.methods.fedpnn.synthesis import TabularSynthesizer
    from fedneighbors.runs._synthesis import sample_rows

    synthesizer = TabularSynthesizer.load(model)
    as_many = sum(part.n_rows for part in synthesizer.model_.parts)
    return sample_rows(synthesizer, label, n_rows=rows or as_many, seed=seed)


def _show(record: "RunRecord", source: str, report: Path | None) -> None:
    """Print the quality of the rows; draw the report if requested."""
    from dataclasses import replace

    from fedneighbors.cli._console import complain, say
    from fedneighbors.cli._results import print_tables
    from fedneighbors.errors import MissingExtraError
    from fedneighbors.reports import write_report

    record = replace(record, parameters={"data": source, **record.parameters})
    print_tables(record, ["summary", "classes"])
    if report is None:
        return
    report.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_report([record], report)
    except MissingExtraError as error:
        complain(f"the report could not be drawn: {error}")
    else:
        say(f"report  {report}", "green")


def _write(table: "Table", out: Path) -> None:
    from fedneighbors.cli._console import say
    from fedneighbors.datasets._text_tables import delimited, table_cells
    from fedneighbors.records import replace_file

    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, delimited(table_cells(table)))
    say(f"rows    {out}: {table.n_rows} rows of {len(table.names)} columns", "green")
