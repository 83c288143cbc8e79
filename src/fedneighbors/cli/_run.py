"""``fedneighbors run``: one command per method, each on a file split over parties here."""

import typer

from fedneighbors.cli._run_fedknn import fedknn
from fedneighbors.cli._run_fedpnn import fedpnn
from fedneighbors.cli._run_flynn import flynn
from fedneighbors.cli._run_knnper import knnper

run = typer.Typer(
    no_args_is_help=True, help="Train or search over parties; keep what came of it with a report."
)
run.command(
    epilog="Example: [bold]fedneighbors run flynn --data patients.csv --label outcome "
    "--party-column hospital[/bold]"
)(flynn)
run.command(
    epilog="Example: [bold]fedneighbors run fedpnn --data loans.csv --label default "
    "--party-column bank[/bold]"
)(fedpnn)
run.command(
    epilog="Example: [bold]fedneighbors run knnper --data visits.csv --label diagnosis "
    "--party-column hospital --combine pool[/bold]"
)(knnper)
run.command(
    epilog="Example: [bold]fedneighbors run fedknn --data titles.txt --metric edit --query 'graph "
    "search' -k 10 --parties 8 --partition zipf:0.6[/bold]"
    "\n\nWithout a file: [bold]fedneighbors run fedknn --data digits --metric euclidean --query "
    "row:17[/bold]"
    "\n\nPlaces of parties that a column names: [bold]fedneighbors run fedknn --data places.csv "
    "--metric haversine --columns lon,lat --party-column country --query 2.35,48.86[/bold]"
    "\n\nIn private: [bold]fedneighbors run fedknn --data molecules.smi --metric graph_edit "
    "--query c1ccccc1CO -k 64 --algorithm 'dann*' --epsilon 1 --delta 1e-6[/bold]"
)(fedknn)
