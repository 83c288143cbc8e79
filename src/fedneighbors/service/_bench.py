"""Throughput and latency of searches of a running broker, and the parts of the latency."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import httpx
import numpy as np

from fedneighbors.errors import DataError
from fedneighbors.service._client import AsyncRemoteNeighbors
from fedneighbors.service._remote_search import ApiRequest, BrokerUnreachable, ServiceError

N_DRAWN = 1000
_N_TRACED = 20
_SHARES = (50, 90, 99)  # per cent
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class BenchResult:
    """Measured queries.

    Parameters
    ----------
    seconds : float
        Seconds from the first query to the last answer.
    latencies, broker_s : sequence of float
        Seconds of each answered query at the client, and those that its answer states.
    failures : mapping of str to int
        Number of failed queries by code.
    traced : sequence of tuple of float
        Seconds at the client, at the broker, and in exchanges with providers, of queries that ran
        one at a time.
    """

    seconds: float
    latencies: Sequence[float]
    broker_s: Sequence[float]
    failures: Mapping[str, int]
    traced: Sequence[tuple[float, float, float]]

    def to_json(self) -> dict[str, Any]:
        """Return the figures; latencies in milliseconds."""
        latencies = 1e3 * np.array(self.latencies)
        total, broker, exchanges = (1e3 * median(part) for part in zip(*self.traced, strict=True))
        return {
            "queries": len(latencies),
            "seconds": self.seconds,
            "queries_per_second": len(latencies) / self.seconds,
            "failures": dict(self.failures),
            "latency_ms": {
                **{f"{share} %": float(np.percentile(latencies, share)) for share in _SHARES},
                "maximum": float(latencies.max()),
            },
            "broker_ms": {"50 %": 1e3 * median(self.broker_s)},
            "one_at_a_time_ms": {
                "latency": total,
                "network": max(total - broker, 0.0),
                "broker": max(broker - exchanges, 0.0),
                "slowest provider": exchanges,
            },
        }


def draw_queries(description: Mapping[str, Any]) -> list[Any]:
    """Return random queries for a collection, from its description.

    Raises
    ------
    DataError
        If the description does not tell enough about its objects.
    """
    rng, kind = np.random.default_rng(0), description["objects"]
    if kind == "places":
        columns = rng.uniform(-180, 180, N_DRAWN), rng.uniform(-90, 90, N_DRAWN)
        return np.stack(columns, axis=1).tolist()  # type: ignore[no-any-return]
    if kind == "vectors" and description["n_columns"]:
        return rng.normal(size=(N_DRAWN, description["n_columns"])).tolist()  # type: ignore[no-any-return]
    if kind == "rows":
        cells = {name: _draw(rng, values) for name, values in description["columns"].items()}
        return [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    raise DataError(
        f"the description of collection {description['name']!r} does not tell about its {kind}: "
        "pass a file with a query in each line as --queries"
    )


def _draw(rng: np.random.Generator, values: Sequence[Any]) -> list[Any]:
    """Draw numbers from a range, or categories."""
    if all(isinstance(value, str) for value in values):
        return [values[position] for position in rng.integers(len(values), size=N_DRAWN)]
    low, high = values
    return rng.uniform(low, high, N_DRAWN).tolist()  # type: ignore[no-any-return]


async def run_bench(
    client: AsyncRemoteNeighbors,
    queries: Sequence[Any],
    *,
    k: int,
    seconds: float,
    in_flight: int,
    most: int | None,
    report: Progress,
) -> BenchResult:
    """Send searches for some seconds, several at a time, and then some one at a time.

    Parameters
    ----------
    client : AsyncRemoteNeighbors
        Client of the collection.
    queries : sequence of object
        Queries, which are repeated if necessary.
    k : int
        Number of neighbours.
    seconds : float
        Seconds in which queries are sent.
    in_flight : int
        Number of queries at a time.
    most : int or None
        Maximum number of queries that may be charged to a privacy budget; None for any.
    report : callable
        Takes seconds passed, all seconds, and a text.

    Raises
    ------
    ServiceError
        If a query fails for good, such as without a right to search.
    DataError
        If no query is answered.
    """
    frames = [next(client._ask("search", [query], k=k)) for query in queries[:most]]
    numbers = iter(range(len(frames) if most is not None else 2**62))
    latencies, broker_s, failures = list[float](), list[float](), Counter[str]()
    started = time.perf_counter()

    async def work() -> None:
        for number in numbers:
            begun = time.perf_counter()
            if begun - started > seconds:
                return
            try:
                (answer,) = await client._send(frames[number % len(frames)])
            except (ServiceError, BrokerUnreachable) as error:
                if not error.retryable:
                    raise
                failures[getattr(error, "code", "unreachable")] += 1
                continue
            latencies.append(time.perf_counter() - begun)
            broker_s.append(answer["seconds"])
            report(int(begun - started), int(seconds), f"{len(latencies)} queries")

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(in_flight):
                tasks.create_task(work())
    except* (ServiceError, DataError) as group:
        raise group.exceptions[0] from None
    passed = time.perf_counter() - started
    if not latencies:
        raise DataError(f"no query was answered: {dict(failures) or 'allow more queries'}")
    traced = [await _trace(client, frame) for frame in frames[:_N_TRACED]]
    return BenchResult(passed, latencies, broker_s, failures, traced)


async def _trace(client: AsyncRemoteNeighbors, frame: ApiRequest) -> tuple[float, float, float]:
    """Run a query twice, the second time with events; return its seconds."""
    begun = time.perf_counter()
    await client._send(frame)
    latency = time.perf_counter() - begun
    headers = {**(frame.headers or {}), "Prefer": "respond-async"}
    (started,) = await client._send(frame._replace(headers=headers, seals=()))
    http: httpx.AsyncClient = client._client
    response = await http.get(f"/v1/queries/{started['query_id']}/events", timeout=60.0)
    events = [block.split("\n") for block in response.text.strip().split("\n\n")]
    found = [(lines[0][7:], json.loads(lines[-1][6:])) for lines in events if len(lines) > 1]
    exchanges = sum(content["seconds"] for name, content in found if name == "round")
    (done,) = [content for name, content in found if name == "done"]
    if "seconds" not in done:
        raise ServiceError.of(done, int(done.get("status", 0)))
    return latency, done["seconds"], exchanges
