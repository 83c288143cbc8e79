"""Search of 1,000,000 vectors over five providers, each on a link of 10 Mbit/s.

The providers are processes with 200,000 vectors of 128 float32 components; a relay between each of
them and the broker passes at most 10 Mbit/s in each direction. A query asks for the 128 nearest
vectors that meet a filter. Prints recall, bytes, and milliseconds (median and largest). The vectors
are drawn from 1,000 Gaussian clusters. Run ``python benchmarks/slow_links.py [--quick]``.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from fedneighbors.methods.fedknn._filters import FilterColumns
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_queries
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service._config import BrokerConfig
from fedneighbors.service._messages import OfferedCollection
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.service._provider import ProviderService
from fedneighbors.service._server import add_local_provider, running_broker

N_PROVIDERS, N_COLUMNS, K = 5, 128, 128
BITS_A_SECOND, CHUNK = 10e6, 1 << 12
FILTERS = {"all": None, "half": {"group": {"<": 50}}, "one in ten": {"group": {"<": 10}}}
MAX_BYTES, MAX_MS = 60_000, 250
FILTER_KINDS = {"group": "number"}


def draw(number, n):
    """Return vectors of a provider, and cells for filters."""
    rng = np.random.default_rng(number)
    centers = np.random.default_rng(0).normal(size=(1000, N_COLUMNS)).astype(np.float32)
    rows = centers[rng.integers(0, 1000, n)]
    rows += 0.5 * rng.normal(size=rows.shape).astype(np.float32)
    return rows, rng.integers(0, 100, n)


def serve_vectors(name, number, n, private, url, certificate):
    """Run a provider until the process is ended."""
    rows, groups = draw(number, n)
    party = Provider.of(
        name,
        rows,
        metric_of("euclidean"),
        decode=decode_query,
        ids=[f"{number}-{row}" for row in range(n)],
        columns=FilterColumns.of({"group": groups}, n, kinds=FILTER_KINDS),
    )
    offered = OfferedObjects(party, OfferedCollection("vectors", "euclidean", "", n, FILTER_KINDS))
    asyncio.run(
        ProviderService(name, Identity(private), {"vectors": offered}).run(url, certificate)
    )


async def pass_slowly(reader, writer):
    """Pass bytes on at the rate of the link."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK):
            await asyncio.sleep(8 * len(chunk) / BITS_A_SECOND)
            writer.write(chunk)
    writer.close()


async def start_relay(port):
    """Run a relay to the broker; return its port."""

    async def relay(reader, writer):
        there = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_slowly(reader, there[1]), pass_slowly(there[0], writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    return server.sockets[0].getsockname()[1]


def nearest(query, parts, limit):
    """Return the distances of the nearest vectors by brute force."""
    found = []
    for rows, groups in parts:
        kept = rows if limit is None else rows[groups < limit]
        coarse = ((kept - query.astype(np.float32)) ** 2).sum(axis=1)
        near = kept[np.argpartition(coarse, min(2 * K, len(kept) - 1))[: 2 * K]].astype(float)
        found.append(((near - query) ** 2).sum(axis=1))
    return np.sqrt(np.sort(np.concatenate(found))[:K])


async def measure(broker, parts, n_queries):
    """Print the figures by algorithm and filter."""
    rng = np.random.default_rng(99)
    queries = [parts[0][0][row].astype(float) + 0.1 for row in rng.integers(0, 1000, n_queries)]
    for algorithm in ("baseline", "dann", "auto"):
        for name, where in FILTERS.items():
            limit = None if where is None else where["group"]["<"]
            runs = []
            for query in (queries[0], *queries):
                ((_, frame),) = encode_queries([query], where)
                started = time.perf_counter()
                result = await broker.search("vectors", frame, K, algorithm=algorithm)
                ms = 1e3 * (time.perf_counter() - started)
                outcome, expected = result.outcome, nearest(query, parts, limit)
                right = np.isclose(outcome.result.merged.distances, expected, rtol=1e-12, atol=0)
                sent = sum(
                    sum(r.upload_bytes.values()) + sum(r.download_bytes.values())
                    for r in outcome.rounds
                )
                runs.append((ms, sent, right.mean()))
            times, sizes, recalls = zip(*runs[1:], strict=True)  # the first builds the filter
            print(
                f"{algorithm}, filter {name}: recall {min(recalls):.2%}, {max(sizes):,} bytes, "
                f"target {MAX_BYTES:,}; {median(times):.0f} ms, target {MAX_MS}; largest "
                f"{max(times):.0f} ms",
                flush=True,
            )


async def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer vectors and queries")
    n, n_queries = (20_000, 5) if parser.parse_args().quick else (200_000, 20)
    names = [f"p{number}" for number in range(N_PROVIDERS)]
    with tempfile.TemporaryDirectory() as folder:
        collection = {"metric": "euclidean", "providers": names, "filters": FILTER_KINDS}
        server = {"listen": "127.0.0.1:0"}
        config = BrokerConfig.model_validate(
            {
                "format": 1,
                "folder": folder,
                "server": server,
                "collections": {"vectors": collection},
            }
        )
        async with running_broker(config) as (broker, url):
            certificate = (Path(folder) / "state/server.crt").read_text()
            spawn = multiprocessing.get_context("spawn")
            for number, name in enumerate(names):
                identity = Identity.new()
                add_local_provider(broker.state, name, identity)
                port = await start_relay(int(url.rpartition(":")[2]))
                place = f"https://127.0.0.1:{port}"
                arguments = name, number, n, identity.private, place, certificate
                spawn.Process(target=serve_vectors, args=arguments, daemon=True).start()
            parts = [draw(number, n) for number in range(N_PROVIDERS)]
            await broker.registry.wait_for(tuple(names), 600)
            await measure(broker, parts, n_queries)


if __name__ == "__main__":
    asyncio.run(main())
