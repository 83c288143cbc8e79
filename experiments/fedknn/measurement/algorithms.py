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
from fedneighbors.methods.fedknn.private._noise import CountNoise, PaperNoise
from fedneighbors.methods.fedknn.private.protocol import (
    NoiseOf,
    dann_star,
    dann_star_as_printed,
    dann_star_in_two,
)
from fedneighbors.methods.fedknn.protocol import Answer, BoundReply, BoundRequest, baseline, dann

DELTA = "1e-6"
"""Delta of DANN* if answers are always exact."""
LAMBDA = "0.05"
"""Maximum probability that a certified answer is not exact; such answers are flagged."""

PRINTED = "dann* as printed (not exact)"
"""Algorithm 2 exactly as the paper prints it; the paper's DANN*."""

PAPER_NAMES: Mapping[str, str] = {
    "baseline": "baseline",
    "hufu": "HuFu-Ext",
    "dann": "DANN",
    "dann*": "DANN*",
    PRINTED: "DANN*",
    "dann, no bounds": "DANN (No LB)",
    "dann*, no bounds": "DANN* (No LB)",
}
"""The paper's algorithm that stands next to each of ours."""


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
    first_radius : float or None
        First radius of HuFu, which no other algorithm needs.
    """

    query: bytes
    k: int
    n_parties: int
    name: str
    step: float
    first_radius: float | None


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
            noise_of=_draw(_make_noise(epsilon, request, certified=certified)),
            always_exact=not certified,
        )

    return search


def _make_noise(
    epsilon: str, request: SearchRequest, *, certified: bool = False, has_public_first: bool = False
) -> CountNoise:
    return CountNoise(
        epsilon,
        0 if certified else DELTA,
        n_providers=request.n_parties,
        k=request.k,
        promise="certified" if certified else "exact",
        failure=LAMBDA,
        has_public_first=has_public_first,
    )


def _draw(noise: CountNoise | PaperNoise) -> NoiseOf:
    return lambda _, names: dict(zip(names, noise.draw_all(len(names)), strict=True))


def build_printed(epsilon: str) -> Algorithm:
    """Return Algorithm 2 as printed, which claims to cost ``epsilon`` per query."""

    def search(request: SearchRequest) -> Coordinator[Answer]:
        noise = PaperNoise(epsilon, n_providers=request.n_parties, k=request.k, failure=LAMBDA)
        return dann_star_as_printed(
            request.query, request.k, name=request.name, noise_of=_draw(noise)
        )

    return search


def _dann_star_without_bounds(request: SearchRequest) -> Coordinator[Answer]:
    noise = _make_noise("1", request, has_public_first=True)
    return dann_star_in_two(
        request.query,
        request.k,
        name=request.name,
        first=noise.public_first,
        noise_of=_draw(noise),
    )


def _search_by_radius(request: SearchRequest) -> Coordinator[Answer]:
    if request.first_radius is None:
        raise ValueError("hufu needs a first radius; calibrate the federation first")
    return hufu(
        request.query,
        request.k,
        name=request.name,
        step=request.step,
        first_radius=request.first_radius,
    )


def _split_evenly(bounds: Mapping[str, Any], k: int) -> dict[str, int]:
    return dict.fromkeys(bounds, math.ceil(k / len(bounds)))


ALGORITHMS: Mapping[str, Algorithm] = {
    "baseline": lambda request: baseline(request.query, request.k, name=request.name),
    "hufu": _search_by_radius,
    "hufu+": lambda request: hufu_plus(
        request.query, request.k, name=request.name, step=request.step
    ),
    "dann": lambda request: dann(request.query, request.k, name=request.name),
    "dann*": build_dann_star("1"),
    "dann* certified": build_dann_star("1", certified=True),
    PRINTED: build_printed("1"),
    "dann, no bounds": lambda request: dann(
        request.query, request.k, name=request.name, estimate=_split_evenly
    ),
    "dann*, no bounds": _dann_star_without_bounds,
}
"""The algorithms by name; DANN* has epsilon = 1, as in section 6.3 of the paper."""


def find_algorithm(name: str) -> Algorithm:
    """Return an algorithm; ``"dann* 0.5"`` is DANN* with an epsilon of 0.5."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    kind, _, epsilon = name.rpartition(" ")
    if kind == PRINTED:
        return build_printed(epsilon)
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
