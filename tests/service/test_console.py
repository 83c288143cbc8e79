"""The console over HTTPS: sessions, forged requests, time-outs, limits, headers, JSON twins."""

import asyncio
import contextlib
import csv
import html
import io
import json
import re
import shlex
import shutil
from dataclasses import replace

import httpx
import pytest
from pyarrow import parquet
from starlette.testclient import TestClient
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.datasets import CategoricalColumn, NumericColumn, Schema, SetColumn
from fedneighbors.service import ServiceError, _state
from fedneighbors.service._app import make_app
from fedneighbors.service._config import BrokerConfig
from fedneighbors.service._limits import MAX_WRONG_CODES
from fedneighbors.service._server import run_broker
from fedneighbors.service._state import ApiUser
from fedneighbors.service.console import Sessions, _search
from fedneighbors.service.console._pictures import draw_map
from fedneighbors.service.console._sessions import ABSOLUTE_S, IDLE_S
from tests.processes import LIMIT_S
from tests.service.console import (
    AREAS,
    BODIES,
    FORMULA,
    HOSTILE,
    PROVIDERS,
    RADII,
    SEARCHES,
    TABLES,
    held,
    running_console,
)
from tests.service.deployment import deployed

PAGES = ["overview", "providers", "search", "search/points", "search/cities", "search/sealed"]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with running_console(tmp_path_factory.mktemp("console")) as running:
        yield running


@pytest.fixture
def visitor(deployment):
    """Return a client that has not signed in."""
    with open_client(deployment) as client:
        yield client


@pytest.fixture
def user(deployment, visitor):
    """Return a client that has signed in."""
    assert sign_in(visitor, token=deployment.token).status_code == 303
    return visitor


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def open_client(deployment):
    import ssl

    context = ssl.create_default_context(cafile=str(deployment.certificate))
    return httpx.Client(base_url=deployment.url, verify=context, timeout=LIMIT_S)


def open_clocked(deployment):
    """Return a client of another console of the same broker, and its clock."""
    clock = Clock()
    console = make_app(deployment.broker, Sessions(clock))
    return TestClient(console, base_url="https://console.test", follow_redirects=False), clock


def form_token(client, path="/console/overview"):
    return re.search(r'name="form_token" value="([0-9a-f]{64})"', client.get(path).text)[1]


def sign_in(client, **fields):
    fields["form_token"] = form_token(client, "/console/sign-in")
    return client.post("/console/sign-in", data=fields)


def is_signed_in(client):
    return client.get("/console/overview.json").status_code == 200


def test_a_visitor_is_sent_to_the_page_to_sign_in(visitor):
    assert visitor.get("/").status_code == 404
    response = visitor.get("/", headers={"Accept": "text/html,*/*"}, follow_redirects=True)
    assert response.url.path == "/console/sign-in"
    assert [one.status_code for one in response.history] == [307, 303, 303]
    assert visitor.get("/console", follow_redirects=True).url.path == "/console/sign-in"


@pytest.mark.parametrize("page", PAGES)
def test_pages_and_their_twins_need_a_session(visitor, page):
    assert visitor.get(f"/console/{page}").headers["location"] == "/console/sign-in"
    response = visitor.get(f"/console/{page}.json")
    assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
    part = visitor.get(f"/console/{page}", headers={"HX-Request": "true"})
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "/console/sign-in")


def test_a_session_begins_under_a_new_name_in_a_safe_cookie(deployment, visitor):
    visitor.cookies.set("__Host-fedneighbors", "chosen by somebody else")
    response = sign_in(visitor, token=deployment.token)
    assert (response.status_code, response.headers["location"]) == (303, "/console/overview")
    cookie = response.headers.get_list("set-cookie")[0]
    name, value = cookie.split(";")[0].split("=")
    assert name == "__Host-fedneighbors"
    assert len(value) == 43  # 256 bits
    attributes = {one.strip().lower() for one in cookie.split(";")[1:]}
    assert attributes == {"httponly", "path=/", "samesite=strict", "secure"}


@pytest.mark.parametrize(
    ("address", "is_secure"),
    [
        ("http://127.0.0.1:8443", False),
        ("http://localhost:8443", False),
        ("http://broker.example", True),
        ("http://127.0.0.1.broker.example", True),
        ("https://127.0.0.1:8443", True),
    ],
)
def test_a_cookie_needs_tls_unless_the_address_is_local(deployment, address, is_secure):
    client = TestClient(make_app(deployment.broker), base_url=address)
    response = client.get("/console/sign-in")
    assert ("secure" in response.headers["set-cookie"].lower()) == is_secure
    if not is_secure:
        assert sign_in(client, token=deployment.token).url.path == "/console/overview"
        assert is_signed_in(client)


