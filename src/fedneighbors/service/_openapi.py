"""Description of the REST API (OpenAPI 3.1)."""

import json
from typing import Any

from pydantic import BaseModel

from fedneighbors._version import __version__
from fedneighbors.service._config import LIMITS
from fedneighbors.service._matchmaker import MATCH_TYPE
from fedneighbors.service._operations import OPERATIONS
from fedneighbors.service._problems import PROBLEM_TYPE

Json = dict[str, Any]


def _object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _map(values: Json) -> Json:
    return {"type": "object", "additionalProperties": values}


_TEXT, _NUMBER, _INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
_BOOLEAN = {"type": "boolean"}
_NAMES = _list(_TEXT)
_COST = _object(epsilon=_NUMBER, delta=_NUMBER)
_DISTANCE = {"type": ["number", "null"], "description": "null: a provider's policy shows none"}
_NEIGHBOR = _object(provider=_TEXT, id=_TEXT, distance=_DISTANCE)
_NEIGHBOR["properties"]["payload"] = {
    "type": "object",
    "description": "Columns that the provider's policy allows; with payload alone",
}
_COMMON: dict[str, Json] = {
    "query_id": _TEXT,
    "exact": {**_BOOLEAN, "description": "The answer is that over all objects of all providers"},
    "answered": {**_NAMES, "description": "Providers whose objects were searched"},
    "missing": {**_map(_TEXT), "description": "Reason for each provider that was left out"},
    "epochs": {**_map(_TEXT), "description": "Version of the objects of each provider"},
    "trust": {
        **_TEXT,
        "description": "trusted: the broker sees queries and answers; sealed: only distances; "
        "enclave: it sees them in a confidential virtual machine",
    },
    "charged": {
        "oneOf": [_map(_COST), {"type": "null"}],
        "description": "Privacy cost charged for each provider; empty for a repeated query, null "
        "in a collection without budgets",
    },
    "algorithm": _TEXT,
    "rounds": {**_INTEGER, "description": "Number of exchanges with the providers"},
    "why": {**_TEXT, "description": "Reason for the algorithm, unless the user chose it"},
    "seconds": _NUMBER,
    "bytes": {**_INTEGER, "description": "Of all messages from and to the providers"},
}
_ALGORITHM_COST = _object(
    algorithm=_TEXT,
    exchanges=_INTEGER,
    n_returned=_INTEGER,
    local_s=_NUMBER,
    link_s=_NUMBER,
    broker_s=_NUMBER,
    total_s=_NUMBER,
)
_PLAN = _object(algorithm=_TEXT, why=_TEXT, k=_INTEGER, costs=_list(_ALGORITHM_COST))
_LABELS = _list({"type": ["string", "integer"]})
ANSWERS = {
    "search": _object(**_COMMON, n_returned=_map(_INTEGER), neighbors=_list(_NEIGHBOR)),
    "count": _object(**_COMMON, count=_INTEGER, counts=_map(_INTEGER)),
    "explain": _object(**_COMMON, plan=_PLAN),
    "votes": _object(
        **_COMMON,
        classes={**_LABELS, "description": "In the order of the schema"},
        probabilities={
            **_list(_list(_NUMBER)),
            "description": "Of each row and class: mean of the providers' by their weights",
        },
        labels={
            **_LABELS,
            "description": "Most probable class of each row, the first of equal ones",
        },
        weights={
            **_map(_NUMBER),
            "description": "Balanced accuracy on held-out rows, as each provider states it",
        },
        held_out={**_map(_INTEGER), "description": "Number of these rows"},
    ),
}
"""Schema of the answer to each operation."""

