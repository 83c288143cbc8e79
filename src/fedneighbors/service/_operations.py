"""Kinds of queries: their bodies, and the run of one, with its scope, log and problems."""

import asyncio
import hashlib
import json
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from fedneighbors.errors import PartyRefused
from fedneighbors.federation._loop import Outcome
from fedneighbors.privacy._guarantees import ApproxDP, Guarantee, PureDP
from fedneighbors.service._access_log import AccessEntry, LogFailed
from fedneighbors.service._broker import Broker, BrokerCollection
from fedneighbors.service._config import Algorithm, Text
from fedneighbors.service._problems import (
    QUERY_ERRORS,
    Problem,
    encode_json,
    problem_of,
    report_internal,
)
from fedneighbors.service._query_run import QueryOptions, QueryRun, SearchResult
from fedneighbors.service._state import ApiUser
from fedneighbors.service._stored import QueryStore, StoredAnswer, StoredQuery, describe_neighbors
from fedneighbors.service._votes import MAX_ROWS, Votes, collect_votes, encode_rows

log = logging.getLogger(__name__)

DEFAULT_K = 10


def _read_whole(value: Any) -> Any:
    """Return 5 for 5.0, which are the same number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_read_whole)]


class RequestBody(BaseModel):
    """Fields that the bodies of all queries have."""

    model_config = ConfigDict(extra="forbid", strict=True)  # true is no number, and "5" neither

    deadline_s: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="Seconds")
    allow_partial: bool | None = Field(default=None, description="Answer without missing providers")
    purpose: Text | None = Field(default=None, description="Stated to the providers, and logged")


class QueryBody(RequestBody):
    """Fields that the bodies of all searches have."""

    _required: ClassVar[set[str]] = {"query", "sealed"}

    query: Any = Field(
        default=None,
        description="Numbers of a vector; [longitude, latitude] in degrees; a string; a list of "
        "the elements of a set; SMILES of a molecule; {nodes, edges} of a graph, where an edge is "
        "[first, second, label]; or the cells of a row by column, with lists for sets, within "
        "the ranges and categories of the columns",
    )
    where: dict[str, Any] | None = Field(default=None, description="Filter by columns")
    sealed: str | None = Field(
        default=None,
        description="In a sealed collection, query and where as the Python client encrypts them",
    )

    @model_validator(mode="before")
    @classmethod
    def _require_query(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.keys().isdisjoint(cls._required):
            raise PydanticCustomError("missing", "field required: query, or sealed")
        return fields

    def read(self, collection: BrokerCollection) -> tuple[Any, bytes]:
        """Return the query, None if unknown, and its frame."""
        return collection.read_query(self.query, self.where, sealed=self.sealed)


class SearchBody(QueryBody):
    """Body of a search for the k nearest objects, or for all objects within a radius."""

    k: Whole | None = Field(
        default=None, ge=1, description=f"Number of neighbours; {DEFAULT_K} without a radius"
    )
    radius: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="Find all objects within this distance, in place of k",
    )
    algorithm: Algorithm | None = Field(default=None, description="In place of the collection's")
    payload: bool = Field(
        default=False, description="Return the columns of each neighbour that its provider allows"
    )


class CountBody(QueryBody):
    """Body of a count of the objects within a radius, or of all that meet a filter."""

    _required = {"query", "sealed", "where"}

    query: Any = Field(default=None, description="As for a search; only with radius")
    radius: float | None = Field(
        default=None, allow_inf_nan=False, description="In the unit of the metric"
    )

    def read(self, collection: BrokerCollection) -> tuple[Any, bytes]:
        """Return the query, None if unknown, and its frame."""
        is_filter = self.radius is None
        if is_filter and not self.sealed and (self.where is None or self.query is not None):
            raise ValueError("expected query and radius, or where alone")
        return collection.read_query(
            self.query, self.where, sealed=self.sealed, is_filter=is_filter
        )


class ExplainBody(QueryBody):
    """Body of a request for the plan of a search."""

    k: Whole = Field(default=DEFAULT_K, ge=1, description="Number of neighbours")
    algorithm: Algorithm | None = Field(default=None, description="In place of the collection's")


class VotesBody(RequestBody):
    """Body of a request for the votes of classifiers."""

    rows: list[dict[str, Any]] = Field(
        min_length=1,
        max_length=MAX_ROWS,
        description="Cells of each row by column: numbers, texts, or null if missing",
    )

    def read(self, collection: BrokerCollection) -> tuple[Any, bytes]:
        """Return None, and the frame of the rows."""
        if not collection.is_voting or collection.rows is None:
            raise ValueError(f"collection {collection.name!r} has no voters: search it")
        return None, encode_rows(self.rows, collection.rows)


@dataclass(frozen=True)
class Operation:
    """A kind of query.

    Parameters
    ----------
    kind : str
        Its name.
    body : class
        Class of the request's body.
    scope : str
        Scope that the user's token needs.
    run : async callable
        Takes the broker, the collection, the query's frame, the body and options; returns the
        answer.
    """

    kind: str
    body: type[QueryBody | VotesBody]
    scope: str
    run: Callable[..., Awaitable[dict[str, Any]]]


async def _search(
    broker: Broker, collection: str, frame: bytes, body: SearchBody, options: Mapping[str, Any]
) -> dict[str, Any]:
    if body.radius is None:
        k = DEFAULT_K if body.k is None else body.k
        chosen: dict[str, Any] = {"algorithm": body.algorithm, "payload": body.payload}
        result = await broker.search(collection, frame, k, **chosen, **options)
    elif body.k is not None or body.algorithm is not None:
        raise ValueError("a search with a radius finds all objects; omit k and algorithm")
    else:
        chosen = {"payload": body.payload}
        result = await broker.search_radius(collection, frame, body.radius, **chosen, **options)
    answer = result.outcome.result
    merged = answer.merged
    found = list(zip(merged.owners, merged.ids, merged.distances.tolist(), strict=True))
    who = options["user"], options["groups"]
    steps = broker.collections[collection].shown_steps(*who, broker.registry)
    return {
        **_describe(result, exact=answer.exact, answered=answer.answered, missing=answer.missing),
        "algorithm": answer.algorithm,
        "n_returned": dict(answer.n_returned),
        "neighbors": _add_payloads(describe_neighbors(found, steps), result.payloads),
    }


def _add_payloads(
    neighbors: list[dict[str, Any]], payloads: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    if payloads is None:
        return neighbors
    pairs = zip(neighbors, payloads, strict=True)
    return [{**neighbor, "payload": dict(payload)} for neighbor, payload in pairs]


async def _count(
    broker: Broker, collection: str, frame: bytes, body: CountBody, options: Mapping[str, Any]
) -> dict[str, Any]:
    radius = math.inf if body.radius is None else body.radius
    result = await broker.count(collection, frame, radius, **options)
    found = result.outcome.result
    is_exact, answered = found.exact and not found.missing, tuple(found.counts)
    return {
        **_describe(result, exact=is_exact, answered=answered, missing=found.missing),
        "algorithm": "count",
        "count": sum(found.counts.values()),
        "counts": dict(found.counts),
    }


async def _explain(
    broker: Broker, collection: str, frame: bytes, body: ExplainBody, options: Mapping[str, Any]
) -> dict[str, Any]:
    result = await broker.explain(collection, frame, body.k, algorithm=body.algorithm, **options)
    answers, plan = result.outcome.result.answers, result.outcome.result.plan
    missing = {name: why for answer in answers for name, why in answer.missing.items()}
    is_exact = all(answer.exact for answer in answers)
    return {
        **_describe(result, exact=is_exact, answered=answers[-1].answered, missing=missing),
        "algorithm": plan.algorithm,
        "plan": asdict(plan),
    }


async def _vote(
    broker: Broker, collection: str, frame: bytes, body: VotesBody, options: Mapping[str, Any]
) -> dict[str, Any]:
    schema = broker.collections[collection].rows
    assert schema is not None  # the body was read
    shape = len(body.rows), len(schema.classes)

    async def work(run: QueryRun) -> tuple[Outcome[Votes], str]:
        is_partial = run.settings.allow_partial
        return await run(
            lambda name: collect_votes(frame, shape, name=name, allow_partial=is_partial)
        ), ""

    result = await broker.perform(collection, QueryOptions(**options), work)
    votes = result.outcome.result
    best = votes.probabilities.argmax(axis=1)  # the first of equal ones
    missing = votes.missing
    return {
        **_describe(result, exact=not missing, answered=tuple(votes.weights), missing=missing),
        "algorithm": "votes",
        "classes": list(schema.classes),
        "probabilities": votes.probabilities.tolist(),
        "labels": [schema.classes[position] for position in best],
        "weights": dict(votes.weights),
        "held_out": dict(votes.n_held_out),
    }


OPERATIONS = {
    "search": Operation("search", SearchBody, "search", _search),
    "count": Operation("count", CountBody, "count", _count),
    "explain": Operation("explain", ExplainBody, "search", _explain),
    "votes": Operation("votes", VotesBody, "search", _vote),
}


def _describe(
    result: SearchResult[Any],
    *,
    exact: bool,
    answered: tuple[str, ...],
    missing: Mapping[str, str],
) -> dict[str, Any]:
    """Return the fields that all answers have."""
    outcome: Outcome[Any] = result.outcome
    rounds = outcome.rounds
    n_bytes = sum(sum(r.upload_bytes.values()) + sum(r.download_bytes.values()) for r in rounds)
    charged = result.charged
    return {
        "query_id": result.query_id,
        "exact": exact,
        "answered": list(answered),
        "missing": dict(missing),
        "epochs": {name: epoch for name, epoch in result.epochs.items() if name in answered},
        "charged": charged and {name: describe_cost(cost) for name, cost in charged.items()},
        "algorithm": "",
        "rounds": len(rounds),
        "why": result.why,
        "seconds": result.seconds,
        "bytes": n_bytes,
    }


def describe_cost(cost: Guarantee) -> dict[str, float]:
    """Return epsilon and delta of a cost or a budget."""
    assert isinstance(cost, PureDP | ApproxDP)  # the only budgets of a search
    return {"epsilon": float(cost.epsilon), "delta": float(getattr(cost, "delta", 0))}


def check_scope(broker: Broker, user: ApiUser, scope: str, collection: str) -> None:
    """Raise unless a token allows a scope in an existing collection.

    Raises
    ------
    Problem
        Otherwise.
    """
    known = [name for name in sorted(broker.collections) if user.may("count", name)]
    if collection not in known:
        raise Problem(
            404,
            "unknown-collection",
            f"there is no collection {collection!r}, only: {', '.join(known)}",
        )
    if not user.may(scope, collection):
        raise Problem(403, "forbidden", f"the token does not allow {scope!r} in {collection!r}")


async def perform_query(
    broker: Broker,
    operation: Operation,
    collection: str,
    content: bytes,
    query_id: str,
    **options: Any,
) -> dict[str, Any]:
    """Run the query of a body; raise a problem if it fails."""
    body, found = parse_body(content, operation.body), broker.collections[collection]
    options |= {"query_id": query_id, "purpose": body.purpose or ""}
    query, frame = None, b""
    entry = AccessEntry(
        query=query_id,
        user=options["user"],
        collection=collection,
        kind=operation.kind,
        size=_size_of(body),
        outcome="failed",
        digest=_digest(frame),
        purpose=options["purpose"],
    )
    started = time.monotonic()
    try:
        query, frame = body.read(found)
        entry = replace(entry, digest=_digest(frame))
        options |= {"deadline_s": body.deadline_s, "allow_partial": body.allow_partial}
        if "on_round" in options:  # events may show objects before the end
            _append_to_log(broker, replace(entry, outcome="running"))
        answer = await operation.run(broker, collection, frame, body, options)
        n_objects, providers = len(answer.get("neighbors", ())), tuple(answer["answered"])
        entry = replace(entry, outcome="", n_objects=n_objects, providers=providers)
        return {**answer, "trust": found.trust}
    except QUERY_ERRORS as error:
        problem = problem_of(error, query_id)
        code = problem.content["code"]
        entry = replace(entry, outcome=code)
        if isinstance(error, PartyRefused) and code == "invalid-query":
            problem = Problem(
                422, code, found.explain_invalid(query) or error.code, query_id=query_id
            )
        raise problem from None
    except asyncio.CancelledError:
        entry = replace(entry, outcome="cancelled")
        raise
    finally:
        seconds = time.monotonic() - started
        broker.metrics.observe(collection, operation.kind, entry.outcome, seconds)
        _append_to_log(broker, entry)


def _digest(frame: bytes) -> str:
    return hashlib.sha256(frame).hexdigest()[:16]


def _append_to_log(broker: Broker, entry: AccessEntry) -> None:
    """Add a query to the log, or raise a problem."""
    try:
        broker.log.append(entry)
    except LogFailed as error:
        log.error("%s", error)
        raise problem_of(error, entry.query) from None


def _size_of(body: QueryBody | VotesBody) -> float | None:
    """Return the radius of a query, or its number of neighbours.

    For votes, it is the number of rows.
    """
    if isinstance(body, VotesBody):
        return len(body.rows)
    radius, k = getattr(body, "radius", None), getattr(body, "k", None)
    if radius is not None or isinstance(body, CountBody):
        return radius
    return DEFAULT_K if k is None else k


def start_query(
    broker: Broker,
    store: QueryStore,
    operation: Operation,
    *,
    collection: str,
    content: bytes,
    user: ApiUser,
    retry: tuple[str | None, bytes] = (None, b""),
) -> StoredQuery:
    """Begin a query in the background, or return an earlier one.

    Parameters
    ----------
    broker, store, operation
        Of the query.
    collection : str
        Name of the collection, whose scope was checked.
    content : bytes
        JSON of the body.
    user : ApiUser
        The user.
    retry : tuple of str or None, and bytes
        Idempotency-Key of the request, and its digest.

    Raises
    ------
    Problem
        If the body is invalid, the key was used for another request, or too many queries run.
    Overloaded, TooManyQueries
        If too many queries run.
    """
    body = parse_body(content, operation.body)  # only a valid query begins
    key, digest = retry
    earlier = store.find_earlier(user.name, key, digest)
    if earlier is not None:
        return earlier
    most: int | None = 0  # only neighbours of a search are certified
    if isinstance(body, SearchBody):
        most = None if body.radius is not None else body.k or DEFAULT_K
    who = user.name, user.groups
    steps = partial(broker.collections[collection].shown_steps, *who, broker.registry)

    async def work(query: StoredQuery) -> StoredAnswer:
        options = {"user": user.name, "groups": user.groups}
        on_round = partial(query.on_round, k=most, steps=steps)
        try:
            done = await perform_query(
                broker, operation, collection, content, query.query_id, on_round=on_round, **options
            )
            return StoredAnswer(200, encode_json(done))
        except Exception as error:
            problem = (
                error if isinstance(error, Problem) else report_internal(error, query.query_id)
            )
            return StoredAnswer(problem.status, encode_json(problem.content))

    broker.check_load(user.name)
    query_id = secrets.token_hex(8)
    request = operation.kind, collection, content
    query = StoredQuery(query_id, user.name, key, digest, request=request)
    return store.start(query, work)


def parse_body(content: bytes, model: type[BaseModel]) -> Any:
    """Return the checked JSON of a body.

    Raises
    ------
    Problem
        If it is not a JSON object with the fields of the model.
    """
    try:
        return model.model_validate(json.loads(content))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "body"
        raise Problem(422, "invalid-body", f"{place}: {first['msg'].lower()}") from None
    except (ValueError, RecursionError):
        raise Problem(400, "invalid-json", "expected a JSON object as body") from None
