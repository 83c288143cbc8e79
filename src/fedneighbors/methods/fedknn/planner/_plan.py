"""Plans: the fastest algorithm for a query, by measured costs (section 5 of the paper).

As in the paper, a party is called a provider and the coordinator a broker. Sample queries measure
the time that each provider needs to compute bounds and to find objects; echo messages measure the
links. Each algorithm is replayed over the recorded samples. An exchange (one round of requests and
replies) takes as long as its slowest provider, including the transfer of request and reply::

    with connected(providers) as federation:
        costs = measure(federation, sample_queries, k)
        plan = make_plan(costs, k, n_parallel=1)  # all providers share one process
        print(plan)
        federation.run(CANDIDATES[plan.algorithm](query, k, name="q"))

With a privacy budget, the choice depends only on public values: k, the number of parties and the
privacy settings.
"""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from fedneighbors.federation._inprocess import ConnectedParties
from fedneighbors.federation._loop import Coordinator
from fedneighbors.methods.fedknn._settings import SearchSettings
from fedneighbors.methods.fedknn.planner._costs import Costs, LinkCost, SampleReply, measure
from fedneighbors.methods.fedknn.planner._recorded import Candidate, Replay, SampledProvider, replay
from fedneighbors.methods.fedknn.private._noise import CountNoise
from fedneighbors.methods.fedknn.private.protocol import dann_star
from fedneighbors.methods.fedknn.protocol import Answer, baseline, dann
from fedneighbors.records import Round

CANDIDATES: Mapping[str, Candidate] = MappingProxyType({"baseline": baseline, "dann": dann})
"""Default algorithms of a plan."""

_MAX_SAMPLES = 2  # the user waits for them
_LIMIT_S = 2.0  # time limit of a sample


@dataclass(frozen=True)
class Prediction:
    """Expected cost of an algorithm, as medians over the sample queries.

    Parameters
    ----------
    algorithm : str
        Name of the algorithm.
    exchanges : float
        Number of exchanges.
    n_returned : float
        Number of objects returned by all providers.
    local_s : float
        Seconds of local search, summed over the exchanges: in each, those of the slowest provider,
        or more if not all providers can work at the same time.
    link_s : float
        Seconds on the links.
    broker_s : float
        Seconds of the broker, including encoding and decoding of messages.
    total_s : float
        Seconds from query to answer.
    """

    algorithm: str
    exchanges: float
    n_returned: float
    local_s: float
    link_s: float
    broker_s: float
    total_s: float


@dataclass(frozen=True)
class Plan:
    """The chosen algorithm, the reason, and the predicted costs.

    Parameters
    ----------
    algorithm : str
        Algorithm to run.
    why : str
        Reason for the choice, a sentence.
    k : int
        Number of neighbours.
    predictions : tuple of Prediction
        Fastest first.
    """

    algorithm: str
    why: str
    k: int
    predictions: tuple[Prediction, ...]

    def table(self) -> str:
        """Return the predictions as a table."""
        header = (
            f"{'algorithm':<12}{'exchanges':>10}{'returned':>9}{'local ms':>12}{'link ms':>12}"
            f"{'broker ms':>11}{'total ms':>12}"
        )
        rows = [
            f"{p.algorithm:<12}{p.exchanges:>10g}{p.n_returned:>9g}{1e3 * p.local_s:>12.2f}"
            f"{1e3 * p.link_s:>12.2f}{1e3 * p.broker_s:>11.2f}{1e3 * p.total_s:>12.2f}"
            for p in self.predictions
        ]
        return "\n".join([header, *rows])

    def __str__(self) -> str:
        return f"{self.algorithm}: {self.why}\n{self.table()}"


