"""Searches as the fields of a form, as a body of the REST API, and as lines to copy."""

import json
import math
import re
import shlex
from collections.abc import Mapping
from typing import Any, get_args

from fedneighbors.datasets._text_format import parse_number
from fedneighbors.service._config import Algorithm
from fedneighbors.service._operations import DEFAULT_K
from fedneighbors.service._problems import Problem

Form = Mapping[str, str]
Json = dict[str, Any]
_PRIVATE = ("auto", "baseline", "dann*")  # algorithms of private collections
_CERTIFICATE = "broker.crt"


def list_algorithms(collection: Mapping[str, Any]) -> list[str]:
    """Return the algorithms that a collection allows."""
    is_private = collection["private"]
    names: tuple[str, ...] = get_args(Algorithm)
    return [name for name in names if (name in _PRIVATE if is_private else name != "dann*")]


def read_body(form: Form, collection: Mapping[str, Any], kind: str) -> Json:
    """Return the body of a query from the fields of a form.

    Parameters
    ----------
    form : mapping of str to str
        Fields. A radius replaces ``k``. A count without one is of all objects that meet a filter.
    collection : mapping
        Description of the collection.
    kind : str
        Name of the operation.

    Raises
    ------
    Problem
        If a field is invalid; the problem names it.
    """
    radius, where = _read_number(form, "radius"), _read_where(form, collection["filters"])
    body: Json = {}
    if kind != "count" or radius is not None:
        body["query"] = _read_query(form, collection)
    elif not where:
        raise _refuse("radius", "a radius or a filter for a count", "")
    if kind == "explain" and radius is not None:
        raise _refuse("radius", "no radius, as the costs are of the k nearest", form["radius"])
    body |= {"where": where or None, "radius": radius}
    if kind != "count":
        k = _read_number(form, "k", whole=True)
        k = DEFAULT_K if k is None else k
        body |= {"k": k if radius is None else None, "algorithm": form.get("algorithm") or None}
    body |= {"deadline_s": _read_number(form, "deadline_s"), "purpose": form.get("purpose") or None}
    flags = ("payload", "allow_partial") if kind == "search" else ("allow_partial",)
    body |= {name: True for name in flags if form.get(name)}
    return {name: value for name, value in body.items() if value is not None}


