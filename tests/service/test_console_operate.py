"""Pages to operate the broker: who may see and do what, secrets shown once, the log, costs."""

import html
import re
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service._access_log import AccessEntry, AccessLog, LogFailed
from fedneighbors.service._administration import Administrator
from fedneighbors.service._config import BrokerConfig
from fedneighbors.service._messages import VERSION, OfferedGrant
from fedneighbors.service._state import EnrolmentCode, open_state
from fedneighbors.service.console._records import PAGE
from tests.service import test_console, test_console_browser
from tests.service.console import BODIES, HOSTILE, PROVIDERS, SEARCHES
from tests.service.deployment import offered
from tests.service.test_console import form_token, open_client, sign_in

ADMIN_PAGES = [
    "users",
    "policies",
    "users/{token}/revoke",
    "providers/north/revoke",
]
ADMIN_FORMS = {
    "providers": {"provider": "north"},
    "providers/north/revoke": {},
    "users": {"user": "mallory", "days": "1", "scope.admin": "true"},
    "users/{token}/revoke": {},
    "audit/verify": {},
}
PAGES = [*ADMIN_PAGES, "providers", "budgets", "audit"]
BROKER = 'format = 1\n[collections.points]\nmetric = "euclidean"\nproviders = ["north"]\n'

chromium = test_console_browser.chromium
deployment, visitor, user = test_console.deployment, test_console.visitor, test_console.user


@pytest.fixture(scope="module")
def admin_token(deployment):
    return deployment.broker.state.new_token("root", 1, ("admin",))


@pytest.fixture
def admin(deployment, admin_token):
    """Return a client of an administrator who may not search."""
    with open_client(deployment) as client:
        sign_in(client, token=admin_token)
        yield client


@pytest.fixture
def ghost(deployment):
    """Return the name of a provider that is connected, with named exceptions."""
    objects = offered("ghost", "absent", "edit", ["a", "b"])
    grants = (
        OfferedGrant("user alice", "distances", {"max_k": 7}),
        OfferedGrant(f"group {HOSTILE}", HOSTILE, {"queries_per_day": 1000}),
        OfferedGrant("", "ids", {"objects_per_day": 50}),
    )
    objects.offer = replace(objects.offer, distance_step=0.5, n_forgotten=3, grants=grants)
    deployment.enrol("ghost")
    deployment.start("ghost", {"absent": objects})
    deployment.wait("ghost")
    yield "ghost"
    deployment.tasks.pop("ghost").cancel()


def token_of(deployment, name):
    """Return the stored token of a user."""
    return next(one for one in deployment.broker.state.tokens() if one.user.name == name)


def send(client, path, **fields):
    """Send a form of the console."""
    return client.post(f"/console/{path}", data={"form_token": form_token(client), **fields})


def last_change(deployment):
    """Return user, kind, subject and outcome of the last entry of the log."""
    (entry,) = deployment.broker.log.entries_of(None, 1)
    return tuple(entry[name] for name in ("user", "kind", "subject", "outcome"))


@pytest.mark.parametrize("page", PAGES)
def test_pages_need_a_session(visitor, page):
    assert visitor.get(f"/console/{page}").headers["location"] == "/console/sign-in"
    assert visitor.get(f"/console/{page}.json").status_code == 401


@pytest.mark.parametrize("page", ADMIN_PAGES)
def test_pages_of_administrators_are_refused_to_users(deployment, user, admin, page):
    path = page.format(token=token_of(deployment, "alice").token_id)
    for client, status in ((user, 403), (admin, 200)):
        assert client.get(f"/console/{path}").status_code == status
        assert client.get(f"/console/{path}.json").status_code == status
    assert user.get(f"/console/{path}.json").json()["code"] == "forbidden"


