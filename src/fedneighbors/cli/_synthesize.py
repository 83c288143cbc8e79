"""``fedneighbors synthesize``: train a synthesizer, write synthetic rows and their quality."""

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
            help="Real rows: name of a data set, or path of a CSV, Parquet or ARFF file. Without "
            "it, rows are sampled from a saved --model."
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="Label column; each class gets its own generator, unless --together is given. "
            "With a saved model: name of the label column of the output, 'target' by default."
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of synthetic rows; by default as many as --data has, or as the saved "
            "model was trained on.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Output file (CSV); labels come last.")] = Path(
        "synthetic.csv"
    ),
    report: Annotated[
        Path | None, typer.Option(help="Report on the quality of the rows (HTML); needs --data.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Model file. With --data, the trained model is saved to it; without, it is loaded."
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Number of training epochs; 300 by default.")
    ] = None,
    noise: Annotated[
        NoiseName | None,
        typer.Option(
            help="Distribution of the generators' input: normal (standard normal), mixture (each "
            "row from one of two normals; the default), or concat (half of the entries from each)."
        ),
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="Train one generator for all classes.")
    ] = False,
    test_size: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=0.99,
            help="Fraction of rows held out to test classifiers trained on synthetic rows; 0 for "
            "none. Needs --label.",
        ),
    ] = 0.25,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
) -> None:
    """Make a synthetic table that resembles a real one.

    Trains on the rows of --data and measures the quality of the synthetic rows:
    similarity of columns and of pairs of columns, accuracy of a classifier that is
    trained on them, copies of real rows. They are not differentially private.
    Training needs the extra 'torch'; a saved model does not.
    """
    if data is None:
        _check_options(model, report, epochs, noise, together=together)
        assert model is not None
        _write_rows(_sample_model(model, label or "target", rows, seed), out)
        return
    from fedneighbors.cli._console import echo, progress_bar
    from fedneighbors.runs._synthesis import synthesize as train_and_sample

    options = {"per_class": not together, "epochs": epochs, "noise": noise and noise.value}
    with progress_bar() as progress:
        result = train_and_sample(
            _read_table(data, label),
            label,
            n_rows=rows,
            test_size=test_size,
            seed=seed,
            parameters={name: value for name, value in options.items() if value is not None},
            progress=progress,
        )
    _report_quality(result.record, Path(data).name, report)
    _write_rows(result.table, out)
    if model is not None:
        model.parent.mkdir(parents=True, exist_ok=True)
        result.synthesizer.save(model)
        echo(f"model   {model}", "green")


def _check_options(
    model: Path | None,
    report: Path | None,
    epochs: int | None,
    noise: NoiseName | None,
    *,
    together: bool,
) -> None:
    """Raise if the model is missing, or an option needs real rows."""
    if model is None:
        raise typer.BadParameter("give real rows with --data, or a saved model with --model")
    if report is not None:
        raise typer.BadParameter("--report compares with real rows: give them with --data")
    if epochs is not None or noise is not None or together:
        raise typer.BadParameter(
            "--epochs, --noise and --together are for training, but a saved --model is already "
            "trained; give real rows with --data, or omit these options"
        )


def _read_table(data: str, label: str | None) -> "Table":
    """Return the unencoded columns of a file or data set."""
    from fedneighbors.datasets._catalog import load_columns
    from fedneighbors.datasets._reading import read_columns

    path = Path(data)
    if path.is_file() or path.suffix or len(path.parts) > 1:
        return read_columns(path, nominal=[] if label is None else [label])
    return load_columns(data)


def _sample_model(model: Path, label: str, rows: int | None, seed: int) -> "Table":
    from fedneighbors.methods.fedpnn.synthesis import TabularSynthesizer
    from fedneighbors.runs._synthesis import sample_rows

    synthesizer = TabularSynthesizer.load(model)
    n_training_rows = sum(part.n_rows for part in synthesizer.model_.parts)
    return sample_rows(synthesizer, label, n_rows=rows or n_training_rows, seed=seed)


def _report_quality(record: "RunRecord", source: str, report: Path | None) -> None:
    """Print the quality of the rows; write the report if requested."""
    from dataclasses import replace

    from fedneighbors.cli._console import echo, print_error
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
        print_error(f"the report could not be written: {error}")
    else:
        echo(f"report  {report}", "green")


def _write_rows(table: "Table", out: Path) -> None:
    from fedneighbors.cli._console import echo
    from fedneighbors.datasets._text_tables import delimited, table_cells
    from fedneighbors.records import replace_file

    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, delimited(table_cells(table)))
    echo(f"rows    {out}: {table.n_rows} rows, {len(table.names)} columns", "green")
