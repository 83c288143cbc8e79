"""Searches and counts: the form of each kind of object, progress, results and their files."""

import asyncio
import csv
import io
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fedneighbors.datasets._object_cells import FEW_CELLS, SIMILARITIES
from fedneighbors.service._listings import list_collections
from fedneighbors.service._operations import DEFAULT_K, OPERATIONS, check_scope, start_query
from fedneighbors.service._problems import QUERY_ERRORS, Problem, encode_json, problem_of
from fedneighbors.service._remote_search import RemoteResults
from fedneighbors.service._rest import stream_events
from fedneighbors.service._stored import StoredQuery
from fedneighbors.service.console._forms import fill_form, list_algorithms, read_body, write_lines
from fedneighbors.service.console._pages import ROOT, Console, Page, Visit
from fedneighbors.service.console._pictures import (
    MAX_STRUCTURES,
    draw_map,
    draw_structure,
    find_smiles,
    place_costs,
    place_distances,
    place_rounds,
)

Json = dict[str, Any]
MAX_ROWS = 500
"""Maximum number of rows of a table; files have all."""

PATIENCE_S = 0.4
"""Seconds after which a search shows its progress."""

_EXAMPLES: Mapping[str, Any] = {
    "vectors": [0.0],
    "places": [2.35, 48.86],
    "strings": "text",
    "sets": ["word"],
    "rows": {},
}
_ITS_OWN = "about how many of the nearest objects are its own"
_RADII = "the radii that were tried, which lead to the distance of the k-th object"
_LEARNT = {
    "dann": _ITS_OWN,
    "dann*": f"{_ITS_OWN}, under noise: at most the charged privacy cost for any one object",
    "hufu": _RADII,
    "hufu+": _RADII,
}
"""Facts that a provider learns about the others, by algorithm; nothing under other ones."""

_LATER = "the distance and the rank of the k-th object so far"
_LEARNT_LATER = {
    "dann": f"{_ITS_OWN}, and {_LATER}",
    "eager": f"its share of all objects, and {_LATER}",
}
"""The same if objects were asked for a second time."""

_FINDING = ("EagerRequest", "NearestRequest")


def make_search(console: Console) -> list[Route]:
    """Return the routes of searches."""
    return [
        *console.page("/search", _show_collections),
        *[
            route
            for kind in OPERATIONS
            for route in (
                *console.page(f"/{kind}/{{name}}", partial(_show_form, kind=kind)),
                console.action(f"/{kind}/{{name}}", partial(_begin, kind=kind)),
            )
        ],
        console.part("/queries/{id}/events", _stream_events),
        console.part("/queries/{id}/progress", _show_progress),
        console.part("/queries/{id}.csv", _write_csv),
        console.part("/queries/{id}.parquet", _write_parquet),
        console.action("/queries/{id}/cancel", _cancel),
        *console.page("/queries/{id}", _show_query),
    ]


async def _show_collections(console: Console, visit: Visit) -> Page:
    found: dict[bool, list[Json]] = {True: [], False: []}
    for name, one in list_collections(console.broker, visit.user).items():
        found[visit.user.may("search", name)].append(one)
    return Page("search", {"collections": found[True], "only_counts": found[False]})


def _describe(console: Console, visit: Visit, name: str, kind: str) -> Json:
    """Return the description of a collection for a query of the user.

    Raises
    ------
    Problem
        If there is none of this name, or the user may not send such a query.
    """
    check_scope(console.broker, visit.user, OPERATIONS[kind].scope, name)
    return list_collections(console.broker, visit.user)[name]


def _view_form(console: Console, collection: Json, fields: Mapping[str, str]) -> Json:
    """Return the variables of a form and its picture."""
    queries = console.broker.config.queries
    view: Json = {
        "fields": defaultdict(str, {"k": str(DEFAULT_K), **fields}),
        "algorithms": list_algorithms(collection),
        "max_k": queries.max_k,
        "deadline_s": queries.deadline_s,
        "max_deadline_s": queries.max_deadline_s,
        "map": None,
    }
    if collection["objects"] == "places" and collection["trust"] != "sealed":
        try:
            place = float(fields["query.longitude"]), float(fields["query.latitude"])
        except (KeyError, ValueError):
            place = None
        view["map"] = draw_map(place, (), areas=collection["areas"])
    return view