@pytest.mark.parametrize("path", ADMIN_FORMS)
def test_forms_of_administrators_are_refused_to_others(deployment, user, admin, path):
    state, log = deployment.broker.state, deployment.broker.log
    before = state.tokens(), state.providers(), state.codes(), log.head
    address = path.format(token=token_of(deployment, "alice").token_id)
    assert send(user, address, **ADMIN_FORMS[path]).status_code == 403
    for forged in ({}, {"form_token": form_token(user)}):
        response = admin.post(f"/console/{address}", data={**ADMIN_FORMS[path], **forged})
        assert response.status_code == 403
    assert before == (state.tokens(), state.providers(), state.codes(), log.head)


def test_users_see_the_providers_of_their_collections(deployment, admin):
    with open_client(deployment) as client:
        sign_in(client, token=deployment.broker.state.new_token("paul", 1, ("count:points",)))
        found = client.get("/console/providers.json").json()["providers"]
        assert [one["collections"] for one in found] == [["points"], ["points"]]
        assert "Revoke" not in client.get("/console/providers").text
        assert "/console/users" not in client.get("/console/overview").text
    assert "/console/users" in admin.get("/console/overview").text


def test_an_administrator_sees_all_about_providers(deployment, admin):
    answer = test_console.ask(admin, deployment, "points", {"query": [1, 1], "k": 3})
    found = {one["name"]: one for one in admin.get("/console/providers.json").json()["providers"]}
    assert sorted(found) == ["ghost", *PROVIDERS]
    north, ghost = found["north"], found["ghost"]
    assert north["enrolled"] <= north["connected_since"] <= north["last_seen"]
    assert (north["objects"]["points"], north["protocol"], north["revoked"]) == (6, VERSION, False)
    assert north["epochs"]["points"] == answer["epochs"]["north"]
    assert (ghost["enrolled"], ghost["last_seen"], ghost["protocol"]) == (None, None, None)
    assert north["epochs"]["points"][:16] in admin.get("/console/providers").text


def test_a_code_is_shown_once_and_enrols(deployment, admin):
    response = send(admin, "providers", provider="north")
    assert response.headers["cache-control"] == "no-store"
    code = EnrolmentCode.parse(re.search(r"provider enrol (fn\S+?)<", response.text)[1])
    assert code.fingerprint == deployment.broker.fingerprint
    assert last_change(deployment) == ("root", "new-code", "provider north", "")
    page = admin.get("/console/providers")
    assert "code until" in page.text
    assert str(code) not in page.text
    assert str(code) not in str(deployment.broker.log.entries_of(None, 5))
    identity = deployment.identities["north"]
    signature = identity.sign(code.content("north", identity.public))
    body = {
        "provider": "north",
        "secret": code.secret.hex(),
        "key": identity.public.hex(),
        "signature": signature.hex(),
    }
    for status in (201, 403):
        assert admin.post("/v1/enrolments", json=body).status_code == status
    assert last_change(deployment) == ("", "enrol", "provider north", "")


def test_a_code_for_an_unknown_provider_is_refused(deployment, admin):
    head = deployment.broker.log.head
    response = send(admin, "providers", provider=HOSTILE)
    assert response.status_code == 422
    assert "only: ghost, north, south" in response.text
    assert HOSTILE not in response.text
    assert deployment.broker.log.head == head


def test_a_provider_is_revoked_after_a_confirmation(deployment, admin, ghost):
    page = admin.get("/console/providers/ghost/revoke")
    assert "Revoke ghost?" in page.text
    assert ghost in deployment.broker.registry.links
    response = send(admin, "providers/ghost/revoke")
    assert (response.status_code, response.headers["location"]) == (303, "/console/providers")
    assert ghost not in deployment.broker.registry.links
    assert last_change(deployment) == ("root", "revoke", "provider ghost", "")
    found = admin.get("/console/providers.json").json()["providers"][0]
    assert (found["name"], found["revoked"], found["connected_since"]) == ("ghost", True, None)
    assert found["last_seen"] >= found["enrolled"]
    assert send(admin, "providers/ghost/revoke").status_code == 404
    assert admin.get("/console/providers/nobody/revoke").status_code == 404


