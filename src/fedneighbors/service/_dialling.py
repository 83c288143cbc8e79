"""A provider's side of opening a link: connection, certificate and version."""

from typing import Any, Literal
from urllib.parse import urlsplit

from websockets.asyncio.client import connect

from fedneighbors.errors import FederationError
from fedneighbors.service._messages import MAX_LINK_FRAME_BYTES, VERSION, Challenge
from fedneighbors.service._tls import peer_fingerprint, pinned_context

HEARTBEAT_S = 1.0
_PATH = "/v1/link"


class ConnectionRejected(FederationError):  # noqa: N818 - the name states the error
    """The broker refuses the link."""


def open_link(
    broker: str, certificate: str, *, proxy: str | Literal[True] | None = True
) -> connect:
    """Return the connection of a link to be opened.

    Parameters
    ----------
    broker : str
        Address, such as ``"https://broker.example"``.
    certificate : str
        The broker's certificate (PEM); empty for one that this machine trusts, or without TLS.
    proxy : str, True or None
        Address of a proxy; True for the one that the environment names.
    """
    address = urlsplit(broker)
    is_secure = address.scheme == "https"
    return connect(
        f"{'wss' if is_secure else 'ws'}://{address.netloc}{_PATH}",
        ssl=pinned_context(certificate) if is_secure and certificate else None,
        proxy=proxy,
        max_size=MAX_LINK_FRAME_BYTES,
        compression=None,
        ping_interval=HEARTBEAT_S,
        ping_timeout=3 * HEARTBEAT_S,
    )


def read_link_fingerprint(connection: Any) -> bytes:
    """Return the digest of the server's certificate; empty without TLS."""
    tls = connection.transport.get_extra_info("ssl_object")
    return peer_fingerprint(tls) if tls else b""


def check_version(challenge: Challenge) -> None:
    """Raise ConnectionRejected for a broker of another version."""
    if challenge.version != VERSION:
        older = "the broker" if challenge.version < VERSION else "fedneighbors here"
        raise ConnectionRejected(
            f"the broker speaks version {challenge.version} of the protocol of links, this program "
            f"version {VERSION}; upgrade {older}"
        )
