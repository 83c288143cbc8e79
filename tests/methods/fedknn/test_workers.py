"""Searches in worker processes: repeated queries, and providers that hang, raise or die."""

import os
import signal
import threading

import pytest

from fedneighbors.errors import PartyMissing, PartyRefused
from fedneighbors.federation._inprocess import connected, run
from fedneighbors.federation._links import Link
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn.metrics._function import FunctionMetric
from fedneighbors.methods.fedknn.protocol import baseline, dann

HANGS, RAISES, DIES = -1.0, -2.0, -3.0
"""Objects whose distance cannot be computed."""


def distance(query, item):
    """Return the distance of two numbers; hang, raise or exit for the constants above."""
    if item == HANGS:
        threading.Event().wait()
    if item == RAISES:
        raise ZeroDivisionError("secret value 4711")
    if item == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    return abs(query - item)


def decode(raw):
    return float(raw)


def make_providers(**more):
    """Return three providers of a few numbers each, and ``more`` objects by provider."""
    tables = {"p0": [1.0, 5.0, 9.0], "p1": [2.0, 6.0], "p2": [3.0, 4.0, 8.0]}
    return [
        Provider.of(name, [*table, *more.get(name, [])], FunctionMetric(distance), decode=decode)
        for name, table in tables.items()
    ]


def neighbors(answer):
    return answer.merged.distances.tolist(), answer.merged.owners


def test_searches_in_processes_equal_those_in_threads():
    queries = [b"0.0", b"4.4", b"7.0"]

    with connected(make_providers(), workers="processes", link=Link(0.001)) as federation:
        in_processes = [
            [
                neighbors(federation.run(algorithm(q, 4, name=f"{algorithm.__name__} {q}")).result)
                for q in queries
            ]
            for algorithm in (baseline, dann)
        ]

    in_threads = [neighbors(run(dann(q, 4, name="q"), make_providers()).result) for q in queries]
    assert in_processes == [in_threads, in_threads]
    assert in_threads[0] == ([1.0, 2.0, 3.0, 4.0], ("p0", "p1", "p2", "p2"))


@pytest.mark.usefixtures("all_processes_end")
@pytest.mark.parametrize(
    ("item", "reason"), [(HANGS, "no answer within 1 s"), (DIES, "its process ended")]
)
def test_hanging_or_dead_providers_are_reported_as_missing(item, reason):
    faulty = make_providers(p1=[item])

    with connected(faulty, workers="processes", deadline_s=1) as federation:
        with pytest.raises(PartyMissing) as caught:
            federation.run(dann(b"0.0", 3, name="whole"))
        partial = federation.run(dann(b"0.0", 3, name="partial", allow_partial=True)).result

    assert caught.value.missing == {"p1": reason}
    assert neighbors(partial) == ([1.0, 3.0, 4.0], ("p0", "p2", "p2"))
    assert (partial.exact, partial.missing) == (False, {"p1": reason})


def test_a_raising_provider_is_named_without_its_values():
    with (
        connected(make_providers(p2=[RAISES]), workers="processes") as federation,
        pytest.raises(PartyRefused) as caught,
    ):
        federation.run(baseline(b"0.0", 3, name="q"))

    error = caught.value
    assert (error.party, error.code, error.detail) == ("p2", "internal error", "")
    assert "4711" not in str(error)
