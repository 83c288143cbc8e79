"""Search over a network: a broker, providers that connect to it, and a client.

Names resolve on first use: the client loads no server.
"""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "RemoteNeighbors": "fedneighbors.service._client",
    "RemoteObject": "fedneighbors.service._client",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
