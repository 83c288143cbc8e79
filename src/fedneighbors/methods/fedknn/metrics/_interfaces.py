"""Interfaces of metrics, indexes and sessions.

A session answers one query. It emits objects in batches, in ascending order of distance; at equal
distance, the object of lower *rank* comes first. The second round of a federated search continues
the first. An object is *certified* if it is known to be the next one in this order; certified
objects are never emitted again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from fedneighbors._typing import Floats, Integers


@dataclass(frozen=True)
class SessionBatch:
    """The next objects of a session, in ascending order of (distance, rank).

    Parameters
    ----------
    positions : int64 array of shape (n,)
        Positions of the objects in the index.
    distances : float64 array of shape (n,)
        Distances to the query, in the unit of the metric.
    exhausted : bool
        True if no further object is left, or none within the cutoff.
    n_certified : int
        Number of leading objects that are certified: all, unless the deadline passed or the index
        is approximate. After them, nearer objects may be missing, so that the i-th distance is at
        least that of the i-th object of an exact batch.
    frontier : float
        After a deadline: every object nearer than this was emitted. If unknown, a number that no
        distance is below: 0, or the metric's ``least``.
    """

    positions: Integers
    distances: Floats
    exhausted: bool
    n_certified: int
    frontier: float = 0.0


class Session(Protocol):
    """One open query."""

    exact: bool
    """True if emitted order and distances are exact; false for approximate indexes."""

    n_verified: int
    """Number of distances computed so far (bounds do not count)."""

    def bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return a lower bound of the distance of each object, shape (n_objects,).

        Raises
        ------
        TimeoutError
            If more than ``deadline_s`` seconds have passed.
        """
        ...

    def next(
        self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None
    ) -> SessionBatch:
        """Emit the next ``k`` objects with distances up to ``cutoff``.

        Parameters
        ----------
        k : int
            Number of objects, 0 or more; fewer are returned if no more are left.
        cutoff : float
            Maximum distance of returned objects.
        deadline_s : float, optional
            Timeout in seconds; when it has passed, the best objects found so far are returned.
        """
        ...

    def count(self, radius: float, *, deadline_s: float | None = None) -> int:
        """Count the objects of the index within ``radius``.

        Raises
        ------
        TimeoutError
            If more than ``deadline_s`` seconds have passed.
        """
        ...


class Found(NamedTuple):
    """Nearest objects of the search space.

    Parameters
    ----------
    positions : int64 array of shape (n,)
        Positions of the objects.
    farthest : float
        Search distance that no other object is below.
    distances : float64 array of shape (n,), optional
        Distances of the metric, if known; objects are then in the order of emission.
    """

    positions: Integers
    farthest: float
    distances: Floats | None = None


class PointSearch(Protocol):
    """Search for the nearest points of one query in a tree."""

    def count(self, radius: float) -> int:
        """Count the objects within a radius of the search space."""
        ...

    def list_within(self, radius: float, n: int) -> Integers:
        """Return the ``n`` objects within a radius of the search space."""
        ...

    def nearest(self, n: int, radius: float) -> Found:
        """Return the ``n`` nearest objects, or all within a radius."""
        ...


class Index(Protocol):
    """The search index of one party's objects."""

    n_objects: int

    def open(self, query: Any) -> Session:
        """Open a session for a query.

        Raises
        ------
        TypeError, ValueError
            If the query is not an object of this metric.
        """
        ...


@dataclass(frozen=True)
class SessionIndex:
    """An index made from a function that opens sessions.

    Parameters
    ----------
    n_objects : int
        Number of the party's objects.
    open : callable
        Function from a query to its session.
    """

    n_objects: int
    open: Callable[[Any], Session]


@runtime_checkable
class Metric(Protocol):
    """A distance on objects of one kind.

    A class may have an attribute ``step``: a number of which all distances are multiples, such as 1
    for the edit distance. Searches that vary the radius then try only multiples of ``step``. An
    attribute ``least`` is a finite number that no distance is below; 0 by default.

    A metric can be made from a distance function alone with
    :class:`~fedneighbors.methods.fedknn.metrics._function.FunctionMetric`.
    """

    name: str

    def distance(self, first: Any, second: Any) -> float:
        """Return the distance of two objects."""
        ...

    def index(self, objects: Sequence[Any], *, ranks: Integers) -> Index:
        """Return a search index of objects.

        Parameters
        ----------
        objects : sequence
            May be empty.
        ranks : int64 array of shape (n_objects,)
            Distinct ranks; of objects of equal distance, those of lower rank come first.

        Raises
        ------
        TypeError, ValueError
            If an object is invalid for this metric; the error names its position.
        """
        ...
