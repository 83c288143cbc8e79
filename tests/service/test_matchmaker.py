"""The Matchmaker Exchange API: matches equal the naive similarity; limits are those of a search.

Requests and answers follow the published API 1.1 (github.com/ga4gh/mme-apis). Patients are
invented.
"""

import json

import httpx
import numpy as np
import pytest

from fedneighbors.errors import DataError
from fedneighbors.service._config import BrokerConfig, OfferSection
from fedneighbors.service._matchmaker import MATCH_TYPE
from fedneighbors.service._offers import OfferedObjects
from tests.datasets.test_ontology import OBO
from tests.processes import LIMIT_S
from tests.service.deployment import deployed

TERMS = ["HP:0001250", "HP:0000478", "HP:0000707", "HP:0000118"]
PARENTS = {
    "HP:0001250": {"HP:0001250", "HP:0000707", "HP:0000118", "HP:0000001"},
    "HP:0000707": {"HP:0000707", "HP:0000118", "HP:0000001"},
    "HP:0000478": {"HP:0000478", "HP:0000118", "HP:0000001"},
    "HP:0000118": {"HP:0000118", "HP:0000001"},
}
GENES = ["EFTUD2", "ENSG00000167468", "4629"]
SCHEMAS = {
    "plain": "[columns.phenotypes]\nkind='set'\nmissing='keep'\n"
    "[columns.genes]\nkind='set'\nmissing='keep'\nweight=3.0\n",
    "closed": "[columns.phenotypes]\nkind='set'\nmissing='keep'\nontology='hp.obo'\n",
}
MATCHMAKER = {
    "contact_name": "Clinic",
    "contact_href": "mailto:clinic@example.org",
    "max_results": 40,
    "purpose": "matchmaking",
}
REQUEST = {
    "patient": {
        "id": "P0000079",
        "label": "170_a",
        "contact": {"name": "Lijia Huang", "href": "http://www.ncbi.nlm.nih.gov/pubmed/22305528"},
        "species": "NCBITaxon:9606",
        "sex": "FEMALE",
        "disorders": [{"id": "MIM:610536"}],
        "features": [
            {"id": "HP:0001250", "label": "Seizure", "observed": "yes"},
            {"id": "HP:0000478"},
            {"id": "HP:0000707", "observed": "no"},
        ],
        "genomicFeatures": [
            {
                "gene": {"id": "EFTUD2", "_geneName": "EFTUD2"},
                "variant": {"assembly": "GRCh37", "referenceName": "17", "start": 42929130},
                "zygosity": 1,
            }
        ],
        "test": True,
    }
}


def invent(n, seed):
    rng = np.random.default_rng(seed)
    for row in range(n):
        terms = rng.choice(TERMS, int(rng.integers(0, 4)), replace=False).tolist()
        genes = rng.choice(GENES, int(rng.integers(0, 3)), replace=False).tolist()
        yield {"id": f"p{row}", "phenotypes": terms or None, "genes": genes or None}


PATIENTS = {name: list(invent(30, seed)) for seed, name in enumerate(["north", "south"])}


def offer(folder, name, kind, **policy):
    content = {
        "metric": "tabular",
        "schema": f"{kind}.toml",
        "source": {"file": f"{name}.jsonl", "id": "id"},
        "policy": {"level": "distances", "payload": ["phenotypes", "genes"], **policy},
    }
    section = OfferSection.model_validate(content)
    return OfferedObjects.read(name, "rare", section, folder, secret=b"s")


@pytest.fixture(scope="module", params=SCHEMAS)
def running(request, tmp_path_factory):
    """Run a broker with a matchmaker and two clinics."""
    folder = tmp_path_factory.mktemp("rare")
    (folder / "hp.obo").write_text(OBO, encoding="utf-8")
    (folder / f"{request.param}.toml").write_text(SCHEMAS[request.param], encoding="utf-8")
    for name, rows in PATIENTS.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    shared = {"metric": "tabular", "schema": f"{request.param}.toml", "providers": [*PATIENTS]}
    matchmaker = {"collection": "rare", **MATCHMAKER}
    with deployed(folder, {"rare": shared}, matchmaker=matchmaker) as running:
        running.kind, running.folder = request.param, folder
        for name in PATIENTS:
            running.start(name, {"rare": offer(folder, name, request.param)})
        running.wait(*PATIENTS)
        yield running


