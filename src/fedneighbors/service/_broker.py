"""The broker: collections, and the queries that it runs over the links of providers."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fedneighbors.errors import DataError, FederationError, PartyRefused
from fedneighbors.federation._loop import (
    Coordinator,
    ExchangeResult,
    Outcome,
    Steps,
    encode_once,
    make_round,
    read_delivery,
    request_name,
)
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._planning import Planner
from fedneighbors.methods.fedknn._settings import SearchSettings
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.protocol import Answer
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.records import Round
from fedneighbors.service._config import BrokerConfig, CollectionSection, PrivacySection
from fedneighbors.service._links import LinkRegistry, QueryExchange, QueryLost
from fedneighbors.service._messages import UNKNOWN_QUERY, OfferedCollection
from fedneighbors.service._state import BrokerState

R = TypeVar("R")
_RECONNECT_S = 5.0  # maximum wait for a provider that was restarted


class Overloaded(FederationError):  # noqa: N818 - the name states the error
    """Too many queries run at once; try again later."""


@dataclass(frozen=True)
class SearchResult:
    """Result of a query.

    Parameters
    ----------
    query_id : str
        Name of the query in logs.
    outcome : Outcome of Answer
        The answer, and a record of each exchange.
    why : str
        Reason for the algorithm; empty if the user chose it.
    seconds : float
        Seconds from the request to the answer.
    """

    query_id: str
    outcome: Outcome[Answer]
    why: str
    seconds: float


class BrokerCollection:
    """A collection and its providers.

    Parameters
    ----------
    name : str
        Name of the collection.
    section : CollectionSection
        Its configuration.
    ledger : Ledger or None
        Budgets of private queries.
    """

    def __init__(self, name: str, section: CollectionSection, ledger: Ledger | None) -> None:
        self.name, self.metric, self.providers = name, section.metric, section.providers
        self.tie_key, self.filters = section.tie_key, dict(section.filters)
        privacy, metric = section.privacy, metric_of(section.metric)
        limits = privacy or PrivacySection(epsilon=1.0)  # its other defaults
        self.settings = SearchSettings(
            algorithm=section.algorithm,
            privacy=None if privacy is None else Privacy(privacy.epsilon, delta=privacy.delta),
            variant="mended",
            random_state=0,
            failure=0.05,
            allow_partial=section.allow_partial,
            step=float(getattr(metric, "step", 0.0)),
            least=float(getattr(metric, "least", 0.0)),
            guarantee=limits.guarantee,
            max_queries=limits.max_queries,
            grid_s=limits.grid_s,
        )
        self.ledger = ledger
        if ledger is not None:
            allowed = {state.dataset: state.allowed for state in ledger.budgets()}
            budget = self.settings.make_budget()
            self.settings.set_budgets(
                ledger, [p for p in self.providers if allowed.get(p) != budget]
            )
        self._sizes: dict[str, int] = {}
        self._planner = Planner({}, shares_cores=False)

    def planner(self, links: LinkRegistry) -> Planner:
        """Return the planner for the numbers of objects that the providers state."""
        sizes = {}
        for name in self.providers:
            link = links.links.get(name)
            sizes[name] = self._sizes.get(name, 0)
            if link is not None and self.name in link.collections:
                sizes[name] = link.collections[self.name].n_objects
        if sizes != self._sizes:
            self._sizes, self._planner = sizes, Planner(sizes, shares_cores=False)
        return self._planner

    def choose_settings(self, algorithm: str | None, allow_partial: bool | None) -> SearchSettings:
        """Return the settings of a query.

        Raises
        ------
        ValueError
            If the algorithm is unknown, or not allowed in this collection.
        """
        changes: dict[str, Any] = {}
        if algorithm is not None:
            changes["algorithm"] = algorithm
        if allow_partial is not None:
            changes["allow_partial"] = allow_partial
        return replace(self.settings, **changes) if changes else self.settings

    def check(self, provider: str, offered: OfferedCollection) -> None:
        """Raise Refused if a provider's settings differ from the broker's."""
        if provider not in self.providers:
            raise Refused("the provider may not offer this collection", self.name)
        for setting in ("metric", "tie_key", "filters"):
            expected, found = getattr(self, setting), getattr(offered, setting)
            if found != expected:
                raise Refused(
                    f"the setting {setting!r} differs",
                    f"collection {self.name!r} has {expected!r} at the broker, {found!r} here",
                )


class Broker:
    """Runs queries over the links of providers.

    Parameters
    ----------
    config : BrokerConfig
        Configuration.
    state : BrokerState
        Enrolled providers and users.
    fingerprint : bytes
        SHA-256 digest of the server's certificate; empty without TLS.
    """

    def __init__(self, config: BrokerConfig, state: BrokerState, fingerprint: bytes) -> None:
        self.config, self.state = config, state
        self.collections = {
            name: BrokerCollection(name, section, _open_ledger(config, name))
            for name, section in config.collections.items()
        }
        self.registry = LinkRegistry(state, fingerprint, self._check)
        self._n_running = 0
        self._is_draining = False

    async def drain(self, seconds: float) -> None:
        """Refuse new queries, and wait until the running ones have ended."""
        self._is_draining = True
        deadline = time.monotonic() + seconds
        while self._n_running and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    def check_load(self) -> None:
        """Raise Overloaded if no further query may run."""
        if self._is_draining:
            raise Overloaded("the broker is being stopped; try again later")
        if self._n_running >= self.config.queries.max_concurrent:
            raise Overloaded(f"{self._n_running} queries run; try again later")

    def _check(self, provider: str, offered: Mapping[str, OfferedCollection]) -> None:
        for name, one in offered.items():
            if name not in self.collections:
                raise Refused("the broker has no such collection", name)
            self.collections[name].check(provider, one)

    async def search(
        self,
        collection: str,
        query: bytes,
        k: int,
        *,
        algorithm: str | None = None,
        deadline_s: float | None = None,
        allow_partial: bool | None = None,
    ) -> SearchResult:
        """Find the k nearest objects of a query.

        A query whose state a provider has lost is run again under a new name.

        Parameters
        ----------
        collection : str
            Name of the collection.
        query : bytes
            Frame of the query.
        k : int
            Number of neighbours.
        algorithm, allow_partial : str and bool, optional
            In place of the collection's.
        deadline_s : float, optional
            Seconds before providers without a reply are missing.

        Raises
        ------
        Overloaded
            If too many queries run at once.
        DataError
            If there is no such collection.
        ValueError
            If k or the algorithm is not allowed.
        PartyMissing, PartyRefused, ProtocolError, QueryLost
            If providers fail.
        """
        limits, started = self.config.queries, time.monotonic()
        if collection not in self.collections:
            raise DataError(f"there is no collection {collection!r}")
        if not 1 <= k <= limits.max_k:
            raise ValueError(f"expected k from 1 to {limits.max_k}, got {k}")
        self.check_load()
        deadline = started + min(deadline_s or limits.deadline_s, limits.max_deadline_s)
        found = self.collections[collection]
        settings = found.choose_settings(algorithm, allow_partial)
        self._n_running += 1
        try:
            for attempt in range(limits.retries + 1):
                try:
                    return await self._run(found, settings, query, k, deadline, started)
                except (QueryLost, PartyRefused) as error:
                    if isinstance(error, PartyRefused) and error.code != UNKNOWN_QUERY:
                        raise
                    if attempt == limits.retries:
                        raise
                left_s = deadline - time.monotonic()
                await self.registry.wait_for(found.providers, min(_RECONNECT_S, max(left_s, 0.0)))
        finally:
            self._n_running -= 1
        raise AssertionError("unreachable")

    async def _run(
        self,
        collection: BrokerCollection,
        settings: SearchSettings,
        query: bytes,
        k: int,
        deadline: float,
        started: float,
    ) -> SearchResult:
        planner = collection.planner(self.registry)
        settings = replace(settings, deadline_s=max(deadline - time.monotonic(), 0.0))
        coordinator_of, why = planner.plan(settings, query, k, ledger=collection.ledger)
        name = secrets.token_hex(8)
        exchange = QueryExchange(
            self.registry, collection.name, name, deadline, is_patient=not settings.allow_partial
        )
        try:
            outcome = await run_rounds_async(coordinator_of(name), exchange, collection.providers)
        finally:
            exchange.end()
        planner.observe(settings, outcome, k)
        return SearchResult(name, outcome, why, time.monotonic() - started)


def _open_ledger(config: BrokerConfig, name: str) -> Ledger | None:
    """Open the ledger of a private collection, or create it.

    Raises
    ------
    DataError
        If another collection has the same ledger: their budgets would be one.
    """
    files = {
        other: config.path(section.privacy.ledger or f"state/ledger-{other}.sqlite")
        for other, section in config.collections.items()
        if section.privacy is not None
    }
    if name not in files:
        return None
    path = files[name]
    if list(files.values()).count(path) > 1:
        raise DataError(f"two collections have the ledger {path}; each needs its own")
    path.parent.mkdir(parents=True, exist_ok=True)
    return Ledger(path, party="broker")


async def run_rounds_async(
    coordinator: Coordinator[R],
    exchange: Callable[[Mapping[str, bytes]], Awaitable[ExchangeResult]],
    names: tuple[str, ...],
) -> Outcome[R]:
    """Run a coordinator whose exchanges are awaited.

    The result is that of :func:`~fedneighbors.federation._loop.run_rounds`.

    Parameters
    ----------
    coordinator : generator
        Yields requests and is sent replies.
    exchange : async callable
        Delivers one frame to each party.
    names : tuple of str
        The parties.

    Raises
    ------
    PartyRefused, WireError, ProtocolError
        As for ``run_rounds``.
    """
    rounds: list[Round] = []
    steps, replies = Steps(coordinator), None
    try:
        while (ask := steps.advance(replies)) is not None:
            requests = ask.for_parties(names)
            frames, started = encode_once(requests), time.perf_counter()
            delivery = read_delivery(requests, frames, await exchange(frames), reduce=ask.reduce)
            seconds = time.perf_counter() - started
            name = request_name(requests)
            rounds.append(make_round(len(rounds), name, ask.reduce, delivery, seconds))
            replies = delivery.replies
        return Outcome(steps.result, tuple(rounds))
    finally:
        coordinator.close()
