"""The REST API: authorization, bodies, errors, limits."""

import asyncio
import json

import httpx
import numpy as np
import pytest
from starlette.requests import Request

from fedneighbors.errors import (
    BudgetExceeded,
    FederationError,
    LedgerError,
    MissingExtraError,
    PartyMissing,
    PartyRefused,
    ProtocolError,
)
from fedneighbors.methods.fedknn._provider import INVALID_QUERY
from fedneighbors.methods.fedknn.metrics._sessions import LATE
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service import RemoteNeighbors, _limits
from fedneighbors.service._limits import Overloaded
from fedneighbors.service._links import QueryLost
from fedneighbors.service._problems import Problem, problem_of
from fedneighbors.service._rest import MAX_BODY_BYTES, read_content
from fedneighbors.service._state import EnrolmentCode, StateFailed
from tests.processes import LIMIT_S
from tests.service.deployment import deployed, offered

KINDS = {"age": "number"}
SECTIONS = {
    "points": {"metric": "euclidean", "providers": ["north"], "filters": KINDS},
    "words": {"metric": "edit", "providers": ["north"]},
    "molecules": {"metric": "tanimoto", "providers": ["north"]},
    "places": {"metric": "haversine", "providers": ["north"]},
    "nobody": {"metric": "edit", "providers": ["ghost"]},
}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    limits = {"max_k": 50, "max_concurrent": 2}
    with deployed(tmp_path_factory.mktemp("broker"), SECTIONS, queries=limits) as running:
        rows = np.arange(12.0).reshape(6, 2)
        columns = {"age": [1, 2, 3, 4, 5, None]}
        fingerprints = [np.zeros(256, np.uint8)]
        offers = {
            "points": offered("north", "points", "euclidean", rows, columns=columns, filters=KINDS),
            "words": offered("north", "words", "edit", ["a", "b"]),
            "molecules": offered("north", "molecules", "tanimoto", fingerprints),
            "places": offered("north", "places", "haversine", np.array([[2.0, 48.0]])),
        }
        running.start("north", offers)
        running.wait("north")
        yield running


@pytest.fixture(scope="module")
def http(deployment):
    import ssl

    context = ssl.create_default_context(cafile=str(deployment.certificate))
    headers = {"Authorization": f"Bearer {deployment.token}"}
    with httpx.Client(
        base_url=deployment.url, headers=headers, verify=context, timeout=LIMIT_S
    ) as client:
        yield client


def search(http, collection, body, **options):
    return http.post(f"/v1/collections/{collection}/search", json=body, **options)


def test_a_result_states_how_it_was_found(http):
    content = search(http, "points", {"query": [0, 1], "k": 2, "algorithm": "dann"}).json()
    assert content["neighbors"] == [
        {"provider": "north", "id": "0", "distance": 0.0},
        {"provider": "north", "id": "1", "distance": 8**0.5},
    ]
    stated = {name: content[name] for name in ("exact", "trust", "algorithm", "rounds", "missing")}
    assert stated == {
        "exact": True, "trust": "trusted", "algorithm": "dann", "rounds": 2, "missing": {},
    }  # fmt: skip
    assert content["answered"] == ["north"]