def test_policies_are_those_of_the_offers(deployment, admin, ghost):
    found = {one["name"]: one for one in admin.get("/console/policies.json").json()["collections"]}
    (offer,) = found["absent"]["offers"]
    assert offer["provider"] == ghost
    assert offer["grants"] == [
        {"name": "user alice", "level": "distances", "max_k": 7},
        {"name": f"group {HOSTILE}", "level": HOSTILE, "queries_per_day": 1000},
        {"name": "", "level": "ids", "objects_per_day": 50},
    ]
    assert (offer["distance_step"], offer["n_forgotten"]) == (0.5, 3)
    assert found["private"]["privacy"]["epsilon"] == 1.0
    assert found["sealed"]["trust"] == "sealed"
    page = admin.get("/console/policies").text
    assert HOSTILE not in page
    escaped = html.escape(HOSTILE)
    assert f"<strong>group {escaped}</strong>: {escaped}; 1,000 queries a day" in page
    assert "<strong>everybody</strong>: ids in their order, no distances; 50 objects" in page
    assert "multiples of 0.5" in page


def test_users_see_their_own_rights(deployment, user, ghost):
    for name, groups, rights in (
        ("alice", (), {"level": "distances", "max_k": 7, "objects_per_day": 50}),
        ("lea", ("others",), {"level": "ids", "objects_per_day": 50}),
    ):
        with open_client(deployment) as client:
            token = deployment.broker.state.new_token(name, 1, ("search:absent",), groups)
            sign_in(client, token=token)
            headers = {"Authorization": f"Bearer {token}"}
            found = client.get("/v1/collections/absent", headers=headers).json()
            assert found["grants"] == {ghost: rights}
            page = client.get("/console/search/absent").text
            assert ("ids and distances; at most 7 objects of a query" in page) == (name == "alice")
            assert "alice</strong>" not in page
            assert html.escape(HOSTILE) not in page


def test_a_token_is_shown_once_and_revoked(deployment, admin):
    fields = {"user": "bob", "days": "2.5", "groups": "doctors, night shift"}
    response = send(admin, "users", **fields, **{"scope.search:points": "true"})
    assert response.headers["cache-control"] == "no-store"
    token = re.search(r"<code>(fn_[\w-]{43})</code>", response.text)[1]
    user = deployment.broker.state.user_of(token)
    assert (user.name, user.scopes) == ("bob", ("search:points",))
    assert user.groups == ("doctors", "night shift")
    subject = "user bob, 2.5 days: search:points; groups doctors, night shift"
    assert last_change(deployment) == ("root", "new-token", subject, "")
    page = admin.get("/console/users").text
    assert token not in page + str(deployment.broker.log.entries_of(None, 5))
    stored = token_of(deployment, "bob")
    with open_client(deployment) as other:
        sign_in(other, token=token)
        assert other.get("/console/overview.json").status_code == 200
        address = f"users/{stored.token_id}/revoke"
        assert "Revoke the token of bob?" in admin.get(f"/console/{address}").text
        assert send(admin, address).headers["location"] == "/console/users"
        assert other.get("/console/overview.json").status_code == 401
    subject = f"user bob, token {stored.token_id}"
    assert last_change(deployment) == ("root", "delete-token", subject, "")
    assert send(admin, address).status_code == 404