async def _show_form(console: Console, visit: Visit, kind: str) -> Page:
    collection = _describe(console, visit, visit.request.path_params["name"], kind)
    view = _view_form(console, collection, {})
    if collection["objects"] == "voters":
        row = {name: values[0] for name, values in collection["columns"].items()}
        view["lines"] = _lines_of(console, visit, collection, {"rows": [row]})
    elif collection["trust"] == "sealed":
        query = _EXAMPLES.get(collection["objects"], "CCO")
        if collection["objects"] == "vectors":
            query = query * (collection["n_columns"] or 1)
        example = {"query": query, "k": DEFAULT_K}
        view["lines"] = _lines_of(console, visit, collection, example)
    return Page("search_form", {"collection": collection, "problem": None}, view)


def _lines_of(
    console: Console, visit: Visit, collection: Json, body: Json, *, is_count: bool = False
) -> dict[str, str]:
    url = visit.request.url
    server = console.broker.config.server
    return write_lines(
        collection,
        body,
        f"{url.scheme}://{url.netloc}",
        is_self_signed=server.tls and server.certificate is None,
        is_count=is_count,
    )


async def _begin(console: Console, visit: Visit, kind: str) -> Page | Response:
    """Begin a query as the REST API does, and show it."""
    name = visit.request.path_params["name"]
    collection = _describe(console, visit, name, kind)
    try:
        body = read_body(visit.form, collection, kind)
        query = start_query(
            console.broker,
            console.store,
            OPERATIONS[kind],
            collection=name,
            content=encode_json(body),
            user=visit.user,
        )
    except (Problem, *QUERY_ERRORS) as error:
        problem = problem_of(error)
        view = _view_form(console, collection, visit.form)
        data = {"collection": collection, "problem": problem.content}
        return Page("search_form", data, view, problem.status)
    assert query.task is not None
    await asyncio.wait({query.task}, timeout=PATIENCE_S)
    return RedirectResponse(f"{ROOT}/queries/{query.query_id}", 303)


def _find(console: Console, visit: Visit) -> tuple[StoredQuery, Json]:
    """Return a stored query of the user, and its collection.

    Raises
    ------
    Problem
        If there is none, or it cannot be shown.
    """
    query = console.store.find(visit.request.path_params["id"], visit.user.name)
    if json.loads(query.content).get("sealed") is not None:
        detail = "the console shows searches whose query the broker may see"
        raise Problem(422, "unreadable-query", detail)
    return query, _describe(console, visit, query.collection, query.kind)


def _describe_query(query: StoredQuery, collection: Json) -> Json:
    """Return the request, the progress and the answer of a query."""
    events = query.progress()
    rounds = [content for name, content in events if name == "round"]
    found: Json = {
        "query_id": query.query_id,
        "kind": query.kind,
        "collection": query.collection,
        "request": json.loads(query.content),
        "status": "running",
        "rounds": rounds,
        "certified": [o for name, c in events if name == "certified" for o in c["neighbors"]],
        "answer": None,
        "problem": None,
        "learnt": {},
    }
    if query.answer is not None:
        is_done = query.answer.status == 200
        found["status"] = "done" if is_done else "failed"
        found["answer" if is_done else "problem"] = json.loads(query.answer.content)
    if found["answer"] and "plan" not in found["answer"]:
        found["learnt"] = _describe_learnt(found, collection["providers"])
    return found


def _describe_learnt(found: Mapping[str, Any], providers: list[str]) -> dict[str, str]:
    """Return sentences on what each provider learnt from a query."""
    answer, request = found["answer"], found["request"]
    seen = "the query" if "query" in request else "the filter"
    n_found = sum(one["request"] in _FINDING for one in found["rounds"])
    known = _LEARNT | _LEARNT_LATER if n_found > 1 else _LEARNT
    text = known.get(answer["algorithm"], "nothing")
    later = " It also learnt which of its objects were found, as it sent their columns."
    owners = {one["provider"] for one in answer.get("neighbors", ())}
    sentences = {}
    for name in providers:
        if name in answer["answered"]:
            n = answer.get("n_returned", {}).get(name, 0)
            sent = "a number" if "counts" in answer else f"{n} object{'' if n == 1 else 's'}"
            others = f"About the objects of the others, it learnt {text}."
            sentences[name] = f"It saw {seen}, and sent {sent}. {others}"
            sentences[name] += later if request.get("payload") and name in owners else ""
        else:
            sentences[name] = f"It did not answer: {answer['missing'].get(name, 'unknown')}."
    return sentences


