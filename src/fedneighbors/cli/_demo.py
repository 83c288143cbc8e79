"""``fedneighbors demo``: a complete run on bundled data in a few seconds."""

from pathlib import Path
from typing import Annotated

import typer

from fedneighbors.cli._console import delay_interrupt, progress_bar


def demo(
    out: Annotated[Path, typer.Option(help="Output directory.")] = Path("fedneighbors-demo"),
    parties: Annotated[int, typer.Option(min=2, help="Number of parties.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the split and the hash.")] = 0,
) -> None:
    """Train FlyNN over parties with different digits, and compare with pooled data."""
    from fedneighbors.cli._results import print_tables, write_results
    from fedneighbors.records._storage import lock_folder
    from fedneighbors.runs._flynn import run_demo

    with lock_folder(out):
        with progress_bar() as progress:
            record = run_demo(n_parties=parties, alpha=0.3, seed=seed, progress=progress)
        print_tables(record, ["summary"])
        with delay_interrupt():
            write_results(record, out, name="demo")
