"""All algorithms, ready to search one federation for the k nearest objects."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedneighbors.federation._loop import Coordinator
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Party
from fedneighbors.methods.fedknn._radius import hufu, hufu_plus
from fedneighbors.methods.fedknn.private._noise import CountNoise
from fedneighbors.methods.fedknn.private.protocol import NoiseOf, dann_star
from fedneighbors.methods.fedknn.protocol import Answer, BoundReply, BoundRequest, baseline, dann

DELTA = "1e-6"
"""Of DANN* where its answers are always exact."""
LAMBDA = "0.05"
"""Share of answers that may be not exact, and flagged, where they are certified."""


@dataclass(frozen=True)
class Question:
    """Query of a federation.

    Parameters
    ----------
    query : bytes
        As providers decode it.
    k, n_parties : int
        Neighbours wanted, providers asked.
    name : str
        New for each question.
    step : float
        Distances are multiples of it; 0 if they may be any number.
    """

    query: bytes
    k: int
    n_parties: int
    name: str
    step: float


Contender = Callable[[Question], Coordinator[Answer]]


def star_at(epsilon: str, *, certified: bool = False) -> Contender:
    """Return DANN* with a budget of ``epsilon`` per query.

    Its noise is drawn, but not charged to a ledger.
    """

    def ask(asked: Question) -> Coordinator[Answer]:
        return dann_star(
            asked.query,
            asked.k,
            name=asked.name,
            noise_of=_drawn(epsilon, asked, certified=certified),
            always_exact=not certified,
        )

    return ask


def _drawn(epsilon: str, asked: Question, *, certified: bool) -> NoiseOf:
    law = CountNoise(
        epsilon,
        0 if certified else DELTA,
        n_providers=asked.n_parties,
        k=asked.k,
        promise="certified" if certified else "exact",
        failure=LAMBDA,
    )
    return lambda _, names: dict(zip(names, law.draw_all(len(names)), strict=True))


def _evenly(bounds: Mapping[str, Any], k: int) -> dict[str, int]:
    return dict.fromkeys(bounds, math.ceil(k / len(bounds)))


ALGORITHMS: Mapping[str, Contender] = {
    "baseline": lambda asked: baseline(asked.query, asked.k, name=asked.name),
    "hufu": lambda asked: hufu(asked.query, asked.k, name=asked.name, step=asked.step),
    "hufu+": lambda asked: hufu_plus(asked.query, asked.k, name=asked.name, step=asked.step),
    "dann": lambda asked: dann(asked.query, asked.k, name=asked.name),
    "dann*": star_at("1"),
    "dann* certified": star_at("1", certified=True),
    "dann, no bounds": lambda asked: dann(asked.query, asked.k, name=asked.name, estimate=_evenly),
}
"""The algorithms by name; budgets are those of the paper's section 6.3, epsilon of 1."""


def contender(name: str) -> Contender:
    """Return an algorithm; ``"dann* 0.5"`` is DANN* with an epsilon of 0.5."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    kind, _, epsilon = name.rpartition(" ")
    return star_at(epsilon, certified=kind.endswith("certified"))


class PartyWithoutBounds:
    """A provider whose lower bounds are all 0 and cost no time.

    Parameters
    ----------
    party : Party
        The provider.
    n_objects : int
        Number of its objects.
    """

    def __init__(self, party: Party, n_objects: int) -> None:
        self.name = party.name
        self.accepts = party.accepts
        self._party = party
        self._n_objects = n_objects

    def answer(self, request: Message) -> Message:
        """Return the provider's reply, or bounds of 0."""
        if isinstance(request, BoundRequest):
            return BoundReply(np.zeros(min(request.k, self._n_objects)))
        return self._party.answer(request)
