"""Processes of a service in campaigns of faults: the broker, a provider, or a user.

``python -m tests.service.hosts NAME FOLDER PORT`` runs one.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service import RemoteNeighbors
from fedneighbors.service._access_log import AccessLog
from fedneighbors.service._config import BrokerConfig, PolicySection
from fedneighbors.service._offers import OfferedObjects, search_once
from fedneighbors.service._provider import ProviderService
from fedneighbors.service._server import run_broker
from tests.service.deployment import offered
from tests.service.faults import OWNERS, POINTS, SECTIONS, search


def make_config(folder, port):
    """Return the configuration of the broker, whose ledger has a disk of its own."""
    private = SECTIONS["private"]
    privacy = {**private["privacy"], "ledger": "ledger/private.sqlite"}
    return BrokerConfig.model_validate(
        {
            "format": 1,
            "folder": folder,
            "log": "state/log.sqlite",
            "server": {"listen": f"127.0.0.1:{port}", "heartbeat_s": 1.0},
            "collections": {**SECTIONS, "private": {**private, "privacy": privacy}},
        }
    )


def search_lines():
    """Run the queries of a user who writes lines of JSON; print the time with each answer."""
    for line in sys.stdin:
        options, query = json.loads(line)
        with RemoteNeighbors(**options) as client:
            print(json.dumps([*search(client, query), time.time()]), flush=True)


def serve(name, folder, port):
    """Run the broker, a provider, which keeps a log, or a user in this process."""
    if name == "client":
        search_lines()
        return
    if name == "broker":
        asyncio.run(run_broker(make_config(folder, port), lambda *_: None))
        return
    number, log = OWNERS.index(name), AccessLog(folder / name / "log.sqlite")
    ids = [str(row) for row in range(number, len(POINTS), 2)]
    offers = {}
    for collection in SECTIONS:
        rows, options = POINTS[number::2], {"ids": ids, "tie_key": "0", "epoch": f"{number:032x}"}
        made = offered(name, collection, "euclidean", rows, **options)
        search_once(made.party, rows[0])  # as OfferedObjects.read does
        policy = PolicySection(level="distances")
        offers[collection] = OfferedObjects(made.party, made.offer, policy=policy, log=log)
    identity = Identity.read(folder / name / "key.pem")
    certificate = (folder / "state/server.crt").read_text()
    service = ProviderService(name, identity, offers)
    asyncio.run(service.run(f"https://127.0.0.1:{port}", certificate))


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
