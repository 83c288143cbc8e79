"""The broker's ASGI application: REST API, and links of providers, on one port."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from fedneighbors._version import __version__
from fedneighbors.datasets._objects import METRIC_KINDS, object_from_json
from fedneighbors.errors import (
    BudgetExceeded,
    FedneighborsError,
    LedgerError,
    MissingExtraError,
    PartyMissing,
    PartyRefused,
    WireError,
)
from fedneighbors.federation._messages import encode
from fedneighbors.federation._roles import Refused, make_refusal
from fedneighbors.methods.fedknn._provider import INVALID_QUERY
from fedneighbors.methods.fedknn._queries import encode_queries
from fedneighbors.methods.fedknn.metrics._sessions import LATE
from fedneighbors.service._broker import Broker, BrokerCollection, Overloaded, SearchResult
from fedneighbors.service._config import Algorithm
from fedneighbors.service._links import ProviderLink, QueryLost
from fedneighbors.service._messages import Challenge, Welcome

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 256 << 10
_HELLO_S = 10.0  # time for a provider's first message
_POLICY_VIOLATION, _TRY_AGAIN_LATER = 1008, 1013  # close codes of RFC 6455
MAX_JOINING = 64
"""Maximum number of WebSockets that have not signed a challenge yet."""


class SearchBody(BaseModel):
    """Body of a search request."""

    model_config = ConfigDict(extra="forbid")

    query: Any = Field(
        description="Numbers of a vector; [longitude, latitude] in degrees; a string; a list of "
        "the elements of a set; SMILES of a molecule; or {nodes, edges} of a graph, where an edge "
        "is [first, second, label]"
    )
    k: int = Field(default=10, ge=1, description="Number of neighbours")
    where: dict[str, Any] | None = Field(default=None, description="Filter by columns")
    algorithm: Algorithm | None = Field(default=None, description="In place of the collection's")
    deadline_s: float | None = Field(default=None, gt=0, description="Seconds")
    allow_partial: bool | None = Field(default=None, description="Answer without missing providers")


class EnrolmentBody(BaseModel):
    """Body of an enrolment: a one-time code, and the provider's key (hexadecimal)."""

    model_config = ConfigDict(extra="forbid")

    provider: str = Field(max_length=64)
    secret: str = Field(max_length=64, pattern="^([0-9a-f]{2})*$")
    key: str = Field(max_length=64, pattern="^([0-9a-f]{2})*$")
    signature: str = Field(max_length=128, pattern="^([0-9a-f]{2})*$")