@pytest.mark.parametrize(
    ("collection", "body", "status", "code", "detail"),
    [
        ("cities", {"query": "a"}, 404, "unknown-collection", "no collection 'cities', only:"),
        ("points", {}, 422, "invalid-body", "field required: query, or sealed"),
        ("points", {"query": [0, 1], "k": 0}, 422, "invalid-body", "k: input should be greater"),
        ("points", {"query": [0, 1], "k": 51}, 422, "invalid-query", "expected k from 1 to 50"),
        ("points", {"query": [0, 1], "kk": 1}, 422, "invalid-body", "kk: extra inputs"),
        ("points", {"query": [0]}, 422, "invalid-query", "a vector of 2 numbers, got 1"),
        ("points", {"query": ["a", 1]}, 422, "invalid-query", "expected a list of numbers"),
        ("points", {"query": [10**400, 1]}, 422, "invalid-query", "too large"),
        ("points", {"query": [1e400, 1]}, 422, "invalid-query", "expected finite numbers"),
        ("points", {"query": [0, 1], "algorithm": "fast"}, 422, "invalid-body", "algorithm: "),
        ("points", {"query": [0, 1], "algorithm": "dann*"}, 422, "invalid-query", "privacy cost"),
        ("points", {"query": [0, 1], "where": {"x": 1}}, 422, "invalid-query", "got 'x'"),
        ("points", {"query": [0, 1], "where": {"age": "old"}}, 422, "invalid-query", "got 'old'"),
        ("words", {"query": "a", "where": {"age": 1}}, 422, "invalid-query", "no columns"),
        ("points", {"query": [0, 1], "deadline_s": -1}, 422, "invalid-body", "deadline_s: "),
        *(
            ("points", {"query": [0, 1], name: value}, 422, "invalid-body", f"{name}: input should")
            for name, value in [
                ("k", True),
                ("k", "2"),
                ("k", 2.5),
                ("radius", True),
                ("radius", "1"),
                ("deadline_s", True),
                ("deadline_s", "1"),
                ("payload", 1),
                ("payload", "true"),
                ("allow_partial", 0),
                ("allow_partial", "yes"),
                ("purpose", 3),
            ]
        ),
        ("points", {"query": [True, 1]}, 422, "invalid-query", "expected a list of numbers"),
        ("points", {"query": [0, 1], "where": {"age": True}}, 422, "invalid-query", "got True"),
        (
            "points",
            {"query": [0, 1], "where": {"age": {"in": [1, True]}}},
            422,
            "invalid-query",
            "",
        ),
        (
            "points",
            {"query": [0, 1], "where": {"age": {">=": "1"}}},
            422,
            "invalid-query",
            "got '1'",
        ),
        ("words", {"query": 3}, 422, "invalid-query", "expected a string"),
        ("molecules", {"query": "not SMILES"}, 422, "invalid-query", "SMILES"),
        ("places", {"query": [2, 95]}, 422, "invalid-query", "the latitude within [-90, 90]"),
        ("nobody", {"query": "a"}, 503, "provider-missing", "it is not connected"),
    ],
)
def test_an_error_says_what_is_wrong(http, collection, body, status, code, detail):
    content = json.dumps(body).replace("Infinity", "1e400")
    response = http.post(f"/v1/collections/{collection}/search", content=content)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["code"] == code
    assert detail.lower() in problem["detail"].lower()
    assert problem["retryable"] is (status == 503)
    assert ("retry-after" in response.headers) is (status == 503)


@pytest.mark.parametrize("kind", ["search", "explain"])
@pytest.mark.parametrize("k", [True, "2", 2.5])
def test_only_a_whole_number_is_a_number_of_neighbors(http, kind, k):
    path, body = f"/v1/collections/points/{kind}", {"query": [0, 1], "k": k}
    assert "k: input should be" in http.post(path, json=body).json()["detail"]
    assert http.post(path, json={**body, "k": 2.0}).status_code == 200


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"null", b"[]"])
def test_a_body_that_is_no_json_object_is_refused(http, content):
    response = http.post("/v1/collections/points/search", content=content)
    assert response.status_code in (400, 422)
    assert response.json()["code"] in ("invalid-json", "invalid-body")


def test_a_large_body_is_refused(http):
    response = search(http, "words", {"query": "a" * MAX_BODY_BYTES})
    assert (response.status_code, response.json()["code"]) == (413, "too-large")


def test_a_body_that_ends_early_is_no_failure_of_the_broker():
    async def receive():
        return {"type": "http.disconnect"}

    with pytest.raises(Problem) as info:
        asyncio.run(read_content(Request({"type": "http"}, receive)))
    assert (info.value.status, info.value.content["code"]) == (400, "incomplete-body")


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer fn_wrong", "Basic abc"])
def test_a_request_without_a_valid_token_is_refused(http, header):
    for response in (
        search(http, "points", {"query": [0, 1]}, headers={"Authorization": header}),
        http.get("/v1/collections", headers={"Authorization": header}),
        http.get("/v1/providers", headers={"Authorization": header}),
    ):
        assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
        assert response.headers["www-authenticate"] == "Bearer"


def test_an_expired_or_deleted_token_is_refused(deployment):
    state = deployment.broker.state
    for token in (state.new_token("bob", -1), state.new_token("bob", 1)):
        state.delete_tokens("bob") if state.user_of(token) else None
        with pytest.raises(FederationError, match="unauthorized"):
            deployment.client("points", token=token).kneighbors([[0.0, 1.0]], 1)


def test_collections_and_providers_are_listed(http):
    collections = {one["name"]: one for one in http.get("/v1/collections").json()["collections"]}
    assert set(collections) == set(SECTIONS)
    assert collections["points"]["n_objects"] == 6
    assert collections["points"]["filters"] == KINDS
    assert collections["nobody"]["connected"] == []
    (provider,) = http.get("/v1/providers").json()["providers"]
    assert provider["name"] == "north"
    assert provider["connected_since"] > 0


