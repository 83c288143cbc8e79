"""Users of a login service, with tokens of an issuer on this machine."""

import base64
import hmac
import json
import re
import ssl
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import numpy as np
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

from fedneighbors.service import ServiceError, _oidc
from fedneighbors.service._config import BrokerConfig
from tests.processes import LIMIT_S
from tests.service.deployment import deployed, offered

POINTS = np.arange(6.0)[:, np.newaxis]
SECTIONS = {name: {"metric": "euclidean", "providers": ["north"]} for name in ("points", "others")}
GROUPS = {"doctors": ["search"], "planners": ["count:points"]}
KEYS = {
    "RS256": RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"}),
    "ES256": ECKey.generate_key("P-256", {"kid": "ec", "use": "sig"}),
    "Ed25519": OKPKey.generate_key("Ed25519", {"kid": "ed", "use": "sig"}),
}


class Issuer:
    """A login service: its description, its keys, and tokens."""

    def __init__(self):
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                issuer.n_requests += 1
                content = json.dumps(issuer.pages.get(self.path)).encode()
                self.send_response(200 if self.path in issuer.pages else 404)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.n_requests = 0
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/realm"
        self.pages = {
            "/realm/.well-known/openid-configuration": {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
            }
        }
        self.publish(*KEYS.values())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def publish(self, *keys):
        self.pages["/realm/keys"] = KeySet(list(keys)).as_dict(private=False)

    def token(self, key=KEYS["RS256"], algorithm="RS256", **changes):
        now = int(time.time())
        claims = {
            **{"iss": self.url, "aud": "fedneighbors", "sub": "alice", "exp": now + 300},
            **{"iat": now, "groups": ["doctors"], **changes},
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": algorithm, **({"kid": key.kid} if key.kid else {})}
        return jwt.encode(header, claims, key, algorithms=[algorithm])

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def issuer():
    issuer = Issuer()
    yield issuer
    issuer.close()


@contextmanager
def running(folder, issuer, **section):
    oidc = {"issuer": issuer.url, "audience": "fedneighbors", "groups": GROUPS, **section}
    with deployed(folder, SECTIONS, oidc=oidc) as deployment:
        offers = {name: offered("north", name, "euclidean", POINTS) for name in SECTIONS}
        deployment.start("north", offers)
        deployment.wait("north")
        yield deployment


def search(deployment, token, collection="points"):
    with deployment.client(collection, token=token) as client:
        return client.kneighbors([[2.2]], 1)[1][0][0].id


def test_a_browser_has_a_session_until_its_token_expires(tmp_path, issuer, monkeypatch):
    with running(tmp_path, issuer) as deployment:
        context = ssl.create_default_context(cafile=str(deployment.certificate))
        with httpx.Client(base_url=deployment.url, verify=context, timeout=LIMIT_S) as browser:
            page = browser.get("/console/sign-in").text
            assert "a bearer token of your login service" in page
            form_token = re.search(r'name="form_token" value="(\w+)"', page)[1]
            fields = {"token": issuer.token(groups=["planners"]), "form_token": form_token}
            assert browser.post("/console/sign-in", data=fields).status_code == 303
            found = browser.get("/console/overview.json").json()
            assert [one["name"] for one in found["collections"]] == ["points"]
            now = time.time()
            monkeypatch.setattr(_oidc.time, "time", lambda: now + 400)
            assert browser.get("/console/overview.json").status_code == 401


def test_valid_tokens_are_accepted_and_scopes_are_those_of_groups(tmp_path, issuer):
    with running(tmp_path, issuer) as deployment:
        for algorithm, key in KEYS.items():
            assert search(deployment, issuer.token(key, algorithm)) == "2"
        assert issuer.n_requests == 2  # the keys are read once
        assert search(deployment, deployment.token) == "2"  # a token of the operator
        assert search(deployment, issuer.token(aud=["other", "fedneighbors"])) == "2"
        planner = issuer.token(groups=["planners", "visitors"])
        with deployment.client("points", token=planner) as client:
            assert client.count([[2.0]], 1.5).tolist() == [3]
            with pytest.raises(ServiceError, match="forbidden"):
                client.kneighbors([[2.0]], 1)
        with pytest.raises(ServiceError, match="unknown-collection"):
            search(deployment, planner, "others")
        entries = list(deployment.broker.log.entries())
        assert {entry["user"] for entry in entries} == {"alice"}


@pytest.mark.parametrize(
    ("claimed", "groups"),
    [
        (["doctors", "a\nb", 3, "night shift"], ("doctors", "night shift")),
        ("doctors", ("doctors",)),
    ],
)
def test_users_have_the_groups_of_their_tokens(tmp_path, issuer, claimed, groups):
    for section in ({}, {"groups": {}}):
        with running(tmp_path, issuer, **section) as deployment:
            user = deployment.run(deployment.broker.find_user(issuer.token(groups=claimed)))
            assert (user.name, user.groups) == ("alice", groups)


def sign_with_secret(secret, body):
    """Return a token that is signed with the issuer's public key as a shared secret."""
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"rsa"}').rstrip(b"=").decode()
    digest = hmac.digest(secret, f"{head}.{body}".encode(), "sha256")
    return f"{head}.{body}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def test_invalid_tokens_are_refused(tmp_path, issuer):
    good, stranger = issuer.token(), RSAKey.generate_key(2048, {"kid": "rsa"})
    head, body, signature = good.split(".")
    now = int(time.time())
    tokens = {
        "audience": issuer.token(aud="others"),
        "no audience": issuer.token(aud=None),
        "issuer": issuer.token(iss="http://127.0.0.1:1/realm"),
        "expired": issuer.token(exp=now - 120),
        "no expiry": issuer.token(exp=None),
        "not yet": issuer.token(nbf=now + 300),
        "no user": issuer.token(sub=None),
        "empty user": issuer.token(sub=""),
        "user with a line": issuer.token(sub="a\nb"),
        "user of another type": issuer.token(sub=["alice"]),
        "group": issuer.token(groups=["visitors"]),
        "no group": issuer.token(groups=None),
        "groups of another type": issuer.token(groups=3),
        "other key": issuer.token(stranger),
        "shared secret": sign_with_secret(KEYS["RS256"].as_pem(private=False), body),
        "signature of another": f"{head}.{body}.{issuer.token(sub='bob').split('.')[2]}",
        "body": f"{head}.{body[:-2]}AA.{signature}",
        "no signature": f"{head}.{body}.",
        "unsigned": "eyJhbGciOiJub25lIn0." + body + ".",
        "text": "a.b.c",
        "long": "a." * 2 + "b" * 20_000,
    }
    with running(tmp_path, issuer) as deployment:
        assert search(deployment, good) == "2"
        for why, token in tokens.items():
            with pytest.raises(ServiceError) as caught:
                search(deployment, token)
            assert (why, caught.value.status) == (why, 401)


