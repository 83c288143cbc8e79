"""Test of a source of one's own: :func:`check_source`."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedneighbors.errors import SourceError
from fedneighbors.methods.fedknn._filters import FilterColumns, Where
from fedneighbors.methods.fedknn._sources import MemorySource, SourceQuery
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.sources._candidates import CandidateSource
from fedneighbors.sources._pushed import PushedSource

_OWNER, _KEY = "owner", b"key"
_READS = ((1, 0, 7, 20), (40,), (0, 3, 3, 100))
_DEADLINE_S = 0.001  # long enough for a first statement
_MAX_DELAY_S = 10.0  # until a change is seen


def check_source(
    source: CandidateSource,
    objects: Sequence[Any],
    ids: Sequence[str],
    *,
    metric: str,
    queries: Sequence[Any] | None = None,
    columns: Any = None,
    filters: Sequence[Where] = (),
    change: Callable[[], tuple[Sequence[Any], Sequence[str]]] | None = None,
) -> None:
    """Check a source against a search of the same objects in memory.

    Checked are the order of objects and their distances, ties included, over several reads; bounds;
    counts within radii; filters; the length of names; a query that goes on after its deadline; and,
    with ``change``, that an open query does not see the change, and that a new one does.

    Parameters
    ----------
    source : CandidateSource
        The source, over a database with exactly the ``objects``.
    objects : sequence of shape (n_objects,)
        Objects of the metric; some should be equal.
    ids : sequence of str of shape (n_objects,)
        Their names in the database.
    metric : str
        Name of the metric.
    queries : sequence, optional
        Queries; by default the first 20 objects.
    columns : mapping of str to sequence of shape (n_objects,), optional
        Cells of the columns for filters.
    filters : sequence of mapping
        Filters to check.
    change : callable, optional
        Changes objects in the database; returns all objects and names after it.

    Raises
    ------
    SourceError
        If the source breaks the contract; the message names the query and the difference.

    Examples
    --------
    >>> check_source(source, rows, names, metric="euclidean")  # doctest: +SKIP
    """
    pushed, memory = _open_both(source, objects, ids, metric, columns)
    longest = max((len(name.encode()) for name in ids), default=0)
    _expect_equal("the length of the longest name", source.longest_name(), longest)
    chosen = list(objects[:20] if queries is None else queries)
    for where in (None, *filters):
        _expect_equal(f"the size with filter {where}", source.size(where), memory.size(where))
        for i, query in enumerate(chosen):
            found, expected = pushed.open(query, where), memory.open(query, where)
            _compare(found, expected, f"query {i} with filter {where}", _READS[i % len(_READS)])
            found.close()
    if change is not None:
        _check_change(source, pushed, memory, chosen[0], change, metric)


def _check_change(
    source: CandidateSource,
    pushed: PushedSource,
    memory: MemorySource,
    query: Any,
    change: Callable[[], tuple[Sequence[Any], Sequence[str]]],
    metric: str,
) -> None:
    """Compare answers to a query before and after a change."""
    before, expected = pushed.open(query, None), memory.open(query, None)
    _compare(before, expected, "a query before the change", (1,), has_counts=False)
    pushed, memory = _open_both(source, *change(), metric)
    _compare(before, expected, "a query that was open during the change", (5, 100))
    before.close()
    end = time.monotonic() + _MAX_DELAY_S
    after = pushed.open(query, None)
    while after.epoch == before.epoch and time.monotonic() < end:
        after.close()
        time.sleep(0.1)
        after = pushed.open(query, None)
    if before.epoch is None or after.epoch == before.epoch:
        raise SourceError(f"expected another version after the change, got {after.epoch!r} again")
    _compare(after, memory.open(query, None), "a query after the change", (5, 100))
    after.close()


def _open_both(
    source: CandidateSource, objects: Any, ids: Sequence[str], metric: str, columns: Any = None
) -> tuple[PushedSource, MemorySource]:
    """Return a source and its objects in memory."""
    table = None if columns is None else FilterColumns.of(columns, len(ids))
    filters = {} if table is None else table.kinds
    one = metric_of(metric)
    return (
        PushedSource(source, one, owner=_OWNER, key=_KEY, filters=filters),
        MemorySource(objects, one, owner=_OWNER, epoch=b"", ids=ids, key=_KEY, columns=table),
    )


def _compare(
    found: SourceQuery,
    expected: SourceQuery,
    name: str,
    reads: Sequence[int],
    *,
    has_counts: bool = True,
) -> None:
    """Raise if two open queries answer differently."""
    if not found.exact:
        raise SourceError(f"{name}: expected an exact source")
    radii = [0.0, math.inf]
    for n in reads:
        if n == reads[-1]:  # a query goes on after a deadline
            late = found.next(n, deadline_s=_DEADLINE_S)
            one = expected.next(len(late.ids))
            _expect_equal(f"{name}: the objects before a deadline", late.ids, one.ids)
            n -= len(late.ids)
        one, other = found.next(n), expected.next(n)
        _expect_equal(f"{name}: the next {n} objects", one.ids, other.ids)
        _expect_equal(f"{name}: their distances", one.distances.tolist(), other.distances.tolist())
        radii += other.distances[[0, -1]].tolist() if n and len(other.ids) else []
    for radius in radii if has_counts else ():
        for value in (radius, float(np.nextafter(radius, -math.inf))):
            count, right = found.count(value), expected.count(value)
            _expect_equal(f"{name}: the count within {value}", count, right)


def _expect_equal(name: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise SourceError(f"{name}: expected {expected!r:.300}, got {found!r:.300}")
