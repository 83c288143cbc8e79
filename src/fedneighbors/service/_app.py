"""The broker's ASGI application: REST API, console, and links of providers, on one port."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from fedneighbors._version import __version__
from fedneighbors.errors import LedgerError, PartyRefused, WireError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refused, make_refusal
from fedneighbors.service._access_log import LogFailed
from fedneighbors.service._administration import describe_change
from fedneighbors.service._broker import Broker
from fedneighbors.service._limits import Overloaded, TooManyQueries
from fedneighbors.service._links import ProviderLink
from fedneighbors.service._listings import list_budgets, list_collections, list_providers
from fedneighbors.service._matchmaker import (
    answer_match,
    check_matchmaker,
    convert_problem,
    read_token,
)
from fedneighbors.service._messages import Challenge, EvidenceRequest, Welcome
from fedneighbors.service._metrics import CONTENT_TYPE
from fedneighbors.service._oidc import IssuerFailed
from fedneighbors.service._openapi import describe_api
from fedneighbors.service._operations import OPERATIONS, check_scope, parse_body
from fedneighbors.service._problems import Problem, problem_of, report_internal
from fedneighbors.service._rest import (
    answer_query,
    delete_query,
    read_content,
    show_query,
    stream_events,
)
from fedneighbors.service._state import ApiUser, StateFailed
from fedneighbors.service._stored import QueryStore
from fedneighbors.service._tsm import EvidenceMissing
from fedneighbors.service.console import Sessions, make_console

log = logging.getLogger(__name__)
_LOST = (1005, 1006)  # codes of a WebSocket that ends without a message of its client

PAGE, MAX_PAGE, MAX_AUDIT = 100, 1000, 1000
_HELLO_S = 10.0  # time for a provider's first message
_POLICY_VIOLATION, _TRY_AGAIN_LATER = 1008, 1013  # close codes of RFC 6455
MAX_JOINING = 64
"""Maximum number of WebSockets that have not signed a challenge yet."""


class EnrolmentBody(BaseModel):
    """Body of an enrolment: a one-time code, and the provider's key (hexadecimal)."""

    model_config = ConfigDict(extra="forbid")

    provider: str = Field(max_length=64)
    secret: str = Field(max_length=64, pattern="^([0-9a-f]{2})*$")
    key: str = Field(max_length=64, pattern="^([0-9a-f]{2})*$")
    signature: str = Field(max_length=128, pattern="^([0-9a-f]{2})*$")


Endpoint = Callable[[Broker, Request], Awaitable[Response]]
UserEndpoint = Callable[[Broker, Request, ApiUser], Awaitable[Response]]


def make_app(broker: Broker, sessions: Sessions | None = None) -> Starlette:
    """Return the application of a broker.

    Parameters
    ----------
    broker : Broker
        The broker.
    sessions : Sessions, optional
        Sessions of the console.
    """
    public, protected = partial(_public, broker), partial(_protected, broker)
    store = QueryStore()
    broker.on_offer = store.see_offer
    check_matchmaker(broker)
    match = _protected(broker, answer_match, is_query=True, read=read_token)

    async def answer_matchmaker(request: Request) -> Response:
        return convert_problem(await match(request))

    return Starlette(
        routes=[
            Route("/", public(_open_console)),
            make_console(broker, store, sessions or Sessions()),
            Route("/healthz", public(_health)),
            Route("/readyz", public(_readiness)),
            Route("/openapi.json", public(_openapi)),
            Route("/metrics", protected(_show_metrics)),
            Route("/match", answer_matchmaker, methods=["POST"]),
            Route("/v1/collections", protected(_list_collections)),
            Route("/v1/collections/{name}", protected(_show_collection)),
            *(
                Route(
                    f"/v1/collections/{{name}}/{kind}",
                    protected(partial(answer_query, store, kind), is_query=True),
                    methods=["POST"],
                )
                for kind in OPERATIONS
            ),
            Route("/v1/queries/{id}", protected(partial(show_query, store))),
            Route("/v1/queries/{id}", protected(partial(delete_query, store)), methods=["DELETE"]),
            Route("/v1/queries/{id}/events", protected(partial(stream_events, store))),
            Route("/v1/budget", protected(_list_budgets)),
            Route("/v1/audit", protected(_list_audit)),
            Route("/v1/providers", protected(_list_providers)),
            Route("/v1/enrolments", public(_enrol), methods=["POST"]),
            WebSocketRoute("/v1/link", partial(_serve_link, broker)),
        ],
        exception_handlers={404: _refuse, 405: _refuse},
    )


