"""Metrics defined by a distance function; a search computes every distance."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.fedknn.metrics._interfaces import SessionBatch, SessionIndex
from fedneighbors.methods.fedknn.metrics._sessions import LATE, end_at


class FunctionMetric:
    """A metric defined by a distance function.

    Parameters
    ----------
    function : callable
        Function of two objects that returns a non-negative number. The triangle inequality need not
        hold.
    name : str
        Name of the metric.
    """

    def __init__(self, function: Callable[[Any, Any], float], name: str = "custom") -> None:
        self.name = name
        self._function = function

    def distance(self, first: Any, second: Any) -> float:
        """Return the distance of two objects.

        Raises
        ------
        ValueError
            If the function does not return a non-negative number.
        """
        value = float(self._function(first, second))
        if not value >= 0:
            raise ValueError(f"expected a distance of 0 or more from {self.name!r}, got {value!r}")
        return value

    def index(self, objects: Sequence[Any], *, ranks: Integers) -> SessionIndex:
        """Return an index whose searches compute every distance."""
        return SessionIndex(len(objects), partial(_FunctionSession, self, objects, ranks))


class _FunctionSession:
    exact = True

    def __init__(
        self, metric: FunctionMetric, objects: Sequence[Any], ranks: Integers, query: Any
    ) -> None:
        self.n_verified = 0
        self._metric = metric
        self._objects = objects
        self._ranks = ranks
        self._query = query
        self._distances = np.full(len(objects), np.nan)
        self._n_emitted = 0

    def bounds(self, *, deadline_s: float | None = None) -> Floats:  # noqa: ARG002 - no work
        return np.zeros(len(self._objects))

    def separate_bounds(self, *, deadline_s: float | None = None) -> Floats:
        return self.bounds(deadline_s=deadline_s)

    def next(
        self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None
    ) -> SessionBatch:
        complete = self._compute(deadline_s)
        known = np.flatnonzero(~np.isnan(self._distances))
        order = known[np.lexsort((self._ranks[known], self._distances[known]))]
        remaining = order[self._n_emitted :]
        remaining = remaining[self._distances[remaining] <= cutoff]
        positions = remaining[:k]
        self._n_emitted += len(positions) if complete else 0
        return SessionBatch(
            positions=positions,
            distances=self._distances[positions],
            exhausted=complete and len(remaining) <= k,
            n_certified=len(positions) if complete else 0,
        )

    def count(self, radius: float, *, deadline_s: float | None = None) -> int:
        if not self._compute(deadline_s):
            raise TimeoutError(LATE)
        return int((self._distances <= radius).sum())

    def _compute(self, deadline_s: float | None) -> bool:
        """Compute the missing distances; return whether all are known."""
        end = end_at(deadline_s)
        while self.n_verified < len(self._objects):
            if time.monotonic() > end:
                return False
            position = self.n_verified
            self._distances[position] = self._metric.distance(self._query, self._objects[position])
            self.n_verified += 1
        return True