def test_signing_out_ends_the_session_and_not_only_the_cookie(user):
    cookies = dict(user.cookies)
    response = user.post("/console/sign-out", data={"form_token": form_token(user)})
    assert (response.status_code, response.headers["location"]) == (303, "/console/sign-in")
    assert not is_signed_in(user)
    user.cookies.update(cookies)
    assert not is_signed_in(user)


@pytest.mark.parametrize("token", ["", "fn_wrong", "é"])
def test_a_wrong_token_is_refused_and_not_shown(visitor, token):
    response = sign_in(visitor, token=token)
    assert response.status_code == 403
    assert "The token is wrong or has expired." in response.text
    assert not token or token not in response.text
    assert not is_signed_in(visitor)


def test_wrong_tokens_are_limited(deployment):
    client, _ = open_clocked(deployment)
    for _ in range(MAX_WRONG_CODES):
        assert sign_in(client, token="fn_wrong").status_code == 403
    for token in ("fn_wrong", deployment.token):
        response = sign_in(client, token=token)
        assert response.status_code == 429
        assert "try again in a minute" in response.text


def test_a_session_ends_after_a_time_without_requests(deployment):
    client, clock = open_clocked(deployment)
    sign_in(client, token=deployment.token)
    for _ in range(3):
        clock.now += IDLE_S - 1
        assert is_signed_in(client)
    clock.now += IDLE_S
    assert not is_signed_in(client)
    clock.now -= IDLE_S
    assert not is_signed_in(client)