async def _show_query(console: Console, visit: Visit) -> Page:
    query, collection = _find(console, visit)
    data = _describe_query(query, collection)
    answer, request = data["answer"], data["request"]
    fields = fill_form(request, collection)
    view: Json = {
        **_view_form(console, collection, fields),
        "described": collection,
        "is_editable": _has_fields(query.kind, request, fields, collection),
        "lines": _lines_of(console, visit, collection, request, is_count=query.kind == "count"),
        "has_parquet": find_spec("pyarrow") is not None,
        "max_rows": MAX_ROWS,
        "has_similarity": collection["metric"] in SIMILARITIES,
        "hint": FEW_CELLS if collection["objects"] == "rows" else "",
        **dict.fromkeys(("smiles", "distances", "timeline", "map")),
        "columns": [],
        "structures": {},
        "costs": place_costs(answer["plan"]["costs"]) if answer and "plan" in answer else None,
    }
    if answer and "plan" not in answer:
        neighbors, providers = answer.get("neighbors", []), collection["providers"]
        columns = dict.fromkeys(name for one in neighbors for name in one.get("payload", ()))
        view["columns"] = list(columns)
        view["distances"] = place_distances(neighbors, providers)
        view["timeline"] = place_rounds(data["rounds"], providers)
        if collection["objects"] == "places" and "query" in request:
            longitude, latitude = request["query"]
            view["map"] = draw_map((longitude, latitude), neighbors, request.get("radius"))
        if collection["objects"] in ("fingerprints", "graphs"):
            written = [find_smiles(one.get("payload", {})) for one in neighbors[:MAX_STRUCTURES]]
            written += [None] * (len(neighbors) - len(written))
            texts = {one for one in (request.get("query"), *written) if isinstance(one, str)}
            view["structures"] = {one: uri for one in texts if (uri := draw_structure(one))}
            view["smiles"] = written if any(written) else None
    return Page("query", data, view)


def _has_fields(kind: str, request: Json, fields: Mapping[str, str], collection: Json) -> bool:
    """Return whether a form can express a request of the REST API."""
    k = {} if kind == "count" or request.get("radius") is not None else {"k": DEFAULT_K}
    try:
        return read_body(fields, collection, kind) == {**k, **request}
    except Problem:
        return False


async def _stream_events(console: Console, visit: Visit) -> Response:
    """Answer with the events of a query, as the REST API does."""
    return await stream_events(console.store, console.broker, visit.request, visit.user)


async def _show_progress(console: Console, visit: Visit) -> Page | Response:
    """Show the progress of a query, or load its result."""
    query, collection = _find(console, visit)
    if query.answer is not None:
        return Response(headers={"HX-Refresh": "true"})
    return Page("progress", _describe_query(query, collection), {"described": collection})


async def _cancel(console: Console, visit: Visit) -> Response:
    query, _ = _find(console, visit)
    console.store.remove(query)
    return RedirectResponse(f"{ROOT}/{query.kind}/{query.collection}", 303)


async def _write_csv(console: Console, visit: Visit) -> Response:
    def write(answer: Json) -> bytes:
        text = io.StringIO()
        csv.writer(text).writerows(map(_defuse, row) for row in _list_rows(answer))
        return text.getvalue().encode()

    return _write_file(console, visit, "csv", "text/csv; charset=utf-8", write)


def _list_rows(answer: Json) -> list[tuple[Any, ...]]:
    """Return the headings and the rows of an answer's table."""
    if "counts" in answer:
        return [("provider", "count"), *answer["counts"].items()]
    columns = RemoteResults([answer]).to_columns()
    columns.pop("query")
    cells = zip(*columns.values(), strict=True)
    return [("rank", *columns), *((rank, *row) for rank, row in enumerate(cells, start=1))]


def _defuse(cell: Any) -> Any:
    """Return a cell that no spreadsheet runs as a formula."""
    is_formula = isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{cell}" if is_formula else cell


async def _write_parquet(console: Console, visit: Visit) -> Response:
    def write(answer: Json) -> bytes:
        from pyarrow import parquet, table

        content = io.BytesIO()
        if "counts" in answer:
            (headings, *rows) = _list_rows(answer)
            found = table(dict(zip(headings, map(list, zip(*rows, strict=True)), strict=True)))
        else:
            found = RemoteResults([answer]).to_arrow().drop_columns(["query"])
        parquet.write_table(found, content)
        return content.getvalue()

    media_type = "application/vnd.apache.parquet"
    return _write_file(console, visit, "parquet", media_type, write)


def _write_file(
    console: Console, visit: Visit, ending: str, media_type: str, write: Callable[[Json], bytes]
) -> Response:
    """Return a file with the neighbours or the counts of a query.

    Raises
    ------
    Problem
        If the query has no neighbours, as it runs or failed.
    MissingExtraError
        If a package is missing.
    """
    query, _ = _find(console, visit)
    if query.answer is None or query.answer.status != 200:
        raise Problem(409, "no-answer", "the search runs or has failed, and has no result")
    name = f"{query.collection}-{query.query_id}.{ending}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    content = write(json.loads(query.answer.content))
    return Response(content, media_type=media_type, headers=headers)
