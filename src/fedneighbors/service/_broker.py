"""The broker: collections, and the queries that it runs over the links of providers."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedneighbors.errors import DataError, PartyMissing, PartyRefused
from fedneighbors.federation._loop import Coordinator, Outcome
from fedneighbors.federation._messages import encode
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._filters import FilterColumns, Where, filter_text
from fedneighbors.methods.fedknn._planning import Planner
from fedneighbors.methods.fedknn._provider import INVALID_QUERY, SOURCE_FAILED
from fedneighbors.methods.fedknn._queries import FilteredQuery, encode_queries, read_json_query
from fedneighbors.methods.fedknn._radius import RangeCounts, count_within, range_search
from fedneighbors.methods.fedknn._settings import SearchSettings
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.private._oblivious import warm_up
from fedneighbors.methods.fedknn.protocol import Answer
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.service._access_log import AccessLog
from fedneighbors.service._config import BrokerConfig, CollectionSection, PrivacySection
from fedneighbors.service._limits import (
    MAX_ALL_WRONG_CODES,
    Overloaded,
    TooManyQueries,
    WrongCodes,
)
from fedneighbors.service._links import LinkRegistry, QueryLost
from fedneighbors.service._messages import UNKNOWN_QUERY, OfferedCollection
from fedneighbors.service._metrics import BrokerMetrics
from fedneighbors.service._oidc import OidcUsers
from fedneighbors.service._query_run import Explanation, QueryOptions, QueryRun, SearchResult
from fedneighbors.service._sealed import read_sealed
from fedneighbors.service._source_config import KINDS, VOTES
from fedneighbors.service._state import ApiUser, BrokerState, open_ledger
from fedneighbors.service._tracing import trace_work
from fedneighbors.service._tsm import Attester

R = TypeVar("R")
_RECONNECT_S = 5.0  # maximum wait for a provider that was restarted


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
    folder : path
        Folder of the schema's file.
    """

    def __init__(
        self, name: str, section: CollectionSection, ledger: Ledger | None, folder: Path
    ) -> None:
        self.rows = section.read_schema(folder)
        self.schema = "" if self.rows is None else self.rows.digest
        self.name, self.metric, self.providers = name, section.metric, section.providers
        self.tie_key, self.filters = section.tie_key, dict(section.filters)
        self.trust, self.is_voting = section.trust, section.metric == VOTES
        self._columns = FilterColumns.of({n: [] for n in self.filters}, 0, kinds=self.filters)
        privacy = section.privacy
        self._metric: Any = None if self.is_voting else metric_of(self.rows or section.metric)
        limits = privacy or PrivacySection(epsilon=1.0)  # its other defaults
        self.settings = SearchSettings(
            algorithm=section.algorithm,
            privacy=None if privacy is None else Privacy(privacy.epsilon, delta=privacy.delta),
            variant="mended",
            random_state=0,
            failure=0.05,
            allow_partial=section.allow_partial,
            step=float(getattr(self._metric, "step", 0.0)),
            least=float(getattr(self._metric, "least", 0.0)),
            guarantee=limits.guarantee,
            max_queries=limits.max_queries,
            grid_s=limits.grid_s,
        )
        self.ledger = ledger
        if privacy is not None:
            warm_up()  # the first query would stop the event loop for a second
        if ledger is not None and not ledger.is_held:
            allowed = {state.dataset: state.allowed for state in ledger.budgets()}
            budget = self.settings.make_budget()
            self.settings.set_budgets(
                ledger, [p for p in self.providers if allowed.get(p) != budget]
            )
        self.n_columns = 0
        self._offers: dict[str, OfferedCollection] = {}
        self._sizes: dict[str, int] = {}
        self._planner = Planner({}, shares_cores=False)

    def planner(self, links: LinkRegistry) -> Planner:
        """Return the planner for the numbers of objects that the providers state."""
        offers = self.find_offers(links)
        sizes = {name: offers[name].n_objects if name in offers else 0 for name in self.providers}
        if sizes != self._sizes:
            self._sizes, self._planner = sizes, Planner(sizes, shares_cores=False)
        return self._planner

    def find_offers(self, links: LinkRegistry) -> dict[str, OfferedCollection]:
        """Return the latest offer of each provider, connected or not."""
        for name in self.providers:
            link = links.links.get(name)
            if link is not None and self.name in link.collections:
                self._offers[name] = link.collections[self.name]
        return self._offers

    def choose_settings(self, algorithm: str | None, allow_partial: bool | None) -> SearchSettings:
        """Return the settings of a query.

        Raises
        ------
        ValueError
            If the algorithm is unknown, or not allowed in this collection.
        """
        chosen = {"algorithm": algorithm, "allow_partial": allow_partial}
        changes: Any = {name: value for name, value in chosen.items() if value is not None}
        return replace(self.settings, **changes) if changes else self.settings

    def read_query(
        self,
        value: Any,
        where: Where | None,
        *,
        sealed: str | None = None,
        is_filter: bool = False,
    ) -> tuple[Any, bytes]:
        """Return a query, None if unknown, and its frame.

        Parameters
        ----------
        value : object
            JSON value of the query.
        where : mapping, optional
            The filter.
        sealed : str, optional
            Both, sealed by the client.
        is_filter : bool
            There is only a filter.

        Raises
        ------
        DataError, ValueError, TypeError
            If the query is no object of the metric, the filter does not suit the columns, or one of
            them is not sealed in a sealed collection.
        MissingExtraError
            If the query is SMILES and RDKit is not installed.
        """
        if self.is_voting:
            raise ValueError(f"collection {self.name!r} has voters and no objects: ask for votes")
        if self.trust == "sealed":
            if sealed is None or value is not None or where is not None:
                raise ValueError(
                    f"collection {self.name!r} is sealed, so that the broker sees no query: use "
                    "RemoteNeighbors with keys of the providers, or `fedneighbors search --keys`"
                )
            return None, read_sealed(sealed, self.providers)
        if sealed is not None:
            raise ValueError(f"collection {self.name!r} is not sealed: omit the keys")
        if where is not None:
            if not self.filters:
                raise ValueError(f"collection {self.name!r} has no columns for filters")
            self._columns.match(where)
            if is_filter:
                return None, encode(FilteredQuery(b"", filter_text(where)))
        query = read_json_query(value, self.metric, self._metric)
        ((_, frame),) = encode_queries([query], where)
        return query, frame

    def check(self, provider: str, offered: OfferedCollection) -> None:
        """Raise Refused if a provider's settings differ from the broker's."""
        if provider not in self.providers:
            raise Refused("the provider may not offer this collection", self.name)
        for setting in ("metric", "schema", "tie_key", "filters", "trust"):
            expected, found = getattr(self, setting), getattr(offered, setting)
            if found != expected:
                raise Refused(
                    f"the setting {setting!r} differs",
                    f"collection {self.name!r} has {expected!r} at the broker, {found!r} here",
                )
        privacy = self.settings.privacy
        if privacy is not None and not offered.covers(privacy.total):
            raise Refused("a private query costs more than the provider charges", self.name)
        self.n_columns = offered.n_columns or self.n_columns

    def explain_invalid(self, query: Any) -> str:
        """Return the reason for which providers refuse a query; empty if unknown.

        Of a sealed query, which is None, only the expected form is known.
        """
        if query is None:
            vectors = f", vectors of {self.n_columns} numbers" * bool(self.n_columns)
            filters = ", ".join(f"{name} ({kind})" for name, kind in self.filters.items())
            return (
                f"{INVALID_QUERY}: collection {self.name!r} has the metric {self.metric}{vectors}, "
                f"and the filters {filters or 'none'}"
            )
        n_columns = len(query) if isinstance(query, np.ndarray) else 0
        if KINDS[self.metric] == "vectors" and self.n_columns not in (0, n_columns):
            return f"expected a vector of {self.n_columns} numbers, got {n_columns}"
        try:
            self._metric.index([query], ranks=np.zeros(1, np.int64)).open(query)
        except (TypeError, ValueError) as error:
            return str(error).replace("object 0", "the query")
        return ""

    def shown_steps(
        self, user: str, groups: tuple[str, ...], links: LinkRegistry
    ) -> dict[str, float | None]:
        """Return the steps of the distances that providers show to a user."""
        return {name: one.step_for(user, groups) for name, one in self.find_offers(links).items()}