def make_plan(
    costs: Costs,
    k: int,
    *,
    candidates: Mapping[str, Candidate] = CANDIDATES,
    n_parallel: int | None = None,
) -> Plan:
    """Predict the cost of each algorithm and choose the fastest.

    Parameters
    ----------
    costs : Costs
        Costs from :func:`measure`.
    k : int
        Number of neighbours, from 1 to ``costs.k``.
    candidates : mapping of str to callable
        Algorithms to choose from; each takes a query, ``k`` and ``name=`` and returns its
        coordinator. It may only request bounds or nearest objects, plain or padded, because
        samples do not answer other requests.
    n_parallel : int, optional
        Number of providers that can work at the same time: None if each has its own machine, 1 if
        they work one after the other.

    Raises
    ------
    ValueError
        If there are no candidates, or ``k`` or ``n_parallel`` is out of range.
    """
    if not candidates:
        raise ValueError("expected at least one algorithm to choose from")
    if not 1 <= k <= costs.k:
        raise ValueError(
            f"expected k from 1 to the measured {costs.k}, got {k}; measure with a larger k"
        )
    if n_parallel is not None and n_parallel < 1:
        raise ValueError(f"expected n_parallel of 1 or more, got {n_parallel}")
    predictions = [
        _predict(name, candidate, costs, k, n_parallel) for name, candidate in candidates.items()
    ]
    predictions.sort(key=lambda prediction: prediction.total_s)
    best = predictions[0]
    return Plan(best.algorithm, _explain_choice(predictions, k), k, tuple(predictions))


def star_candidate(draw: Callable[[], tuple[int, int]], *, grid_s: float = 0.0) -> Candidate:
    """Return DANN* as a candidate for :func:`make_plan`.

    DANN* is DANN with noise on its counts. The noise of a plan is not charged to a privacy
    budget, because the replay uses recorded samples at the broker and sends nothing to a provider.

    Parameters
    ----------
    draw : callable
        Function that draws the noise on the two counts of a provider, such as
        ``CountNoise(...).draw``.
    grid_s : float
        Replies are delayed to multiples of this many seconds; 0 for no delay.
    """

    def candidate(query: bytes, k: int, *, name: str) -> Coordinator[Answer]:
        def noise_of(_: bytes, providers: tuple[str, ...]) -> Mapping[str, tuple[int, int]]:
            return {provider: draw() for provider in providers}

        return dann_star(query, k, name=name, noise_of=noise_of, always_exact=False, grid_s=grid_s)

    return candidate


def _predict(
    name: str, candidate: Candidate, costs: Costs, k: int, n_parallel: int | None
) -> Prediction:
    replays = [_replay(candidate, sample, costs, k) for sample in costs.samples]
    local_s = [sum(_time_search(e, n_parallel) for e in r.exchanges) for r in replays]
    total_s = [
        r.broker_s + sum(_time_exchange(e, costs.links, n_parallel) for e in r.exchanges)
        for r in replays
    ]
    link_s = [
        total - local - r.broker_s
        for total, local, r in zip(total_s, local_s, replays, strict=True)
    ]
    return Prediction(
        algorithm=name,
        exchanges=statistics.median(len(r.exchanges) for r in replays),
        n_returned=statistics.median(sum(r.answer.n_returned.values()) for r in replays),
        local_s=statistics.median(local_s),
        link_s=statistics.median(link_s),
        broker_s=statistics.median(r.broker_s for r in replays),
        total_s=statistics.median(total_s),
    )


def _replay(
    candidate: Candidate, sample: Mapping[str, SampleReply], costs: Costs, k: int
) -> Replay:
    providers = {
        name: SampledProvider(name, reply, k=costs.k, limit_s=costs.limit_s)
        for name, reply in sample.items()
    }
    return replay(candidate(b"", k, name="plan"), providers)


def _time_search(exchange: Round, n_parallel: int | None) -> float:
    slowest = max(exchange.busy_s.values())
    if n_parallel is None:
        return slowest
    return max(slowest, sum(exchange.busy_s.values()) / n_parallel)


def _time_exchange(exchange: Round, links: Mapping[str, LinkCost], n_parallel: int | None) -> float:
    """Return the seconds from the requests to the last reply."""
    transfer_s = {
        name: links[name].seconds(
            download_bytes=exchange.download_bytes[name],
            upload_bytes=exchange.upload_bytes[name],
        )
        for name in exchange.busy_s
    }
    slowest = max(transfer_s[name] + busy_s for name, busy_s in exchange.busy_s.items())
    if n_parallel is None:
        return slowest
    return max(slowest, min(transfer_s.values()) + _time_search(exchange, n_parallel))