def test_new_keys_are_read_at_most_twice_a_minute(tmp_path, issuer, monkeypatch):
    new = RSAKey.generate_key(2048, {"kid": "new", "use": "sig"})
    with running(tmp_path, issuer) as deployment:
        assert search(deployment, issuer.token()) == "2"
        issuer.publish(new)
        for _ in range(3):
            with pytest.raises(ServiceError, match="unauthorized"):
                search(deployment, issuer.token(new))
        assert issuer.n_requests == 2
        monkeypatch.setattr(_oidc, "_MIN_REFRESH_S", 0.0)
        assert search(deployment, issuer.token(new)) == "2"
        with pytest.raises(ServiceError, match="unauthorized"):
            search(deployment, issuer.token())


def test_an_issuer_that_fails_is_named(tmp_path, issuer, monkeypatch):
    monkeypatch.setattr(_oidc, "_MIN_REFRESH_S", 0.0)
    described = issuer.pages["/realm/.well-known/openid-configuration"]
    with running(tmp_path, issuer, groups={}) as deployment:
        for pages in (
            {},
            {"/realm/.well-known/openid-configuration": {**described, "issuer": "http://other"}},
            {"/realm/.well-known/openid-configuration": [], "/realm/keys": {}},
            {"/realm/.well-known/openid-configuration": described, "/realm/keys": {"keys": 3}},
        ):
            good, issuer.pages = issuer.pages, pages
            with pytest.raises(ServiceError, match="issuer-failed") as caught:
                search(deployment, issuer.token())
            assert caught.value.retryable
            issuer.pages = good
        assert search(deployment, deployment.token) == "2"
        assert search(deployment, issuer.token(groups=None)) == "2"  # everybody may search
        issuer.pages = {}  # the known keys remain
        assert search(deployment, issuer.token()) == "2"


def test_withdrawn_keys_are_no_longer_accepted(tmp_path, issuer, monkeypatch):
    new = RSAKey.generate_key(2048, {"kid": "new", "use": "sig"})
    with running(tmp_path, issuer) as deployment:
        assert search(deployment, issuer.token()) == "2"
        issuer.publish(new)
        assert search(deployment, issuer.token()) == "2"
        monkeypatch.setattr(_oidc, "_MIN_REFRESH_S", 0.0)
        monkeypatch.setattr(_oidc, "_REFRESH_S", 0.0)  # the keys are read again
        with pytest.raises(ServiceError, match="unauthorized"):
            search(deployment, issuer.token())
        issuer.pages = {}
        assert search(deployment, issuer.token(new)) == "2"
        monkeypatch.setattr(_oidc, "_MAX_AGE_S", 0.0)
        with pytest.raises(ServiceError, match="issuer-failed"):
            search(deployment, issuer.token(new))


def test_unknown_kinds_of_keys_are_left_out(tmp_path, issuer):
    others = [{"kty": "EC", "crv": "P-999", "x": "AA", "y": "AA"}, {"kty": "new"}, 3]
    issuer.pages["/realm/keys"]["keys"][:0] = others
    with running(tmp_path, issuer) as deployment:
        assert search(deployment, issuer.token()) == "2"


def test_an_issuer_without_tls_is_refused():
    section = {"issuer": "http://login.example", "audience": "fedneighbors"}
    with pytest.raises(Exception, match="issuer"):
        BrokerConfig.model_validate({"format": 1, "collections": SECTIONS, "oidc": section})
