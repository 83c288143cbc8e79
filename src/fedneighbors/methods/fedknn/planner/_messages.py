"""Messages with which a broker measures its providers and the links to them."""

from typing import ClassVar

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._messages import message

MOST_ECHOED = 1 << 24
"""Bytes of an echo at most."""


@message
class EchoReply:
    """As many bytes as were asked for."""

    payload: bytes


@message
class EchoRequest:
    """Ask for ``n_bytes`` bytes; its own payload takes time on the way there."""

    reply: ClassVar[type] = EchoReply
    payload: bytes
    n_bytes: int

    def __post_init__(self) -> None:
        if not 0 <= self.n_bytes <= MOST_ECHOED:
            raise ValueError(f"expected 0 to {MOST_ECHOED} bytes, got {self.n_bytes}")

    def check(self, party: str, reply: EchoReply) -> None:  # noqa: ARG002 - runtimes name it
        """Refuse an echo of another length."""
        if len(reply.payload) != self.n_bytes:
            raise ValueError(f"{len(reply.payload)} bytes came, {self.n_bytes} were asked for")


@message
class SampleReply:
    """What a provider found of a sample query, and how long each step took it.

    Objects in the order of a :class:`~fedneighbors.methods.fedknn._messages.NearestReply`; the
    ``bounds`` are the k lowest, ascending. ``exhausted``: it has no others. ``complete``: it
    reached all that was asked for within the time limit.

    Seconds: ``open_s`` to begin a search, ``bounds_s`` until its bounds were there, and from then
    ``reached_s[i]`` until ``steps[i]`` objects were (1, 2, 4 and so on, ascending); ``first_s``
    until the first object was there in a search without bounds, 0 if that was not tried.
    """

    bounds: Floats
    distances: Floats
    ties: Integers
    ids: tuple[str, ...]
    exhausted: bool
    exact: bool
    complete: bool
    open_s: float
    bounds_s: float
    first_s: float
    steps: Integers
    reached_s: Floats

    def __post_init__(self) -> None:
        shape = (len(self.ids),)
        if self.distances.shape != shape or self.ties.shape != shape:
            raise ValueError("distances, ties and ids differ in number")
        if self.steps.ndim != 1 or self.steps.shape != self.reached_s.shape:
            raise ValueError("steps and their seconds differ in number")
        if (np.diff(self.steps, prepend=0) <= 0).any() or (self.steps > shape[0]).any():
            raise ValueError("steps do not ascend to the number of objects")
        times = np.array([self.open_s, self.bounds_s, self.first_s, *self.reached_s])
        if not (np.isfinite(times) & (times >= 0)).all() or (np.diff(self.reached_s) < 0).any():
            raise ValueError("seconds are not 0 or more and ascending")
        numbers = np.concatenate([self.bounds, self.distances])
        if not (np.isfinite(numbers) & (numbers >= 0)).all():
            raise ValueError("a bound or distance is not one")
        if (np.diff(self.bounds) < 0).any() or (np.diff(self.distances) < 0).any():
            raise ValueError("bounds or distances do not ascend")


@message
class SampleRequest:
    """Search for the ``k`` nearest objects of a query step by step, and tell the time of each.

    The search ends after ``limit_s`` seconds with what it has.
    """

    reply: ClassVar[type] = SampleReply
    query: bytes
    k: int
    limit_s: float

    def __post_init__(self) -> None:
        if self.k < 1 or not self.limit_s > 0:
            raise ValueError(
                f"expected k of 1 or more and a limit above 0 s, got {self.k} and {self.limit_s}"
            )

    def check(self, party: str, reply: SampleReply) -> None:  # noqa: ARG002 - runtimes name it
        """Refuse more than was asked for."""
        if max(len(reply.ids), len(reply.bounds)) > self.k:
            raise ValueError(f"more objects or bounds came than the {self.k} asked for")
