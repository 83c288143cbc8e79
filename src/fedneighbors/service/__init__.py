"""Search over a network: a broker, providers that connect to it, and a client.

Names resolve on first use: the client loads no server.
"""

from importlib.util import find_spec

from fedneighbors._lazy import lazy_names
from fedneighbors.errors import MissingExtraError

for _package in ("cryptography", "httpx", "pydantic", "starlette", "uvicorn", "websockets"):
    if find_spec(_package) is None:
        raise MissingExtraError(_package, "service")

_HOMES = {
    "RemoteNeighbors": "fedneighbors.service._client",
    "RemoteObject": "fedneighbors.service._client",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