def test_a_session_in_use_ends_after_a_longer_time(deployment):
    client, clock = open_clocked(deployment)
    sign_in(client, token=deployment.token)
    for _ in range(int(ABSOLUTE_S // 1000)):
        clock.now += 1000
        assert is_signed_in(client)
    clock.now += 1000
    assert not is_signed_in(client)


def test_a_session_ends_with_its_token(deployment, visitor):
    token = deployment.broker.state.new_token("carol", 1)
    sign_in(visitor, token=token)
    assert is_signed_in(visitor)
    deployment.broker.state.delete_tokens("carol")
    assert not is_signed_in(visitor)


def test_a_link_lets_an_administrator_in_once(deployment, visitor):
    link = deployment.broker.state.new_link()
    assert len(link) == 43  # 256 bits
    for _ in range(2):  # only the form uses the link up
        assert f'name="link" value="{link}"' in visitor.get(f"/console/sign-in?link={link}").text
    assert sign_in(visitor, link=link).status_code == 303
    assert ">admin<" in visitor.get("/console/overview").text
    with open_client(deployment) as other:
        response = sign_in(other, link=link)
        assert response.status_code == 403
        assert "The link was used or has expired." in response.text
        assert not is_signed_in(other)


def test_a_link_expires_and_a_new_one_replaces_it(deployment, monkeypatch):
    state, now = deployment.broker.state, _state.time.time()
    earlier, link = state.new_link(), state.new_link()
    assert state.use_link(earlier) is None
    monkeypatch.setattr(_state.time, "time", lambda: now + _state.CODE_LIFETIME_S + 1)
    assert state.use_link(link) is None


def test_the_command_prints_a_link(tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text(
        'format = 1\n[server]\nnames = ["broker.example"]\n'
        '[collections.titles]\nmetric = "edit"\nproviders = ["north"]\n',
        encoding="utf-8",
    )
    result = CliRunner().invoke(app, ["broker", "admin-link", "--config", str(file)])
    address, _, link = result.stdout.strip().partition("?link=")
    assert address == "https://broker.example:8443/console/sign-in"
    state, _ = _state.open_state(BrokerConfig.read(file))
    with contextlib.closing(state):
        user = state.user_of(state.use_link(link))
    assert (user.name, user.is_admin, user.may("search", "titles")) == ("admin", True, True)
    assert not ApiUser("alice").is_admin


def test_a_new_broker_prints_links_until_there_is_a_token(tmp_path):
    config = BrokerConfig.model_validate(
        {
            "format": 1,
            "folder": tmp_path,
            "server": {"listen": "127.0.0.1:0"},
            "collections": {"titles": {"metric": "edit", "providers": ["north"]}},
        }
    )

    async def start():
        ready = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(run_broker(config, lambda *found: ready.set_result(found)))
        url, link = await ready
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert not link or link.startswith(f"{url}/console/sign-in?link=")
        return link.partition("=")[2]

    assert asyncio.run(start())
    link = asyncio.run(start())
    state, _ = _state.open_state(config)
    with contextlib.closing(state):
        assert state.use_link(link)
    assert not asyncio.run(start())


def test_a_link_is_stored_as_a_digest(deployment):
    link = deployment.broker.state.new_link()
    folder = deployment.config.path(deployment.config.state).parent
    files = [file.read_bytes() for file in folder.glob("broker.sqlite*")]
    assert not any(link.encode() in content for content in files)
    assert deployment.broker.state.use_link(link) is not None


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_a_form_of_another_site_is_refused(user, headers):
    data = {"form_token": form_token(user)}
    response = user.post("/console/sign-out", data=data, headers=headers)
    assert response.status_code == 403
    assert "forged-request" in response.text
    assert is_signed_in(user)


def test_a_form_of_another_session_is_refused(deployment, user):
    with open_client(deployment) as other:
        sign_in(other, token=deployment.token)
        for token in (form_token(other), "", form_token(other, "/console/sign-in")):
            response = user.post("/console/sign-out", data={"form_token": token})
            assert response.status_code == 403
    assert user.post("/console/sign-out").status_code == 403
    assert is_signed_in(user)


def test_another_site_cannot_sign_a_browser_in(deployment, visitor):
    with open_client(deployment) as other:
        fields = {"token": deployment.token, "form_token": form_token(other, "/console/sign-in")}
    response = visitor.post("/console/sign-in", data=fields)
    assert response.status_code == 403
    assert not is_signed_in(visitor)


@pytest.mark.parametrize(
    "path", ["overview", "sign-in", "overview.json", "static/console.css", "x"]
)
def test_every_response_has_safe_headers(user, path):
    headers = user.get(f"/console/{path}").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == ("no-cache" if "static" in path else "no-store")


def test_a_page_has_no_script_style_or_address_of_another_host(user):
    for page in PAGES:
        text = user.get(f"/console/{page}").text
        assert (
            re.findall(r"<script(?! src=\"/console/static/)|<style|\bstyle=|\bon\w+=", text) == []
        )
        found = re.findall(r"(?:src|href|action)=\"(?!/|#|data:image/)[^\"]*", text)
        assert found == []


def test_a_twin_has_the_data_of_its_page(deployment, user):
    found = user.get("/console/overview.json").json()
    assert [one["name"] for one in found["collections"]] == list(deployment.broker.collections)
    page = user.get("/console/overview").text
    for one in found["collections"]:
        assert f">{one['name']}<" in page
    providers = user.get("/console/providers.json").json()["providers"]
    assert [one["name"] for one in providers] == list(PROVIDERS)


def test_a_user_sees_the_collections_of_the_token(deployment, visitor):
    token = deployment.broker.state.new_token("dave", 1, ("count:points", "metrics"))
    sign_in(visitor, token=token)
    found = visitor.get("/console/overview.json").json()
    assert [one["name"] for one in found["collections"]] == ["points"]
    assert [one["collections"] for one in found["providers"]] == [["points"], ["points"]]


def test_error_pages_keep_the_navigation(user):
    pages = [user.get(f"/console/{path}") for path in ("nothing", "search/nothing", "queries/0")]
    pages.append(user.post("/console/search/points", data={"form_token": "wrong"}))
    assert [page.status_code for page in pages] == [404, 404, 404, 403]
    for page in pages:
        assert "This did not work" in page.text
        assert '<nav aria-label="Pages">' in page.text
        assert ">alice<" in page.text


def begin(client, collection, *, kind="search", **fields):
    """Send the form of a query; return the response."""
    path = f"/console/{kind}/{collection}"
    return client.post(path, data={"form_token": form_token(client, path), **fields})


def search(client, collection, **fields):
    """Return the path of a query that has begun."""
    response = begin(client, collection, **fields)
    assert response.status_code == 303, response.text
    return response.headers["location"]


def ask(client, deployment, collection, body, kind="search"):
    """Return the answer of the REST API."""
    headers = {"Authorization": f"Bearer {deployment.token}"}
    return client.post(f"/v1/collections/{collection}/{kind}", json=body, headers=headers).json()


def within(collection):
    """Return fields and body of a query with a radius."""
    fields = {**SEARCHES[collection], "radius": str(RADII[collection])}
    body = {**BODIES[collection], "radius": RADII[collection]}
    for one in (fields, body):
        one.pop("algorithm", None)
    return fields, body


def wait_for(client, deployment, path, event="done"):
    """Wait for an event of a query."""
    headers = {"Authorization": f"Bearer {deployment.token}"}
    path = f"{path.replace('console', 'v1')}/events"
    with client.stream("GET", path, headers=headers, timeout=60) as events:
        assert f"event: {event}" in events.iter_lines()


@pytest.mark.parametrize("collection", SEARCHES)
def test_a_form_gives_the_answer_of_the_rest_api(deployment, user, collection):
    path = search(user, collection, **SEARCHES[collection])
    found = user.get(f"{path}.json").json()
    assert found["request"] == {**BODIES[collection], "k": 10}
    expected = ask(user, deployment, collection, BODIES[collection])
    assert expected["neighbors"]
    for field in ("neighbors", "exact", "answered", "missing", "epochs", "trust"):
        assert found["answer"][field] == expected[field]
    assert set(found["learnt"]) == set(PROVIDERS)
    page = user.get(path).text
    for one in found["answer"]["neighbors"]:
        assert html.escape(one["id"]) in page


@pytest.mark.parametrize("collection", SEARCHES)
def test_a_radius_finds_and_counts_as_the_rest_api_does(deployment, user, collection):
    fields, body = within(collection)
    path = search(user, collection, **fields)
    found, nearest = user.get(f"{path}.json").json(), ask(user, deployment, collection, body)
    assert (found["kind"], found["request"]) == ("search", body)
    assert (found["answer"]["algorithm"], found["answer"]["exact"]) == ("radius", True)
    assert found["answer"]["neighbors"] == nearest["neighbors"]
    assert 0 < len(nearest["neighbors"]) < len(TABLES.get(collection, TABLES["points"]))
    page = user.get(path).text
    assert 'name="radius"' in page
    assert "it learnt nothing." in page
    for one in nearest["neighbors"]:
        assert html.escape(one["id"]) in page
    body.pop("payload", None)
    path = search(user, collection, kind="count", **fields)
    found = user.get(f"{path}.json").json()
    assert (found["kind"], found["request"]) == ("count", body)
    counts = ask(user, deployment, collection, body, "count")["counts"]
    assert found["answer"]["counts"] == counts
    assert found["answer"]["count"] == len(nearest["neighbors"]) == sum(counts.values())
    for provider, learnt in found["learnt"].items():
        assert provider in counts
        assert learnt.startswith("It saw the query, and sent a number.")
    page = user.get(path).text
    for provider, count in counts.items():
        assert f'<th scope="row">{provider}</th><td class="number">{count}</td>' in page
    rows = csv.reader(io.StringIO(user.get(f"{path}.csv").text))
    assert list(rows) == [["provider", "count"], *([n, str(c)] for n, c in counts.items())]
    table = parquet.read_table(io.BytesIO(user.get(f"{path}.parquet").content))
    assert table.to_pydict() == {"provider": list(counts), "count": list(counts.values())}


def test_objects_that_meet_a_filter_are_counted(deployment, user):
    fields = {"min.age": "42", "is.ward": "a", "k": "", "query": "ignored"}
    path = search(user, "points", kind="count", **fields)
    found = user.get(f"{path}.json").json()
    assert found["request"] == {"where": {"age": {">=": 42}, "ward": "a"}}
    assert found["answer"]["count"] == 5
    assert set(found["learnt"]) == set(PROVIDERS)
    page = user.get(path).text
    assert "It saw the filter, and sent a number." in page
    assert "search.count_filtered({" in html.unescape(page)
    assert "Change this count" in page


@pytest.mark.parametrize("collection", SEARCHES)
def test_tables_have_similarities_and_hints_of_their_metric(user, collection):
    page = user.get(search(user, collection, **SEARCHES[collection])).text
    assert (">Similarity</th>" in page) == (collection in ("words", "molecules"))
    assert ("rows with few cells can be near by chance" in page) == (collection == "patients")


def test_a_map_shows_the_areas_that_providers_state(deployment, user):
    found = user.get("/console/search/cities.json").json()["collection"]
    assert found["areas"] == {"north": AREAS["north"]}
    assert user.get("/console/search/points.json").json()["collection"]["areas"] == {}
    page = user.get("/console/search/cities").text
    assert re.findall("<title>area of ([^<]*)</title>", page) == ["north"]
    assert "areas that providers state; others state none." in page
    north = deployment.broker.registry.links["north"]
    stated = north.collections["cities"]
    north.collections["cities"] = replace(stated, area=None)
    try:
        page = user.get("/console/search/cities").text
    finally:
        north.collections["cities"] = stated
    assert "<title>area of" not in page
    assert "No provider shows where its places are." in page


@pytest.mark.parametrize(
    ("areas", "west", "east"),
    [
        ([[-10, 40, 10, 50]], -10, 10),
        ([[-10, 40, 10, 50], [20, 45, 30, 46]], -10, 30),
        ([[170, -20, -175, -10]], 170, 185),
        ([[-180, -90, 180, 90]], -180, 180),
        ([[5, 50, 5, 50]], 5, 5),
    ],
)
def test_a_map_contains_all_areas(areas, west, east):
    found = draw_map((0.0, 0.0), (), areas=dict(enumerate(areas)))
    assert found["west"] <= west <= east <= found["east"]
    assert found["east"] - found["west"] <= max(1.5 * (east - west), 40)
    corners = [corner for box in found["areas"].values() for corner in box]
    for name, (x, y) in ((n, corner) for n, box in found["areas"].items() for corner in box):
        assert 0 <= x <= 100, name
        assert 0 <= y <= found["height"], name
    assert len(corners) == 2 * len(areas)


def test_fields_and_results_have_names_and_units(user):
    form = user.get("/console/search/patients").text
    assert re.search(
        r'<label for="query.age">age</label>\s*<input[^>]* placeholder="0 to 100"', form
    )
    assert "Codes are separated by spaces." in form
    page = user.get(search(user, "patients", **SEARCHES["patients"])).text
    assert "age <code>44</code>, sex <code>f</code>, codes <code>I10 E11</code>" in page
    assert ">Distance (0\u00a0to\u00a01)</th>" in page
    assert ", the 10 nearest" in page
    page = user.get(search(user, "cities", **SEARCHES["cities"])).text
    assert "longitude <code>4.9°</code>, latitude <code>52.37°</code>" in page
    ranks = re.findall(r'<text class="rank"[^>]*>(\d+)<', page)
    assert ranks[:2] == ["1", "2"]
    assert "Numbers are ranks." in page
    page = user.get(search(user, "titles", **SEARCHES["titles"])).text
    assert ">Distance (edits)</th>" in page


def test_a_form_marks_the_columns_that_a_row_must_have(tmp_path):
    columns = (
        NumericColumn("age", 0, 100),
        CategoricalColumn("sex", ("f", "m")),
        SetColumn("codes"),
        NumericColumn("weight", 0, 200, missing="keep"),
        NumericColumn("height", 0, 3, missing=1.7),
    )
    (tmp_path / "schema.toml").write_text(Schema(columns).to_toml(), encoding="utf-8")
    section = {"metric": "tabular", "schema": "schema.toml", "providers": ["north"]}
    with deployed(tmp_path, {"visits": section}) as running, open_client(running) as client:
        sign_in(client, token=running.token)
        form = client.get("/console/search/visits").text
        facts = client.get("/console/search/visits.json").json()["collection"]
    found = re.findall(r'<label for="query\.(\w+)">([^<]*)</label>\s*<\w+ ([^>]*)>', form)
    marked = {name: ("(required)" in label, " required" in field) for name, label, field in found}
    expected = ["age", "sex", "codes"]
    assert marked == {one.name: (one.name in expected,) * 2 for one in columns}
    assert facts["required"] == expected


def test_a_search_for_a_row_without_a_value_is_refused(deployment, user):
    names = "give at least one of 'age', 'sex', 'codes'"
    page = user.get(search(user, "patients")).text
    assert "at least one field needs a value" in page
    assert names in html.unescape(page)
    with deployment.client("patients") as client:
        for row in ({}, {"age": None, "codes": None}):
            with pytest.raises(ServiceError, match=names) as caught:
                client.kneighbors([row], 3)
            assert (caught.value.status, caught.value.code) == (422, "invalid-query")
            with pytest.raises(ServiceError, match=names):
                client.count([row], 1)
        assert len(client.kneighbors([{"codes": []}], 3)[0][0]) == 3


@pytest.mark.parametrize("collection", SEARCHES)
def test_a_result_has_the_form_of_its_search(user, collection):
    path = search(user, collection, **SEARCHES[collection])
    fields = re.findall(r'name="(\S+)"[^>]*? value="([^"]+)"', user.get(path).text)
    areas = re.findall(r'<textarea [^>]*name="(\S+)"[^>]*>([^<]*)<', user.get(path).text)
    chosen = {name: html.unescape(text) for name, text in [*fields, *areas] if text}
    for name in SEARCHES[collection].keys() - {"algorithm", "is.smoker", "query.sex", "query"}:
        assert chosen[name] == SEARCHES[collection][name]


@pytest.mark.parametrize(
    ("algorithm", "learnt"),
    [
        ("baseline", "it learnt nothing."),
        ("eager", "it learnt nothing."),
        ("dann", "it learnt about how many of the nearest objects are its own"),
        ("hufu+", "it learnt the radii that were tried"),
    ],
)
def test_a_result_says_what_each_provider_learnt(user, algorithm, learnt):
    path = search(user, "points", query="1, 1", algorithm=algorithm)
    found = user.get(f"{path}.json").json()
    for provider in PROVIDERS:
        n = found["answer"]["n_returned"][provider]
        assert f"It saw the query, and sent {n} object" in found["learnt"][provider]
        assert learnt in found["learnt"][provider]
        assert "were found" not in found["learnt"][provider]
    path = search(user, "points", query="1, 1", k="1", algorithm=algorithm, payload="true")
    found = user.get(f"{path}.json").json()
    owner = found["answer"]["neighbors"][0]["provider"]
    told = {name for name, text in found["learnt"].items() if "objects were found" in text}
    assert told == {owner}


def test_a_search_is_in_the_log_of_its_user(deployment, user):
    path = search(user, "points", query="2 2", purpose="to test")
    entry = deployment.broker.log.entries_of("alice", 1)[0]
    assert path == f"/console/queries/{entry['query']}"
    assert (entry["purpose"], entry["collection"], entry["outcome"]) == ("to test", "points", "")


@pytest.mark.parametrize(
    ("collection", "fields", "detail"),
    [
        ("points", {"query": ""}, "query: expected a query, got &#39;&#39;"),
        ("points", {"query": "1, x"}, "query: expected a number, got &#39;x&#39;"),
        ("points", {"query": "1, inf"}, "query: expected a number, got &#39;inf&#39;"),
        ("points", {"query": "1, 1", "k": "1.5"}, "k: expected a whole number"),
        ("points", {"query": "1, 1", "k": "1_0"}, "k: expected a whole number"),
        ("points", {"query": "1, 1", "k": "0"}, "k: input should be greater"),
        ("points", {"query": "1, 1_0"}, "query: expected a number, got &#39;1_0&#39;"),
        ("points", {"query": "1, 1", "k": "-1"}, "k: input should be greater"),
        ("points", {"query": "1, 1", "max.age": "old"}, "max.age: expected a number"),
        ("points", {"query": "1, 1", "algorithm": "best"}, "algorithm: input should be"),
        ("cities", {"query.longitude": "4"}, "latitude: expected a number, got &#39;nothing"),
        ("words", {"query": "[1, 2"}, "query: expected JSON"),
        ("points", {"query": "1, 1", "radius": "far"}, "radius: expected a number"),
        ("points", {"kind": "explain", "query": "1, 1", "radius": "1"}, "expected no radius"),
        ("points", {"kind": "count", "query": "1, 1"}, "radius: expected a radius or a filter"),
        ("points", {"kind": "count", "radius": "1"}, "query: expected a query"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_lost(user, collection, fields, detail):
    fields = {"purpose": "kept", **fields}
    response = begin(user, collection, **fields)
    assert response.status_code == 422
    assert detail.lower() in response.text.lower()
    assert 'value="kept"' in response.text


def test_a_search_that_fails_shows_its_problem(user):
    path = search(user, "points", query="1, 2, 3")
    assert "Expected a vector of 2 numbers, got 3." in user.get(path).text
    found = user.get(f"{path}.json").json()
    assert (found["status"], found["problem"]["code"]) == ("failed", "invalid-query")
    assert user.get(f"{path}.csv").status_code == 409
    path = search(user, "absent", query="x")
    assert user.get(f"{path}.json").json()["problem"]["code"] == "provider-missing"


@pytest.mark.parametrize(
    ("kind", "fields", "detail"),
    [
        ("search", {"radius": "-1"}, "Expected a radius of 0 or more, got -1."),
        ("count", {"radius": "-1"}, "Expected a radius of 0 or more, got -1."),
        ("search", {"radius": "1", "algorithm": "dann"}, "omit k and algorithm."),
    ],
)
def test_a_radius_that_cannot_be_searched_is_explained(user, kind, fields, detail):
    path = search(user, "points", kind=kind, query="1, 1", **fields)
    page = user.get(path).text
    assert detail in page
    assert "Change this" in page


def test_missing_providers_are_named(user):
    form = user.get("/console/search/partial").text
    assert "ghost. A search fails, unless you allow an answer" in form
    assert "not connected" not in user.get("/console/search/points").text
    failed = user.get(search(user, "partial", query="search")).text
    assert "No answer from provider ghost (it is not connected): search again later" in failed
    path = search(user, "partial", query="search", allow_partial="true")
    found = user.get(f"{path}.json").json()
    assert (found["answer"]["exact"], found["answer"]["answered"]) == (False, ["north"])
    assert found["learnt"]["ghost"] == "It did not answer: it is not connected."
    page = user.get(path).text
    assert "not certified as exact" in page
    assert "ghost is missing" in page
    assert 'class="missing"' in page


def test_limits_of_the_rest_api_hold(deployment, user):
    deployment.broker._n_running += 64
    try:
        response = begin(user, "points", query="1, 1")
    finally:
        deployment.broker._n_running -= 64
    assert response.status_code == 503
    assert "64 queries run; try again later." in response.text


def test_a_token_that_may_only_count_cannot_search(deployment, visitor):
    sign_in(visitor, token=deployment.broker.state.new_token("erin", 1, ("count",)))
    found = visitor.get("/console/search.json").json()
    assert found["collections"] == []
    assert [one["name"] for one in found["only_counts"]] == list(deployment.broker.collections)
    data = {"form_token": form_token(visitor), "query": "1, 1", "radius": "1"}
    for kind in ("search", "explain"):
        assert visitor.get(f"/console/{kind}/points").status_code == 403
        assert visitor.post(f"/console/{kind}/points", data=data).status_code == 403
    assert visitor.get("/console/search/nothing").status_code == 404
    page = visitor.get("/console/count/points").text
    assert re.findall(r'formaction="/console/(\w+)/', page) == ["count"]
    for place in ("overview", "search"):
        assert 'href="/console/count/points"' in visitor.get(f"/console/{place}").text
    path = visitor.post("/console/count/points", data=data).headers["location"]
    assert visitor.get(f"{path}.json").json()["answer"]["count"] == 5


def test_a_query_is_shown_to_its_user_alone(deployment, user):
    path = search(user, "points", query="1, 1")
    with open_client(deployment) as other:
        sign_in(other, token=deployment.broker.state.new_token("frank", 1))
        for place in (path, f"{path}.json", f"{path}.csv", f"{path}/progress"):
            assert other.get(place).status_code == 404
        data = {"form_token": form_token(other)}
        assert other.post(f"{path}/cancel", data=data).status_code == 404
    assert user.get(path).status_code == 200


def test_names_and_columns_are_no_markup(user):
    refused = begin(user, "points", query=HOSTILE).text
    titles = user.get(search(user, "titles", query="s")).text
    columns = user.get(search(user, "points", query="1, 1", payload="true")).text
    for page in (refused, titles, columns):
        assert HOSTILE not in page
        assert html.escape(HOSTILE) in page
    assert columns.count(html.escape(HOSTILE)) == 10


def test_files_have_all_neighbors(user):
    path = search(user, "points", query="1, 1", payload="true", k="20")
    neighbors = user.get(f"{path}.json").json()["answer"]["neighbors"]
    response = user.get(f"{path}.csv")
    assert response.headers["content-disposition"].startswith('attachment; filename="points-')
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert [(one["provider"], one["id"], float(one["distance"])) for one in rows] == [
        (one["provider"], one["id"], one["distance"]) for one in neighbors
    ]
    assert [one["rank"] for one in rows] == [str(rank) for rank in range(1, 13)]
    assert {one["note"] for one in rows} == {HOSTILE}
    table = parquet.read_table(io.BytesIO(user.get(f"{path}.parquet").content)).to_pylist()
    assert [one["id"] for one in table] == [one["id"] for one in neighbors]


def test_a_page_shows_the_first_rows_and_structures_alone(user, monkeypatch):
    monkeypatch.setattr(_search, "MAX_ROWS", 5)
    monkeypatch.setattr(_search, "MAX_STRUCTURES", 2)
    page = user.get(search(user, "molecules", **SEARCHES["molecules"])).text
    assert page.count('class="structure small"') == 2
    assert page.count('<th scope="row">') == 5
    assert "The first 5; files have all." in page


def test_a_file_has_no_formula(user):
    path = search(user, "titles", query=FORMULA)
    rows = list(csv.DictReader(io.StringIO(user.get(f"{path}.csv").text)))
    assert rows[0]["id"] == f"'{FORMULA}"
    assert float(rows[0]["distance"]) == 0
    assert user.get(f"{path}.json").json()["answer"]["neighbors"][0]["id"] == FORMULA


def test_a_search_shows_its_progress_and_can_be_cancelled(deployment, user):
    with held(deployment, n_sent=1) as is_released:
        fields = {"query": "1, 1", "payload": "true", "algorithm": "baseline"}
        path = search(user, "points", **fields)
        wait_for(user, deployment, path, "certified")
        part = user.get(f"{path}/progress").text
        assert "1 exchange done; 10 neighbours are certain so far." in part
        found = user.get(f"{path}.json").json()
        assert (found["status"], len(found["certified"])) == ("running", 10)
        assert user.get(f"{path}.csv").status_code == 409
        other = search(user, "points", **fields)
        response = user.post(f"{path}/cancel", data={"form_token": form_token(user)})
        assert response.headers["location"] == "/console/search/points"
        assert user.get(path).status_code == 404
        is_released.set()
        wait_for(user, deployment, other)
    response = user.get(f"{other}/progress")
    assert response.headers["hx-refresh"] == "true"
    assert user.get(f"{other}.json").json()["status"] == "done"


def test_a_sealed_collection_is_searched_elsewhere(deployment, user):
    page = user.get("/console/search/sealed").text
    assert "This collection is sealed." in page
    assert "keys=tomllib.loads(" in html.unescape(page)
    assert 'name="query"' not in page
    path = search(user, "sealed", query="1, 1", form_token=form_token(user))
    assert user.get(f"{path}.json").json()["problem"]["code"] == "invalid-query"


@pytest.mark.parametrize("kind", ["k", "radius", "count"])
@pytest.mark.parametrize("collection", SEARCHES)
def test_copied_lines_find_the_same(deployment, user, collection, kind, tmp_path, monkeypatch):
    fields = SEARCHES[collection] if kind == "k" else within(collection)[0]
    name = "count" if kind == "count" else "search"
    partial = "" if collection == "private" else "true"
    path = search(user, collection, kind=name, allow_partial=partial, **fields)
    lines = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", user.get(path).text, re.S)
    python, curl, command = map(html.unescape, lines)
    shutil.copy(deployment.certificate, tmp_path / "broker.crt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDNEIGHBORS_TOKEN", deployment.token)
    answer = user.get(f"{path}.json").json()["answer"]
    field = "counts" if kind == "count" else "neighbors"
    values = {}
    exec(python, values)
    if kind == "count":
        assert values["counts"] == [answer["count"]]
    else:
        names = [(one["provider"], one["id"]) for one in answer["neighbors"]]
        assert list(map(tuple, values["objects"][0])) == names
    sent = shlex.split(curl)
    again = ask(user, deployment, collection, json.loads(sent[-1]), name)
    assert again[field] == answer[field]
    assert sent[3] == f"{deployment.url}/v1/collections/{collection}/{name}"
    _, command_name, *arguments = shlex.split(command)
    assert ("--allow-partial" in arguments) == bool(partial)
    result = CliRunner().invoke(app, [command_name, "--json", *arguments])
    assert json.loads(result.stdout)[field] == answer[field]


def test_searches_of_the_rest_api_are_shown(deployment, user):
    headers = {"Authorization": f"Bearer {deployment.token}", "Prefer": "respond-async"}

    def begin_there(kind, body):
        address = f"/v1/collections/points/{kind}"
        query = user.post(address, json=body, headers=headers).json()
        wait_for(user, deployment, f"/console/queries/{query['query_id']}")
        return f"/console/queries/{query['query_id']}"

    radius = user.get(begin_there("search", {"query": [1, 1], "radius": 1.5})).text
    assert "radius_neighbors([[1, 1]], 1.5)" in html.unescape(radius)
    assert "Change this search" in radius
    odd = {"query": [1, 1], "where": {"or": [{"age": 41}, {"age": 42}]}}
    assert "Change this search" not in user.get(begin_there("search", odd)).text
    count = user.get(begin_there("count", {"query": [1, 1], "radius": 1.5})).text
    assert "search.count([[1, 1]], 1.5)" in html.unescape(count)
    filtered = user.get(begin_there("count", {"where": {"age": 41}})).text
    assert "search.count_filtered({'age': 41})" in html.unescape(filtered)
    sealed = user.get(begin_there("search", {"sealed": "x"}))
    assert (sealed.status_code, "unreadable-query" in sealed.text) == (422, True)
