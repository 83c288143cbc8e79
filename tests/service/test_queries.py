"""Counts, radius searches, plans, background queries, retries, many queries, budgets, scopes."""

import asyncio
import contextlib
import json
import ssl
import threading

import httpx
import numpy as np
import pytest

from fedneighbors import FederatedNeighbors
from fedneighbors.errors import WireError
from fedneighbors.federation._loop import Replies
from fedneighbors.federation._messages import decode, encode
from fedneighbors.methods.fedknn._names import Names
from fedneighbors.methods.fedknn._payloads import PayloadReply
from fedneighbors.methods.fedknn._planning import Planner
from fedneighbors.methods.fedknn.protocol import NearestReply, NearestRequest
from fedneighbors.privacy import ApproxDP
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.ledger._tables import ChargeTerms
from fedneighbors.records import Round
from fedneighbors.service import _stored
from fedneighbors.service._app import EnrolmentBody
from fedneighbors.service._messages import OfferedCollection
from fedneighbors.service._openapi import ANSWERS, describe_api
from fedneighbors.service._operations import OPERATIONS
from fedneighbors.service._problems import Problem
from fedneighbors.service._query_run import _NotedCharges
from fedneighbors.service._stored import (
    QueryStore,
    StoredAnswer,
    StoredQuery,
    describe_neighbors,
)
from tests.service.deployment import deployed, offered

KINDS = {"age": "number"}
OWNERS = ["north", "south"]
ROWS = np.random.default_rng(0).integers(0, 9, (60, 2)).astype(np.float64)
PARTIES = np.array(OWNERS)[np.arange(60) % 2]
AGES = (np.arange(60) % 7).tolist()
SECTIONS = {
    "points": {"metric": "euclidean", "providers": OWNERS, "filters": KINDS, "tie_key": "0"},
    "products": {"metric": "inner_product", "providers": OWNERS, "tie_key": "0"},
    "private": {
        "metric": "euclidean",
        "providers": OWNERS,
        "algorithm": "dann*",
        "tie_key": "0",
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "grid_s": 0.0, "max_queries": 3},
    },
}
COMMON = {"exact", "answered", "missing", "epochs", "trust", "charged", "algorithm", "rounds"}


def offers(provider):
    rows = np.flatnonzero(provider == PARTIES)
    options = {"ids": [str(row) for row in rows], "tie_key": "0"}
    ages = {"columns": {"age": [AGES[row] for row in rows]}, "filters": KINDS}
    return {
        "points": offered(provider, "points", "euclidean", ROWS[rows], **options, **ages),
        "products": offered(provider, "products", "inner_product", ROWS[rows], **options),
        "private": offered(provider, "private", "euclidean", ROWS[rows], **options),
    }


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    with deployed(folder, SECTIONS, queries={"max_k": 40, "max_concurrent": 16}) as running:
        for provider in OWNERS:
            running.start(provider, offers(provider))
        running.wait(*OWNERS)
        yield running


def connect(deployment, token=None):
    context = ssl.create_default_context(cafile=str(deployment.certificate))
    headers = {"Authorization": f"Bearer {token or deployment.token}"}
    return httpx.Client(base_url=deployment.url, headers=headers, verify=context, timeout=30)


@pytest.fixture(scope="module")
def http(deployment):
    with connect(deployment) as client:
        yield client


@pytest.fixture
def held(deployment):
    """Let the searches of north wait until the event is set."""
    is_released = threading.Event()
    link = deployment.broker.registry.links["north"]
    send = link._send

    async def wait(frame):
        await asyncio.to_thread(is_released.wait)
        await send(frame)

    link._send = wait
    yield is_released
    is_released.set()
    link._send = send


def post(http, collection, kind, body, **headers):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.post(f"/v1/collections/{collection}/{kind}", json=body, headers=names)


def within(metric="euclidean", where=None):
    columns = {"age": AGES}
    return FederatedNeighbors(metric).fit(ROWS, parties=PARTIES, columns=columns)