@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        ({"user": ""}, "expected a name of 1 to 100 characters, got ''"),
        ({"user": "a\x00"}, r"expected a name of 1 to 100 characters, got 'a\x00'"),
        ({"days": "soon"}, "expected a number of days, got 'soon'"),
        ({"days": "1_0"}, "expected a number of days, got '1_0'"),
        ({"days": "nan"}, "at most 36500 days, got nan"),
        ({"days": "1e300"}, "at most 36500 days, got 1e+300"),
        ({"scope.count": ""}, "expected at least one scope"),
        ({"scope.count:nothing": "true"}, "'count:nothing': expected a collection among "),
        ({"scope.root": "true"}, "such as search or count:COLLECTION, got 'root'"),
    ],
)
def test_a_wrong_token_is_not_issued(deployment, admin, changed, detail):
    before = deployment.broker.state.tokens()
    fields = {"user": "eve", "days": "1", "groups": "kept", "scope.count": "true", **changed}
    if not fields["scope.count"]:
        del fields["scope.count"]
    response = send(admin, "users", **fields)
    assert response.status_code == 422
    assert detail in html.unescape(response.text).replace("Expected", "expected")
    assert 'value="kept"' in response.text
    assert deployment.broker.state.tokens() == before


def test_names_of_users_are_no_markup(deployment, admin):
    pages = [send(admin, "users", user=HOSTILE, days="1", groups=HOSTILE, **{"scope.count": "1"})]
    token_id = token_of(deployment, HOSTILE).token_id
    pages += [admin.get(f"/console/{name}") for name in ("users", f"users/{token_id}/revoke")]
    pages += [admin.get("/console/audit"), admin.get("/console/audit", params={"user": HOSTILE})]
    for page in pages:
        assert page.status_code == 200
        assert HOSTILE not in page.text
        assert html.escape(HOSTILE) in page.text


def test_tokens_that_never_expire_are_listed(deployment, admin):
    deployment.broker.state.new_token("old", 1e300)
    deployment.broker.state.new_token("gone", -1)
    page = admin.get("/console/users").text
    assert "9999-12-31 23:59 UTC" in page
    assert "expired" in page


def test_budgets_are_shown_as_parts(deployment, user, admin):
    body = {**BODIES["private"], "k": 2}
    headers = {"Authorization": f"Bearer {deployment.token}"}
    assert user.post("/v1/collections/private/search", json=body, headers=headers).is_success
    rest = user.get("/v1/budget", headers=headers).json()["budgets"]
    for client in (user, admin):
        found = client.get("/console/budgets.json").json()["budgets"]
        fractions = [one.pop("fraction") for one in found]
        assert found == rest
        assert len(fractions) == 2
        assert all(0.009 < one < 0.03 for one in fractions)
        assert client.get("/console/budgets").text.count('% spent"') == 2
    with open_client(deployment) as client:
        sign_in(client, token=deployment.broker.state.new_token("una", 1, ("search:points",)))
        assert client.get("/console/budgets.json").json() == {"budgets": []}


def test_a_user_sees_own_entries_and_an_administrator_all(deployment, admin):
    log = deployment.broker.log
    for number in range(PAGE + 10):
        log.append(AccessEntry(f"{number:016x}", "zoe", "points", "search", 3, purpose=HOSTILE))
    log.append(AccessEntry("f" * 16, "yan", "points", "search", 3))
    with open_client(deployment) as client:
        sign_in(client, token=deployment.broker.state.new_token("zoe", 1))
        for query in ("", "?user=yan"):
            first = client.get(f"/console/audit.json{query}").json()
            assert [one["query"] for one in first["entries"]] == [
                f"{number:016x}" for number in reversed(range(10, PAGE + 10))
            ]
            last = client.get(f"/console/audit.json?before={first['next']}").json()
            assert [one["user"] for one in last["entries"]] == ["zoe"] * 10
            assert last["next"] is None
        assert f"before={first['next']}" in client.get("/console/audit").text
        assert HOSTILE not in client.get("/console/audit").text
        assert "Verify" not in client.get("/console/audit").text
        assert client.get(f"/console/audit.json?query={'f' * 16}").json()["entries"] == []
        assert client.get("/console/audit.json?before=x").status_code == 422
    page = admin.get("/console/audit.json").json()["entries"]
    assert {"zoe", "yan"} <= {one["user"] for one in page}
    for query in (f"query={'f' * 16}", "user=yan"):
        (one,) = admin.get(f"/console/audit.json?{query}").json()["entries"]
        assert one["user"] == "yan"
    older = admin.get("/console/audit?user=zoe").text
    assert re.search(r'href="/console/audit\?user=zoe&amp;before=\d+"', older)


