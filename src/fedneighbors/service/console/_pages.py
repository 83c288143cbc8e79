"""Pages of the console: their sessions, templates, JSON twins and headers."""

import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedneighbors._version import __version__
from fedneighbors.service._broker import Broker
from fedneighbors.service._limits import WrongCodes
from fedneighbors.service._problems import (
    QUERY_ERRORS,
    Problem,
    make_response,
    problem_of,
    report_internal,
)
from fedneighbors.service._rest import read_content
from fedneighbors.service._state import ApiUser
from fedneighbors.service._stored import QueryStore
from fedneighbors.service.console._sessions import Sessions

FOLDER = Path(__file__).parent
ROOT = "/console"
SIGN_IN, OVERVIEW = f"{ROOT}/sign-in", f"{ROOT}/overview"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_LOCAL = ("127.0.0.1", "localhost", "::1")
MAX_FIELDS = 1000
"""Maximum number of fields of a form."""

REQUESTS = {
    "BoundRequest": "lower bounds",
    "CountRequest": "counts",
    "EagerRequest": "nearest objects within a time budget",
    "NearestRequest": "nearest objects",
    "PaddedBoundRequest": "lower bounds, padded",
    "PaddedNearestRequest": "nearest objects, padded",
    "PayloadRequest": "columns of found objects",
    "RangeCountRequest": "counts within a radius",
}
"""Messages that ask providers, in words."""

LEVELS = {
    "none": "nothing",
    "boolean": "whether objects are within a radius",
    "count": "counts",
    "ids": "ids in their order, no distances",
    "distances": "ids and distances",
}
"""Levels of policies, in words."""

LIMIT_TEXTS = {
    "max_k": "at most {:,} objects of a query",
    "min_k": "at least {:,} neighbours of a search, and no radius",
    "queries_per_day": "{:,} queries a day",
    "objects_per_day": "{:,} objects a day",
    "views_per_day": "an object in {:,} queries a day",
    "private_queries": "{:,} private queries for good",
}
"""Limits of policies, in words."""

Json = dict[str, Any]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Page:
    """A page before it is written as HTML or JSON.

    Parameters
    ----------
    template : str
        File of the template, without its ending.
    data : mapping
        The data, which are all of the JSON twin.
    view : mapping
        Further variables of the template.
    status : int
        Status code of HTTP.
    """

    template: str
    data: Mapping[str, Any]
    view: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True)
class Visit:
    """A request of a user who has signed in.

    Parameters
    ----------
    request : Request
        The request.
    user : ApiUser
        The user.
    session_id : str
        Id of the session.
    form : mapping of str to str
        Fields of the form that was sent.
    """

    request: Request
    user: ApiUser
    session_id: str
    form: Mapping[str, str] = field(default_factory=dict)


Endpoint = Callable[["Console", Visit], Awaitable[Page | Response]]