@pytest.mark.parametrize("where", [None, {"age": {">=": 3}}, {"age": 99}])
@pytest.mark.parametrize("radius", [0, 2.0, 2.5, 1e300])
def test_a_count_is_that_of_the_pooled_objects(http, radius, where):
    body = {"query": [4, 4], "radius": radius, "where": where}
    answer = post(http, "points", "count", body).json()
    found = within().radius_neighbors([[4.0, 4.0]], radius, where=where)[1][0]
    owners = PARTIES[found].tolist()
    assert answer["count"] == len(found)
    assert answer["counts"] == {name: owners.count(name) for name in OWNERS}
    assert (answer["exact"], answer["algorithm"], answer["rounds"]) == (True, "count", 1)


@pytest.mark.parametrize(("metric", "radius"), [("points", 2.0), ("products", -50.0)])
def test_a_radius_search_finds_the_pooled_objects(http, metric, radius):
    answer = post(http, metric, "search", {"query": [4, 4], "radius": radius}).json()
    pooled = within({"points": "euclidean", "products": "inner_product"}[metric])
    distances, positions = pooled.radius_neighbors([[4.0, 4.0]], radius)
    assert len(positions[0]) > 3
    assert [int(found["id"]) for found in answer["neighbors"]] == positions[0].tolist()
    assert [found["distance"] for found in answer["neighbors"]] == distances[0].tolist()
    assert [found["provider"] for found in answer["neighbors"]] == PARTIES[positions[0]].tolist()
    assert (answer["exact"], answer["algorithm"]) == (True, "radius")


def test_a_radius_with_too_many_objects_is_refused_before_they_are_sent(http):
    response = post(http, "points", "search", {"query": [4, 4], "radius": 99})
    problem = response.json()
    assert (response.status_code, problem["code"]) == (422, "too-many-objects")
    assert problem["n_objects"] == 60
    assert "60 objects are within the radius, more than the limit of 40" in problem["detail"]


@pytest.mark.parametrize(
    ("kind", "body", "detail"),
    [
        ("search", {"query": [0, 1], "radius": 1, "k": 3}, "omit k and algorithm"),
        ("search", {"query": [0, 1], "radius": -1}, "radius of 0 or more"),
        ("count", {"query": [0, 1], "radius": -1}, "radius of 0 or more"),
        ("count", {"query": [0, 1]}, "expected query and radius, or where alone"),
        ("count", {"query": [0, 1], "radius": 1e400}, "radius: input should be a finite number"),
        ("count", {"query": [0], "radius": 1}, "a vector of 2 numbers, got 1"),
        ("explain", {"query": [0, 1], "k": 41}, "expected k from 1 to 40"),
        ("explain", {"query": [0]}, "a vector of 2 numbers, got 1"),
    ],
)
def test_a_wrong_request_says_what_was_expected(http, kind, body, detail):
    content = json.dumps(body).replace("Infinity", "1e400")
    response = http.post(f"/v1/collections/points/{kind}", content=content)
    problem = response.json()
    assert response.status_code == 422
    assert detail in problem["detail"]
    assert {"code", "party", "retryable", "query_id"} <= set(problem)


def test_a_plan_compares_the_algorithms(http):
    answer = post(http, "points", "explain", {"query": [4, 4], "k": 5}).json()
    plan = within().explain([[4.0, 4.0]], 5)
    costs = {cost["algorithm"]: cost for cost in answer["plan"]["costs"]}
    expected = {cost.algorithm: cost for cost in plan.costs}
    assert set(costs) == set(expected) == {"baseline", "dann", "eager"}
    assert costs["baseline"]["n_returned"] == expected["baseline"].n_returned == 10
    assert costs["baseline"]["exchanges"] == 1
    assert answer["plan"]["algorithm"] == answer["algorithm"] == "eager"
    assert answer["rounds"] >= 4
    assert answer["exact"] is True


def test_a_plan_of_a_private_collection_is_not_charged(http):
    before = http.get("/v1/budget").json()
    answer = post(http, "private", "explain", {"query": [4, 4], "k": 5}).json()
    assert {cost["algorithm"] for cost in answer["plan"]["costs"]} == {"baseline", "dann*"}
    assert answer["charged"] == {}
    assert http.get("/v1/budget").json() == before


