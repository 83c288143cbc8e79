"""The run of one query over the links: its options, coordinators, charges and result."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from fedneighbors.federation._loop import (
    Coordinator,
    ExchangeResult,
    Outcome,
    Replies,
    Steps,
    encode_once,
    make_round,
    read_delivery,
    request_name,
)
from fedneighbors.federation._messages import Message
from fedneighbors.methods.fedknn._payloads import with_payloads
from fedneighbors.methods.fedknn._planning import Plan, Planner
from fedneighbors.methods.fedknn._settings import SearchSettings
from fedneighbors.methods.fedknn.protocol import Answer
from fedneighbors.privacy._accounting import spent_after
from fedneighbors.privacy._guarantees import Guarantee
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.ledger._tables import ChargeTerms
from fedneighbors.records import Round
from fedneighbors.service._links import LinkRegistry, Origin, QueryExchange
from fedneighbors.service._tracing import trace_work

if TYPE_CHECKING:
    from fedneighbors.service._broker import BrokerCollection

R = TypeVar("R")
OnRound = Callable[[Round, Mapping[str, Message], Replies], None]
"""Function that is called with the record, the requests and the replies of an exchange."""


@dataclass(frozen=True)
class QueryOptions:
    """Options of a query.

    Parameters
    ----------
    algorithm, allow_partial : str and bool, optional
        In place of the collection's.
    deadline_s : float, optional
        Seconds before providers without a reply are missing.
    query_id : str
        Name of the query in answers and logs.
    user : str
        User who has a share of the running queries.
    groups : tuple of str
        Groups of the user.
    purpose : str
        Purpose that the user states; empty if there is none.
    k : int
        Number of neighbours; 0 for another kind of query.
    payload : bool
        Read the payloads of the neighbours.
    on_round : callable, optional
        Called after each exchange.
    """

    algorithm: str | None = None
    allow_partial: bool | None = None
    deadline_s: float | None = None
    payload: bool = False
    user: str = ""
    groups: tuple[str, ...] = ()
    purpose: str = ""
    k: int = 0
    query_id: str = field(default_factory=lambda: secrets.token_hex(8))
    on_round: OnRound | None = None


@dataclass(frozen=True)
class SearchResult(Generic[R]):
    """Result of a query.

    Parameters
    ----------
    query_id : str
        Name of the query in logs.
    outcome : Outcome
        The answer, and a record of each exchange.
    why : str
        Reason for the algorithm; empty if the user chose it.
    seconds : float
        Seconds from the request to the answer.
    epochs : mapping of str to str
        Version of the objects of each provider that took part.
    charged : mapping of str to Guarantee, or None
        Cost charged to the budget of each provider; None in a collection without budgets.
    payloads : sequence of mapping, optional
        Payload of each neighbour, if it was asked for.
    """

    query_id: str
    outcome: Outcome[R]
    why: str
    seconds: float
    epochs: Mapping[str, str]
    charged: Mapping[str, Guarantee] | None
    payloads: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Explanation:
    """A plan, and the answers of the algorithms that were run for it."""

    plan: Plan
    answers: tuple[Answer, ...]


class _NotedCharges:
    """A ledger for one query, which keeps the new charges.

    Attributes
    ----------
    noise : str
        Random id of the noise that was released, the same for the same noise. It is sent to
        providers, so that it must not depend on objects.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._release_all, self._id_of, self.noise = ledger.release_all, ledger.epoch, ""
        self._charges: dict[str, ChargeTerms] = {}  # by id: a repeated one counts once

    @property
    def costs(self) -> dict[str, Guarantee]:
        """Return the new cost of each data set."""
        found: dict[str, list[Guarantee]] = {}
        for charge in self._charges.values():
            found.setdefault(charge.dataset, []).append(charge.cost)
        return {name: spent_after(costs, costs[0]) for name, costs in found.items()}

    def release_all(self, terms: Sequence[ChargeTerms], draw: Any) -> list[bytes]:
        """Release as the ledger does."""

        def draw_new(missing: tuple[ChargeTerms, ...]) -> Sequence[bytes]:
            self._charges |= {charge.query: charge for charge in missing}
            answers: Sequence[bytes] = draw(missing)
            return answers

        released = self._release_all(terms, draw_new)
        if terms:
            self.noise = self._id_of(terms[0].dataset, terms[0].query.encode())
        return released