def test_health_readiness_and_the_description_need_no_token(http):
    headers = {"Authorization": ""}
    assert http.get("/healthz", headers=headers).json()["status"] == "ok"
    response = http.get("/readyz", headers=headers)
    assert (response.status_code, response.json()["code"]) == (503, "provider-missing")
    assert "ghost" not in response.text  # anybody may ask
    described = http.get("/openapi.json", headers=headers).json()
    assert described["openapi"] == "3.1.0"
    for path, operations in described["paths"].items():
        for method in operations:
            request = http.request(method, path.replace("{name}", "points"), headers=headers)
            assert request.status_code != 404, path


@pytest.mark.parametrize("path", ["/", "/v1/collections/points/things", "/v2/collections"])
def test_an_unknown_path_is_a_problem(http, path):
    response = http.get(path)
    assert (response.status_code, response.json()["code"]) == (404, "not-found")


def test_another_method_is_a_problem_that_names_the_allowed_one(http):
    response = http.get("/v1/collections/points/search")
    assert (response.status_code, response.json()["code"]) == (405, "method-not-allowed")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("error", "status", "code", "retryable"),
    [
        (Overloaded("many"), 503, "overloaded", True),
        (QueryLost("north", "lost"), 503, "provider-restarted", True),
        (PartyMissing({"north": "late"}, "the counts"), 503, "provider-missing", True),
        (PartyRefused("north", INVALID_QUERY), 422, "invalid-query", False),
        (PartyRefused("north", LATE), 504, "deadline-passed", True),
        (PartyRefused("north", "internal error"), 502, "provider-refused", False),
        (LedgerError("locked"), 503, "ledger-failed", True),
        (StateFailed("locked"), 503, "state-failed", True),
        (BudgetExceeded("north", "", "1", "0"), 403, "budget-exceeded", False),
        (MissingExtraError("rdkit", "chem"), 501, "not-installed", False),
        (ValueError("k"), 422, "invalid-query", False),
        (ProtocolError("not certified"), 502, "provider-failed", False),
    ],
)
def test_each_error_of_a_search_has_a_code(error, status, code, retryable):
    problem = problem_of(error)
    assert problem.status == status
    assert (problem.content["code"], problem.content["retryable"]) == (code, retryable)


def test_an_error_of_a_lost_link_names_the_provider():
    content = problem_of(QueryLost("north", "the link was lost")).content
    assert (content["party"], content["detail"]) == ("north", "the link was lost")


def test_a_state_that_cannot_be_written_has_a_code(deployment, http):
    state, identity = deployment.broker.state, Identity.new()
    code = state.new_code("north", b"")
    signature = identity.sign(code.content("north", identity.public))
    texts = {"secret": code.secret, "key": identity.public, "signature": signature}
    body = {"provider": "north"} | {name: content.hex() for name, content in texts.items()}
    state._connection.execute("PRAGMA query_only = ON")  # writes fail, as on a full disk
    try:
        response = http.post("/v1/enrolments", json=body)
    finally:
        state._connection.execute("PRAGMA query_only = OFF")
    assert (response.status_code, response.json()["code"]) == (503, "state-failed")
    assert response.json()["retryable"]
    assert search(http, "points", {"query": [0, 1]}).status_code == 200  # the key has not changed


def test_a_state_that_cannot_be_read_has_a_code(deployment, http):
    state = deployment.broker.state
    state._connection.execute("ALTER TABLE tokens RENAME TO moved")
    try:
        response = search(http, "points", {"query": [0, 1]})
    finally:
        state._connection.execute("ALTER TABLE moved RENAME TO tokens")
    assert (response.status_code, response.json()["code"]) == (503, "state-failed")


def test_a_log_that_cannot_be_read_has_a_code(deployment, http):
    log = deployment.broker.log
    log._connection.execute("ALTER TABLE entry RENAME TO moved")
    try:
        response = http.get("/v1/audit")
    finally:
        log._connection.execute("ALTER TABLE moved RENAME TO entry")
    assert (response.status_code, response.json()["code"]) == (503, "log-failed")


def test_too_many_queries_at_once_are_refused(deployment, http):
    broker = deployment.broker
    broker._n_running += 2
    try:
        response = search(http, "points", {"query": [0, 1]})
    finally:
        broker._n_running -= 2
    assert (response.status_code, response.json()["code"]) == (503, "overloaded")
    assert response.headers["retry-after"] == "1"


