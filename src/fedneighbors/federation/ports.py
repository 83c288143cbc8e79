"""Whether a port can be opened here, asked before a server that would only half start."""

import errno
import socket

from fedneighbors.errors import FederationError, PortInUse

__all__ = ["check_port"]


def check_port(port: int, host: str = "127.0.0.1") -> None:
    """Return if a server could listen on a port now.

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
        If this machine does not have the address, or the account may not open the port.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise ValueError(f"expected a port in [1, 65535], got {port!r}")
    try:
        # As servers do: a port whose last connections are still being closed counts as free.
        socket.create_server((host, port)).close()
    except OSError as error:
        raise _reason(error, port, host) from error


def _reason(error: OSError, port: int, host: str) -> FederationError:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(host, port)
    if error.errno == errno.EACCES:
        return FederationError(
            f"this account may not open port {port}; take one from 1024 on, or ask for the right"
        )
    return FederationError(
        f"cannot listen on {host}, port {port}: {error.strerror}; give an address of this machine"
    )
