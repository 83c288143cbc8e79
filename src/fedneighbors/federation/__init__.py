"""Messages, the party and coordinator roles, and the runtimes that connect them."""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "Ask": "fedneighbors.federation._loop",
    "client_app": "fedneighbors.federation._flower",
    "connected": "fedneighbors.federation._inprocess",
    "ConnectedParties": "fedneighbors.federation._inprocess",
    "Coordinator": "fedneighbors.federation._loop",
    "decode": "fedneighbors.federation._messages",
    "Delivery": "fedneighbors.federation._loop",
    "encode": "fedneighbors.federation._messages",
    "FolderStore": "fedneighbors.federation._stores",
    "FrameTransport": "fedneighbors.federation._loop",
    "gather": "fedneighbors.federation._loop",
    "Link": "fedneighbors.federation._links",
    "MaskedParty": "fedneighbors.federation._masked_party",
    "MaskedRound": "fedneighbors.federation._roles",
    "MaskedSums": "fedneighbors.federation._masked_sums",
    "MaskStore": "fedneighbors.federation._stores",
    "MemoryStore": "fedneighbors.federation._stores",
    "message": "fedneighbors.federation._messages",
    "Outcome": "fedneighbors.federation._loop",
    "Party": "fedneighbors.federation._roles",
    "Refusal": "fedneighbors.federation._roles",
    "Refused": "fedneighbors.federation._roles",
    "ReleaseGate": "fedneighbors.federation._release_gate",
    "Replies": "fedneighbors.federation._loop",
    "run": "fedneighbors.federation._inprocess",
    "run_rounds": "fedneighbors.federation._loop",
    "serve": "fedneighbors.federation._roles",
    "server_app": "fedneighbors.federation._flower",
    "total": "fedneighbors.federation._loop",
    "Transport": "fedneighbors.federation._loop",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