def _explain_choice(predictions: list[Prediction], k: int) -> str:
    best = predictions[0]
    if len(predictions) == 1:
        return f"it is the only candidate; expected time for k = {k}: {1e3 * best.total_s:.1f} ms"
    second = predictions[1]
    return (
        f"expected time for k = {k}: {1e3 * best.total_s:.1f} ms, against "
        f"{1e3 * second.total_s:.1f} ms with {second.algorithm} "
        f"({_describe_difference(best.local_s - second.local_s, 'in local search')} and "
        f"{_describe_difference(best.link_s - second.link_s, 'on the link')})"
    )


def _describe_difference(seconds: float, where: str) -> str:
    return f"{abs(1e3 * seconds):.1f} ms {'more' if seconds > 0 else 'less'} {where}"


class Chooser:
    """Chooses the algorithm of a query, and caches measurements and plans.

    Parameters
    ----------
    settings : SearchSettings
        Settings of the search.
    n_parties : int
        Number of parties of the federation.
    parallel : bool
        True if the parties work at the same time, False if one after the other.
    """

    def __init__(self, settings: SearchSettings, n_parties: int, *, parallel: bool) -> None:
        self._settings = settings
        self._n_parties = n_parties
        self._n_parallel = (os.cpu_count() or 1) if parallel else 1
        self._costs: Costs | None = None
        self._plans: dict[int, Plan] = {}

    def choose(
        self, federation: ConnectedParties, queries: Sequence[bytes], k: int
    ) -> tuple[str, str]:
        """Choose the algorithm for ``algorithm="auto"``, and return the reason.

        The first two queries are run as samples, unless costs of at least ``k`` neighbours were
        measured before.
        """
        if self._settings.privacy is not None:
            return choose_by_public_numbers(self._settings, self._n_parties, k)
        if self._n_parties == 1 or not queries:
            return "baseline", "there is only one party" if queries else "there are no queries"
        if k not in self._plans:
            if self._costs is None or self._costs.k < k:
                self._costs = measure(
                    federation, queries[:_MAX_SAMPLES], k, limit_s=_LIMIT_S, sequential=True
                )
            self._plans[k] = make_plan(self._costs, k, n_parallel=self._n_parallel)
        return self._plans[k].algorithm, self._plans[k].why

    def explain(self, federation: ConnectedParties, query: bytes, k: int) -> Plan:
        """Predict each algorithm's cost for a query, and choose one."""
        # With a privacy budget, all providers are measured at once. Otherwise, a provider could
        # infer the search times of those before it.
        sequential = self._settings.privacy is None
        costs = measure(federation, [query], k, limit_s=_LIMIT_S, sequential=sequential)
        settings, n_parties = self._settings, self._n_parties
        candidates = _list_candidates(settings, n_parties, k)
        plan = make_plan(costs, k, candidates=candidates, n_parallel=self._n_parallel)
        if settings.algorithm != "auto":
            return replace(plan, algorithm=settings.algorithm, why="chosen by the user")
        if settings.privacy is not None:
            algorithm, why = choose_by_public_numbers(settings, n_parties, k)
            return replace(plan, algorithm=algorithm, why=why)
        return plan


def choose_by_public_numbers(settings: SearchSettings, n_parties: int, k: int) -> tuple[str, str]:
    """Choose a private algorithm by public values, and return the reason.

    A choice by measured costs would reveal information about the objects of other parties.
    """
    noise = settings.make_noise(n_parties=n_parties, k=k)
    if isinstance(noise, CountNoise):
        expected = -(-k // n_parties) + noise.first_shift + noise.second_shift
    else:
        expected = -(-k // n_parties) + 2 * noise.shift
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


def _list_candidates(settings: SearchSettings, n_parties: int, k: int) -> Mapping[str, Candidate]:
    if settings.privacy is None:
        return CANDIDATES
    noise = settings.make_noise(n_parties=n_parties, k=k)
    star = star_candidate(noise.draw, grid_s=float(settings.grid_s))
    return {"baseline": CANDIDATES["baseline"], "dann*": star}
