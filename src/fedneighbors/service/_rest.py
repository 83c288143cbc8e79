"""Queries over REST: searches, counts and plans, one or many, at once or in the background."""

import asyncio
import hashlib
import io
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from fedneighbors.service._broker import Broker
from fedneighbors.service._operations import OPERATIONS, check_scope, perform_query, start_query
from fedneighbors.service._problems import Problem, encode_json, make_response, report_internal
from fedneighbors.service._state import ApiUser
from fedneighbors.service._stored import QueryStore, StoredQuery

MAX_BODY_BYTES = 256 << 10
MAX_LINES_BYTES = 16 << 20
"""Maximum size of the body of many queries."""

BODY_S = 60.0
"""Seconds for a request's body."""

MAX_KEY_LENGTH = 255
_MAX_AT_ONCE = 8  # queries of one request that run at the same time
_LINES = "application/x-ndjson"


async def answer_query(
    store: QueryStore, kind: str, broker: Broker, request: Request, user: ApiUser
) -> Response:
    """Answer a request of one or many queries."""
    operation, name = OPERATIONS[kind], request.path_params["name"]
    check_scope(broker, user, operation.scope, name)
    perform = partial(perform_query, broker, operation, name, user=user.name, groups=user.groups)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == _LINES:
        if "idempotency-key" in request.headers:
            raise Problem(422, "invalid-header", "Idempotency-Key is for one query in a request")
        lines = io.BytesIO(await read_content(request, MAX_LINES_BYTES))  # split one by one
        at_once = max(1, min(_MAX_AT_ONCE, broker.config.queries.max_concurrent // 4))
        return StreamingResponse(_answer_lines(perform, lines, at_once), media_type=_LINES)
    content, key = await read_content(request), request.headers.get("idempotency-key")
    is_async = "respond-async" in request.headers.get("prefer", "").lower()
    if key is None and not is_async:
        return make_response(await perform(content, secrets.token_hex(8)))
    if key is not None and not 0 < len(key) <= MAX_KEY_LENGTH:
        raise Problem(
            422,
            "invalid-header",
            f"expected an Idempotency-Key of 1 to {MAX_KEY_LENGTH} characters",
        )
    digest = hashlib.sha256(f"{request.url.path} {is_async} ".encode() + content).digest()
    query = start_query(
        broker, store, operation, collection=name, content=content, user=user, retry=(key, digest)
    )
    assert query.task is not None
    if is_async:
        location = f"/v1/queries/{query.query_id}"
        headers = {"Location": location, "Preference-Applied": "respond-async"}
        return make_response({"query_id": query.query_id, "status": "running"}, 202, headers)
    try:
        answer = await asyncio.shield(query.task)
    except asyncio.CancelledError:
        if not query.task.cancelled():
            raise
        raise Problem(409, "cancelled", "the query was deleted", query_id=query.query_id) from None
    return make_response(answer.content, answer.status)


async def _answer_lines(
    perform: Callable[[bytes, str], Awaitable[dict[str, Any]]], lines: Iterable[bytes], at_once: int
) -> AsyncIterator[bytes]:
    """Yield the answers to many queries, or their problems, in order."""

    async def answer(line: bytes) -> bytes:
        if len(line) > MAX_BODY_BYTES:
            return encode_json(_too_large(MAX_BODY_BYTES).content) + b"\n"
        try:
            return encode_json(await perform(line, secrets.token_hex(8))) + b"\n"
        except Exception as error:
            problem = error if isinstance(error, Problem) else report_internal(error)
            return encode_json(problem.content) + b"\n"

    waiting = (line for line in lines if line.strip())
    running: deque[asyncio.Task[bytes]] = deque()
    try:
        while True:
            while len(running) < at_once and (line := next(waiting, None)) is not None:
                running.append(asyncio.create_task(answer(line)))
            if not running:
                return
            yield await running.popleft()
    finally:
        for task in running:  # the user went away
            task.cancel()


def _too_large(limit: int) -> Problem:
    return Problem(413, "too-large", f"expected a body of at most {limit} bytes")


async def read_content(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """Return the body of a request.

    Raises
    ------
    Problem
        If it is too large, too slow, or incomplete.
    """
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                content += chunk
                if len(content) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        detail = f"expected the whole body within {BODY_S:g} s"
        raise Problem(408, "slow-body", detail, retryable=True) from None
    except ClientDisconnect:
        raise Problem(400, "incomplete-body", "the connection was closed") from None
    return bytes(content)


def _find(store: QueryStore, broker: Broker, request: Request, user: ApiUser) -> StoredQuery:
    """Return a stored query; raise if the token lacks its scope."""
    query = store.find(request.path_params["id"], user.name)
    check_scope(broker, user, OPERATIONS[query.kind].scope, query.collection)
    return query


async def show_query(
    store: QueryStore, broker: Broker, request: Request, user: ApiUser
) -> Response:
    """Answer with the state of a stored query."""
    query = _find(store, broker, request, user)
    state: dict[str, Any] = {"query_id": query.query_id, "status": "running"}
    if query.answer is not None:
        is_done = query.answer.status == 200
        state["status"] = "done" if is_done else "failed"
        state["answer" if is_done else "problem"] = json.loads(query.answer.content)
    return make_response(state)


async def delete_query(
    store: QueryStore, broker: Broker, request: Request, user: ApiUser
) -> Response:
    """Stop and remove a stored query."""
    store.remove(_find(store, broker, request, user))
    return Response(status_code=204)


async def stream_events(
    store: QueryStore, broker: Broker, request: Request, user: ApiUser
) -> Response:
    """Answer with the events of a stored query, as server-sent events."""
    query = _find(store, broker, request, user)
    last = request.headers.get("last-event-id", "")
    first = int(last) + 1 if last.isdecimal() and len(last) < 20 else 0
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # proxies must not wait
    return StreamingResponse(query.events(first), media_type="text/event-stream", headers=headers)
