"""Settings of a search, their consistency checks, and the resulting coordinator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np

from fedneighbors.federation._links import Link
from fedneighbors.federation._loop import Coordinator
from fedneighbors.federation._reply_grid import MAX_GRID_S
from fedneighbors.methods.fedknn._eager import DEFAULT_PACE, Pace, eager
from fedneighbors.methods.fedknn._radius import hufu, hufu_plus
from fedneighbors.methods.fedknn.private._noise import CountNoise, PaperNoise, noise_source
from fedneighbors.methods.fedknn.private._padding import MAX_NAME_BYTES
from fedneighbors.methods.fedknn.private.protocol import (
    dann_star,
    dann_star_as_printed,
    dann_star_in_two,
)
from fedneighbors.methods.fedknn.protocol import Answer, baseline, dann
from fedneighbors.privacy._guarantees import ApproxDP, Guarantee, PureDP
from fedneighbors.privacy._policy import Privacy, check_privacy
from fedneighbors.privacy.ledger._ledger import Ledger

ALGORITHMS: dict[str, Callable[..., Coordinator[Answer]]] = {
    "baseline": baseline,
    "dann": dann,
    "eager": eager,
    "hufu": hufu,
    "hufu+": hufu_plus,
}
"""Coordinators of algorithms without noise, by name."""

PRIVATE_ALGORITHMS = ("auto", "baseline", "dann*")
"""Algorithms allowed under ``privacy``: they limit the disclosure to other parties."""

VARIANTS = ("mended", "two_exchanges", "paper")


@dataclass(eq=False, repr=False)
class SearchParameters:
    """Parameters of a federated search, as estimators store them."""

    metric: Any = "euclidean"
    algorithm: str = "auto"
    privacy: Privacy | None = None
    guarantee: Literal["exact", "certified"] = "exact"
    variant: Literal["mended", "two_exchanges", "paper"] = "mended"
    random_state: int = 0
    _: KW_ONLY
    failure: float = 0.05
    max_queries: int = 100
    grid_s: float = 0.05
    allow_partial: bool = False
    check_distances: bool = False
    workers: Literal["threads", "processes"] = "threads"
    link: Link | Mapping[str, Link] | None = None
    deadline_s: float | None = None


@dataclass(frozen=True)
class SearchSettings:
    """Validated settings of a search.

    Parameters
    ----------
    algorithm, privacy, guarantee, variant, failure, max_queries, grid_s
        As in :class:`~fedneighbors.methods.fedknn.estimator.FederatedNeighbors`.
    random_state, allow_partial, deadline_s
        As in :class:`~fedneighbors.methods.fedknn.estimator.FederatedNeighbors`.
    step, least : float
        Unit of the distances, which are multiples of it, 0 for any number; and a number that no
        distance is below.

    Raises
    ------
    ValueError, TypeError
        If a setting is unknown, out of range, or conflicts with another.
    """

    algorithm: str
    privacy: Privacy | None
    guarantee: str
    variant: str
    random_state: int
    failure: Any
    max_queries: int
    grid_s: float
    allow_partial: bool
    step: float
    least: float
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        _check_choice("algorithm", self.algorithm, ("auto", *ALGORITHMS, "dann*"))
        _check_choice("guarantee", self.guarantee, ("exact", "certified"))
        _check_choice("variant", self.variant, VARIANTS)
        _check_minimum("random_state", self.random_state, 0)
        _check_minimum("max_queries", self.max_queries, 1)
        if not 0 <= float(self.grid_s) <= MAX_GRID_S:
            raise ValueError(f"expected grid_s from 0 to {MAX_GRID_S:g}, got {self.grid_s!r}")
        self._check_privacy()

    def _check_privacy(self) -> None:
        if self.privacy is None:
            if self.algorithm == "dann*":
                raise ValueError(
                    "algorithm 'dann*' needs a privacy cost per query: pass "
                    "privacy=Privacy(epsilon=..., delta=...), or use algorithm='dann'"
                )
            return
        check_privacy(self.privacy)
        if self.algorithm not in PRIVATE_ALGORITHMS:
            raise ValueError(
                f"algorithm {self.algorithm!r} reveals information about other parties' objects: "
                f"expected one of {PRIVATE_ALGORITHMS} under privacy, got {self.algorithm!r}"
            )
        if self.may_use_dann_star and self.allow_partial:
            raise ValueError("'dann*' does not support allow_partial; omit it")
        self.make_noise(n_parties=1, k=1)

    @property
    def may_use_dann_star(self) -> bool:
        """Return whether DANN* may answer a query."""
        return self.privacy is not None and self.algorithm != "baseline"

    def make_noise(self, *, n_parties: int, k: int) -> CountNoise | PaperNoise:
        """Return the distribution of one private query's noise.

        Raises
        ------
        ValueError
            If there is no ``privacy``, or epsilon, delta and guarantee conflict.
        """
        privacy = self.privacy
        if privacy is None:
            raise ValueError("a search without privacy has no noise")
        if self.variant == "paper":
            return PaperNoise(privacy.epsilon, n_providers=n_parties, k=k, failure=self.failure)
        return CountNoise(
            privacy.epsilon,
            privacy.delta,
            n_providers=n_parties,
            k=k,
            promise="exact" if self.guarantee == "exact" else "certified",
            failure=self.failure,
            has_public_first=self.variant == "two_exchanges",
        )

    def check_names(self, names: Sequence[Any]) -> None:
        """Raise if a name is too long for padded replies.

        Raises
        ------
        ValueError
            If DANN* may answer a query and a name has too many bytes.
        """
        if not self.may_use_dann_star:
            return
        longest = max((len(str(name).encode()) for name in names), default=0)
        if longest > MAX_NAME_BYTES:
            raise ValueError(
                f"replies of 'dann*' have room for names of {MAX_NAME_BYTES} bytes, got one "
                f"of {longest}; use shorter ids"
            )

    def make_ledger(self, parties: tuple[str, ...], given: Ledger | None) -> Ledger | None:
        """Return the given ledger, or a new one if DANN* needs one."""
        if not self.may_use_dann_star or given is not None:
            return given
        ledger = Ledger(":memory:", party="broker")
        self.set_budgets(ledger, parties)
        return ledger

    def set_budgets(self, ledger: Ledger, parties: Sequence[str]) -> None:
        """Set the budget of each party for ``max_queries`` private queries."""
        for party in parties:
            ledger.set_budget(party, self.make_budget(), note="information about other parties")

    def make_budget(self) -> Guarantee:
        """Return the cost of ``max_queries`` private queries."""
        return compose(self.make_noise(n_parties=1, k=1).cost, self.max_queries)

    def make_coordinator(
        self,
        algorithm: str,
        query: bytes,
        k: int,
        *,
        name: str,
        n_parties: int,
        ledger: Ledger | None = None,
        pace: Pace = DEFAULT_PACE,
    ) -> Coordinator[Answer]:
        """Return the coordinator of one query.

        Parameters
        ----------
        algorithm : str
            Algorithm; not ``"auto"``.
        query : bytes
            Query as bytes for providers.
        k : int
            Number of neighbors.
        name : str
            Unique name of the query.
        n_parties : int
            Number of parties of the federation.
        ledger : Ledger or None
            Budgets for private queries.
        pace : Pace
            Time limits of ``"eager"``.
        """
        if algorithm == "eager":
            return eager(query, k, name=name, pace=pace, allow_partial=self.allow_partial)
        limits: dict[str, Any] = {"allow_partial": self.allow_partial, "budget_s": self.deadline_s}
        if algorithm in ("hufu", "hufu+"):
            return ALGORITHMS[algorithm](
                query, k, name=name, step=self.step, least=self.least, **limits
            )
        if algorithm == "dann":
            return dann(query, k, name=name, **limits)
        if algorithm != "dann*":
            return ALGORITHMS[algorithm](query, k, name=name, allow_partial=self.allow_partial)
        if ledger is None:
            raise ValueError("privacy was not set at fit; fit again")
        noise = self.make_noise(n_parties=n_parties, k=k)
        noise_of = noise_source(ledger, noise, query=query)
        if self.variant == "paper":
            return dann_star_as_printed(
                query, k, name=name, noise_of=noise_of, grid_s=float(self.grid_s)
            )
        options: Any = {
            "name": name,
            "noise_of": noise_of,
            "always_exact": self.guarantee == "exact",
            "grid_s": float(self.grid_s),
        }
        if isinstance(noise, CountNoise) and noise.has_public_first:
            return dann_star_in_two(query, k, first=noise.public_first, **options)
        return dann_star(query, k, **options)


def check_n_neighbors(n_neighbors: Any) -> int:
    """Return the number of neighbors as an int, if it is valid.

    Raises
    ------
    TypeError
        If it is not an integer.
    ValueError
        If it is below 1.
    """
    _check_minimum("n_neighbors", n_neighbors, 1)
    return int(n_neighbors)


def compose(cost: Guarantee, n: int) -> Guarantee:
    """Return the budget of ``n`` releases of one cost, by basic composition.

    Raises
    ------
    ValueError
        If the deltas add up to 1 or more.
    """
    if isinstance(cost, ApproxDP):
        if cost.delta * n >= 1:
            raise ValueError(
                f"expected delta times max_queries below 1, got {float(cost.delta):g} times {n}; "
                "reduce one of them"
            )
        return ApproxDP(cost.epsilon * n, cost.delta * n)
    if isinstance(cost, PureDP):
        return PureDP(cost.epsilon * n)
    raise TypeError(f"expected a cost in epsilon, got {cost!r}")


def _check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"expected {name} as one of {sorted(allowed)}, got {value!r}")


def _check_minimum(name: str, value: Any, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"expected {name} as an integer, got {value!r}")
    if value < minimum:
        raise ValueError(f"expected {name} of {minimum} or more, got {value!r}")
