"""Choice of the algorithm of a query, and comparison of the algorithms' costs.

A planner measures finished queries and sends no requests of its own before a query. With a privacy
budget, the choice depends on public values only: k, the number of parties and the privacy settings.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fedneighbors.federation._loop import Coordinator, Outcome
from fedneighbors.federation._reply_grid import next_on_grid
from fedneighbors.methods.fedknn._eager import Pace, count_enough
from fedneighbors.methods.fedknn._settings import SearchSettings
from fedneighbors.methods.fedknn.algorithm import Part
from fedneighbors.methods.fedknn.private._noise import CountNoise
from fedneighbors.methods.fedknn.protocol import (
    ActiveProviders,
    Answer,
    BoundRequest,
    NearestRequest,
    baseline,
    certify_answer,
    join_parts,
    read_parts,
)
from fedneighbors.privacy.ledger._ledger import Ledger

Run = Callable[[Callable[[str], Coordinator[Answer]]], Outcome[Answer]]
"""Function that runs a coordinator, given a function from the query's name to it."""

EXPLAINED = ("baseline", "dann", "eager")
"""Algorithms without noise whose costs :meth:`Planner.explain` compares."""

_MAX_CLUSTERED = 0.2  # fraction of queries for which "enough" may be too few, before it is omitted


@dataclass(frozen=True)
class AlgorithmCost:
    """Cost of a query with an algorithm.

    Parameters
    ----------
    algorithm : str
        Name of the algorithm.
    exchanges : int
        Number of exchanges.
    n_returned : int
        Number of objects returned by all providers.
    local_s : float
        Seconds of local search: in each exchange, those of the slowest provider.
    link_s : float
        Other seconds of the exchanges: links, and waiting for a core.
    broker_s : float
        Seconds of the broker between exchanges.
    total_s : float
        Seconds from query to answer.
    """

    algorithm: str
    exchanges: int
    n_returned: int
    local_s: float
    link_s: float
    broker_s: float
    total_s: float


@dataclass(frozen=True)
class Plan:
    """The chosen algorithm, the reason, and the costs of the algorithms.

    Parameters
    ----------
    algorithm : str
        Algorithm to run.
    why : str
        Reason for the choice, a sentence.
    k : int
        Number of neighbours.
    costs : tuple of AlgorithmCost
        Fastest first.
    """

    algorithm: str
    why: str
    k: int
    costs: tuple[AlgorithmCost, ...]

    def table(self) -> str:
        """Return the costs as a table."""
        header = (
            f"{'algorithm':<12}{'exchanges':>10}{'returned':>9}{'local ms':>12}{'link ms':>12}"
            f"{'broker ms':>11}{'total ms':>12}"
        )
        rows = [
            f"{p.algorithm:<12}{p.exchanges:>10g}{p.n_returned:>9g}{1e3 * p.local_s:>12.2f}"
            f"{1e3 * p.link_s:>12.2f}{1e3 * p.broker_s:>11.2f}{1e3 * p.total_s:>12.2f}"
            for p in self.costs
        ]
        return "\n".join([header, *rows])

    def __str__(self) -> str:
        return f"{self.algorithm}: {self.why}\n{self.table()}"


