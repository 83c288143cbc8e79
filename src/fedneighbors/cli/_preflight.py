"""``fedneighbors preflight``: check ports and a table before a deployment."""

import errno
import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from fedneighbors.cli._console import echo
from fedneighbors.cli._files import DropOption, IdOption, choose_files, text_options
from fedneighbors.errors import FederationError, PortInUse


@text_options
def preflight(
    port: Annotated[
        list[int] | None, typer.Option(help="Port that must be free on this machine; repeatable.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address of this machine to listen on.")] = "127.0.0.1",
    data: Annotated[Path | None, typer.Option(help="Table of a party.")] = None,
    label: Annotated[str, typer.Option(help="Label column of the table.")] = "target",
    drop: DropOption = None,
    identifier: IdOption = None,
    *,
    text_format: Any,
) -> None:
    """Check ports and a table before a deployment.

    On the coordinator's machine, run it with --port 8000 before you start
    flower-superlink. At a party, run it with --port 9094 (the port of
    flower-supernode) and with --data and the table. Nothing is sent or
    changed.
    """
    if not port and data is None:
        raise typer.BadParameter("nothing to check: give a --port, or a table with --data")
    for number in port or ():
        check_port(number, host)
        echo(f"port {number} of {host} is free", "green")
    if data is not None:
        from fedneighbors.datasets._reading import read_table

        files = choose_files([str(data)], drop, identifier, text_format)
        table = read_table(data, label=label, drop=files.drop, text_format=text_format)
        rows, columns = table.x.shape
        echo(f"{data.name}: {rows} rows, {columns} columns, label {label!r}", "green")


def check_port(port: int, host: str = "127.0.0.1") -> None:
    """Raise if a server cannot listen on a port now.

    Parameters
    ----------
    port : int
        In [1, 65535].
    host : str
        Address of this machine to listen on.

    Raises
    ------
    ValueError
        If the port is out of range.
    PortInUse
        If another program listens there.
    FederationError
        If this machine does not have the address, or the account lacks the permission.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise ValueError(f"expected a port in [1, 65535], got {port!r}")
    try:
        # create_server sets SO_REUSEADDR: connections that are still closing do not block the port
        socket.create_server((host, port)).close()
    except OSError as error:
        raise _listen_error(error, port, host) from error


def _listen_error(error: OSError, port: int, host: str) -> FederationError:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(host, port)
    if error.errno == errno.EACCES:
        return FederationError(
            f"this account is not allowed to open port {port}; use a port of 1024 or more, or "
            "get permission"
        )
    return FederationError(
        f"cannot listen on {host}, port {port}: {error.strerror}; use an address of this machine"
    )
