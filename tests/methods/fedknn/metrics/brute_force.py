"""Random searches; every index must return the same objects as brute force.

A test draws a search and checks a metric with it::

    @given(searches(objects=words, queries=words))
    def test_search_equals_brute_force(search):
        search.assert_equals_brute_force(EditMetric())

Searches have repeated objects, random ranks, queries with and without an equal object,
and cutoffs and radii at, just below and just above the distances of objects.
"""

import contextlib
import itertools
import math
import time
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st

from fedneighbors.methods.fedknn.metrics import _sessions


@dataclass(frozen=True)
class Step:
    """One call of a session.

    ``limit`` says how the cutoff or radius derives from the distance of an object, the one at
    ``index`` in ascending order.
    """

    call: str
    k: int
    limit: str
    index: int


@dataclass(frozen=True)
class Search:
    """Objects, their ranks, a query, and the calls of a session in order."""

    objects: list[Any]
    query: Any
    ranks: list[int]
    steps: list[Step]
    step_cells: int = _sessions.STEP_CELLS

    def assert_equals_brute_force(self, metric):
        """Assert that sessions of the metric equal brute force."""
        with mock.patch.object(_sessions, "STEP_CELLS", self.step_cells):
            self._assert_equals_brute_force(metric)

    def _assert_equals_brute_force(self, metric):
        brute_force = BruteForce(metric, self)
        index = metric.index(self.objects, ranks=np.array(self.ranks, np.int64))
        assert index.n_objects == len(self.objects)
        brute_force.check_at_once(index.open(self.query))
        brute_force.check_in_batches(index.open(self.query), self.steps)


class BruteForce:
    """The brute-force answer of a search."""

    def __init__(self, metric, search):
        distances = [metric.distance(search.query, item) for item in search.objects]
        self.distances = np.array(distances, np.float64)
        self.order = np.array(
            sorted(range(len(distances)), key=lambda i: (distances[i], search.ranks[i])), np.int64
        )
        self.sorted = self.distances[self.order]

    def limit(self, step):
        """Return the cutoff or radius of a step."""
        fixed = {"none": math.inf, "zero": 0.0, "negative": -1.0}
        if step.limit in fixed or not len(self.sorted):
            return fixed.get(step.limit, 1.0)
        distance = float(self.sorted[step.index % len(self.sorted)])
        if step.limit == "at":
            return distance
        return float(np.nextafter(distance, math.inf if step.limit == "above" else -math.inf))

    def check_at_once(self, session):
        """Check one call for all objects, and calls after exhaustion."""
        batch = session.next(len(self.order) + 3)

        assert batch.positions.dtype == np.int64
        assert batch.distances.dtype == np.float64
        assert batch.positions.tolist() == self.order.tolist()
        assert batch.distances.tolist() == self.sorted.tolist()
        assert batch.exhausted
        assert batch.n_certified == len(self.order)
        for k in (0, 1, 5):
            again = session.next(k)
            assert len(again.positions) == len(again.distances) == again.n_certified == 0
            assert again.exhausted

    def check_in_batches(self, session, steps):
        """Check each step, then that all other objects follow."""
        n_emitted, n_verified = 0, 0
        for step in steps:
            if step.call == "bounds":
                self.check_bounds(session)
            elif step.call == "count":
                radius = self.limit(step)
                assert session.count(radius) == int((self.distances <= radius).sum())
            elif step.call == "late":
                self.check_late(session, step)
            else:
                n_emitted += self.check_batch(session, n_emitted, step)
            assert n_verified <= session.n_verified <= len(self.order)
            n_verified = session.n_verified
        self.check_batch(session, n_emitted, Step("next", len(self.order) + 1, "none", 0))
        assert session.next(1).exhausted

    def check_bounds(self, session):
        """Check that bounds do not exceed the distances."""
        bounds = session.bounds()

        assert bounds.shape == self.distances.shape
        assert (bounds <= self.distances).all()

    def check_late(self, session, step):
        """Interrupt a count and bounds after some readings of the clock."""
        radius = self.limit(step)
        with mock.patch.object(time, "monotonic", itertools.count().__next__):
            with contextlib.suppress(TimeoutError):
                found = session.count(radius, deadline_s=step.k)
                assert found == int((self.distances <= radius).sum())
            with contextlib.suppress(TimeoutError):
                assert (session.bounds(deadline_s=step.k) <= self.distances).all()

    def check_batch(self, session, n_emitted, step):
        """Check one batch; return its number of certified objects."""
        cutoff = self.limit(step)
        deadline_s = 0.0 if step.call == "deadline" else None
        remaining = slice(n_emitted, None)
        within = self.sorted[remaining] <= cutoff
        expected = self.order[remaining][within][: step.k]

        batch = session.next(step.k, cutoff=cutoff, deadline_s=deadline_s)

        n_certified = batch.n_certified
        assert batch.positions[:n_certified].tolist() == expected[:n_certified].tolist()
        assert batch.distances.tolist() == self.distances[batch.positions].tolist()
        assert len(set(batch.positions.tolist())) == len(batch.positions) <= step.k
        assert not set(batch.positions.tolist()) & set(self.order[:n_emitted].tolist())
        assert (batch.distances <= cutoff).all()
        assert (self.sorted[n_emitted + n_certified :] >= batch.frontier).all()
        if deadline_s is None:
            assert n_certified == len(batch.positions) == len(expected)
        # the i-th object of a batch is at least as far as the i-th remaining one
        assert (batch.distances >= self.sorted[remaining][: len(batch.distances)]).all()
        if batch.exhausted:
            assert n_certified == int(within.sum())
        elif deadline_s is None:
            assert n_certified == step.k
            assert n_emitted + n_certified < len(self.order)
        return n_certified


CALLS = ["next", "next", "next", "next", "deadline", "count", "bounds", "late"]
LIMITS = ["none", "none", "at", "below", "above", "zero", "negative"]
STEPS = st.lists(
    st.builds(
        Step,
        call=st.sampled_from(CALLS),
        k=st.integers(0, 6),
        limit=st.sampled_from(LIMITS),
        index=st.integers(0, 100),
    ),
    max_size=8,
)


@st.composite
def searches(draw, *, objects, queries=None, max_size=12):
    """Draw a search.

    Parameters
    ----------
    objects : strategy
        Single objects.
    queries : strategy, optional
        Queries, by default like objects; often the query is one of the objects.
    max_size : int
        Maximum number of distinct draws; up to four of them are repeated.
    """
    items = draw(st.lists(objects, max_size=max_size))
    if items:
        items = draw(st.permutations(items + draw(st.lists(st.sampled_from(items), max_size=4))))
    query_strategy = objects if queries is None else queries
    query = draw(query_strategy | st.sampled_from(items)) if items else draw(query_strategy)
    ranks = draw(st.permutations(range(len(items))))
    step_cells = draw(st.sampled_from([_sessions.STEP_CELLS, 1, 70]))
    return Search(items, query, [7 * rank - 3 for rank in ranks], draw(STEPS), step_cells)