class Planner:
    """Chooses the algorithm and pace of a query by the costs of earlier ones.

    Parameters
    ----------
    sizes : mapping of str to int
        Number of objects of each party.
    shares_cores : bool
        True if parties wait for one another's processor time.
    """

    def __init__(self, sizes: Mapping[str, int], *, shares_cores: bool) -> None:
        self._sizes, self._shares_cores = sizes, shares_cores
        self._round_trip_s: float | None = None
        self._is_costly = False
        self._n_queries = self._n_clustered = 0

    def run(
        self, run: Run, settings: SearchSettings, query: bytes, k: int, *, ledger: Ledger | None
    ) -> tuple[Outcome[Answer], str]:
        """Run and measure a query; return the reason for its algorithm."""
        coordinator_of, why = self.plan(settings, query, k, ledger=ledger)
        outcome = run(coordinator_of)
        self.observe(settings, outcome, k)
        return outcome, why

    def plan(
        self, settings: SearchSettings, query: bytes, k: int, *, ledger: Ledger | None
    ) -> tuple[Callable[[str], Coordinator[Answer]], str]:
        """Return a function from a query's name to its coordinator.

        The second value is the reason for the algorithm.
        """
        algorithm, why = self.choose(settings, k)
        pace, n_parties = self.pace(k), len(self._sizes)
        return (
            lambda name: settings.make_coordinator(
                algorithm, query, k, name=name, n_parties=n_parties, ledger=ledger, pace=pace
            ),
            why,
        )

    def choose(self, settings: SearchSettings, k: int) -> tuple[str, str]:
        """Return the algorithm of the next query, and the reason."""
        if settings.algorithm != "auto":
            return settings.algorithm, ""
        if settings.privacy is not None:
            return choose_by_public_numbers(settings, len(self._sizes), k)
        if len(self._sizes) == 1:
            return "baseline", "there is only one party"
        if self._shares_cores and self._is_costly:
            return "dann", "parties share processor cores, and searches exceed a time budget"
        pace = self.pace(k)
        limits = "at most two exchanges, because nothing was measured yet"
        if pace.grows:
            limits = f"a round trip takes {1e3 * (self._round_trip_s or 0):.1f} ms"
        return "eager", f"{limits}; the first time budget is {1e3 * pace.budget_s:.0f} ms"

    def pace(self, k: int) -> Pace:
        """Return the time limits of the next query for ``"eager"``.

        They depend on the round trip of earlier queries. The first query has no more than two
        exchanges: at most one round trip more than the baseline.
        """
        if self._round_trip_s is None:
            return Pace(grows=False)
        is_clustered = self._n_clustered > _MAX_CLUSTERED * self._n_queries
        return Pace.for_link(
            self._round_trip_s, None if is_clustered else count_enough(self._sizes, k)
        )

    def observe(self, settings: SearchSettings, outcome: Outcome[Answer], k: int) -> None:
        """Measure a finished query, if the measurement has a use."""
        if settings.privacy is not None or settings.algorithm not in ("auto", "eager"):
            return
        rounds = [record for record in outcome.rounds if record.busy_s]
        if not rounds:
            return
        # on shared cores, parties work one after another at worst
        busy = sum if self._shares_cores else max
        self._round_trip_s = max(min(r.seconds - busy(r.busy_s.values()) for r in rounds), 0.0)
        self._n_queries += 1
        enough = count_enough(self._sizes, k)
        owners = Counter(outcome.result.merged.owners)
        self._n_clustered += any(enough[p] <= min(n, k - 1) for p, n in owners.items())
        busy_s = sum(sum(record.busy_s.values()) for record in rounds)
        self._is_costly = busy_s > Pace.for_link(self._round_trip_s, None).budget_s

    def explain(self, settings: SearchSettings, run: Run, query: bytes, k: int) -> Plan:
        """Run a query with each algorithm and compare the costs.

        With a privacy budget, DANN* is predicted from a search in steps of public sizes, which
        reveals nothing about other parties and is not charged.

        Parameters
        ----------
        settings : SearchSettings
            Settings of the search.
        run : callable
            Function that runs a coordinator, given a function from the query's name to it.
        query : bytes
            Query as bytes for providers.
        k : int
            Number of neighbours.
        """
        run(lambda name: baseline(query, 1, name=name))  # one-time costs are not measured
        algorithms = EXPLAINED if settings.privacy is None else EXPLAINED[:1]
        costs = []
        for algorithm in algorithms:
            start = time.perf_counter()
            chosen = replace(settings, algorithm=algorithm)
            outcome, _ = self.run(run, chosen, query, k, ledger=None)
            costs.append(_measure(outcome, time.perf_counter() - start))
        if settings.privacy is not None:
            count = min(expected_count(settings, len(self._sizes), k), k)
            start = time.perf_counter()
            outcome = run(lambda name: _search_in_steps(query, k, name=name, first=count))
            seconds = time.perf_counter() - start
            costs.append(_predict_dann_star(outcome, seconds, settings, count))
        costs.sort(key=lambda cost: cost.total_s)
        algorithm, why = self.choose(settings, k)
        return Plan(algorithm, why or "chosen by the user", k, tuple(costs))


