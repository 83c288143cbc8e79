"""Limits of connections, of attempts whose peer is not known yet, and of queries."""

import asyncio
import time
from asyncio.sslproto import SSLProtocol
from collections import deque
from ipaddress import ip_address, ip_network
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from fedneighbors.errors import FederationError
from fedneighbors.service._messages import MAX_LINK_FRAME_BYTES

MAX_CONNECTIONS = 2000
"""Maximum number of connections of users and providers; further ones are closed at once."""

MAX_HELLO_BYTES = 1 << 18
"""Maximum size of a provider's first message, which nobody has signed yet.

It has the rights of a thousand users, at 250 bytes each.
"""

MAX_HEADER_BYTES = 1 << 16
"""Maximum size of the headers of a request."""

FIRST_REQUEST_S = 10.0
"""Seconds after which a connection that waits for a request is closed."""

MAX_WRONG_CODES, WRONG_CODES_S = 10, 60.0
"""Maximum number of wrong codes or tokens of an address, within this number of seconds."""

MAX_ALL_WRONG_CODES = 1000
"""Maximum number of wrong enrolment codes of all addresses, within ``WRONG_CODES_S``."""

_MAX_ADDRESSES = 10_000  # with wrong codes; the oldest is forgotten
_NOTHING = object()  # is no request
_TLS_BUFFER_BYTES = 1 << 14  # a record; asyncio's 256 KiB a connection are 250 MiB for 1,000


class Overloaded(FederationError):  # noqa: N818 - the name states the error
    """Too many queries run at once; try again later."""


class TooManyQueries(FederationError):  # noqa: N818 - the name states the error
    """A user runs more than a share of the queries; try again later."""


class WrongCodes:
    """Addresses that sent wrong enrolment codes, or wrong tokens to the console.

    Addresses of one network of IPv6 (/64), which one host may have, count as one.

    Parameters
    ----------
    most : int, optional
        Maximum number of all addresses together; by default, there is none.
    """

    def __init__(self, most: int | None = None) -> None:
        self._times: dict[str, list[float]] = {}
        self._most, self._latest = most, deque[float](maxlen=most or 1)

    def are_too_many(self, address: str) -> bool:
        """Return whether an address, or all, sent too many."""
        oldest, address = time.monotonic() - WRONG_CODES_S, _network_of(address)
        if len(self._latest) == self._most and self._latest[0] > oldest:
            return True
        times = [one for one in self._times.pop(address, ()) if one > oldest]
        if times:
            self._times[address] = times
        return len(times) >= MAX_WRONG_CODES

    def add(self, address: str) -> None:
        """Count a wrong code or token."""
        now = time.monotonic()
        self._times.setdefault(_network_of(address), []).append(now)
        self._latest.append(now)
        if len(self._times) > _MAX_ADDRESSES:
            del self._times[next(iter(self._times))]


def _network_of(address: str) -> str:
    """Return the /64 network of an IPv6 address; others as they are."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4 or found.ipv4_mapped:
        return str(found if found.version == 4 else found.ipv4_mapped)
    return str(ip_network((found, 64), strict=False))


def reduce_tls_buffers() -> None:
    """Set the size of the buffers of this process's TLS connections."""
    SSLProtocol.max_size = _TLS_BUFFER_BYTES


class LimitedHttp(HttpToolsProtocol):
    """HTTP connection that is closed if there are too many, or if no request comes."""

    _n_unread = 0  # bytes since the last headers or part of a body

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, or close it."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._close_unused, None)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request; close the connection after long headers."""
        self._n_unread += len(data)
        super().data_received(data)
        if self._n_unread > MAX_HEADER_BYTES:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        """Begin to answer a request."""
        self._n_unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a request's body."""
        self._n_unread = 0
        super().on_body(body)

    def _close_unused(self, answered: Any) -> None:
        """Close the connection if no request came since the last call.

        Uvicorn waits without limit for the rest of a request.
        """
        if self not in self.connections:  # it was closed, or is a WebSocket now
            return
        if self.cycle is answered:
            self.transport.abort()
            return
        is_idle = self.cycle is not None and self.cycle.response_complete
        asyncio.get_running_loop().call_later(
            FIRST_REQUEST_S, self._close_unused, self.cycle if is_idle else _NOTHING
        )


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """WebSocket that takes long messages only after ``scope["state"]["allow_long"]()``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn.max_message_size = MAX_HELLO_BYTES
        self.app_state = {**self.app_state, "allow_long": self._allow_long}

    def _allow_long(self) -> None:
        self.conn.max_message_size = MAX_LINK_FRAME_BYTES
