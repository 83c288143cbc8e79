"""``fedneighbors preflight``: asks whether this machine is ready for its part in a federation."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["preflight"]


def preflight(
    port: Annotated[
        list[int] | None, typer.Option(help="A port that a server here will open; repeatable.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address that it will listen on.")] = "127.0.0.1",
    data: Annotated[Path | None, typer.Option(help="The table that a party will use.")] = None,
    label: Annotated[str, typer.Option(help="Its column of labels.")] = "target",
) -> None:
    """Check ports and table before a deployment, where errors are still easy to read.

    On the coordinator's machine: --port 8000 before flower-superlink is
    started. At a party: --port 9094 and --data with the table. Nothing is
    sent or changed.
    """
    from fedneighbors.cli.console import say
    from fedneighbors.federation.ports import check_port

    if not port and data is None:
        raise typer.BadParameter("give a --port, or a table with --data, to check")
    for number in port or ():
        check_port(number, host)
        say(f"port {number} of {host} is free", "green")
    if data is not None:
        from fedneighbors.datasets import read_table

        table = read_table(data, label=label)
        rows, columns = table.x.shape
        say(f"{data.name}: {rows} rows, {columns} columns, label {label!r}", "green")