def _public(broker: Broker, endpoint: Endpoint) -> Any:
    """Return a handler for everybody, whose errors are problems."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(broker, request)
        except (Problem, Overloaded, TooManyQueries, IssuerFailed) as error:
            return problem_of(error).response()
        except (StateFailed, LogFailed, LedgerError) as error:  # files of the broker
            log.error("%s", error)
            return problem_of(error).response()
        except Exception as error:
            return report_internal(error).response()

    return answer


def _read_bearer(request: Request) -> str:
    """Return the token of a request; empty if there is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else ""


def _protected(
    broker: Broker,
    endpoint: UserEndpoint,
    *,
    is_query: bool = False,
    read: Callable[[Request], str] = _read_bearer,
) -> Any:
    """Return a handler for users with a valid token, found by ``read``."""

    async def check(broker: Broker, request: Request) -> Response:
        # refused first, because refusals must cost little; an answer may be stored under a key
        if is_query and "idempotency-key" not in request.headers:
            broker.check_load()
        token = read(request)
        user = await broker.find_user(token) if token else None
        if user is None:
            header = "'Authorization: Bearer'" if read is _read_bearer else "X-Auth-Token"
            raise Problem(401, "unauthorized", f"expected {header} and a valid token")
        return await endpoint(broker, request, user)

    return _public(broker, check)


async def _refuse(_: Request, error: Exception) -> Response:
    """Answer to a wrong path or method."""
    assert isinstance(error, HTTPException)
    code = "not-found" if error.status_code == 404 else "method-not-allowed"
    response = Problem(error.status_code, code, f"{error.detail}; see /openapi.json").response()
    response.headers.update(error.headers or {})
    return response


async def _open_console(_: Broker, request: Request) -> Response:
    """Send browsers to the console."""
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("/console/")
    raise Problem(404, "not-found", "Not Found; see /openapi.json")


async def _health(_: Broker, __: Request) -> Response:
    return JSONResponse({"status": "ok", "version": __version__})


async def _readiness(broker: Broker, _: Request) -> Response:
    """Answer whether every collection has all its providers, without names."""
    links = broker.registry.links
    if any(name not in links for one in broker.collections.values() for name in one.providers):
        raise Problem(503, "provider-missing", "providers are not connected", retryable=True)
    return JSONResponse({"status": "ready"})


async def _show_metrics(broker: Broker, _: Request, user: ApiUser) -> Response:
    if not user.may("metrics", ""):
        raise Problem(403, "forbidden", "the token does not allow 'metrics'")
    return Response(broker.metrics.encode(), media_type=CONTENT_TYPE)


def _paginate(request: Request, name: str, items: Mapping[str, Any]) -> Response:
    """Answer with a page of a list; ``next`` is its last key."""
    cursor, limit = request.query_params.get("cursor", ""), request.query_params.get("limit", "")
    size = int(limit) if limit.isdecimal() and len(limit) <= 4 else 0
    if limit and not 1 <= size <= MAX_PAGE:
        raise Problem(422, "invalid-parameter", f"expected limit from 1 to {MAX_PAGE}")
    left = [key for key in sorted(items) if key > cursor]
    page = left[: size or PAGE]
    after = page[-1] if len(page) < len(left) else None
    return JSONResponse({name: [items[key] for key in page], "next": after})


async def _list_collections(broker: Broker, request: Request, user: ApiUser) -> Response:
    return _paginate(request, "collections", list_collections(broker, user))