def test_the_log_is_verified(deployment, admin):
    log, n_entries = deployment.broker.log, deployment.broker.log.verify()
    page = send(admin, "audit/verify")
    assert page.status_code == 200
    assert f"{n_entries} entries agree with each other" in page.text
    assert log.head in page.text
    assert "continues from the earlier head" in send(admin, "audit/verify", head=log.head).text
    assert "expected the head of a log" in send(admin, "audit/verify", head="x").text.lower()
    change = "UPDATE entry SET content = replace(content, ?, ?) WHERE number = 1"
    with closing(sqlite3.connect(log.path)) as connection, connection:
        connection.execute(change, ('"kind"', '"Kind"'))
    try:
        response = send(admin, "audit/verify")
    finally:
        with closing(sqlite3.connect(log.path)) as connection, connection:
            connection.execute(change, ('"Kind"', '"kind"'))
    assert response.status_code == 409
    assert "entry 1 was altered or removed" in response.text
    assert log.verify() == n_entries


def finished(client, response):
    """Return the path and the JSON of a query of a form that has ended."""
    assert response.status_code == 303, response.text
    path = response.headers["location"]
    while (found := client.get(f"{path}.json").json())["status"] == "running":
        pass
    return path, found


@pytest.mark.parametrize("collection", ["points", "private"])
def test_costs_are_those_of_the_rest_api(deployment, user, collection):
    fields = {**SEARCHES[collection], "payload": "true", "k": "3"}
    path, found = finished(user, send(user, f"explain/{collection}", **fields))
    (entry,) = user.get(f"/console/audit.json?query={path[-16:]}").json()["entries"][:1]
    assert (entry["kind"], entry["outcome"], entry["user"]) == ("explain", "", "alice")
    body = {**BODIES[collection], "k": 3}
    headers = {"Authorization": f"Bearer {deployment.token}"}
    rest = user.post(f"/v1/collections/{collection}/explain", json=body, headers=headers).json()
    plan = found["answer"]["plan"]
    assert (plan["k"], plan["algorithm"]) == (3, rest["plan"]["algorithm"])
    names = {one["algorithm"] for one in plan["costs"]}
    assert names == {one["algorithm"] for one in rest["plan"]["costs"]}
    page = user.get(path).text
    assert ("is predicted from a search" in page) == (collection == "private")
    assert ("No time is predicted" in page) == (collection == "points")
    assert f"<strong>{plan['algorithm']}</strong>. Reason: {html.escape(plan['why'])}." in page
    assert page.count("<rect ") == 3 * len(names)
    assert page.count(", predicted") == (collection == "private")
    assert page.count(", measured") == len(names) - (collection == "private")


def test_costs_need_the_scope_of_a_search(deployment, visitor):
    sign_in(visitor, token=deployment.broker.state.new_token("ida", 1, ("count",)))
    assert visitor.get("/console/explain/points").status_code == 403
    assert send(visitor, "explain/points", query="1, 1").status_code == 403
    assert send(visitor, "explain/nothing", query="1, 1").status_code == 404


def test_a_wrong_search_is_not_explained(deployment, user):
    response = send(user, "explain/points", query="1, x", purpose="kept")
    assert response.status_code == 422
    assert 'value="kept"' in response.text
    deployment.broker._n_running += 64
    try:
        response = send(user, "explain/points", query="1, 1")
    finally:
        deployment.broker._n_running -= 64
    assert response.status_code == 503


