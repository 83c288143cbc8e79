"""A broker and providers over TLS on loopback, in the event loop of one background thread."""

import asyncio
import threading
from contextlib import contextmanager

import numpy as np

from fedneighbors.federation._messages import encode
from fedneighbors.methods.fedknn._filters import FilterColumns
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service import RemoteNeighbors
from fedneighbors.service._config import BrokerConfig, PolicySection
from fedneighbors.service._messages import OfferedCollection
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.service._provider import ProviderService
from fedneighbors.service._server import add_local_provider, running_broker

__all__ = ["Deployment", "deployed", "encode", "offered"]


def offered(
    provider,
    collection,
    metric,
    objects,
    *,
    ids=None,
    tie_key="",
    columns=None,
    filters=None,
    epoch=None,
):
    """Return a collection of a provider that shows distances."""
    typed = None if columns is None else FilterColumns.of(columns, len(objects), kinds=filters)
    party = Provider.of(
        provider,
        objects,
        metric_of(metric),
        decode=decode_query,
        ids=ids,
        key=tie_key.encode(),
        columns=typed,
        epoch=epoch,
    )
    n_columns = np.shape(objects)[1] if np.ndim(objects) == 2 and metric != "tanimoto" else 0
    offer = OfferedCollection(
        collection, metric, tie_key, len(objects), filters or {}, n_columns=n_columns
    )
    return OfferedObjects(party, offer, policy=PolicySection(level="distances"))


class Deployment:
    """A running broker, and providers that can be started and stopped."""

    def __init__(self, folder, collections, **sections):
        self.config = BrokerConfig.model_validate(
            {
                "format": 1,
                "folder": folder,
                "server": {"listen": "127.0.0.1:0", "heartbeat_s": 0.2},
                "collections": collections,
                **sections,
            }
        )
        self.certificate = folder / "state/server.crt"
        self.identities = {}
        self.tasks = {}
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._broker = running_broker(self.config)
        self.broker, self.url = self.run(self._broker.__aenter__())
        self.token = self.broker.state.new_token("alice", 1)

    def run(self, work):
        """Run a coroutine in the loop; return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def enrol(self, provider):
        """Enrol a provider with a new key."""
        self.identities[provider] = Identity.new()
        add_local_provider(self.broker.state, provider, self.identities[provider])

    def start(self, provider, collections, *, url=None, identity=None, **options):
        """Start a provider; enrol it first if it is new."""
        if provider not in self.identities:
            self.enrol(provider)
        key = identity or self.identities[provider]
        service = ProviderService(provider, key, collections, **options)
        work = service.run(url or self.url, self.certificate.read_text())
        self.tasks[provider] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return self.tasks[provider]

    def wait(self, *providers, seconds=20):
        """Wait until providers are connected."""
        self.run(self.broker.registry.wait_for(providers, seconds))
        assert set(providers) <= set(self.broker.registry.links)

    def stop(self, provider):
        """Stop a provider at once, and wait until its link is gone."""
        self.tasks.pop(provider).cancel()

        async def wait():
            while provider in self.broker.registry.links:
                await asyncio.sleep(0.01)

        self.run(wait())

    def client(self, collection, **options):
        """Return a client with a valid token."""
        options = {"token": self.token, "certificate": self.certificate, **options}
        return RemoteNeighbors(self.url, collection=collection, **options)

    def close(self):
        """Stop all providers and the broker."""
        for task in self.tasks.values():
            task.cancel()
        self.run(self._broker.__aexit__(None, None, None))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@contextmanager
def deployed(folder, collections, **sections):
    """Run a deployment during the block."""
    deployment = Deployment(folder, collections, **sections)
    try:
        yield deployment
    finally:
        deployment.close()
