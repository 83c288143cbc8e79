"""A provider's side of planning: a sample query, searched step by step with a watch in hand."""

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedneighbors._typing import Integers
from fedneighbors.methods.fedknn._sessions import Session
from fedneighbors.methods.fedknn.planner._messages import SampleReply, SampleRequest


def sample(
    open_session: Callable[[], Session],
    request: SampleRequest,
    *,
    ties: Integers,
    ids: Sequence[str],
) -> SampleReply:
    """Search for the k nearest objects by doubling steps and tell how long each took.

    Costs what a search of the baseline costs, the bounds, and a second search for one object, which
    tells how much of a search the bounds had done already.

    Parameters
    ----------
    open_session : callable
        Begins a search of the query.
    request : SampleRequest
        What to search for, and the time limit.
    ties : int64 array of shape (n_objects,)
        Tie keys by position.
    ids : sequence of str
        Names by position.
    """
    started = time.perf_counter()
    end = started + request.limit_s
    session = open_session()
    opened = time.perf_counter()
    bounds = np.sort(session.bounds())[: request.k]
    bounded = time.perf_counter()
    positions, distances = np.empty(0, np.int64), np.empty(0)
    steps, reached_s = [], []
    exhausted = complete = False
    for step in _doubling(request.k):
        wanted = step - len(positions)
        found = session.next(wanted, deadline_s=max(end - time.perf_counter(), 0.0))
        reached = time.perf_counter() - bounded
        # an approximate index certifies nothing, and emits nothing twice
        n = found.n_certified if session.exact else len(found.positions)
        positions = np.concatenate([positions, found.positions[:n]])
        distances = np.concatenate([distances, found.distances[:n]])
        exhausted = found.exhausted and n == len(found.positions)
        complete = exhausted or n == wanted
        if complete and n:
            steps.append(len(positions))
            reached_s.append(reached)
        if exhausted or not complete:
            break
    return SampleReply(
        bounds=np.ascontiguousarray(bounds),
        distances=distances,
        ties=ties[positions],
        ids=tuple(ids[position] for position in positions.tolist()),
        exhausted=exhausted,
        exact=session.exact,
        complete=complete,
        open_s=opened - started,
        bounds_s=bounded - opened,
        first_s=_first_s(open_session, end) if complete else 0.0,
        steps=np.array(steps, np.int64),
        reached_s=np.array(reached_s, np.float64),
    )


def _doubling(k: int) -> Iterator[int]:
    """Yield 1, 2, 4 and so on, and k at last."""
    step = 1
    while step < k:
        yield step
        step *= 2
    yield k


def _first_s(open_session: Callable[[], Session], end: float) -> float:
    session = open_session()
    started = time.perf_counter()
    session.next(1, deadline_s=max(end - started, 0.0))
    return time.perf_counter() - started