def test_running_queries_end_before_the_broker_stops(tmp_path):
    import threading

    with deployed(tmp_path, {"words": SECTIONS["words"]}) as running:
        one = offered("north", "words", "edit", ["a", "b"])
        started, is_released, answer = threading.Event(), threading.Event(), one.answer

        def slow(request, deadline):
            started.set()
            is_released.wait(60)
            return answer(request, deadline)

        one.answer = slow
        running.start("north", {"words": one})
        running.wait("north")
        found = []
        client = running.client("words", algorithm="baseline")
        thread = threading.Thread(target=lambda: found.append(client.kneighbors("a", 1)))
        thread.start()
        started.wait(10)
        drained = asyncio.run_coroutine_threadsafe(running.broker.drain(10), running.loop)
        with pytest.raises(TimeoutError):
            drained.result(0.1)
        is_released.set()
        drained.result(20)
        thread.join(10)
        assert found[0][1] == [[("north", "0")]]
        with pytest.raises(FederationError, match="being stopped"):
            running.client("words").kneighbors("a", 1)


def test_the_client_says_that_a_broker_cannot_be_reached():
    with pytest.raises(FederationError, match="cannot reach the broker"):
        RemoteNeighbors("http://127.0.0.1:9", collection="a", token="b").kneighbors("a", 1)


def test_the_client_describes_its_collection(deployment):
    assert deployment.client("words").describe()["metric"] == "edit"
    with pytest.raises(FederationError, match="unknown-collection"):
        deployment.client("cities").describe()


@pytest.mark.parametrize("secret", ["abc", "zz", "0" * 66])
def test_a_malformed_enrolment_is_refused(http, secret):
    body = {"provider": "north", "secret": secret, "key": "", "signature": ""}
    response = http.post("/v1/enrolments", json=body)
    assert (response.status_code, response.json()["code"]) == (422, "invalid-body")


def test_a_query_that_is_no_json_number_is_an_error_of_the_user(deployment):
    with pytest.raises(ValueError, match="JSON"):
        deployment.client("points").kneighbors([[np.nan, 1.0]], 1)


def test_a_failure_of_the_broker_is_a_problem_without_its_text(deployment, http, monkeypatch):
    async def fail(*_, **__):
        raise LookupError("a secret")

    monkeypatch.setattr(deployment.broker, "search", fail)
    response = search(http, "words", {"query": "a"})
    assert (response.status_code, response.json()["code"]) == (500, "internal")
    assert "secret" not in response.text


def test_wrong_enrolment_codes_of_an_address_are_limited(deployment, http, monkeypatch):
    identity = Identity.new()
    code = deployment.broker.state.new_code("east", b"")

    def enrol(secret):
        content = EnrolmentCode(secret, b"").content("east", identity.public)
        body = {
            "provider": "east",
            "secret": secret.hex(),
            "key": identity.public.hex(),
            "signature": identity.sign(content).hex(),
        }
        return http.post("/v1/enrolments", json=body)

    codes = [enrol(number.to_bytes(16)).status_code for number in range(12)]
    assert codes == [403] * 10 + [429] * 2
    refused = enrol(code.secret)
    assert (refused.status_code, refused.json()["code"]) == (429, "too-many-attempts")
    assert refused.headers["retry-after"]
    monkeypatch.setattr(_limits, "WRONG_CODES_S", 0.0)
    assert enrol(code.secret).status_code == 201


def test_few_addresses_with_wrong_codes_are_kept(monkeypatch):
    monkeypatch.setattr(_limits, "_MAX_ADDRESSES", 3)
    codes = _limits.WrongCodes()
    for number in range(10):
        codes.add(str(number))
    assert list(codes._times) == ["7", "8", "9"]


def test_wrong_codes_of_a_network_and_of_all_are_limited():
    codes = _limits.WrongCodes(25)
    for number in range(10):
        codes.add(f"2001:db8::{number + 1:x}")
    assert codes.are_too_many("2001:db8::ffff")
    assert not codes.are_too_many("2001:db8:0:1::1")
    for number in range(14):
        codes.add(f"::ffff:192.0.2.{number}")
    assert not codes.are_too_many("192.0.2.200")
    codes.add("192.0.2.7")
    assert codes.are_too_many("192.0.2.200")


def test_wrong_codes_of_many_addresses_stop_no_sign_in():
    codes = _limits.WrongCodes()
    for number in range(2000):
        codes.add(f"10.0.{number // 250}.{number % 250}")
    assert not codes.are_too_many("192.0.2.1")