def test_commands_are_logged_as_changes(tmp_path):
    (tmp_path / "broker.toml").write_text(BROKER)
    config = BrokerConfig.read(tmp_path / "broker.toml")

    def call(*words):
        found = CliRunner().invoke(app, ["broker", *words, "--config", f"{tmp_path}/broker.toml"])
        return found.stdout.strip()

    code = EnrolmentCode.parse(call("enrol", "north"))
    identity = Identity.new()
    state, _ = open_state(config)
    with closing(state):
        signature = identity.sign(code.content("north", identity.public))
        state.enrol("north", code.secret, identity.public, signature)
    assert call("revoke", "north") == "the key of north is revoked"
    assert call("revoke", "ghost") == ""
    assert call("token", "bob", "--days", "2").startswith("fn_")
    assert call("token", "bob", "--delete") == "1 tokens of bob deleted"
    assert "/console/sign-in?link=" in call("admin-link").replace("\n", "")
    with closing(AccessLog(config.path(config.log))) as log:
        entries = list(log.entries())
    assert {one["user"] for one in entries} == {"command line"}
    assert [(one["kind"], one["subject"], one["outcome"]) for one in entries] == [
        ("new-code", "provider north", ""),
        ("revoke", "provider north", ""),
        ("revoke", "provider ghost", ""),
        ("revoke", "provider ghost", "failed"),
        ("new-token", "user bob, 2 days: search", ""),
        ("delete-tokens", "user bob", ""),
        ("new-link", "user command line", ""),
    ]


def test_deleting_no_token_is_an_error(tmp_path):
    (tmp_path / "broker.toml").write_text(BROKER)

    def call(*words):
        return CliRunner().invoke(app, ["broker", *words, "--config", f"{tmp_path}/broker.toml"])

    call("token", "bob", "--days", "2", "--scope", "search:points")
    done = call("token", "bobb", "--delete")
    assert done.exit_code == 1
    assert "user 'bobb' has no tokens; `fedneighbors broker status` lists" in done.stderr
    assert "did you mean 'bob'?" in done.stderr
    listed = call("status").stdout
    assert re.search(r"^user bob: a token for search:points, until \d{4}-\d\d-\d\d$", listed, re.M)
    call("token", "bob", "--delete")
    assert "user bob" not in call("status").stdout
    assert call("token", "bob", "--delete").exit_code == 1


def test_nothing_changes_without_an_entry(tmp_path):
    (tmp_path / "broker.toml").write_text(BROKER)
    config = BrokerConfig.read(tmp_path / "broker.toml")
    state, fingerprint = open_state(config)
    with closing(state), closing(AccessLog(config.path(config.log))) as log:
        administrator = Administrator("root", config, state, log, fingerprint)
        administrator.new_token("bob", 1, ("search",))
        (token,) = state.tokens()
        with closing(sqlite3.connect(log.path)) as connection, connection:
            connection.execute("DROP TABLE entry")
        for change in (
            lambda: administrator.new_code("north"),
            lambda: administrator.new_token("eve", 1, ("admin",)),
            lambda: administrator.delete_token(token),
            lambda: administrator.delete_tokens("bob"),
            administrator.new_link,
        ):
            with pytest.raises(LogFailed):
                change()
        assert (state.tokens(), state.codes()) == ([token], {})


def test_a_link_of_an_administrator_is_logged(deployment, visitor):
    assert sign_in(visitor, link=deployment.broker.state.new_link()).status_code == 303
    assert last_change(deployment) == ("admin", "use-link", "user admin", "")
    assert sign_in(visitor, link="wrong").status_code == 403
    assert last_change(deployment) == ("admin", "use-link", "user admin", "")


@pytest.fixture(params=test_console_browser.SIZES)
def browser(request, chromium, deployment, admin_token):
    """Return the browser of an administrator, at both sizes."""
    browser = test_console_browser.Browser(chromium, deployment)
    browser.resize(request.param)
    browser.sign_in(admin_token)
    return browser