_PROBLEM = _object(
    type=_TEXT,
    status=_INTEGER,
    code={**_TEXT, "description": "Stable code of the error"},
    detail=_TEXT,
    party={"type": ["string", "null"], "description": "Provider that failed"},
    retryable={**_BOOLEAN, "description": "The same request may succeed later"},
    query_id={"type": ["string", "null"]},
)
_PAGE = {"type": ["string", "null"], "description": "Cursor of the next page"}
_COLLECTION = _object(
    name=_TEXT,
    metric=_TEXT,
    objects={**_TEXT, "description": "Kind of the objects"},
    n_objects=_INTEGER,
    algorithm=_TEXT,
    private=_BOOLEAN,
    trust={**_TEXT, "description": "trusted, enclave, or sealed: only sealed queries are answered"},
    providers=_NAMES,
    connected=_NAMES,
    filters=_map(_TEXT),
    n_columns={"type": ["integer", "null"], "description": "Length of vectors"},
    grants={
        **_map({**_object(level=_TEXT), "additionalProperties": _INTEGER}),
        "description": "Rights of the user as each provider states them: level, and those of "
        f"{', '.join(LIMITS)} that have a limit",
    },
    distance_steps={
        **_map({"type": ["number", "null"]}),
        "description": "The user sees distances rounded up to multiples of it; none if one is null",
    },
    areas={**_map(_list(_NUMBER)), "description": "West, south, east and north end of places"},
    columns={
        "type": ["object", "null"],
        "additionalProperties": {"type": ["array", "string"]},
        "description": "Of rows: lowest and highest number of each column, its categories, or set",
    },
    required={**_NAMES, "description": "Columns that each row of a query must have"},
    classes={
        "type": ["array", "null"],
        "items": {"type": ["string", "integer"]},
        "description": "That voters choose from",
    },
)
_PROVIDER = _object(
    name=_TEXT, revoked=_BOOLEAN, connected_since={"type": ["number", "null"]}, collections=_NAMES
)
_BUDGET = _object(collection=_TEXT, provider=_TEXT, allowed=_COST, spent=_COST, left=_COST)
_ENTRY = _object(
    number=_INTEGER,
    time=_NUMBER,
    query=_TEXT,
    user=_TEXT,
    collection=_TEXT,
    kind=_TEXT,
    size={"type": ["number", "null"], "description": "Number of neighbours or rows, or radius"},
    outcome={**_TEXT, "description": "Empty, or the code of the error"},
    n_objects=_INTEGER,
    providers=_NAMES,
    digest={**_TEXT, "description": "Of the query"},
    purpose=_TEXT,
    subject={**_TEXT, "description": "Provider or token that an administrator changed"},
)
_STORED = {
    **_object(query_id=_TEXT, status={"enum": ["running", "done", "failed"]}),
    "description": "With `answer` if done, or `problem` if failed",
}
_WHERE = {"age": {">=": 50}, "sex": 1}
_EXAMPLES: dict[str, dict[str, Json]] = {
    "search": {
        "nearest": {"query": [52, 27.5, 95, 90], "k": 3, "where": _WHERE},
        "radius": {"query": [52, 27.5, 95, 90], "radius": 12.5},
        "row": {"query": {"age": 64, "sex": "f", "lactate": None}, "k": 5},
        "molecule": {"query": "CC(=O)Oc1ccccc1C(=O)O", "k": 10, "deadline_s": 5},
        "purpose": {"query": [52, 27.5, 95, 90], "purpose": "treatment"},
    },
    "count": {"radius": {"query": [52, 27.5, 95, 90], "radius": 12.5, "where": _WHERE}},
    "explain": {"nearest": {"query": "federated search", "k": 10}},
    "votes": {"rows": {"rows": [{"age": 64, "sex": "f", "lactate": None}, {"age": 41}]}},
}
_SUMMARIES = {
    "search": "Find the nearest objects of a query, or all within a radius",
    "count": "Count the objects within a radius",
    "explain": "Run a query with each algorithm and compare the costs",
    "votes": "Average the votes of the providers' classifiers on rows",
}


def _header(name: str, description: str) -> Json:
    return {"name": name, "in": "header", "schema": _TEXT, "description": description}


def _path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": _TEXT}


_QUERY_HEADERS = [
    _header("Prefer", "respond-async: answer 202 at once; the query runs in the background"),
    _header("Idempotency-Key", "A retry with the same key and body gets the stored answer"),
]
_PAGING = [
    {"name": "limit", "in": "query", "schema": {**_INTEGER, "minimum": 1, "maximum": 1000}},
    {"name": "cursor", "in": "query", "schema": _TEXT, "description": "`next` of the last page"},
]


def _operation(
    summary: str, answer: Json | None = None, *, status: str = "200", media: str | None = None
) -> Json:
    """Return the description of an operation without a body."""
    success: Json = {"description": "Success"}
    if answer is not None or media is not None:
        success["content"] = {media or "application/json": {"schema": answer or _TEXT}}
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    failure = {"description": "An error", "content": {PROBLEM_TYPE: problem}}
    return {"summary": summary, "responses": {status: success, "default": failure}}