def _measure(outcome: Outcome[Answer], seconds: float) -> AlgorithmCost:
    rounds = outcome.rounds
    local_s = sum(max(record.busy_s.values(), default=0.0) for record in rounds)
    rounds_s = sum(record.seconds for record in rounds)
    return AlgorithmCost(
        algorithm=outcome.result.algorithm,
        exchanges=len(rounds),
        n_returned=sum(outcome.result.n_returned.values()),
        local_s=local_s,
        link_s=rounds_s - local_s,
        broker_s=seconds - rounds_s,
        total_s=seconds,
    )


def _predict_dann_star(
    outcome: Outcome[Answer], seconds: float, settings: SearchSettings, count: int
) -> AlgorithmCost:
    """Predict DANN* from a search that requested bounds and ``count`` objects.

    The last exchange of DANN* is assumed to be as fast as its link.
    """
    grid_s = float(settings.grid_s)
    busy_s = [max(record.busy_s.values(), default=0.0) for record in outcome.rounds]
    links_s = [r.seconds - busy for r, busy in zip(outcome.rounds, busy_s, strict=True)]
    waits_s = [*busy_s[:2], 0.0]
    if settings.variant == "two_exchanges":
        waits_s = [sum(busy_s[:2]), 0.0]
    local_s = sum(next_on_grid(wait, grid_s) for wait in waits_s) if grid_s else sum(waits_s)
    link_s, broker_s = len(waits_s) * min(links_s), seconds - sum(busy_s) - sum(links_s)
    return AlgorithmCost(
        algorithm="dann*",
        exchanges=len(waits_s),
        n_returned=count * len(outcome.result.n_returned),
        local_s=local_s,
        link_s=link_s,
        broker_s=broker_s,
        total_s=local_s + link_s + broker_s,
    )


def _search_in_steps(query: bytes, k: int, *, name: str, first: int) -> Coordinator[Answer]:
    """Request bounds, then ``first`` objects, then the rest of k."""
    active = ActiveProviders()
    active.read((yield active.ask(BoundRequest(name, query, k))), "the lower bounds")
    parts: dict[str, Part] = {}
    verified: dict[str, int] = {}
    for count in (first, k - first):
        replies = yield active.ask(NearestRequest(name, query, count, None))
        more, verified = read_parts(replies, "the nearest objects", active=active)
        parts = join_parts(parts, more)
    return certify_answer(parts, verified, k, algorithm="baseline", active=active)


def choose_by_public_numbers(settings: SearchSettings, n_parties: int, k: int) -> tuple[str, str]:
    """Choose a private algorithm by public values, and return the reason.

    A choice by measured costs would reveal information about the objects of other parties.
    """
    expected = expected_count(settings, n_parties, k)
    if expected < k:
        return (
            "dann*",
            f"about {expected} of {k} objects are requested from a party, including noise",
        )
    return (
        "baseline",
        f"with noise, about {expected} objects would be requested from a party; the baseline "
        f"requests {k} and reveals nothing about other parties",
    )


def expected_count(settings: SearchSettings, n_parties: int, k: int) -> int:
    """Compute the expected number of objects that DANN* requests from a party."""
    noise = settings.make_noise(n_parties=n_parties, k=k)
    if isinstance(noise, CountNoise) and noise.has_public_first:
        return noise.public_first + noise.second_shift
    if isinstance(noise, CountNoise):
        return -(-k // n_parties) + noise.first_shift + noise.second_shift
    return -(-k // n_parties) + 2 * noise.shift
