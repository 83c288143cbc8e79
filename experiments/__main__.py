"""Command line of the experiments: ``python -m experiments NAME [--quick]``."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from experiments.harness import Study
from fedneighbors.cli._console import progress_bar, say
from fedneighbors.cli._results import keep, print_tables

METHODS = ("flynn", "fedknn", "fedpnn", "knnper")
"""Methods with experiments; the name of an experiment begins with its method."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def experiment(
    name: Annotated[
        str | None, typer.Argument(help="Which one; --list names them.", show_default=False)
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="List the experiments and stop.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer repetitions; minutes instead of hours.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder; else fedneighbors-NAME.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the whole experiment.")] = 0,
    jobs: Annotated[int, typer.Option(help="Processor cores to use; -1 is all.")] = 1,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="File that remembers every measurement, so that an interrupted run goes on "
            "where it was; for experiments that take hours."
        ),
    ] = None,
) -> None:
    """Repeat the experiment NAME of the paper; its numbers stand beside ours."""
    if list_all:
        for known, entry in _listed().items():
            say(f"{known:<20} {entry.title}", "bold")
            say(f"{'':<20} {entry.description}")
        return
    if name is None:
        raise typer.BadParameter("name an experiment; --list lists them")
    chosen = _found(name)
    if journal is not None and not chosen.keeps_journal:
        raise typer.BadParameter(f"{name} keeps no journal; run it without", param_hint="--journal")
    with progress_bar() as progress:
        record = chosen.run(quick=quick, seed=seed, n_jobs=jobs, progress=progress, journal=journal)
    print_tables(record)
    keep(record, out or Path(f"fedneighbors-{name}"), name=name, figures=True)


def _listed() -> dict[str, Study]:
    """Return every method's experiments by name."""
    return {name: study for method in METHODS for name, study in _of(method).items()}


def _of(method: str) -> dict[str, Study]:
    found: dict[str, Study] = import_module(f"experiments.{method}.catalog").EXPERIMENTS
    return found


def _found(name: str) -> Study:
    """Return the experiment of a name; only its own method's are imported."""
    method = name.partition(".")[0]
    known = _of(method) if method in METHODS else _listed()
    if name not in known:
        raise typer.BadParameter(
            f"there is no experiment {name!r}; choose one of {', '.join(known)}"
        )
    return known[name]


if __name__ == "__main__":
    app(prog_name="python -m experiments")
