"""The GA4GH Matchmaker Exchange API: patients with like phenotypes and candidate genes.

A request is a search of one collection of rows with the sets ``phenotypes``, HPO terms, and
``genes``. Limits, scopes, policies and the log are those of a search. See
https://github.com/ga4gh/mme-apis, version 1.1.
"""

import json
import re
import secrets
from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from fedneighbors.errors import DataError
from fedneighbors.service._broker import Broker
from fedneighbors.service._config import MatchmakerSection
from fedneighbors.service._operations import OPERATIONS, check_scope, parse_body, perform_query
from fedneighbors.service._problems import Problem, encode_json
from fedneighbors.service._rest import read_content
from fedneighbors.service._state import ApiUser

MATCH_TYPE = "application/vnd.ga4gh.matchmaker.v1.1+json"
_VERSION = re.compile(r"application/vnd\.ga4gh\.matchmaker\.v([0-9]+)\.[0-9]+\+json")
_COLUMNS = {"phenotypes", "genes"}


class Term(BaseModel):
    """A term of an ontology, or a gene."""

    id: str = Field(min_length=1, max_length=255, pattern=r"^\S+$")


class Feature(Term):
    """A phenotypic feature: a term of the HPO, observed unless stated otherwise."""

    id: str = Field(pattern=r"^HP:[0-9]{7}$")
    observed: Literal["yes", "no", "unknown"] = "yes"


class GenomicFeature(BaseModel):
    """A candidate gene; its variants are not compared."""

    gene: Term


class MatchPatient(BaseModel):
    """Patient of a request; further fields are not compared."""

    id: str = Field(max_length=255)
    contact: dict[str, Any]
    features: list[Feature] = []
    genomicFeatures: list[GenomicFeature] = []  # noqa: N815 - a name of the API


class MatchBody(BaseModel):
    """Body of a request of the Matchmaker Exchange."""

    patient: MatchPatient


def check_matchmaker(broker: Broker) -> None:
    """Raise DataError unless the collection of the matchmaker, if any, suits it."""
    section = broker.config.matchmaker
    if section is None:
        return
    collection = broker.collections.get(section.collection)
    if collection is None or collection.rows is None or collection.trust == "sealed":
        raise DataError(
            "matchmaker.collection: expected a collection that is not sealed, with the metric "
            f"'tabular', got {section.collection!r}"
        )
    names = {name for name in collection.rows.column_names if name in _COLUMNS}
    if not names:
        raise DataError("the schema of the matchmaker needs a set 'phenotypes' or 'genes', or both")


def read_token(request: Request) -> str:
    """Return the token of a request; empty if there is none."""
    return request.headers.get("x-auth-token", "")


async def answer_match(broker: Broker, request: Request, user: ApiUser) -> Response:
    """Answer with the patients most like the one of a request."""
    section = broker.config.matchmaker
    if section is None:
        raise Problem(404, "not-found", "the broker has no [matchmaker]")
    _check_version(request.headers.get("content-type", ""), request.headers.get("accept", ""))
    check_scope(broker, user, "search", section.collection)
    body = parse_body(await read_content(request), MatchBody)
    steps = broker.collections[section.collection].shown_steps(
        user.name, user.groups, broker.registry
    )
    hidden = [name for name, step in steps.items() if step is None]
    if hidden:
        raise Problem(
            403, "not-allowed", "the score needs distances, which a policy hides", party=hidden[0]
        )
    query = _query_of(body.patient, broker.collections[section.collection].rows)
    content = {"query": query, "k": section.max_results, "payload": True}
    found = await perform_query(
        broker,
        OPERATIONS["search"],
        section.collection,
        encode_json(content | ({"purpose": section.purpose} if section.purpose else {})),
        secrets.token_hex(8),
        user=user.name,
        groups=user.groups,
    )
    results = [_describe(one, section) for one in found["neighbors"] if one["distance"] < 1]
    return Response(encode_json({"results": results}), media_type=MATCH_TYPE)


def convert_problem(response: Response) -> Response:
    """Return an error in the form of the API."""
    if response.status_code < 400:
        return response
    problem = json.loads(bytes(response.body))
    content = {"message": problem["detail"], "code": problem["code"]}
    if problem["code"] == "unsupported-version":
        content["supportedVersions"] = ["1.0", "1.1"]
    waits = {k: v for k, v in response.headers.items() if k in ("retry-after", "allow")}
    return Response(encode_json(content), response.status_code, waits, MATCH_TYPE)


def _check_version(content_type: str, accept: str) -> None:
    """Raise unless a request is of version 1, in any minor one."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and not _VERSION.fullmatch(kind):
        raise Problem(415, "invalid-content-type", f"expected a content of type {MATCH_TYPE}")
    versions = _VERSION.findall(f"{kind} {accept.lower()}")
    if versions and "1" not in versions:
        raise Problem(406, "unsupported-version", "unsupported API version")


def _query_of(patient: MatchPatient, schema: Any) -> dict[str, list[str]]:
    """Return the row of a patient with its observed features."""
    row = {
        "phenotypes": [one.id for one in patient.features if one.observed == "yes"],
        "genes": [one.gene.id for one in patient.genomicFeatures],
    }
    query = {name: ids for name, ids in row.items() if ids and name in schema.column_names}
    if not query:
        raise Problem(422, "invalid-body", "patient: expected observed features or genomicFeatures")
    return query


def _describe(neighbor: dict[str, Any], section: MatchmakerSection) -> dict[str, Any]:
    """Return a match with its score, 1 minus the distance."""
    shown, owner = neighbor["payload"], neighbor["provider"]
    terms = {name: shown[name] for name in _COLUMNS if isinstance(shown.get(name), list)}
    if not terms:
        raise Problem(
            403,
            "not-allowed",
            "a match needs phenotypes or genes in the payload, which a policy hides",
            party=owner,
        )
    patient: dict[str, Any] = {
        "id": f"{owner}:{neighbor['id']}",
        "contact": {"name": section.contact_name, "href": section.contact_href},
    }
    if "phenotypes" in terms:
        patient["features"] = [{"id": one} for one in terms["phenotypes"]]
    if "genes" in terms:
        patient["genomicFeatures"] = [{"gene": {"id": one}} for one in terms["genes"]]
    return {"score": {"patient": max(0.0, 1.0 - neighbor["distance"])}, "patient": patient}