def _query(kind: str) -> Json:
    """Return the description of an operation on a collection."""
    body = {"$ref": f"#/components/schemas/{OPERATIONS[kind].body.__name__}"}
    described = _operation(_SUMMARIES[kind], ANSWERS[kind])
    described["parameters"] = [_path("name"), *_QUERY_HEADERS]
    examples = {name: {"value": value} for name, value in _EXAMPLES[kind].items()}
    example = "".join(f"{json.dumps(value)}\n" for value in _EXAMPLES[kind].values())
    lines = {"schema": _TEXT, "example": example}
    content = {"application/json": {"schema": body, "examples": examples}}
    described["requestBody"] = {
        "required": True,
        "description": "One query, or one in each line of application/x-ndjson; the answers or "
        "problems are then lines in the same order",
        "content": {**content, "application/x-ndjson": lines},
    }
    described["responses"]["202"] = {
        "description": "The query runs in the background",
        "headers": {"Location": {"schema": _TEXT, "description": "/v1/queries/{id}"}},
        "content": {"application/json": {"schema": _STORED}},
    }
    return described


def _paged(summary: str, name: str, item: Json) -> Json:
    described = _operation(summary, _object(**{name: _list(item)}, next=_PAGE))
    return {**described, "parameters": _PAGING}


def describe_api(enrolment: type[BaseModel]) -> Json:
    """Return the description of the REST API.

    Parameters
    ----------
    enrolment : class
        Body of an enrolment.
    """
    bodies = [operation.body for operation in OPERATIONS.values()]
    stored = {"parameters": [_path("id")]}
    last = _header("Last-Event-ID", "Send the events after this one")
    events = _operation(
        "Stream the events of a query: round, certified and done", media="text/event-stream"
    )
    enrol = _operation("Enrol a provider", _object(provider=_TEXT), status="201")
    enrol["security"] = []
    enrol["requestBody"] = {
        "content": {"application/json": {"schema": enrolment.model_json_schema()}}
    }
    collection = _operation("Describe a collection", _COLLECTION)
    results = _object(results=_list(_object(score=_object(patient=_NUMBER), patient={})))
    match = _operation("Match a patient: Matchmaker Exchange API 1.1", results, media=MATCH_TYPE)
    failure = {MATCH_TYPE: {"schema": _object(message=_TEXT, code=_TEXT)}}
    match["responses"]["default"]["content"] = failure
    match["security"] = [{"matchmaker": []}]
    match["requestBody"] = {"content": {MATCH_TYPE: {"schema": _object(patient={})}}}
    header = {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}
    health = _operation("Check that the broker runs", _object(status=_TEXT, version=_TEXT))
    readiness = _operation("Check that all providers are connected", _object(status=_TEXT))
    return {
        "openapi": "3.1.0",
        "info": {"title": "fedneighbors broker", "version": __version__},
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "matchmaker": header,
            },
            "schemas": {
                "Problem": _PROBLEM,
                **{body.__name__: body.model_json_schema() for body in bodies},
            },
        },
        "security": [{"token": []}],
        "paths": {
            "/v1/collections": {"get": _paged("List the collections", "collections", _COLLECTION)},
            "/v1/collections/{name}": {"get": {**collection, "parameters": [_path("name")]}},
            **{f"/v1/collections/{{name}}/{kind}": {"post": _query(kind)} for kind in OPERATIONS},
            "/v1/queries/{id}": {
                "get": {**_operation("Read a query in the background", _STORED), **stored},
                "delete": {**_operation("Stop and remove a query", status="204"), **stored},
            },
            "/v1/queries/{id}/events": {"get": {**events, "parameters": [_path("id"), last]}},
            "/v1/budget": {
                "get": _paged("List the privacy budgets of collections", "budgets", _BUDGET)
            },
            "/v1/audit": {
                "get": _paged("List the user's latest queries in the log", "entries", _ENTRY)
            },
            "/v1/providers": {"get": _paged("List the enrolled providers", "providers", _PROVIDER)},
            "/v1/enrolments": {"post": enrol},
            "/match": {"post": match},
            "/metrics": {"get": _operation("Read metrics for Prometheus", media="text/plain")},
            "/healthz": {"get": {**health, "security": []}},
            "/readyz": {"get": {**readiness, "security": []}},
        },
    }