def test_a_private_search_states_its_charge_and_the_rest(http):
    body = {"query": [1, 2], "k": 5}
    before = {one["provider"]: one for one in http.get("/v1/budget").json()["budgets"]}
    first, again = (post(http, "private", "search", body).json() for _ in range(2))
    after = {one["provider"]: one for one in http.get("/v1/budget").json()["budgets"]}
    assert set(first["charged"]) == set(OWNERS)
    assert again["charged"] == {}
    for provider in OWNERS:
        assert after[provider]["collection"] == "private"
        for part in ("epsilon", "delta"):
            spent = after[provider]["spent"][part] - before[provider]["spent"][part]
            assert spent == pytest.approx(first["charged"][provider][part], rel=1e-12)
            left = before[provider]["left"][part] - after[provider]["left"][part]
            assert left == pytest.approx(spent, rel=1e-6)
    assert first["charged"]["north"]["epsilon"] == 1.0


def test_every_answer_has_the_fields_of_the_description(http):
    bodies = {"search": {"k": 3}, "count": {"radius": 2}, "explain": {"k": 3}}
    epochs = []
    for kind, body in bodies.items():
        answer = post(http, "points", kind, {"query": [4, 4], **body}).json()
        assert set(answer) == set(ANSWERS[kind]["required"])
        assert set(answer) >= COMMON
        assert answer["charged"] is None
        assert answer["answered"] == OWNERS
        assert set(answer["epochs"]) == set(OWNERS)
        assert all(len(epoch) == 32 for epoch in answer["epochs"].values())
        epochs.append(answer["epochs"])
    assert epochs[0] == epochs[1] == epochs[2]


def test_the_description_lists_every_route_and_valid_examples(deployment):
    described = describe_api(EnrolmentBody)
    app = deployment.broker  # the routes of a running broker are those of the application
    from fedneighbors.service._app import make_app

    routes = {
        (route.path, method.lower())
        for route in make_app(app).routes
        for method in (getattr(route, "methods", None) or ())
        if method != "HEAD" and route.path not in ("/", "/openapi.json")
    }
    listed = {(path, method) for path, of in described["paths"].items() for method in of}
    assert routes == listed
    n_examples = 0
    for kind, operation in OPERATIONS.items():
        content = described["paths"][f"/v1/collections/{{name}}/{kind}"]["post"]["requestBody"]
        for example in content["content"]["application/json"]["examples"].values():
            operation.body.model_validate(example["value"])
            n_examples += 1
    assert n_examples >= 5
    references = json.dumps(described).split('"$ref": "#/components/schemas/')[1:]
    assert {text.partition('"')[0] for text in references} <= set(
        described["components"]["schemas"]
    )


