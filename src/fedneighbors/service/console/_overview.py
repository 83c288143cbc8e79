"""Signing in and out, and the overview of collections and providers."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fedneighbors._version import __version__
from fedneighbors.service._administration import Administrator
from fedneighbors.service._listings import list_collections, list_providers
from fedneighbors.service._problems import QUERY_ERRORS, Problem, problem_of
from fedneighbors.service._state import ADMIN
from fedneighbors.service.console._pages import (
    OVERVIEW,
    SIGN_IN,
    Console,
    Page,
    Visit,
    cookie_name,
    new_visitor,
    set_cookie,
)

_VISITOR = "fedneighbors-visitor"  # the cookie of the page to sign in


def make_overview(console: Console) -> list[Route]:
    """Return the routes of the overview, and of signing in and out."""

    async def ask(request: Request) -> Response:
        return _show_sign_in(console, request)

    async def sign_in(request: Request) -> Response:
        try:
            return await _sign_in(console, request)
        except (Problem, *QUERY_ERRORS) as error:
            return _show_sign_in(console, request, problem_of(error))

    async def redirect(_: Request) -> Response:
        return RedirectResponse(OVERVIEW, 303)

    return [
        Route("/", redirect),
        Route("/sign-in", ask),
        Route("/sign-in", sign_in, methods=["POST"]),
        console.action("/sign-out", _sign_out),
        *console.page("/overview", _show_overview),
    ]


def _show_sign_in(console: Console, request: Request, problem: Problem | None = None) -> Response:
    """Show the form for a token or a one-time link."""
    visitor = request.cookies.get(_VISITOR) or new_visitor()
    page = Page(
        "sign_in",
        {"problem": problem and problem.content},
        {
            "link": "" if problem else request.query_params.get("link", ""),
            "has_oidc": console.broker.config.oidc is not None,
            "form_token": console.sessions.form_token(visitor),
        },
        problem.status if problem else 200,
    )
    response = console.write(page, request)
    set_cookie(response, _VISITOR, visitor, request=request, path=SIGN_IN)
    return response


async def _sign_in(console: Console, request: Request) -> Response:
    """Begin the session of a token or a one-time link."""
    address = request.client.host if request.client else ""
    if console.wrong_tokens.are_too_many(address):
        detail = "too many wrong tokens; try again in a minute"
        raise Problem(429, "too-many-attempts", detail, retryable=True)
    form = await console.read_form(request, request.cookies.get(_VISITOR, ""))
    token, link = form.get("token", "").strip(), form.get("link", "")
    if link:
        token = Administrator.of(ADMIN, console.broker).use_link(link)
    if not token or await console.broker.find_user(token) is None:
        console.wrong_tokens.add(address)
        what = "the link was used or has expired" if link else "the token is wrong or has expired"
        raise Problem(403, "unauthorized", what)
    response = RedirectResponse(OVERVIEW, 303)
    set_cookie(response, cookie_name(request), console.sessions.begin(token), request=request)
    set_cookie(response, _VISITOR, "", request=request, path=SIGN_IN)
    return response


async def _sign_out(console: Console, visit: Visit) -> Response:
    console.sessions.end(visit.session_id)
    response = RedirectResponse(SIGN_IN, 303)
    set_cookie(response, cookie_name(visit.request), "", request=visit.request)
    return response


async def _show_overview(console: Console, visit: Visit) -> Page:
    collections = list_collections(console.broker, visit.user)
    missing = {n for one in collections.values() for n in {*one["providers"]} - {*one["connected"]}}
    data = {
        "version": __version__,
        "missing": sorted(missing),
        "collections": list(collections.values()),
        "providers": list(list_providers(console.broker, visit.user).values()),
    }
    return Page("overview", data)