class Problem(Exception):  # noqa: N818 - an answer, as in RFC 9457
    """An answer with an error, as in RFC 9457.

    Parameters
    ----------
    status : int
        Status code of HTTP.
    code : str
        Stable code of the error.
    detail : str
        Sentence for people.
    **fields
        Further fields of the answer.
    """

    def __init__(self, status: int, code: str, detail: str, **fields: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.content = {"code": code, "detail": detail, "retryable": False, **fields}

    def response(self) -> Response:
        """Return the response."""
        content = {"type": "about:blank", "status": self.status, **self.content}
        headers = {"Retry-After": "1"} if self.content["retryable"] else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(
            content, self.status, headers=headers, media_type="application/problem+json"
        )


def problem_of(error: Exception) -> Problem:
    """Return the problem of an error of a search."""
    match error:
        case Overloaded():
            return Problem(503, "overloaded", str(error), retryable=True)
        case QueryLost():
            return Problem(503, "provider-restarted", str(error), retryable=True)
        case PartyMissing():
            return Problem(
                503, "provider-missing", str(error), retryable=True, missing=error.missing
            )
        case PartyRefused():
            if error.code == INVALID_QUERY:
                return Problem(422, "invalid-query", error.code)
            if error.code == LATE:
                return Problem(504, "deadline-passed", str(error), retryable=True)
            return Problem(502, "provider-refused", str(error), party=error.party)
        case BudgetExceeded():
            return Problem(403, "budget-exceeded", str(error))
        case LedgerError():
            return Problem(503, "ledger-failed", str(error), retryable=True)
        case MissingExtraError():
            return Problem(501, "not-installed", str(error))
        case ValueError() | TypeError() | ArithmeticError() | RecursionError():
            return Problem(422, "invalid-query", str(error))
        case FedneighborsError():
            return Problem(502, "provider-failed", str(error))
    raise error


Endpoint = Callable[[Broker, Request], Awaitable[Response]]


def make_app(broker: Broker) -> Starlette:
    """Return the application of a broker."""

    def public(endpoint: Endpoint) -> Any:
        async def answer(request: Request) -> Response:
            try:
                return await endpoint(broker, request)
            except Problem as problem:
                return problem.response()
            except Exception as error:
                log.exception("a request failed with %s", type(error).__name__)
                return Problem(
                    500, "internal", "the broker failed; its log has the cause"
                ).response()

        return answer

    def protected(endpoint: Endpoint) -> Any:
        async def check(broker: Broker, request: Request) -> Response:
            if endpoint is _search:  # refused first, because refusals must cost little
                try:
                    broker.check_load()
                except Overloaded as error:
                    raise problem_of(error) from None
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            user = broker.state.user_of(token) if scheme.lower() == "bearer" else None
            if user is None:
                raise Problem(
                    401, "unauthorized", "expected a valid token: 'Authorization: Bearer fn_...'"
                )
            return await endpoint(broker, request)

        return public(check)

    async def refuse(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return Problem(
            error.status_code, "not-found", f"{error.detail}; see /openapi.json"
        ).response()

    return Starlette(
        routes=[
            Route("/healthz", public(_health)),
            Route("/readyz", public(_readiness)),
            Route("/openapi.json", public(_openapi)),
            Route("/v1/collections", protected(_list_collections)),
            Route("/v1/collections/{name}/search", protected(_search), methods=["POST"]),
            Route("/v1/providers", protected(_list_providers)),
            Route("/v1/enrolments", public(_enrol), methods=["POST"]),
            WebSocketRoute("/v1/link", partial(_serve_link, broker)),
        ],
        exception_handlers={404: refuse, 405: refuse},
    )


async def _health(_: Broker, __: Request) -> Response:
    return JSONResponse({"status": "ok", "version": __version__})


async def _readiness(broker: Broker, _: Request) -> Response:
    """Answer whether every collection has all its providers."""
    links = broker.registry.links
    missing = {
        name: [p for p in collection.providers if p not in links]
        for name, collection in broker.collections.items()
    }
    missing = {name: providers for name, providers in missing.items() if providers}
    if missing:
        raise Problem(
            503, "provider-missing", "providers are not connected", retryable=True, missing=missing
        )
    return JSONResponse({"status": "ready"})


async def _list_collections(broker: Broker, _: Request) -> Response:
    collections = [
        _describe_collection(broker, collection) for collection in broker.collections.values()
    ]
    return JSONResponse({"collections": collections})


def _describe_collection(broker: Broker, collection: BrokerCollection) -> dict[str, Any]:
    links = broker.registry.links
    offers = [
        links[name].collections[collection.name]
        for name in collection.providers
        if name in links and collection.name in links[name].collections
    ]
    return {
        "name": collection.name,
        "metric": collection.metric,
        "objects": METRIC_KINDS[collection.metric],
        "n_objects": sum(offer.n_objects for offer in offers),
        "algorithm": collection.settings.algorithm,
        "private": collection.settings.privacy is not None,
        "providers": list(collection.providers),
        "connected": sorted(name for name in collection.providers if name in links),
        "filters": collection.filters,
    }


async def _list_providers(broker: Broker, _: Request) -> Response:
    links = broker.registry.links
    providers = [
        {
            "name": one.name,
            "revoked": one.is_revoked,
            "connected_since": links[one.name].since if one.name in links else None,
            "collections": sorted(links[one.name].collections) if one.name in links else [],
        }
        for one in broker.state.providers()
    ]
    return JSONResponse({"providers": providers})


async def _enrol(broker: Broker, request: Request) -> Response:
    body = await _read_body(request, EnrolmentBody)
    try:
        broker.state.enrol(
            body.provider,
            bytes.fromhex(body.secret),
            bytes.fromhex(body.key),
            bytes.fromhex(body.signature),
        )
    except PartyRefused as error:
        raise Problem(403, "enrolment-refused", error.code) from None
    return JSONResponse({"provider": body.provider}, 201)


async def _search(broker: Broker, request: Request) -> Response:
    body = await _read_body(request, SearchBody)
    name = request.path_params["name"]
    if name not in broker.collections:
        known = ", ".join(sorted(broker.collections))
        raise Problem(404, "unknown-collection", f"there is no collection {name!r}, only: {known}")
    collection = broker.collections[name]
    try:
        query = object_from_json(body.query, METRIC_KINDS[collection.metric])
        ((_, frame),) = encode_queries([query], body.where)
        result = await broker.search(
            name,
            frame,
            body.k,
            algorithm=body.algorithm,
            deadline_s=body.deadline_s,
            allow_partial=body.allow_partial,
        )
    except (FedneighborsError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise problem_of(error) from None
    return JSONResponse(_describe_result(result))


def _describe_result(result: SearchResult) -> dict[str, Any]:
    answer, rounds = result.outcome.result, result.outcome.rounds
    merged = answer.merged
    neighbors = zip(merged.owners, merged.ids, merged.distances.tolist(), strict=True)
    return {
        "query_id": result.query_id,
        "exact": answer.exact,
        "trust": answer.trust,
        "algorithm": answer.algorithm,
        "why": result.why,
        "rounds": len(rounds),
        "seconds": result.seconds,
        "bytes": sum(sum(r.upload_bytes.values()) + sum(r.download_bytes.values()) for r in rounds),
        "answered": list(answer.answered),
        "missing": dict(answer.missing),
        "n_returned": dict(answer.n_returned),
        "neighbors": [
            {"provider": owner, "id": name, "distance": distance}
            for owner, name, distance in neighbors
        ],
    }


async def _read_body(request: Request, model: type[Any]) -> Any:
    """Return the checked JSON body of a request."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise Problem(413, "too-large", f"expected a body of at most {MAX_BODY_BYTES} bytes")
    try:
        return model.model_validate(json.loads(bytes(content)))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "body"
        raise Problem(422, "invalid-body", f"{place}: {first['msg'].lower()}") from None
    except (ValueError, RecursionError):
        raise Problem(400, "invalid-json", "expected a JSON object as body") from None


async def _serve_link(broker: Broker, websocket: WebSocket) -> None:
    """Serve the link of one provider."""
    if broker.registry.n_joining >= MAX_JOINING:
        await websocket.close(_TRY_AGAIN_LATER)
        return
    broker.registry.n_joining += 1
    try:
        link = await _accept_link(broker, websocket)
    finally:
        broker.registry.n_joining -= 1
    if link is None:
        return
    websocket.state.allow_long()
    try:
        await websocket.send_bytes(encode(Welcome()))
        await broker.registry.add(link)
        while link.is_open:
            link.receive(await websocket.receive_bytes())
        await websocket.close(_POLICY_VIOLATION)
    except (WebSocketDisconnect, WireError, KeyError, RuntimeError):
        pass  # RuntimeError: Starlette's error of a connection that is closed
    finally:
        broker.registry.remove(link)


async def _accept_link(broker: Broker, websocket: WebSocket) -> ProviderLink | None:
    """Return the link of a provider that has signed a challenge."""
    await websocket.accept()
    challenge = Challenge.new()
    await websocket.send_bytes(encode(challenge))
    try:
        async with asyncio.timeout(_HELLO_S):
            hello = await websocket.receive_bytes()
        return broker.registry.accept(hello, challenge.nonce, websocket.send_bytes)
    except Refused as error:
        await websocket.send_bytes(encode(make_refusal(error)))
        await websocket.close(_POLICY_VIOLATION)
    except (WebSocketDisconnect, TimeoutError, KeyError):  # KeyError: a text message
        pass
    return None


_Method = Literal["get", "post"]


async def _openapi(_: Broker, __: Request) -> Response:
    """Return the description of the REST API."""

    def operation(summary: str, body: type[BaseModel] | None = None) -> dict[str, Any]:
        described: dict[str, Any] = {
            "summary": summary,
            "responses": {
                "200": {"description": "The result"},
                "default": {
                    "description": "An error",
                    "content": {"application/problem+json": {"schema": {"type": "object"}}},
                },
            },
        }
        if body is not None:
            schema = body.model_json_schema()
            described["requestBody"] = {"content": {"application/json": {"schema": schema}}}
        return described

    search = operation("Find the nearest objects of a query", SearchBody)
    search["parameters"] = [
        {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    return JSONResponse(
        {
            "openapi": "3.1.0",
            "info": {"title": "fedneighbors broker", "version": __version__},
            "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
            "security": [{"token": []}],
            "paths": {
                "/v1/collections": {"get": operation("List the collections")},
                "/v1/collections/{name}/search": {"post": search},
                "/v1/providers": {"get": operation("List the enrolled providers")},
                "/v1/enrolments": {"post": operation("Enrol a provider", EnrolmentBody)},
                "/healthz": {"get": operation("Check that the broker runs")},
                "/readyz": {"get": operation("Check that all providers are connected")},
            },
        }
    )
