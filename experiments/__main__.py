"""Command line of the experiments: ``python -m experiments NAME [--quick]``."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.catalog import EXPERIMENTS, find_study
from experiments.harness import Study
from experiments.knnper.federations import ImageModel, ImageSet
from fedneighbors.cli._console import echo, progress_bar
from fedneighbors.cli._results import print_tables, write_results

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def experiment(
    name: Annotated[
        str | None, typer.Argument(help="Name of the experiment; see --list.", show_default=False)
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="List the experiments and stop.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer repetitions; minutes instead of hours.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Output folder; default: fedneighbors-NAME.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the experiment.")] = 0,
    jobs: Annotated[int, typer.Option(help="Number of processor cores; -1 uses all.")] = 1,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="File that stores every measurement, so that an interrupted run can resume; "
            "supported by some experiments only."
        ),
    ] = None,
    n_seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, help="Number of repetitions; some experiments only."),
    ] = None,
    data: Annotated[
        ImageSet | None, typer.Option(help="Image set of knnper.claims, .table2 and .table3.")
    ] = None,
    model: Annotated[
        ImageModel | None, typer.Option(help="Network on the images of --data at full size.")
    ] = None,
) -> None:
    """Run the experiment NAME and compare the results with the paper's."""
    if list_all:
        for listed_name in EXPERIMENTS:
            study = find_study(listed_name)
            echo(f"{listed_name:<20} {study.title}", "bold")
            echo(f"{'':<20} {study.description}")
        return
    if name is None:
        raise typer.BadParameter("name an experiment; --list lists them")
    if name not in EXPERIMENTS:
        raise typer.BadParameter(
            f"there is no experiment {name!r}; choose one of "
            f"{', '.join(_list_related(name))}, or see --list"
        )
    study = find_study(name)
    if journal is not None and not study.keeps_journal:
        raise typer.BadParameter(
            f"{name} does not support a journal; omit the option", param_hint="--journal"
        )
    options = _check_options(study, {"n_seeds": n_seeds, "data": data, "model": model})
    with progress_bar() as progress:
        record = study.run(
            quick=quick, seed=seed, n_jobs=jobs, progress=progress, journal=journal, **options
        )
    print_tables(record)
    write_results(record, out or Path(f"fedneighbors-{name}"), name=name, figures=True)


def _check_options(study: Study, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options; refuse those that the experiment lacks."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in study.options:
            flag = "--seeds" if name == "n_seeds" else f"--{name}"
            raise typer.BadParameter(
                f"{study.name} does not have this option; omit it", param_hint=flag
            )
    if "model" in given and "data" not in given:
        raise typer.BadParameter("name the images by --data as well", param_hint="--model")
    return {
        name: str(value) if isinstance(value, StrEnum) else value for name, value in given.items()
    }


def _list_related(name: str) -> list[str]:
    """Return the experiments of the same method, or else all."""
    prefix = name.partition(".")[0] + "."
    return [other for other in EXPERIMENTS if other.startswith(prefix)] or list(EXPERIMENTS)


if __name__ == "__main__":
    app(prog_name="python -m experiments")