class QueryRun:
    """Runs the coordinators of one query.

    Parameters
    ----------
    registry : LinkRegistry
        The open links.
    collection : BrokerCollection
        The collection.
    options : QueryOptions
        Options of the query.
    deadline : float
        Monotonic time after which providers without a reply are missing.
    """

    def __init__(
        self,
        registry: LinkRegistry,
        collection: "BrokerCollection",
        options: QueryOptions,
        deadline: float,
    ) -> None:
        self.providers = collection.providers
        self._registry, self._collection, self._options = registry, collection, options
        self._settings = collection.choose_settings(options.algorithm, options.allow_partial)
        self._charges = None if collection.ledger is None else _NotedCharges(collection.ledger)
        self._deadline, self._n_runs = deadline, 0
        self._task: asyncio.Task[Any] | None = None
        self._is_stopped = False
        self._epochs: dict[str, str] = {}
        self._payloads: list[Mapping[str, Any]] | None = None

    @property
    def planner(self) -> Planner:
        """Return the planner for the present numbers of objects."""
        return self._collection.planner(self._registry)

    @property
    def settings(self) -> SearchSettings:
        """Return the settings with the remaining time."""
        return replace(self._settings, deadline_s=max(self._deadline - time.monotonic(), 0.0))

    def limit_range(self, radius: float) -> dict[str, Any]:
        """Check a radius; return the limits of its search or count."""
        settings = self.settings
        if radius < settings.least:
            raise ValueError(f"expected a radius of {settings.least:g} or more, got {radius:g}")
        return {"allow_partial": settings.allow_partial, "budget_s": settings.deadline_s}

    @property
    def ledger(self) -> Ledger | None:
        """Return the ledger, which notes the charges of this query."""
        return cast("Ledger | None", self._charges)

    async def __call__(self, coordinator_of: Callable[[str], Coordinator[R]]) -> Outcome[R]:
        """Run a coordinator under a new name.

        Raises
        ------
        CancelledError
            If the query was stopped.
        """
        if self._is_stopped:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        options = self._options
        name = f"{options.query_id}{self._n_runs:02x}"
        self._n_runs += 1
        exchange = QueryExchange(
            self._registry,
            self._collection.name,
            name,
            self._deadline,
            is_patient=not self._settings.allow_partial,
            origin=Origin(options.user, options.groups, options.purpose, options.k),
            noise_of=lambda: "" if self._charges is None else self._charges.noise,
        )
        try:
            return await run_rounds_async(
                coordinator_of(name), exchange, self.providers, on_round=options.on_round
            )
        finally:
            self._epochs |= exchange.epochs
            exchange.end()

    def stop(self) -> None:
        """Stop the coordinator that runs, and begin no other."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()

    def make_result(self, outcome: Outcome[R], why: str, seconds: float) -> SearchResult[R]:
        """Return the result of the query."""
        charged = None if self._charges is None else self._charges.costs
        return SearchResult(
            self._options.query_id, outcome, why, seconds, self._epochs, charged, self._payloads
        )

    async def search(
        self, coordinator_of: Callable[[str], Coordinator[Answer]], query: bytes
    ) -> Outcome[Answer]:
        """Run a search, and read the payloads of its result if wanted.

        Raises
        ------
        CancelledError
            If the query was stopped.
        ValueError
            If payloads are asked for in a private collection: the request would reveal the result
            to each provider.
        """
        if not self._options.payload:
            return await self(coordinator_of)
        if self._settings.privacy is not None:
            raise ValueError("a private search returns no payload")

        def keep(payloads: list[Mapping[str, Any]]) -> None:
            self._payloads = payloads

        return await self(
            lambda name: with_payloads(coordinator_of(name), query, name=name, receive=keep)
        )


async def run_rounds_async(
    coordinator: Coordinator[R],
    exchange: Callable[[Mapping[str, bytes]], Awaitable[ExchangeResult]],
    names: tuple[str, ...],
    *,
    on_round: OnRound | None = None,
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
    on_round : callable, optional
        Called after each exchange.

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
            name = request_name(requests)
            with trace_work("round", request=name):
                result = await exchange(frames)
            delivery = read_delivery(requests, frames, result, reduce=ask.reduce)
            seconds = time.perf_counter() - started
            rounds.append(make_round(len(rounds), name, ask.reduce, delivery, seconds))
            replies = delivery.replies
            if on_round is not None:
                on_round(rounds[-1], requests, replies)
        return Outcome(steps.result, tuple(rounds))
    finally:
        coordinator.close()
