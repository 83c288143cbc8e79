"""The console over HTTPS: sessions, forged requests, time-outs, limits, headers, JSON twins."""

import re

import httpx
import pytest
from starlette.testclient import TestClient

from fedneighbors.service import _state
from fedneighbors.service._app import make_app
from fedneighbors.service._limits import MAX_WRONG_CODES
from fedneighbors.service.console import Sessions
from fedneighbors.service.console._sessions import ABSOLUTE_S, IDLE_S
from tests.service.console import running_console

PAGES = ["overview", "providers"]


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
    return httpx.Client(base_url=deployment.url, verify=context)


def open_clocked(deployment):
    """Return a client of another console of the same broker, and its clock."""
    clock = Clock()
    app = make_app(deployment.broker, Sessions(clock))
    return TestClient(app, base_url="https://console.test", follow_redirects=False), clock


def form_token(client, path="/console/overview"):
    return re.search(r'name="form_token" value="([0-9a-f]{64})"', client.get(path).text)[1]


def sign_in(client, **fields):
    fields["form_token"] = form_token(client, "/console/sign-in")
    return client.post("/console/sign-in", data=fields)


def is_signed_in(client):
    return client.get("/console/overview.json").status_code == 200


def test_a_visitor_is_sent_to_the_page_to_sign_in(visitor):
    response = visitor.get("/", follow_redirects=True)
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
    assert [one["name"] for one in providers] == ["north", "south"]


def test_a_user_sees_the_collections_of_the_token(deployment, visitor):
    token = deployment.broker.state.new_token("dave", 1, ("count:points", "metrics"))
    sign_in(visitor, token=token)
    found = visitor.get("/console/overview.json").json()
    assert [one["name"] for one in found["collections"]] == ["points"]
    assert [one["collections"] for one in found["providers"]] == [["points"], ["points"]]
