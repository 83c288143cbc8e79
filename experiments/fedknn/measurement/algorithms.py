"""The compared search algorithms by name."""

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
"""Delta of DANN* if answers are always exact."""
LAMBDA = "0.05"
"""Maximum probability that a certified answer is not exact; such answers are flagged."""


@dataclass(frozen=True)
class SearchRequest:
    """One query and its settings.

    Parameters
    ----------
    query : bytes
        The encoded query object.
    k, n_parties : int
        Number of neighbors, and of providers.
    name : str
        Unique name of the search.
    step : float
        Distances are multiples of it; 0 if there is no step.
    """

    query: bytes
    k: int
    n_parties: int
    name: str
    step: float


Algorithm = Callable[[SearchRequest], Coordinator[Answer]]


def build_dann_star(epsilon: str, *, certified: bool = False) -> Algorithm:
    """Return DANN* with a budget of ``epsilon`` per query.

    The noise is not charged to a ledger.
    """

    def search(request: SearchRequest) -> Coordinator[Answer]:
        return dann_star(
            request.query,
            request.k,
            name=request.name,
            noise_of=_noise_source(epsilon, request, certified=certified),
            always_exact=not certified,
        )

    return search


def _noise_source(epsilon: str, request: SearchRequest, *, certified: bool) -> NoiseOf:
    noise = CountNoise(
        epsilon,
        0 if certified else DELTA,
        n_providers=request.n_parties,
        k=request.k,
        promise="certified" if certified else "exact",
        failure=LAMBDA,
    )
    return lambda _, names: dict(zip(names, noise.draw_all(len(names)), strict=True))


def _split_evenly(bounds: Mapping[str, Any], k: int) -> dict[str, int]:
    return dict.fromkeys(bounds, math.ceil(k / len(bounds)))


ALGORITHMS: Mapping[str, Algorithm] = {
    "baseline": lambda request: baseline(request.query, request.k, name=request.name),
    "hufu": lambda request: hufu(request.query, request.k, name=request.name, step=request.step),
    "hufu+": lambda request: hufu_plus(
        request.query, request.k, name=request.name, step=request.step
    ),
    "dann": lambda request: dann(request.query, request.k, name=request.name),
    "dann*": build_dann_star("1"),
    "dann* certified": build_dann_star("1", certified=True),
    "dann, no bounds": lambda request: dann(
        request.query, request.k, name=request.name, estimate=_split_evenly
    ),
}
"""The algorithms by name; DANN* has epsilon = 1, as in section 6.3 of the paper."""


def find_algorithm(name: str) -> Algorithm:
    """Return an algorithm; ``"dann* 0.5"`` is DANN* with an epsilon of 0.5."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    kind, _, epsilon = name.rpartition(" ")
    return build_dann_star(epsilon, certified=kind.endswith("certified"))


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
        """Return bounds of 0; pass on all other requests."""
        if isinstance(request, BoundRequest):
            return BoundReply(np.zeros(min(request.k, self._n_objects)))
        return self._party.answer(request)