def match(running, body, *, token=None, **headers):
    return httpx.post(
        f"{running.url}/match",
        content=body if isinstance(body, bytes) else json.dumps(body).encode(),
        headers={
            "X-Auth-Token": token or running.token,
            "Content-Type": MATCH_TYPE,
            "Accept": MATCH_TYPE,
            **headers,
        },
        verify=False,
        timeout=LIMIT_S,
    )


def jaccard(first, second):
    return len(first & second) / len(first | second)


def naive_score(kind, row):
    """Return the similarity of a patient and the request: Jaccard, or simUI for closed terms."""
    terms, genes = {"HP:0001250", "HP:0000478"}, {"EFTUD2"}
    own = set(row["phenotypes"] or ())
    if kind == "closed":
        terms, own = (set().union(*(PARENTS[one] for one in some)) for some in (terms, own))
        return jaccard(terms, own) if own else 0.0
    parts = [(1.0, jaccard(terms, own))] if own else []
    if row["genes"]:
        parts.append((3.0, jaccard(genes, set(row["genes"]))))
    return sum(w * s for w, s in parts) / sum(w for w, _ in parts) if parts else 0.0


def test_matches_are_those_of_the_naive_similarity(running):
    response = match(running, REQUEST)

    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == MATCH_TYPE
    rows = {f"{name}:{row['id']}": row for name, own in PATIENTS.items() for row in own}
    scores = {name: naive_score(running.kind, row) for name, row in rows.items()}
    expected = sorted((score for score in scores.values() if score > 1e-9), reverse=True)[:40]
    results = response.json()["results"]
    found = [one["score"]["patient"] for one in results]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    for one in results:
        patient, row = one["patient"], rows[one["patient"]["id"]]
        np.testing.assert_allclose(
            one["score"]["patient"], scores[patient["id"]], rtol=0, atol=1e-12
        )
        assert patient["contact"] == {"name": "Clinic", "href": "mailto:clinic@example.org"}
        assert {one["id"] for one in patient.get("features", ())} == set(row["phenotypes"] or ())
        genes = {one["gene"]["id"] for one in patient.get("genomicFeatures", ())}
        assert genes == set(row["genes"] or ())
        assert patient.get("features") or patient.get("genomicFeatures")  # one is mandatory


def test_the_same_patient_has_score_1(running):
    row = next(row for row in PATIENTS["north"] if row["phenotypes"] and row["genes"])
    patient = {
        **REQUEST["patient"],
        "features": [{"id": one} for one in row["phenotypes"]],
        "genomicFeatures": [{"gene": {"id": one}} for one in row["genes"]],
    }

    results = match(running, {"patient": patient}).json()["results"]

    assert f"north:{row['id']}" in [
        one["patient"]["id"] for one in results if one["score"]["patient"] == 1.0
    ]


def test_a_match_is_a_search_in_the_log(running):
    match(running, REQUEST)

    entries = httpx.get(
        f"{running.url}/v1/audit",
        headers={"Authorization": f"Bearer {running.token}"},
        verify=False,
        timeout=LIMIT_S,
    ).json()["entries"]

    last = max(entries, key=lambda one: one["number"])
    assert (last["kind"], last["collection"]) == ("search", "rare")
    assert last["purpose"] == "matchmaking"


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json"},
        {"Content-Type": "application/json; charset=utf-8"},
        {"Content-Type": "application/vnd.ga4gh.matchmaker.v1.0+json"},
        {"Accept": "application/vnd.ga4gh.matchmaker.v1.7+json"},
        {"Accept": "*/*"},
    ],
)
def test_minor_versions_are_compatible(running, headers):
    response = match(running, REQUEST, **headers)

    assert response.status_code == 200
    assert response.headers["content-type"] == MATCH_TYPE