class Console:
    """Pages and forms of one broker.

    Parameters
    ----------
    broker : Broker
        The broker.
    store : QueryStore
        Stored queries of the REST API.
    sessions : Sessions
        Sessions of browsers.
    """

    def __init__(self, broker: Broker, store: QueryStore, sessions: Sessions) -> None:
        self.broker, self.store, self.sessions = broker, store, sessions
        self.wrong_tokens = WrongCodes()
        self._templates = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= FILTERS

    def page(self, path: str, endpoint: Endpoint) -> list[Route]:
        """Return the routes of a page, as JSON and HTML."""
        return [self.part(f"{path}.json", endpoint, as_json=True), self.part(path, endpoint)]

    def part(
        self, path: str, endpoint: Endpoint, *, as_json: bool = False, is_form: bool = False
    ) -> Route:
        """Return the route of a page, its part, a file or form."""

        async def answer(request: Request) -> Response:
            visit: Visit | None = None
            try:
                visit = await self._find_visit(request)
                if visit is None:
                    return self._ask_to_sign_in(request, as_json=as_json)
                if is_form:
                    visit = replace(visit, form=await self.read_form(request, visit.session_id))
                found = await endpoint(self, visit)
                return found if isinstance(found, Response) else self.write(found, visit, as_json)
            except Exception as error:
                return self._write_error(error, visit or request, as_json=as_json)

        return Route(path, answer, methods=["POST" if is_form else "GET"])

    def action(self, path: str, endpoint: Endpoint) -> Route:
        """Return the route of a form."""
        return self.part(path, endpoint, is_form=True)

    async def _find_visit(self, request: Request) -> Visit | None:
        """Return the visit of a user who has signed in, or None."""
        session_id = request.cookies.get(cookie_name(request), "")
        token = self.sessions.find_token(session_id)
        if token is None:
            return None
        user = await self.broker.find_user(token)
        if user is None:
            self.sessions.end(session_id)
            return None
        return Visit(request, user, session_id)

    async def read_form(self, request: Request, session_id: str) -> dict[str, str]:
        """Return the fields of a form of this site.

        Raises
        ------
        Problem
            If the request is of another site or session, or no form.
        """
        content = await read_content(request)
        try:
            pairs = parse_qsl(
                content.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
            )
        except ValueError:
            raise Problem(400, "invalid-form", "expected the fields of a form") from None
        form = dict(pairs)
        token = form.pop("form_token", "")
        if _is_foreign(request) or not self.sessions.is_form_token(session_id, token):
            detail = "the form is of another site or session; load the page again"
            raise Problem(403, "forged-request", detail)
        return form

    def write(
        self, page: Page, visit: Visit | Request, as_json: bool = False, **view: Any
    ) -> Response:
        """Return the response with a page."""
        if as_json:
            return make_response(page.data, page.status)
        variables: dict[str, Any] = {"user": None, "version": __version__, "path": ""}
        if isinstance(visit, Visit):
            variables |= {"user": visit.user, "path": visit.request.url.path}
            variables["form_token"] = self.sessions.form_token(visit.session_id)
        template = self._templates.get_template(f"{page.template}.html")
        text = template.render({**variables, **page.data, **page.view, **view})
        return HTMLResponse(text, page.status)

    def _ask_to_sign_in(self, request: Request, *, as_json: bool = False) -> Response:
        if as_json:
            return Problem(401, "unauthorized", f"sign in at {SIGN_IN}").response()
        if "hx-request" in request.headers:  # a part of a page: the whole page is left
            return Response(status_code=401, headers={"HX-Redirect": SIGN_IN})
        return RedirectResponse(SIGN_IN, 303)

    def _write_error(
        self, error: Exception, visit: Visit | Request, *, as_json: bool = False
    ) -> Response:
        """Return an error page, with the navigation if somebody signed in."""
        known = (Problem, *QUERY_ERRORS)
        problem = problem_of(error) if isinstance(error, known) else report_internal(error)
        if as_json:
            return problem.response()
        return self.write(Page("problem", problem.content, status=problem.status), visit)


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _format_number(value: float) -> str:
    return f"{value:,.6g}" if abs(value) < 1e5 or abs(value) > 1e15 else f"{value:,.0f}"


def _format_duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _format_rights(grant: Mapping[str, Any]) -> str:
    limits = [text.format(grant[name]) for name, text in LIMIT_TEXTS.items() if name in grant]
    levels = [LEVELS.get(grant["level"], str(grant["level"]))] if grant["level"] else []
    return "; ".join(levels + limits)


FILTERS = {
    "utc": _format_time,
    "number": _format_number,
    "duration": _format_duration,
    "json": partial(json.dumps, ensure_ascii=False),
    "rights": _format_rights,
    "asked": lambda request: REQUESTS.get(request, request),
}
"""Filters of templates."""


async def find_nothing(_: Console, visit: Visit) -> Page:
    """Refuse a path without a page."""
    raise Problem(404, "not-found", f"there is no page {visit.request.url.path}")


def cookie_name(request: Request) -> str:
    """Return the name of the session's cookie."""
    if request.url.scheme != "https":
        return "fedneighbors"
    return "__Host-fedneighbors"  # with this prefix, only this host can set it


def set_cookie(
    response: Response, name: str, value: str, *, request: Request, path: str = "/"
) -> None:
    """Set a cookie for this site alone; delete an empty one.

    It is sent over TLS only, unless the address is of this machine: Safari takes no such cookie
    there without TLS.
    """
    is_local = request.url.scheme == "http" and request.url.hostname in _LOCAL
    response.set_cookie(
        name,
        value,
        max_age=None if value else 0,
        path=path,
        secure=not is_local,
        httponly=True,
        samesite="strict",
    )


def new_visitor() -> str:
    """Return the random id of somebody who has not signed in."""
    return secrets.token_urlsafe(32)


def _is_foreign(request: Request) -> bool:
    """Return whether a browser states that another site sent a request."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site != "same-origin"
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host")


class SafeHeaders:
    """Middleware that adds the headers of all responses of the console.

    Parameters
    ----------
    app : ASGI application
        The console.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        is_static = scope["path"].startswith(f"{ROOT}/static/")

        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers["Cache-Control"] = "no-cache" if is_static else "no-store"
            await send(message)

        await self.app(scope, receive, send_safe)