def test_pages_of_administrators_are_accessible(browser, deployment):
    token_id = token_of(deployment, "alice").token_id
    for page in ("providers", "policies", "budgets", "audit", f"users/{token_id}/revoke"):
        browser.open(f"/console/{page}")
        browser.check()
    browser.find("main a.button").click()
    browser.wait(lambda: browser.path == "/console/users")
    browser.check()


def test_a_code_is_made_and_the_log_verified(browser):
    browser.open("/console/providers")
    browser.click("main form button", "/console/providers")
    assert "fedneighbors provider enrol fn" in browser.text
    browser.check()
    browser.open("/console/audit")
    browser.click('form[action$="verify"] button', "/console/audit/verify")
    assert "entries agree with each other" in browser.text
    browser.check()


def test_ids_of_the_log_are_seen_without_scrolling(browser):
    browser.open("/console/audit")
    region = browser.find("main .scroll")
    end = region.rect["x"] + region.rect["width"]
    ids = browser.find_all("main tbody code")
    assert ids
    for one in ids:
        assert one.rect["x"] + one.rect["width"] <= end


def test_a_provider_is_enrolled_by_keyboard(browser, deployment):
    enter = "\ue007"
    browser.open("/console/overview")
    browser.focus_on("Providers")
    browser.press(enter)
    browser.wait(lambda: browser.path == "/console/providers")
    browser.focus_on("provider")
    browser.press("north")
    browser.focus_on("Make a one-time code")
    browser.press(enter)
    browser.wait(lambda: "Code for north" in browser.text)
    code = EnrolmentCode.parse(browser.find("pre").text.split()[-1])
    browser.check()
    browser.focus_on("Copy")
    browser.press(enter)
    browser.wait(lambda: browser.find("[data-copy]").text in ("Copied", "Selected"))
    browser.focus_on("Done")
    browser.press(enter)
    browser.wait(lambda: browser.path == "/console/providers")

    def read_row():
        return next(row for row in browser.find_all("main tr") if row.text.startswith("north")).text

    assert "code until" in read_row()
    identity = deployment.identities["north"]
    signature = identity.sign(code.content("north", identity.public))
    deployment.broker.state.enrol("north", code.secret, identity.public, signature)
    browser.open("/console/providers")
    assert "code until" not in read_row()
    browser.check()


def test_a_token_is_issued_and_revoked_by_keyboard(browser, deployment):
    enter, space = "\ue007", " "
    browser.open("/console/users")
    browser.focus_on("user")
    browser.press("kim")
    browser.focus_on("groups")
    browser.press("nurses", "\ue004", space, "\ue004", "\ue004", "\ue004", space)
    browser.focus_on("Issue the token")
    browser.press(enter)
    browser.wait(lambda: "Token of kim" in browser.text)
    token = browser.find("pre").text
    found = deployment.broker.state.user_of(token)
    assert (found.name, found.scopes, found.groups) == ("kim", ("admin",), ("nurses",))
    browser.check()
    browser.focus_on("Done")
    browser.press(enter)
    browser.wait(lambda: browser.path == "/console/users")
    stored = token_of(deployment, "kim")
    link = browser.find(f'a[href*="{stored.token_id}"]')
    browser.driver.execute_script("arguments[0].focus()", link)
    browser.press(enter)
    browser.wait(lambda: browser.path.endswith("/revoke"))
    browser.focus_on("Revoke the token of kim")
    browser.press(enter)
    browser.wait(lambda: browser.path == "/console/users")
    assert deployment.broker.state.user_of(token) is None


def test_costs_are_drawn(browser, deployment):
    browser.sign_in(deployment.token)
    for collection, n_algorithms in (("points", 3), ("private", 2)):
        browser.open(f"/console/search/{collection}")
        browser.fill({"query": "1, 1"})
        browser.click('[formaction^="/console/explain"]', "/console/queries/")
        browser.wait(lambda: browser.find_all("main tbody tr"))
        assert len(browser.find_all("main tbody tr")) == n_algorithms
        assert len(browser.find_all("figure.lanes svg")) == n_algorithms
        browser.check()
