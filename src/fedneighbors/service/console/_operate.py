"""Pages of administrators: providers, enrolment, users and their tokens, policies."""

import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fedneighbors.service._administration import Administrator
from fedneighbors.service._config import SCOPES
from fedneighbors.service._listings import list_providers
from fedneighbors.service._messages import VERSION, OfferedCollection
from fedneighbors.service._problems import Problem
from fedneighbors.service._state import CODE_LIFETIME_S, StoredToken
from fedneighbors.service.console._pages import ROOT, Console, Endpoint, Page, Visit

Json = dict[str, Any]
_PROVIDERS, _USERS = f"{ROOT}/providers", f"{ROOT}/users"
_DAYS = "30"


def make_operation(console: Console) -> list[Route]:
    """Return the routes of the pages to operate a broker."""
    return [
        *console.page("/providers", _show_providers),
        console.action("/providers", require_admin(_make_code)),
        *console.page("/providers/{name}/revoke", require_admin(_confirm_provider)),
        console.action("/providers/{name}/revoke", require_admin(_revoke_provider)),
        *console.page("/users", require_admin(_show_users)),
        console.action("/users", require_admin(_make_token)),
        *console.page("/users/{id}/revoke", require_admin(_confirm_token)),
        console.action("/users/{id}/revoke", require_admin(_revoke_token)),
        *console.page("/policies", require_admin(_show_policies)),
    ]


