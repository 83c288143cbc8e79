"""Throughput and latency of searches of a running broker, and the parts of the latency."""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import httpx
import numpy as np

from fedneighbors.datasets._objects import read_text_query
from fedneighbors.errors import DataError, FedneighborsError
from fedneighbors.service._client import AsyncRemoteNeighbors
from fedneighbors.service._remote_search import (
    ApiRequest,
    BrokerUnreachable,
    ServiceError,
)

N_DRAWN = 1000
_N_TRACED = 20
_SHARES = (50, 90, 99, 100)  # per cent
Report = Callable[[int, int, str], None]


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
        columns = description["columns"].items()  # the codes of a set are not described
        cells = {name: _draw(rng, values) for name, values in columns if values != "set"}
        if cells:
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
    lines: Iterable[str] | None,
    *,
    k: int,
    seconds: float,
    in_flight: int,
    charge: int | None,
    report: Report,
) -> dict[str, Any]:
    """Send searches for some seconds; return throughput and latencies.

    Parameters
    ----------
    client : AsyncRemoteNeighbors
        Client of the collection.
    lines : iterable of str, optional
        Texts of queries, which are repeated if necessary; by default, they are drawn.
    k : int
        Number of neighbours.
    seconds, in_flight : float and int
        Seconds in which queries are sent, and their number at a time.
    charge : int or None
        Maximum number of queries of a private collection.
    report : callable
        Takes steps done, all steps, and a text.

    Returns
    -------
    dict
        Numbers of queries and failures, and milliseconds; those of parts are of some queries that
        are sent again one at a time.

    Raises
    ------
    ServiceError
        If a query fails for good, such as without a right to search.
    DataError
        If a query is missing or invalid, or none is answered.
    ValueError
        If the collection is private or sealed, and the bench may not charge or cannot seal.
    """
    description = await client.describe()
    frames = _make_requests(client, description, lines, k=k, charge=charge)
    waiting = iter(frames) if description["private"] else itertools.cycle(frames)
    started = time.perf_counter()
    latencies, failures = await _send_queries(
        client, waiting, report, seconds=seconds, in_flight=in_flight
    )
    passed = time.perf_counter() - started
    shares = zip(_SHARES, np.percentile(latencies, _SHARES), strict=True)
    return {
        "queries": len(latencies),
        "failures": dict(failures),
        "seconds": passed,
        "queries_per_second": len(latencies) / passed,
        "latency_ms": {f"{share} %": round(1e3 * value, 3) for share, value in shares},
        "one_at_a_time_ms": await _measure_parts(client, frames[:_N_TRACED], report),
    }


async def _send_queries(
    client: AsyncRemoteNeighbors,
    frames: Iterator[ApiRequest],
    report: Report,
    *,
    seconds: float,
    in_flight: int,
) -> tuple[list[float], Counter[str]]:
    """Send queries, several at a time; return their seconds, and failures."""
    latencies, failures, started = list[float](), Counter[str](), time.perf_counter()

    async def work() -> None:
        for frame in frames:
            begun = time.perf_counter()
            if begun - started > seconds:
                return
            try:
                await client._send(frame)
            except (ServiceError, BrokerUnreachable) as error:
                if not error.retryable:
                    raise
                failures[getattr(error, "code", "unreachable")] += 1
                continue
            latencies.append(time.perf_counter() - begun)
            report(int(1e3 * (begun - started)), int(1e3 * seconds), f"{len(latencies)} queries")

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(in_flight):
                tasks.create_task(work())
    except* FedneighborsError as group:
        raise group.exceptions[0] from None
    if not latencies:
        reasons = ", ".join(f"{count:,} failed: {code}" for code, count in failures.items())
        raise DataError(f"no query was answered, {reasons or 'the time was too short'}")
    return latencies, failures


async def _measure_parts(
    client: AsyncRemoteNeighbors, frames: Sequence[ApiRequest], report: Report
) -> dict[str, float]:
    """Return the median milliseconds of each part of the latency."""
    traced: list[tuple[float, float, float]] = []
    for frame in frames:
        report(len(traced), len(frames), "parts of the latency")
        traced.append(await _trace(client, frame))
    parts = zip(("network", "broker", "slowest provider"), zip(*traced, strict=True), strict=True)
    return {name: round(1e3 * median(values), 3) for name, values in parts}


def _make_requests(
    client: AsyncRemoteNeighbors,
    description: Mapping[str, Any],
    lines: Iterable[str] | None,
    *,
    k: int,
    charge: int | None,
) -> list[ApiRequest]:
    """Return a request for each query, as many as may be charged."""
    client.check_objects(description)
    if description["private"] and charge is None:
        raise ValueError(
            f"collection {client.collection!r} is private, and each different query is charged to "
            "its budgets: pass --charge with the number of queries; nothing was sent"
        )
    if lines is None:
        queries = draw_queries(description)
    else:
        kind, names = description["objects"], tuple(description["columns"] or ())
        queries = [read_text_query(one, kind, columns=names) for one in lines if one.strip()]
    most = charge if description["private"] else None
    frames = [next(client._ask("search", [query], k=k)) for query in queries[:most]]
    if not frames:
        raise DataError("expected a query in each line of the file, got none")
    return frames


async def _trace(client: AsyncRemoteNeighbors, frame: ApiRequest) -> tuple[float, float, float]:
    """Return seconds of a query in network, broker and providers.

    It runs twice, the second time with events.
    """
    begun = time.perf_counter()
    (answer,) = await client._send(frame)
    latency = time.perf_counter() - begun
    headers = {**(frame.headers or {}), "Prefer": "respond-async"}
    (started,) = await client._send(frame._replace(headers=headers, seals=()))
    http: httpx.AsyncClient = client._client
    response = await http.get(f"/v1/queries/{started['query_id']}/events", timeout=60.0)
    events = [block.split("\n") for block in response.text.strip().split("\n\n")]
    found = [(lines[0][7:], json.loads(lines[-1][6:])) for lines in events if len(lines) > 1]
    exchanges = sum(content["seconds"] for name, content in found if name == "round")
    done = found[-1][1]
    if "seconds" not in done:
        raise ServiceError.of(done, 0)
    return latency - answer["seconds"], max(done["seconds"] - exchanges, 0.0), exchanges
