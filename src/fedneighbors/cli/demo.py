"""``fedneighbors demo``: the whole way on bundled data, in a few seconds."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(help="Folder for record and report.")] = Path(
        "fedneighbors-demo"
    ),
    parties: Annotated[int, typer.Option(min=2, help="Number of parties.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the split and of the hash.")] = 0,
) -> None:
    """Train over parties that hold different digits, and compare with pooled data."""
    from fedneighbors.cli.console import progress_bar
    from fedneighbors.cli.results import keep, print_tables
    from fedneighbors.methods.flynn.experiment import demo as run_demo

    with progress_bar() as progress:
        record = run_demo(n_parties=parties, alpha=0.3, seed=seed, progress=progress)
    print_tables(record, ["summary"])
    keep(record, out, name="demo")
