"""``fedneighbors run``: one command per method, each on a file split over parties here."""

import typer

from fedneighbors.cli.run_fedknn import fedknn
from fedneighbors.cli.run_flynn import flynn

__all__ = ["run"]

run = typer.Typer(
    no_args_is_help=True, help="Train or search over parties; keep what came of it with a report."
)
run.command(
    epilog="Example: [bold]fedneighbors run flynn --data patients.csv --label outcome "
    "--party-column hospital[/bold]"
)(flynn)
run.command(
    epilog="Example: [bold]fedneighbors run fedknn --data titles.txt --metric edit --query 'graph "
    "search' -k 10 --parties 8 --partition zipf:0.6[/bold]"
)(fedknn)
