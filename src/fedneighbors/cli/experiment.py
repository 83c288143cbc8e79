"""``fedneighbors experiment``: repeats an experiment of a paper."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedneighbors.records.study import Study

__all__ = ["experiment"]

HOMES = {
    "flynn": "fedneighbors.methods.flynn.experiment",
    "fedknn": "fedneighbors.methods.fedknn.experiment",
    "fedpnn": "fedneighbors.methods.fedpnn.experiment",
    "knnper": "fedneighbors.methods.knnper.experiment",
}
"""The module of each method that holds its experiments by name; a name begins with its method."""


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
    from fedneighbors.cli.console import progress_bar, say
    from fedneighbors.cli.results import keep, print_tables

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


def _listed() -> "dict[str, Study]":
    """Return every method's experiments by name."""
    return {name: study for home in HOMES for name, study in _of(home).items()}


def _of(method: str) -> "dict[str, Study]":
    found: dict[str, Study] = import_module(HOMES[method]).EXPERIMENTS
    return found


def _found(name: str) -> "Study":
    """Return the experiment of a name; only its own method's are imported."""
    method = name.partition(".")[0]
    known = _of(method) if method in HOMES else _listed()
    if name not in known:
        raise typer.BadParameter(
            f"there is no experiment {name!r}; choose one of {', '.join(known)}"
        )
    return known[name]
