"""``fedneighbors experiment``: repeats an experiment of a paper."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["experiment"]


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
) -> None:
    """Repeat the experiment NAME of the paper; its numbers stand beside ours."""
    from fedneighbors.cli.console import progress_bar, say
    from fedneighbors.cli.results import keep, print_tables
    from fedneighbors.methods.flynn.experiment import EXPERIMENTS

    if list_all:
        for known, entry in EXPERIMENTS.items():
            say(f"{known:<16} {entry.title}", "bold")
            say(f"{'':<16} {entry.description}")
        return
    if name is None:
        raise typer.BadParameter("name an experiment; --list lists them")
    if name not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise typer.BadParameter(f"there is no experiment {name!r}; choose one of {known}")
    with progress_bar() as progress:
        record = EXPERIMENTS[name].run(quick=quick, seed=seed, n_jobs=jobs, progress=progress)
    print_tables(record)
    keep(record, out or Path(f"fedneighbors-{name}"), name=name, figures=True)
