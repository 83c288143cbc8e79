"""Limits of connections whose peer is not known yet."""

import asyncio
from asyncio.sslproto import SSLProtocol
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from fedneighbors.service._messages import MAX_LINK_FRAME_BYTES

MAX_CONNECTIONS = 2000
"""Maximum number of connections of users and providers; further ones are closed at once."""

MAX_HELLO_BYTES = 1 << 16
"""Maximum size of a provider's first message, which nobody has signed yet."""

FIRST_REQUEST_S = 10.0
"""Seconds after which a connection without a request is closed."""

_TLS_BUFFER_BYTES = 1 << 15  # two records; asyncio's 256 KiB a connection are 250 MiB for 1,000


def reduce_tls_buffers() -> None:
    """Set the size of the buffers of this process's TLS connections."""
    SSLProtocol.max_size = _TLS_BUFFER_BYTES


class LimitedHttp(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """HTTP connection that is closed if there are too many, or if no request comes."""

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, or close it."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._close_unused)

    def _close_unused(self) -> None:
        # it is no longer among the connections if it was closed, or is a WebSocket now
        if self.cycle is None and self in self.connections:
            self.transport.abort()


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """WebSocket that takes long messages only after ``scope["state"]["allow_long"]()``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn.max_message_size = MAX_HELLO_BYTES
        self.app_state = {**self.app_state, "allow_long": self._allow_long}

    def _allow_long(self) -> None:
        self.conn.max_message_size = MAX_LINK_FRAME_BYTES