V2 = "application/vnd.ga4gh.matchmaker.v2.0+json"
CHANGES = {
    "version": ({}, {"Content-Type": V2, "Accept": V2}, 406, "unsupported API version"),
    "type": ({}, {"Content-Type": "text/plain"}, 415, "expected a content of type"),
    "token": ({}, {"X-Auth-Token": "wrong"}, 401, "expected X-Auth-Token and a valid token"),
    "no features": ({"features": [], "genomicFeatures": []}, {}, 422, "expected observed features"),
    "unobserved": (
        {"features": [{"id": "HP:0001250", "observed": "no"}], "genomicFeatures": []},
        {},
        422,
        "expected observed features",
    ),
    "term": ({"features": [{"id": "seizure"}]}, {}, 422, "patient.features.0.id"),
    "gene": ({"genomicFeatures": [{"gene": {}}]}, {}, 422, "patient.genomicFeatures.0.gene.id"),
    "contact": ({"contact": None}, {}, 422, "patient.contact"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_errors_have_the_form_of_the_api(running, case):
    changes, headers, status, words = CHANGES[case]

    response = match(running, {"patient": {**REQUEST["patient"], **changes}}, **headers)

    assert response.status_code == status
    assert words in response.json()["message"]
    assert response.headers["content-type"] == MATCH_TYPE
    is_version = case == "version"
    assert response.json().get("supportedVersions") == (["1.0", "1.1"] if is_version else None)


def test_a_body_that_is_no_json_is_refused(running):
    response = match(running, b"{")

    assert (response.status_code, response.json()["message"]) == (
        400,
        "expected a JSON object as body",
    )


def test_a_token_needs_the_scope_of_searches(running):
    token = running.broker.state.new_token("bob", 1, ("count:rare",))

    response = match(running, REQUEST, token=token)

    assert response.status_code == 403
    assert "does not allow 'search'" in response.json()["message"]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"level": "ids"}, "the score needs distances"),
        ({"payload": ()}, "needs phenotypes or genes in the payload"),
        ({"purposes": ("research",)}, "purpose"),
    ],
)
def test_policies_of_providers_hold(running, policy, words):
    running.stop("south")
    running.start("south", {"rare": offer(running.folder, "south", running.kind, **policy)})
    running.wait("south")
    try:
        response = match(running, REQUEST)
    finally:
        running.stop("south")
        running.start("south", {"rare": offer(running.folder, "south", running.kind)})
        running.wait("south")

    assert response.status_code == 403
    assert words in response.json()["message"]


def test_a_broker_without_a_matchmaker_has_none(tmp_path):
    collections = {"words": {"metric": "edit", "providers": ["north"]}}
    with deployed(tmp_path, collections) as running:
        response = match(running, REQUEST)

    assert (response.status_code, response.json()["code"]) == (404, "not-found")


@pytest.mark.parametrize(
    ("collections", "words"),
    [
        (
            {"words": {"metric": "edit", "providers": ["north"]}},
            "expected a collection that is not sealed",
        ),
        (
            {"rare": {"metric": "tabular", "schema": "age.toml", "providers": ["north"]}},
            "needs a set 'phenotypes' or 'genes'",
        ),
    ],
)
def test_a_matchmaker_needs_a_suitable_collection(tmp_path, collections, words):
    text = "[columns.age]\nkind = 'number'\nlow = 0\nhigh = 9\n"
    (tmp_path / "age.toml").write_text(text, encoding="utf-8")

    with (
        pytest.raises(DataError, match=words),
        deployed(tmp_path, collections, matchmaker={"collection": "rare", **MATCHMAKER}),
    ):
        pass


def test_a_contact_is_an_address():
    with pytest.raises(ValueError, match="contact_href"):
        BrokerConfig.model_validate(
            {
                "format": 1,
                "collections": {"rare": {"metric": "edit", "providers": ["north"]}},
                "matchmaker": {"collection": "rare", **MATCHMAKER, "contact_href": "clinic"},
            }
        )