def require_admin(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that refuses other users than administrators."""

    async def check(console: Console, visit: Visit) -> Page | Response:
        if not visit.user.is_admin:
            raise Problem(403, "forbidden", "the page is for administrators of the broker")
        return await endpoint(console, visit)

    return check


def _act(console: Console, visit: Visit) -> Administrator:
    return Administrator.of(visit.user.name, console.broker)


async def _show_providers(console: Console, visit: Visit) -> Page:
    if visit.user.is_admin:
        return _view_providers(console)
    providers = list_providers(console.broker, visit.user)
    return Page("providers", {"providers": list(providers.values())})


def _view_providers(console: Console, problem: Problem | None = None) -> Page:
    """Return the page of all providers, enrolled or not."""
    broker, registry = console.broker, console.broker.registry
    keys = {one.name: one for one in broker.state.providers()}
    known = {name for one in broker.collections.values() for name in one.providers}
    codes, providers = broker.state.codes(), []
    for name in sorted(known | keys.keys()):
        key, link = keys.get(name), registry.links.get(name)
        offers = {} if link is None else link.collections
        providers.append(
            {
                "name": name,
                "enrolled": key and key.enrolled,
                "revoked": key is not None and key.is_revoked,
                "connected_since": link and link.since,
                "last_seen": time.time() if link else registry.last_seen.get(name),
                "protocol": link and VERSION,  # links of other versions are refused
                "code_expires": codes.get(name),
                "collections": sorted(offers),
                "objects": {one: offers[one].n_objects for one in sorted(offers)},
                "epochs": {} if link is None else dict(link.epochs),
            }
        )
    view = {"problem": problem and problem.content, "enrollable": sorted(known)}
    return Page("operate_providers", {"providers": providers}, view, _status(problem))


def _status(problem: Problem | None) -> int:
    return problem.status if problem else 200


async def _make_code(console: Console, visit: Visit) -> Page:
    """Make an enrolment code, and show it this once."""
    provider = visit.form.get("provider", "")
    try:
        code = _act(console, visit).new_code(provider)
    except ValueError as error:
        return _view_providers(console, Problem(422, "invalid-form", str(error)))
    view = {
        "title": f"Code for {provider}",
        "hint": f"It is valid once, for {CODE_LIFETIME_S / 60:g} minutes. Give it to the provider "
        "over a channel that you trust, such as by telephone; there, this command enrols a key:",
        "secret": f"fedneighbors provider enrol {code}",
        "back": _PROVIDERS,
    }
    return Page("secret", {}, view)


def _find_provider(console: Console, visit: Visit) -> str:
    """Return the name of an enrolled provider that is not revoked.

    Raises
    ------
    Problem
        If there is none.
    """
    name: str = visit.request.path_params["name"]
    if name not in [one.name for one in console.broker.state.providers() if not one.is_revoked]:
        raise Problem(404, "not-found", f"there is no enrolled provider {name!r}")
    return name


async def _confirm_provider(console: Console, visit: Visit) -> Page:
    name = _find_provider(console, visit)
    text = f"The broker closes the link of {name}, and refuses its key until it enrols again. "
    text += "Searches of its collections fail, or are partial where users allow it."
    view = {"text": text, "button": f"Revoke {name}", "back": _PROVIDERS}
    return Page("confirm", {"provider": name}, view)


async def _revoke_provider(console: Console, visit: Visit) -> Response:
    _act(console, visit).revoke(_find_provider(console, visit))
    await console.broker.registry.reject_revoked()
    return RedirectResponse(_PROVIDERS, 303)


async def _show_users(console: Console, _: Visit) -> Page:
    return _view_users(console, {"days": _DAYS, "scope.search": "true"})


def _view_users(
    console: Console, fields: Mapping[str, str], problem: Problem | None = None
) -> Page:
    """Return the page of tokens, without the tokens themselves."""
    collections = sorted(console.broker.collections)
    pairs = [f"{right}:{name}" for name in collections for right in ("search", "count")]
    view = {
        "problem": problem and problem.content,
        "fields": defaultdict(str, fields),
        "scopes": [*SCOPES, *pairs],
        "now": time.time(),
        "has_oidc": console.broker.config.oidc is not None,
    }
    tokens = [_describe_token(one) for one in console.broker.state.tokens()]
    return Page("users", {"tokens": tokens}, view, _status(problem))


def _describe_token(token: StoredToken) -> Json:
    user = token.user
    rights = {"scopes": list(user.scopes), "groups": list(user.groups)}
    return {"id": token.token_id, "user": user.name, **rights, "expires": token.expires}


async def _make_token(console: Console, visit: Visit) -> Page:
    """Make a token, and show it this once."""
    form = visit.form
    user, days = form.get("user", "").strip(), form.get("days", "")
    scopes = [name.removeprefix("scope.") for name in form if name.startswith("scope.")]
    groups = [name.strip() for name in form.get("groups", "").split(",") if name.strip()]
    try:
        rights = tuple(scopes), tuple(groups)
        token = _act(console, visit).new_token(user, _read_days(days), *rights)
    except ValueError as error:
        return _view_users(console, form, Problem(422, "invalid-form", str(error)))
    view = {
        "title": f"Token of {user}",
        "hint": "The broker keeps a digest only. Whoever has the token is this user:",
        "secret": token,
        "back": _USERS,
    }
    return Page("secret", {}, view)


def _read_days(text: str) -> float:
    with suppress(ValueError):
        if "_" not in text:  # float() would parse 1_0 as ten
            return float(text)
    raise ValueError(f"expected a number of days, got {text[:60]!r}")


def _find_token(console: Console, visit: Visit) -> StoredToken:
    """Return the token of an id.

    Raises
    ------
    Problem
        If there is none.
    """
    token_id = visit.request.path_params["id"]
    for one in console.broker.state.tokens():
        if one.token_id == token_id:
            return one
    raise Problem(404, "not-found", f"there is no token {token_id!r}")


async def _confirm_token(console: Console, visit: Visit) -> Page:
    token = _find_token(console, visit)
    name = token.user.name
    text = f"The token {token.token_id} of {name} with the scopes {', '.join(token.user.scopes)} "
    text += "is refused from now on, and its sessions of the console end."
    view = {"text": text, "button": f"Revoke the token of {name}", "back": _USERS}
    return Page("confirm", {"token": _describe_token(token)}, view)


async def _revoke_token(console: Console, visit: Visit) -> Response:
    _act(console, visit).delete_token(_find_token(console, visit))
    return RedirectResponse(_USERS, 303)


async def _show_policies(console: Console, _: Visit) -> Page:
    """Show the limits of the broker, and those that providers state."""
    broker = console.broker
    collections = [
        {
            "name": one.name,
            "trust": one.trust,
            "privacy": section.privacy and section.privacy.model_dump(exclude={"ledger"}),
            "offers": [
                {"provider": name, **_describe_offer(offer)}
                for name, offer in sorted(one.find_offers(broker.registry).items())
            ],
        }
        for one, section in zip(
            broker.collections.values(), broker.config.collections.values(), strict=True
        )
    ]
    limits = broker.config.queries.model_dump()
    return Page("policies", {"limits": limits, "collections": collections})


def _describe_offer(offer: OfferedCollection) -> Json:
    """Return the limits that an offer states."""
    return {
        "grants": [{"name": one.name, "level": one.level, **one.limits} for one in offer.grants],
        "distance_step": offer.distance_step,
        "area": offer.area,
        "filters": dict(offer.filters),
        "private_only": None if offer.epsilon is None else {
            "epsilon": offer.epsilon, "delta": offer.delta
        },
        "n_objects": offer.n_objects,
        "n_forgotten": offer.n_forgotten,
    }  # fmt: skip