_RETRIED = (UNKNOWN_QUERY, SOURCE_FAILED)


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
        self.config, self.state, self.fingerprint = config, state, fingerprint
        self.attester: Attester | None = None  # set in a confidential virtual machine
        self.collections = {
            name: BrokerCollection(name, section, open_ledger(config, name), config.folder)
            for name, section in config.collections.items()
        }
        self.registry = LinkRegistry(state, fingerprint, self._check)
        self._oidc = None if config.oidc is None else OidcUsers(config.oidc)
        self.wrong_codes = WrongCodes(MAX_ALL_WRONG_CODES)
        self.log = AccessLog(config.path(config.log))
        self._n_running, self._by_user = 0, Counter[str]()
        self._is_draining = False
        self.on_offer: Callable[[str, OfferedCollection], None] = lambda *_: None
        self.metrics = BrokerMetrics(lambda: self._n_running, lambda: len(self.registry.links))

    async def find_user(self, token: str) -> ApiUser | None:
        """Return the user of a token, or None.

        Raises
        ------
        IssuerFailed
            If the issuer of tokens cannot be reached.
        """
        user = self.state.user_of(token)
        return await self._oidc.user_of(token) if user is None and self._oidc else user

    async def drain(self, seconds: float) -> None:
        """Refuse new queries, and wait until the running ones have ended."""
        self._is_draining = True
        deadline = time.monotonic() + seconds
        while self._n_running and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    def check_load(self, user: str = "") -> None:
        """Raise unless a further query may run.

        Raises
        ------
        Overloaded
            If the broker is being stopped, or runs too many queries.
        TooManyQueries
            If the user runs half of them.
        """
        limit = self.config.queries.max_concurrent
        if self._is_draining:
            raise Overloaded("the broker is being stopped; try again later")
        if self._n_running >= limit:
            raise Overloaded(f"{self._n_running} queries run; try again later")
        if user and self._by_user[user] >= (limit + 1) // 2:
            raise TooManyQueries(f"{self._by_user[user]} queries of the user run; try again later")

    def _check(self, provider: str, offered: Mapping[str, OfferedCollection]) -> None:
        for name, one in offered.items():
            if name not in self.collections:
                raise Refused("the broker has no such collection", name)
            self.collections[name].check(provider, one)
            self.on_offer(provider, one)

    async def search(
        self, collection: str, query: bytes, k: int, **options: Any
    ) -> SearchResult[Answer]:
        """Find the k nearest objects of a query.

        A query whose state a provider has lost is run again.

        Parameters
        ----------
        collection : str
            Name of the collection.
        query : bytes
            Frame of the query.
        k : int
            Number of neighbours.
        **options
            Fields of :class:`QueryOptions`.

        Raises
        ------
        Overloaded, TooManyQueries
            If too many queries run at once.
        DataError
            If there is no such collection.
        ValueError
            If k or the algorithm is not allowed.
        PartyMissing, PartyRefused, ProtocolError, QueryLost
            If providers fail.
        """
        self._check_k(k)

        async def work(run: QueryRun) -> tuple[Outcome[Answer], str]:
            planner, settings = run.planner, run.settings
            coordinator_of, why = planner.plan(settings, query, k, ledger=run.ledger)
            outcome = await run.search(coordinator_of, query)
            planner.observe(settings, outcome, k)
            return outcome, why

        return await self.perform(collection, QueryOptions(**options, k=k), work)

    async def search_radius(
        self, collection: str, query: bytes, radius: float, **options: Any
    ) -> SearchResult[Answer]:
        """Find all objects within a radius; at most ``max_k``.

        Each provider learns nothing about the others.

        Parameters
        ----------
        collection, query, **options
            As for :meth:`search`.
        radius : float
            Radius in the unit of the metric.

        Raises
        ------
        TooManyObjects
            If there are more than ``max_k`` objects.
        Overloaded, TooManyQueries, DataError, ValueError
            As for :meth:`search`.
        PartyMissing, PartyRefused, ProtocolError, QueryLost
            As for :meth:`search`.
        """

        async def work(run: QueryRun) -> tuple[Outcome[Answer], str]:
            limits = {**run.limit_range(radius), "limit": self.config.queries.max_k}
            return await run.search(
                lambda name: range_search(query, radius, name=name, **limits), query
            ), ""

        return await self.perform(collection, QueryOptions(**options), work)

    async def count(
        self, collection: str, query: bytes, radius: float, **options: Any
    ) -> SearchResult[RangeCounts]:
        """Count the objects within a radius.

        Parameters
        ----------
        collection, query, radius, **options
            As for :meth:`search_radius`.

        Raises
        ------
        Overloaded, TooManyQueries, DataError, ValueError
            As for :meth:`search`.
        PartyMissing, PartyRefused, ProtocolError, QueryLost
            As for :meth:`search`.
        """

        async def work(run: QueryRun) -> tuple[Outcome[RangeCounts], str]:
            limits = run.limit_range(radius)
            return await run(lambda name: count_within(query, radius, name=name, **limits)), ""

        return await self.perform(collection, QueryOptions(**options), work)

    async def explain(
        self, collection: str, query: bytes, k: int, **options: Any
    ) -> SearchResult[Explanation]:
        """Run a query with each algorithm and compare the costs.

        Parameters
        ----------
        collection, query, k, **options
            As for :meth:`search`.

        Raises
        ------
        Overloaded, TooManyQueries, DataError, ValueError
            As for :meth:`search`.
        PartyMissing, PartyRefused, ProtocolError, QueryLost
            As for :meth:`search`.
        """
        self._check_k(k)
        loop = asyncio.get_running_loop()

        async def work(run: QueryRun) -> tuple[Outcome[Explanation], str]:
            outcomes: list[Outcome[Answer]] = []

            def run_here(coordinator_of: Callable[[str], Coordinator[Answer]]) -> Outcome[Answer]:
                outcomes.append(
                    asyncio.run_coroutine_threadsafe(run(coordinator_of), loop).result()
                )
                return outcomes[-1]

            try:  # in a thread, because the planner waits for each outcome
                plan = await asyncio.to_thread(
                    run.planner.explain, run.settings, run_here, query, k
                )
            except asyncio.CancelledError:
                run.stop()  # the thread would go on
                raise
            answers = tuple(outcome.result for outcome in outcomes)
            rounds = tuple(record for outcome in outcomes for record in outcome.rounds)
            return Outcome(Explanation(plan, answers), rounds), plan.why

        return await self.perform(collection, QueryOptions(**options), work)

    def _check_k(self, k: int) -> None:
        if not 1 <= k <= self.config.queries.max_k:
            raise ValueError(f"expected k from 1 to {self.config.queries.max_k}, got {k}")

    async def perform(
        self,
        collection: str,
        options: QueryOptions,
        work: Callable[[QueryRun], Awaitable[tuple[Outcome[R], str]]],
    ) -> SearchResult[R]:
        """Run a query; once more if a provider lost its state.

        Parameters
        ----------
        collection, options : str and QueryOptions
            As for :meth:`search`.
        work : async callable
            Runs a coordinator; returns its outcome, and the reason for the algorithm.
        """
        limits, started = self.config.queries, time.monotonic()
        if collection not in self.collections:
            raise DataError(f"there is no collection {collection!r}")
        self.check_load(options.user)
        deadline = started + min(options.deadline_s or limits.deadline_s, limits.max_deadline_s)
        run = QueryRun(self.registry, self.collections[collection], options, deadline)
        self._n_running += 1
        self._by_user[options.user] += 1
        try:
            with trace_work("query", collection=collection, query_id=options.query_id):
                outcome, why = await self._repeat(run, work, deadline)
                return run.make_result(outcome, why, time.monotonic() - started)
        finally:
            self._n_running -= 1
            self._by_user -= Counter([options.user])  # removes a count of 0

    async def _repeat(
        self,
        run: QueryRun,
        work: Callable[[QueryRun], Awaitable[tuple[Outcome[R], str]]],
        deadline: float,
    ) -> tuple[Outcome[R], str]:
        """Run a query; repeat it if a provider lost its state."""
        lost: QueryLost | PartyRefused | None = None
        n_left = self.config.queries.retries
        while True:
            try:
                return await work(run)
            except PartyMissing as error:  # others may have had no time after a loss
                if lost is None or set(error.missing) == {lost.party}:
                    raise
                raise lost from None
            except (QueryLost, PartyRefused) as error:
                is_final = isinstance(error, PartyRefused) and error.code not in _RETRIED
                if is_final or n_left == 0:
                    raise
                lost, n_left = error, n_left - 1
            left_s = max(deadline - time.monotonic(), 0.0)
            if run.settings.allow_partial:
                left_s /= 2  # the other half is for an answer without the provider
            await self.registry.wait_for(run.providers, min(_RECONNECT_S, left_s))
