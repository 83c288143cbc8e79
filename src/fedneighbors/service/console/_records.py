"""Pages of records: privacy budgets, and the broker's log with its verification."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from starlette.routing import Route

from fedneighbors.errors import DataError
from fedneighbors.service._access_log import AccessLog
from fedneighbors.service._listings import list_budgets
from fedneighbors.service._problems import Problem
from fedneighbors.service.console._operate import require_admin
from fedneighbors.service.console._pages import Console, Page, Visit

R = TypeVar("R")
PAGE = 50
"""Number of entries of a page of the log."""


def make_records(console: Console) -> list[Route]:
    """Return the routes of budgets and of the log."""
    return [
        *console.page("/budgets", _show_budgets),
        *console.page("/audit", _show_audit),
        console.action("/audit/verify", require_admin(_verify)),
    ]


async def _show_budgets(console: Console, visit: Visit) -> Page:
    """Show the budgets of a user's collections; all to an administrator."""
    user = visit.user
    if user.is_admin:
        user = replace(user, scopes=("count",))
    budgets = [
        {**one, "fraction": _spent_fraction(one)}
        for one in list_budgets(console.broker, user).values()
    ]
    return Page("budgets", {"budgets": budgets})


def _spent_fraction(budget: Any) -> float:
    """Return the larger fraction of epsilon and delta that is spent."""
    allowed, spent = budget["allowed"], budget["spent"]
    parts = [spent[name] / allowed[name] for name in ("epsilon", "delta") if allowed[name]]
    return float(min(max(parts, default=1.0), 1.0))


async def _read_log(console: Console, read: Callable[[AccessLog], R]) -> R:
    """Read the log in a thread, over a connection of its own.

    Queries, which append to the log, do not wait for it.
    """

    def work() -> R:
        with contextlib.closing(AccessLog(console.broker.log.path)) as log:
            return read(log)

    return await asyncio.to_thread(work)


async def _show_audit(console: Console, visit: Visit) -> Page:
    """Show the latest entries of a user; all to an administrator."""
    given = visit.request.query_params
    query, before = given.get("query", "").strip(), given.get("before", "")
    if before and not (before.isdecimal() and len(before) <= 18):
        raise Problem(422, "invalid-parameter", f"before: expected a number, got {before[:60]!r}")
    user: str | None = visit.user.name
    if visit.user.is_admin:
        user = given.get("user", "").strip() or None
    last = int(before) if before else None
    found = await _read_log(
        console, lambda log: log.entries_of(user, PAGE + 1, query=query, before=last)
    )
    entries = found[:PAGE]
    after = entries[-1]["number"] if len(found) > PAGE else None
    asked = (user or "") if visit.user.is_admin else ""
    filters = {name: text for name, text in (("query", query), ("user", asked)) if text}
    view = {"asked_user": asked, "query": query, "before": before, "filters": filters}
    return Page("audit", {"entries": entries, "next": after}, view)


async def _verify(console: Console, visit: Visit) -> Page:
    """Verify the whole log, and show the result."""
    earlier = visit.form.get("head", "").strip()
    try:
        head, n_entries = await _read_log(
            console, lambda log: (log.head, log.verify(earlier or "0:"))
        )
    except DataError as error:
        return Page("verified", {"problem": str(error)}, {"earlier": earlier}, 409)
    data = {"problem": None, "n_entries": n_entries, "head": head}
    return Page("verified", data, {"earlier": earlier})
