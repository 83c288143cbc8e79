"""Search over a network: a broker, providers that connect to it, and clients.

Names resolve on first use: the clients load no server.
"""

from importlib.util import find_spec

from fedneighbors._lazy import lazy_names
from fedneighbors.errors import MissingExtraError

for _package in ("cryptography", "httptools", "httpx", "pydantic", "starlette", "websockets"):
    if find_spec(_package) is None:
        raise MissingExtraError(_package, "service")

_HOMES = {
    "AsyncRemoteNeighbors": "fedneighbors.service._client",
    "BrokerUnreachable": "fedneighbors.service._remote_search",
    "FederatedRetriever": "fedneighbors.service._retriever",
    "RemoteNeighbors": "fedneighbors.service._client",
    "RemoteNeighborsClassifier": "fedneighbors.service._remote_classifier",
    "RemoteObject": "fedneighbors.service._remote_search",
    "ServiceError": "fedneighbors.service._remote_search",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
