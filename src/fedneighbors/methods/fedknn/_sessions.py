"""What a metric gives to a search: an index of one table's objects, and sessions that go on.

A session answers one query. It emits objects in one total order (distance, then rank), a part at a
time: the second round of a federated search continues the first. What it has emitted as certain it
never emits again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedneighbors._typing import Floats, Integers


@dataclass(frozen=True)
class Found:
    """Objects in ascending order of (distance, rank).

    Parameters
    ----------
    positions : int64 array of shape (n,)
        Where the objects stand in the index.
    distances : float64 array of shape (n,)
        Their distances to the query, in the unit of the metric.
    exhausted : bool
        Whether no further object is left, or none within the cutoff.
    n_certified : int
        How many from the front are exact. All of them, unless a deadline passed or the index is
        approximate; the distances of the others are upper bounds of what they stand for.
    """

    positions: Integers
    distances: Floats
    exhausted: bool
    n_certified: int


class Session(Protocol):
    """One query under way."""

    exact: bool
    """Whether emitted order and distances are exact; false for approximate indexes."""

    n_verified: int
    """Objects whose distance was computed so far (not bounded)."""

    def bounds(self) -> Floats:
        """Return a lower bound of the distance of each object, shape (n_objects,)."""
        ...

    def next(self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None) -> Found:
        """Emit the next ``k`` objects, those of a distance above ``cutoff`` left out.

        Parameters
        ----------
        k : int
            How many, 0 or more; fewer come if no more are left.
        cutoff : float
            Objects farther than this are not asked for.
        deadline_s : float, optional
            Seconds from now after which the best found so far is returned.
        """
        ...

    def count(self, radius: float) -> int:
        """Return how many objects of the index lie within a distance of ``radius``."""
        ...


class Index(Protocol):
    """The objects of one party, ready for queries."""

    n_objects: int

    def open(self, query: Any) -> Session:
        """Begin a search for the neighbours of a query.

        Raises
        ------
        TypeError, ValueError
            If the query is not an object of this metric.
        """
        ...


@runtime_checkable
class Metric(Protocol):
    """A distance on objects of one kind.

    A class whose distances are multiples of a number names it in ``step``: searches by radius then
    try no other ones.

    A metric of a user's own needs ``distance`` alone, see
    :class:`~fedneighbors.methods.fedknn.metrics._plain.PlainMetric`.
    """

    name: str

    def distance(self, first: Any, second: Any) -> float:
        """Return the distance of two objects."""
        ...

    def index(self, objects: Sequence[Any], *, ranks: Integers) -> Index:
        """Return an index.

        Parameters
        ----------
        objects : sequence
            May be empty.
        ranks : int64 array of shape (n_objects,)
            Order of objects of equal distance, lower first, no two equal.

        Raises
        ------
        TypeError, ValueError
            If an object is not one of this metric; its position is named.
        """
        ...


def next_until(session: Session, k: int, *, cutoff: float, tie: int, ties: Integers) -> Found:
    """Emit the next ``k`` objects up to a place in the total order, or a few more.

    Objects at the cutoff are searched in parts that grow, so that of many that are tied there few
    are searched for beyond the place.

    Parameters
    ----------
    session : Session
        A query under way.
    k : int
        How many, 0 or more.
    cutoff : float
        Distance of the place.
    tie : int
        Tie key of the place.
    ties : int64 array of shape (n_objects,)
        Tie keys, by position, in the order of the session's ranks.

    Returns
    -------
    Found
        ``exhausted`` where no further object comes before the place.
    """
    found = [session.next(k, cutoff=float(np.nextafter(cutoff, -math.inf)))]
    n_left, part, passed = k - len(found[0].positions), 1, False
    while n_left > 0 and not passed:
        found.append(session.next(min(part, n_left), cutoff=cutoff))
        last = found[-1].positions[-1:]
        passed = found[-1].exhausted or bool((ties[last] > tie).any())
        n_left -= len(found[-1].positions)
        part *= 2
    return Found(
        positions=np.concatenate([each.positions for each in found]),
        distances=np.concatenate([each.distances for each in found]),
        exhausted=passed,
        n_certified=sum(each.n_certified for each in found),
    )
