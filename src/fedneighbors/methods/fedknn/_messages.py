"""What travels between the providers of a federation and the broker that merges their objects."""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors.federation._messages import message


@message
class BoundReply:
    """The lowest bounds of a provider's objects, float64, ascending, at most k."""

    bounds: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        if not np.isfinite(self.bounds).all() or (self.bounds < 0).any():
            raise ValueError("a bound is not a distance")
        if self.bounds.ndim != 1 or (np.diff(self.bounds) < 0).any():
            raise ValueError("bounds are not an ascending vector")


@message
class BoundRequest:
    """Open a query of this name and ask for the ``k`` lowest bounds."""

    reply: ClassVar[type] = BoundReply
    name: str
    query: bytes
    k: int


@message
class NearestReply:
    """The next objects of a provider in ascending order of distance and tie key.

    ``n_verified`` counts the objects whose distance was computed for this query so far; ``exact``
    is false where the provider's index may have missed some.
    """

    distances: npt.NDArray[np.float64]
    ties: npt.NDArray[np.int64]
    ids: tuple[str, ...]
    exhausted: bool
    exact: bool
    n_verified: int

    def __post_init__(self) -> None:
        shape = (len(self.ids),)
        if self.distances.shape != shape or self.ties.shape != shape:
            raise ValueError("distances, ties and ids differ in number")
        if not np.isfinite(self.distances).all() or (self.distances < 0).any():
            raise ValueError("a distance is not one")
        rise = np.diff(self.distances)
        # not by differences of tie keys, which may run over
        if (rise < 0).any() or ((rise == 0) & (self.ties[1:] <= self.ties[:-1])).any():
            raise ValueError("objects are not in ascending order")
        if len(set(self.ids)) < len(self.ids):
            raise ValueError("an object comes twice")


@message
class NearestRequest:
    """Ask for the next ``count`` objects of a query, opening it if it is not open.

    ``cutoff`` leaves out objects farther away; None for none. Of objects at the cutoff those with a
    tie key above ``tie`` need not come, but may.
    """

    reply: ClassVar[type] = NearestReply
    name: str
    query: bytes
    count: int
    cutoff: float | None
    tie: int | None = None

    def check(self, party: str, reply: NearestReply) -> None:  # noqa: ARG002 - runtimes name it
        """Refuse more objects than were asked for, or fewer of a provider that has more."""
        if len(reply.ids) > self.count:
            raise ValueError(f"{len(reply.ids)} objects came, {self.count} were asked for")
        if len(reply.ids) < self.count and not reply.exhausted:
            raise ValueError(f"{len(reply.ids)} of {self.count} objects came, and more are left")
        if self.cutoff is not None and (reply.distances > self.cutoff).any():
            raise ValueError(f"an object lies beyond the cutoff of {self.cutoff}")


@message
class CountReply:
    """How many objects lie within a radius."""

    count: int


@message
class CountRequest:
    """Ask how many objects lie within ``radius`` of a query; None for how many there are."""

    reply: ClassVar[type] = CountReply
    name: str
    query: bytes
    radius: float | None


@message
class Finished:
    """The queries are closed."""


@message
class FinishRequest:
    """Close queries and forget them."""

    reply: ClassVar[type] = Finished
    names: tuple[str, ...]