async def _show_collection(broker: Broker, request: Request, user: ApiUser) -> Response:
    name = request.path_params["name"]
    check_scope(broker, user, "count", name)
    return JSONResponse(list_collections(broker, user)[name])


async def _list_providers(broker: Broker, request: Request, user: ApiUser) -> Response:
    return _paginate(request, "providers", list_providers(broker, user))


async def _list_budgets(broker: Broker, request: Request, user: ApiUser) -> Response:
    return _paginate(request, "budgets", list_budgets(broker, user))


async def _list_audit(broker: Broker, request: Request, user: ApiUser) -> Response:
    """Answer with the latest entries of the user in the broker's log."""
    entries = broker.log.entries_of(user.name, MAX_AUDIT)
    return _paginate(request, "entries", {f"{one['number']:019}": one for one in entries})


async def _enrol(broker: Broker, request: Request) -> Response:
    body = parse_body(await read_content(request), EnrolmentBody)
    address = request.client.host if request.client else ""
    if broker.wrong_codes.are_too_many(address):
        detail = "too many wrong enrolment codes; try again in a minute"
        raise Problem(429, "too-many-attempts", detail, retryable=True)
    try:
        broker.state.enrol(
            body.provider,
            bytes.fromhex(body.secret),
            bytes.fromhex(body.key),
            bytes.fromhex(body.signature),
        )
    except PartyRefused as error:
        broker.wrong_codes.add(address)
        raise Problem(403, "enrolment-refused", error.code) from None
    await broker.registry.reject_revoked()  # the earlier key has a link
    broker.log.append(describe_change("", "enrol", f"provider {body.provider}"))
    return JSONResponse({"provider": body.provider}, 201)


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
    reason = "the broker closed the link"
    try:
        await websocket.send_bytes(encode(Welcome()))
        if not link.is_check:
            await broker.registry.add(link)
        while link.is_open and not link.is_check:
            try:
                link.receive(await websocket.receive_bytes())
            except Refused as error:
                reason = error.code
                await link.reject(error)
        await websocket.close(_POLICY_VIOLATION)
    except WebSocketDisconnect as error:
        is_lost = error.code in _LOST
        reason = "the connection was lost" if is_lost else "the provider closed the link"
    except RuntimeError:  # Starlette's error of a connection that is closed
        reason = "the connection was lost"
    except (WireError, KeyError):
        reason = "its message is invalid"
    finally:
        broker.registry.remove(link, reason)


async def _accept_link(broker: Broker, websocket: WebSocket) -> ProviderLink | None:
    """Return the link of a provider that has signed a challenge."""
    await websocket.accept()
    challenge = Challenge.new()
    await websocket.send_bytes(encode(challenge))
    try:
        async with asyncio.timeout(_HELLO_S):
            hello = await _receive_hello(broker, websocket)
        return broker.registry.accept(hello, challenge.nonce, websocket.send_bytes)
    except Refused as error:
        await websocket.send_bytes(encode(make_refusal(error)))
        await websocket.close(_POLICY_VIOLATION)
    except (StateFailed, EvidenceMissing) as error:
        log.error("%s", error)
        await websocket.close(_TRY_AGAIN_LATER)
    except (WebSocketDisconnect, TimeoutError, KeyError):  # KeyError: a text message
        pass
    return None


async def _receive_hello(broker: Broker, websocket: WebSocket) -> bytes:
    """Return a provider's first message, after evidence if it demands some."""
    frame = await websocket.receive_bytes()
    if broker.attester is None:
        return frame
    try:
        request = decode(frame, (EvidenceRequest,))
    except WireError:  # other collections need no evidence
        return frame
    evidence = await broker.attester.answer(request, broker.fingerprint)
    await websocket.send_bytes(encode(evidence))
    return await websocket.receive_bytes()


async def _openapi(_: Broker, __: Request) -> Response:
    """Answer with the description of the REST API."""
    return JSONResponse(describe_api(EnrolmentBody))