def read_events(http, location, **headers):
    events = []
    with http.stream("GET", f"{location}/events", headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for block in response.read().decode().split("\n\n"):
            if block.startswith("event"):
                fields = dict(line.split(": ", 1) for line in block.splitlines())
                events.append((fields["event"], int(fields["id"]), json.loads(fields["data"])))
    return events


@pytest.mark.parametrize("algorithm", ["baseline", "dann", "eager", "hufu+"])
def test_a_query_in_the_background_streams_its_certified_prefix(http, algorithm):
    body = {"query": [4, 4], "k": 7, "algorithm": algorithm}
    response = post(http, "points", "search", body, Prefer="respond-async")
    assert response.status_code == 202
    location = response.headers["location"]
    assert location == f"/v1/queries/{response.json()['query_id']}"
    events = read_events(http, location)
    assert [number for _, number, _ in events] == list(range(len(events)))
    name, _, answer = events[-1]
    assert name == "done"
    expected = post(http, "points", "search", body).json()
    assert answer["neighbors"] == expected["neighbors"]
    assert sum(name == "round" for name, *_ in events) == answer["rounds"]
    certified = []
    for name, _, data in events:
        if name == "certified":
            assert data["first"] == len(certified)
            certified += data["neighbors"]
    assert certified == answer["neighbors"]
    state = http.get(location).json()
    assert state == {"query_id": answer["query_id"], "status": "done", "answer": answer}
    assert read_events(http, location, **{"Last-Event-ID": str(len(events) - 2)}) == events[-1:]
    assert read_events(http, location, **{"Last-Event-ID": "9" * 5000}) == events
    assert http.delete(location).status_code == 204
    assert http.get(location).status_code == 404


def test_nothing_is_certified_once_a_provider_is_missing():
    query = StoredQuery("q", "alice", None, b"")
    requests = {name: NearestRequest("q", b"query", 1, None) for name in OWNERS}

    def answer(index, distances, missing=()):
        each = {
            name: NearestReply(
                distances=np.array([distance]),
                ties=np.array([index]),
                ids=Names.pack([f"{name}-{index}"]),
                exhausted=False,
                exact=True,
                n_verified=1,
            )
            for name, distance in zip(OWNERS, distances, strict=True)
            if name not in missing
        }
        record = Round(
            index, "NearestRequest", "gather", {}, {}, 0.0, dict.fromkeys(missing, "late")
        )
        replies = Replies(each, None, record.missing)
        query.on_round(record, requests, replies, k=9, steps=lambda: dict.fromkeys(OWNERS, 0.0))
        events = [event.decode() for event in query._events]
        return [event for event in events if event.startswith("event: certified")]

    assert "north-0" in answer(0, (1.0, 2.0))[0]
    assert len(answer(1, (3.0, 4.0))) == 2
    assert len(answer(2, (5.0, 6.0), missing=("south",))) == 2
    assert len(answer(3, (7.0, 8.0))) == 2
    query._parts = {}
    assert len(answer(0, (1.0, 2.0), missing=("south",))) == 2
    assert len(answer(0, (1.0, 2.0))) == 3  # the query is run again


@pytest.mark.parametrize("answered", [["north"], None])
def test_events_of_a_forgotten_object_are_removed(answered):
    content = {"answered": ["north"]} if answered else {"code": "provider-missing"}

    async def run(query):
        found = [("south", "s-1", 0.5)]
        query._emit("certified", json.dumps({"neighbors": describe_neighbors(found, {})}).encode())
        return StoredAnswer(200 if answered else 503, json.dumps(content).encode())

    async def forget():
        store, kept = QueryStore(), []
        for number, collection in enumerate(["points", "products"]):
            request = ("search", collection, b"{}")
            query = store.start(StoredQuery(f"q{number}", "alice", None, b"", request=request), run)
            await query.task
        store.see_offer("south", OfferedCollection("points", "euclidean", "", 9, {}, n_forgotten=1))
        for name in ("q0", "q1"):
            with contextlib.suppress(Problem):
                kept.append(store.find(name, "alice").query_id)
        return kept

    assert asyncio.run(forget()) == ["q1"]


def test_a_failed_query_in_the_background_has_a_problem(http):
    body = {"query": [4], "k": 7}
    location = post(http, "points", "search", body, Prefer="respond-async").headers["location"]
    ((name, _, problem),) = read_events(http, location)
    assert (name, problem["code"]) == ("done", "invalid-query")
    assert problem["query_id"] == location.rpartition("/")[2]
    state = http.get(location).json()
    assert (state["status"], state["problem"]) == ("failed", problem)


def test_a_running_query_can_be_deleted(http, held, deployment):
    before = deployment.broker._n_running
    body = {"query": [4, 4], "k": 7}
    location = post(http, "points", "search", body, Prefer="respond-async").headers["location"]
    assert http.get(location).json()["status"] == "running"
    assert deployment.broker._n_running == before + 1
    assert http.delete(location).status_code == 204
    assert http.get(location).json()["code"] == "unknown-query"
    assert deployment.broker._n_running == before


def test_a_plan_that_is_deleted_sends_no_further_requests(http, held, deployment, monkeypatch):
    link, sent = deployment.broker.registry.links["south"], []
    request, explain = link.request, Planner.explain
    has_begun, has_ended = threading.Event(), threading.Event()

    def note(number, *arguments):
        sent.append(number)
        request(number, *arguments)
        has_begun.set()

    def explain_to_the_end(*arguments):
        try:
            return explain(*arguments)
        finally:
            has_ended.set()

    monkeypatch.setattr(link, "request", note)
    monkeypatch.setattr(Planner, "explain", explain_to_the_end)
    response = post(http, "points", "explain", {"query": [4, 4]}, Prefer="respond-async")
    assert has_begun.wait(20)
    assert http.delete(response.headers["location"]).status_code == 204
    held.set()
    assert has_ended.wait(20)
    assert len(sent) == 1  # a plan has four exchanges or more


@pytest.mark.parametrize(
    "row",
    [
        '{"a": NaN}',
        '{"a": 1e400}',
        r'{"a": "\ud800"}',
        '{"a":' + "[" * 60_000,
        "[]",
        "",
        "1" * 5000,
    ],
)
def test_a_payload_that_no_answer_can_have_is_the_providers_error(row):
    fields = object.__new__(PayloadReply)
    object.__setattr__(fields, "rows", (row,))
    with pytest.raises(WireError, match="PayloadReply"):
        decode(encode(fields), (PayloadReply,))


def test_only_its_user_sees_a_query(deployment, http):
    body = {"query": [4, 4], "k": 7}
    location = post(http, "points", "search", body, Prefer="respond-async").headers["location"]
    with connect(deployment, deployment.broker.state.new_token("bob", 1)) as other:
        for response in (
            other.get(location),
            other.delete(location),
            other.get(f"{location}/events"),
        ):
            assert (response.status_code, response.json()["code"]) == (404, "unknown-query")
    assert read_events(http, location)[-1][0] == "done"


@pytest.mark.parametrize(
    ("scope", "code"), [("metrics", "unknown-collection"), ("count:points", "forbidden")]
)
def test_a_stored_query_needs_a_token_with_its_scope(deployment, http, scope, code):
    body = {"query": [4, 4], "k": 7}
    location = post(http, "points", "search", body, Prefer="respond-async").headers["location"]
    with connect(deployment, deployment.broker.state.new_token("alice", 1, (scope,))) as other:
        for response in (
            other.get(location),
            other.delete(location),
            other.get(f"{location}/events"),
        ):
            assert response.json()["code"] == code
    assert read_events(http, location)[-1][0] == "done"


def test_a_retry_with_a_key_gets_the_stored_answer(deployment, http, monkeypatch):
    calls, search = [], deployment.broker.search

    async def count_calls(*arguments, **options):
        calls.append(arguments)
        return await search(*arguments, **options)

    monkeypatch.setattr(deployment.broker, "search", count_calls)
    body = {"query": [3, 3], "k": 4}
    first, again = (post(http, "points", "search", body, Idempotency_Key="one") for _ in range(2))
    assert (first.status_code, first.content) == (200, again.content)
    assert len(calls) == 1
    other = post(http, "points", "search", {**body, "k": 5}, Idempotency_Key="one")
    assert (other.status_code, other.json()["code"]) == (422, "key-reused")
    with connect(deployment, deployment.broker.state.new_token("bob", 1)) as bob:
        assert post(bob, "points", "search", body, Idempotency_Key="one").status_code == 200
    assert len(calls) == 2
    long = post(http, "points", "search", body, Idempotency_Key="x" * 256)
    assert (long.status_code, long.json()["code"]) == (422, "invalid-header")


def test_a_retry_during_the_first_request_waits_for_it(deployment, held, monkeypatch):
    body, found = {"query": [5, 3], "k": 4}, []
    link, has_begun = deployment.broker.registry.links["south"], threading.Event()
    request = link.request

    def note(*arguments):
        request(*arguments)
        has_begun.set()

    monkeypatch.setattr(link, "request", note)

    def send():
        with connect(deployment) as client:
            found.append(post(client, "points", "search", body, Idempotency_Key="two").json())

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert has_begun.wait(20)
    held.set()
    for thread in threads:
        thread.join(20)
    assert len({answer["query_id"] for answer in found}) == 1
    assert [len(answer["neighbors"]) for answer in found] == [4, 4, 4]


def test_a_failure_that_may_pass_is_not_stored(deployment, http):
    body, broker = {"query": [5, 5], "k": 4}, deployment.broker
    broker._n_running += 16
    try:
        failed = post(http, "points", "search", body, Idempotency_Key="three")
    finally:
        broker._n_running -= 16
    assert failed.status_code == 503
    assert post(http, "points", "search", body, Idempotency_Key="three").status_code == 200


def test_a_stored_answer_needs_no_place(deployment, http, monkeypatch):
    body, broker = {"query": [5, 6], "k": 4}, deployment.broker
    first = post(http, "points", "search", body, Idempotency_Key="four")
    for name, value in (("_n_running", 16), ("_is_draining", True)):
        with monkeypatch.context() as patch:
            patch.setattr(broker, name, value)
            again = post(http, "points", "search", body, Idempotency_Key="four")
            other = post(http, "points", "search", body, Idempotency_Key="five")
        assert (first.status_code, again.status_code) == (200, 200)
        assert again.content == first.content
        assert (other.status_code, other.json()["code"]) == (503, "overloaded")


def test_a_user_has_half_of_the_places(deployment, http, held):
    body, broker = {"query": [4, 4], "k": 7}, deployment.broker
    with connect(deployment, broker.state.new_token("bob", 1)) as bob:
        found = [post(http, "points", "search", body, Prefer="respond-async") for _ in range(8)]
        assert {response.status_code for response in found} == {202}
        for headers in ({}, {"Prefer": "respond-async"}, {"Idempotency_Key": "six"}):
            response = post(http, "points", "search", body, **headers)
            problem = response.json()
            assert (response.status_code, problem["code"]) == (429, "too-many-queries")
            assert problem["retryable"] is True
            assert response.headers["retry-after"] == "1"
        other = post(bob, "points", "search", body, Prefer="respond-async")
        assert other.status_code == 202
        held.set()
        assert read_events(bob, other.headers["location"])[-1][0] == "done"
    for response in found:
        answer = read_events(http, response.headers["location"])[-1][2]
        assert len(answer["neighbors"]) == 7
    assert not broker._by_user
    assert post(http, "points", "search", body, Idempotency_Key="six").status_code == 200


def test_a_user_has_half_of_the_stored_answers(deployment, http, monkeypatch):
    body = {"query": [6, 5], "k": 4}
    monkeypatch.setattr(_stored, "MAX_STORED", 5)
    with connect(deployment, deployment.broker.state.new_token("bob", 1)) as bob:
        first = post(bob, "points", "search", body, Idempotency_Key="a")
        own = [
            post(http, "points", "search", body, Idempotency_Key=str(number)).json()
            for number in range(6)
        ]
        again = post(bob, "points", "search", body, Idempotency_Key="a")
        assert again.content == first.content
    for number, is_stored in ((5, True), (4, True), (3, True), (0, False)):
        answer = post(http, "points", "search", body, Idempotency_Key=str(number)).json()
        assert (answer["query_id"] == own[number]["query_id"]) is is_stored


def test_running_queries_of_a_user_are_stored_up_to_half(deployment, http, held, monkeypatch):
    body = {"query": [6, 5], "k": 4}
    monkeypatch.setattr(_stored, "MAX_STORED", 2)
    first, second = (post(http, "points", "search", body, Prefer="respond-async") for _ in range(2))
    assert first.status_code == 202
    assert (second.status_code, second.json()["code"]) == (429, "too-many-queries")
    with connect(deployment, deployment.broker.state.new_token("bob", 1)) as bob:
        other = post(bob, "points", "search", body, Prefer="respond-async")
        assert other.status_code == 202
        held.set()
        assert read_events(bob, other.headers["location"])[-1][0] == "done"
    assert read_events(http, first.headers["location"])[-1][0] == "done"


def test_charges_of_two_versions_of_the_objects_are_added_up(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite", party="broker")
    for name in OWNERS:
        ledger.set_budget(name, ApproxDP(10, 1e-3))
    noted, cost = _NotedCharges(ledger), ApproxDP("0.5", "1e-6")
    releases = (("1", "north"), ("2", "south")), (("1", "north"), ("3", "south"))
    for release in releases:  # south was reloaded in between
        terms = [ChargeTerms(query, dataset, "users", cost) for query, dataset in release]
        noted.release_all(terms, lambda missing: [b"noisy"] * len(missing))
    assert noted.costs == {"north": cost, "south": ApproxDP(1, "2e-6")}
    assert noted.costs == {name: ledger.spent(name) for name in OWNERS}


def test_stored_answers_expire_and_are_limited(http, monkeypatch):
    body = {"query": [6, 6], "k": 4}

    def name(key):
        return post(http, "points", "search", body, Idempotency_Key=key).json()["query_id"]

    first = name("a")
    assert name("a") == first
    monkeypatch.setattr(_stored, "STORED_S", 0.0)
    second = name("a")
    assert second != first
    monkeypatch.undo()
    assert name("a") == second
    monkeypatch.setattr(_stored, "MAX_STORED", 3)
    names = [name(key) for key in "bcd"]
    assert name("a") != second
    assert name("d") == names[-1]
    monkeypatch.undo()
    monkeypatch.setattr(_stored, "MAX_STORED_BYTES", 0)
    assert name("d") != names[-1]


def test_many_queries_are_answered_in_order(http):
    lines = [json.dumps({"query": [row, 4], "k": 1 + row}) for row in range(9)]
    lines[3] = "{"
    lines[5] = json.dumps({"query": [1], "k": 2})
    lines.insert(7, "")
    response = http.post(
        "/v1/collections/points/search",
        content="\n".join(lines),
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert response.headers["content-type"].startswith("application/x-ndjson")
    answers = [json.loads(line) for line in response.text.splitlines()]
    codes = [answer.get("code") for answer in answers]
    assert codes == [None] * 3 + ["invalid-json", None, "invalid-query"] + [None] * 3
    for row in (0, 1, 2, 4, 6, 7, 8):
        expected = post(http, "points", "search", {"query": [row, 4], "k": 1 + row}).json()
        assert answers[row]["neighbors"] == expected["neighbors"]


def test_many_queries_have_no_common_key_and_a_limit(http):
    path, lines = "/v1/collections/points/count", {"Content-Type": "application/x-ndjson"}
    response = http.post(path, content="{}", headers={**lines, "Idempotency-Key": "a"})
    assert (response.status_code, response.json()["code"]) == (422, "invalid-header")
    long = '{"query": "' + "a" * (256 << 10) + '"}\n{"query": [4, 4], "radius": 1}'
    answers = [
        json.loads(line) for line in http.post(path, content=long, headers=lines).iter_lines()
    ]
    assert answers[0]["code"] == "too-large"
    assert answers[1]["count"] > 0


def test_lists_have_pages(http):
    names, cursor = [], ""
    while cursor is not None:
        page = http.get("/v1/collections", params={"limit": 2, "cursor": cursor}).json()
        names += [one["name"] for one in page["collections"]]
        cursor = page["next"]
    assert names == sorted(SECTIONS)
    assert [one["name"] for one in http.get("/v1/providers").json()["providers"]] == OWNERS
    first = http.get("/v1/budget", params={"limit": 1}).json()
    assert (first["budgets"][0]["provider"], first["next"]) == ("north", "private/north")
    for limit in ("0", "1001", "many", "-1", "9" * 5000):
        response = http.get("/v1/providers", params={"limit": limit})
        assert (response.status_code, response.json()["code"]) == (422, "invalid-parameter")


def test_a_token_allows_its_scopes_alone(deployment):
    state = deployment.broker.state
    body = {"query": [4, 4], "radius": 1}
    with connect(deployment, state.new_token("carol", 1, ("count:points",))) as carol:
        assert post(carol, "points", "count", body).json()["count"] > 0
        for kind in ("search", "explain"):
            response = post(carol, "points", kind, {"query": [4, 4]})
            assert (response.status_code, response.json()["code"]) == (403, "forbidden")
        response = post(carol, "private", "count", body)
        assert (response.status_code, response.json()["code"]) == (404, "unknown-collection")
        listed = carol.get("/v1/collections").json()["collections"]
        assert [one["name"] for one in listed] == ["points"]
        assert carol.get("/v1/budget").json()["budgets"] == []
        (collections,) = {
            tuple(one["collections"]) for one in carol.get("/v1/providers").json()["providers"]
        }
        assert collections == ("points",)
    with connect(deployment, state.new_token("dave", 1, ("search:private",))) as dave:
        assert len(dave.get("/v1/budget").json()["budgets"]) == 2
        assert post(dave, "private", "count", body).status_code == 200
        assert post(dave, "points", "count", body).status_code == 404