def fill_form(body: Mapping[str, Any], collection: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a form for the body of a query."""
    query, kind = body.get("query"), collection["objects"]
    form = {name: _write_cell(body[name]) for name in body if name not in ("query", "where")}
    if query is None:
        pass  # a count of all objects that meet a filter
    elif kind == "rows" and isinstance(query, dict):
        form |= {f"query.{name}": _write_cell(cell) for name, cell in query.items()}
    elif kind == "places" and isinstance(query, list):
        pairs = zip(("longitude", "latitude"), query, strict=False)
        form |= {f"query.{name}": _write_cell(cell) for name, cell in pairs}
    elif kind == "vectors" and isinstance(query, list):
        form["query"] = ", ".join(map(_write_cell, query))
    elif kind == "sets" and isinstance(query, list) and not _are_words(query):
        form["query"] = json.dumps(query)
    elif isinstance(query, list):
        form["query"] = " ".join(query)
    else:
        form["query"] = query if isinstance(query, str) else json.dumps(query)
    for name, condition in (body.get("where") or {}).items():
        if not isinstance(condition, dict):
            form[f"is.{name}"] = _write_cell(condition)
        elif "in" in condition:
            form[f"is.{name}"] = "\n".join(map(_write_cell, condition["in"]))
        else:
            names = {">=": "min", "<=": "max", "substructure": "has"}
            form |= {f"{names.get(o, o)}.{name}": _write_cell(c) for o, c in condition.items()}
    return form


def _read_query(form: Form, collection: Mapping[str, Any]) -> Any:
    """Return the JSON value of a query."""
    kind, text = collection["objects"], form.get("query", "")
    if kind == "rows":
        return {
            name: _read_number(form, f"query.{name}")
            if _is_numeric(values)
            else form.get(f"query.{name}") or None
            for name, values in collection["columns"].items()
        }
    if kind == "places":
        return [_require_number(form, f"query.{name}") for name in ("longitude", "latitude")]
    if not text.strip():
        raise _refuse("query", "a query", text)
    if kind == "vectors":
        parts = re.split(r"[\s,;]+", text.strip(" \r\n\t[](),;"))
        return [_parse_number(part, "query") for part in parts]
    if kind == "sets":  # words, or a list in JSON
        return _parse_json(text) if text.lstrip().startswith("[") else text.split()
    if kind == "graphs" and text.lstrip().startswith("{"):
        return _parse_json(text)
    return text if kind == "strings" else text.strip()


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _refuse("query", "JSON", text) from None


def _are_words(query: list[Any]) -> bool:
    return all(isinstance(one, str) and one and not re.search(r"\s|^\[", one) for one in query)


def _is_numeric(values: list[Any]) -> bool:
    """Return whether a column has a range, not categories."""
    return not isinstance(values[0], str)


def _read_where(form: Form, filters: Mapping[str, str]) -> Json:
    where: Json = {}
    for name, kind in filters.items():
        if kind == "number":
            ends = {
                operator: _read_number(form, f"{end}.{name}")
                for end, operator in (("min", ">="), ("max", "<="))
            }
            condition: Any = {o: value for o, value in ends.items() if value is not None}
            if condition:
                where[name] = condition
            continue
        if kind == "molecule":
            if pattern := form.get(f"has.{name}", "").strip():
                where[name] = {"substructure": pattern}
            continue
        values = [line.strip() for line in form.get(f"is.{name}", "").splitlines() if line.strip()]
        if kind == "boolean":
            values = [value == "true" for value in values]  # type: ignore[misc]
        if values:
            where[name] = values[0] if len(values) == 1 else {"in": values}
    return where


def _require_number(form: Form, name: str) -> float:
    value = _read_number(form, name)
    if value is None:
        raise _refuse(name, "a number", "nothing")
    return value


def _read_number(form: Form, name: str, *, whole: bool = False) -> float | None:
    """Return the number in a field; None if it is empty."""
    text = form.get(name, "").strip()
    return _parse_number(text, name, whole=whole) if text else None


def _parse_number(text: str, name: str, *, whole: bool = False) -> float:
    if re.fullmatch(r"[+-]?[0-9]{1,300}", text):
        return int(text)
    number = parse_number(text)
    if whole or number is None or math.isinf(number):
        raise _refuse(name, "a whole number" if whole else "a number", text)
    return number


def _refuse(name: str, expected: str, found: str) -> Problem:
    detail = f"{name.removeprefix('query.')}: expected {expected}, got {found[:60]!r}"
    return Problem(422, "invalid-form", detail)


def _write_cell(cell: Any) -> str:
    if isinstance(cell, bool | list):
        return json.dumps(cell)
    return "" if cell is None else str(cell)


def write_lines(
    collection: Mapping[str, Any],
    body: Mapping[str, Any],
    url: str,
    *,
    is_self_signed: bool,
    is_count: bool = False,
) -> dict[str, str]:
    """Return the lines of a search or a count for other clients.

    Parameters
    ----------
    collection : mapping
        Description of the collection.
    body : mapping
        Body of the query.
    url : str
        Address of the broker.
    is_count : bool
        The query only counts.
    is_self_signed : bool
        Clients need the broker's certificate.
    """
    certificate = {"certificate": _CERTIFICATE} if is_self_signed else {}
    method = _write_method(collection, body, is_count=is_count)
    lines = {"Python": _write_python(collection, body, url, certificate, method)}
    if collection["trust"] == "sealed":
        return lines
    kind = "votes" if "rows" in body else "count" if is_count else "search"
    words = ["curl", f"{url}/v1/collections/{collection['name']}/{kind}"]
    words[1:1] = ["--cacert", _CERTIFICATE] if is_self_signed else []
    header = '-H "Authorization: Bearer $FEDNEIGHBORS_TOKEN"'
    lines["curl"] = f"{shlex.join(words)} \\\n  {header} \\\n  -d {shlex.quote(json.dumps(body))}"
    options = [f"--{name}={file}" for name, file in certificate.items()]
    if kind == "votes":
        words = ["fedneighbors", "vote", *options, url, collection["name"]]
        lines["Command"] = shlex.join([*words, json.dumps(body["rows"])])
        return lines
    text = _write_argument(body.get("query"), collection["objects"])
    if text is not None and "deadline_s" not in body:
        options[:0] = _list_options(body) + ["--count"] * is_count
        words = ["fedneighbors", "search", *options, "--", url, collection["name"], text]
        lines["Command"] = shlex.join(words)
    return lines


def _write_python(
    collection: Mapping[str, Any], body: Mapping[str, Any], url: str, certificate: Json, method: str
) -> str:
    sent = ("query", "k", "radius", "where", "rows")
    rest = {name: body[name] for name in body if name not in sent}
    options = {"collection": collection["name"], **certificate, **rest}
    written = [f"{name}={value!r}" for name, value in options.items()]
    imports = ["import os"]
    if collection["trust"] == "sealed":
        written.append('keys=tomllib.loads(Path("keys.toml").read_text())')
        imports += ["import tomllib", "from pathlib import Path"]
    return "\n".join(
        [
            *imports,
            "",
            "from fedneighbors.service import RemoteNeighbors",
            "",
            "search = RemoteNeighbors(",
            f"    {url!r},",
            '    token=os.environ["FEDNEIGHBORS_TOKEN"],',
            *(f"    {one}," for one in written),
            ")",
            method,
        ]
    )


def _write_method(collection: Mapping[str, Any], body: Mapping[str, Any], *, is_count: bool) -> str:
    """Return the line with the client's method for a query."""
    if "rows" in body:
        return f"classes, probabilities = search.vote({body['rows']!r})"
    where, radius = body.get("where"), body.get("radius")
    if body.get("query") is None:
        return f"count = search.count_filtered({where!r})"
    query = repr(body["query"])
    if collection["objects"] == "sets":  # a list would be a vector
        query = f"set({query})"
    end = f", where={where!r})" if where else ")"
    if is_count:
        return f"counts = search.count([{query}], {radius}{end}"
    if radius is not None:
        return f"distances, objects = search.radius_neighbors([{query}], {radius}{end}"
    return f"distances, objects = search.kneighbors([{query}], {body.get('k', DEFAULT_K)}{end}"


def _write_argument(query: Any, kind: str) -> str | None:
    """Return a query as an argument of the command, or None."""
    if query is None or isinstance(query, str):
        return query
    if kind == "rows":
        return json.dumps(query)
    if kind in ("vectors", "places"):
        return ",".join(map(str, query))
    return " ".join(query) if kind == "sets" and _are_words(query) else None


def _list_options(body: Mapping[str, Any]) -> list[str]:
    """Return the options of a search on the command line."""
    options = ["-k", str(body.get("k", DEFAULT_K))]
    if body.get("radius") is not None:
        options = ["--radius", str(body["radius"])]
    options += ["--where", json.dumps(body["where"])] if body.get("where") else []
    flags = ("payload", "allow_partial")
    options += [f"--{name.replace('_', '-')}" for name in flags if body.get(name)]
    for name in ("algorithm", "purpose"):
        options += [f"--{name}", body[name]] if body.get(name) else []
    return options
