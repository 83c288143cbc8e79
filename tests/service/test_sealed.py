"""Sealed collections: answers as of trusted ones, and a broker that reads nothing but distances."""

import base64
import json
import time
import tomllib
from pathlib import Path

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.datasets import CategoricalColumn, NumericColumn, Schema
from fedneighbors.errors import FederationError, MissingExtraError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refusal
from fedneighbors.methods.fedknn._eager import EagerRequest
from fedneighbors.methods.fedknn._payloads import PayloadReply, PayloadRequest
from fedneighbors.methods.fedknn.private._padding import PaddedBoundRequest, PaddedNearestRequest
from fedneighbors.methods.fedknn.protocol import (
    NearestReply,
    NearestRequest,
    RangeCountReply,
    RangeCountRequest,
)
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service import RemoteNeighbors, ServiceError
from fedneighbors.service._access_log import AccessLog, compare_logs
from fedneighbors.service._config import OfferSection
from fedneighbors.service._messages import LinkRequest
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.service._policy import QUOTA_SPENT, SEEN_OFTEN
from fedneighbors.service._sealed import (
    NameCipher,
    QuerySeal,
    SealedQuery,
    make_sealing_key,
    read_sealed,
)
from fedneighbors.service._sealed_party import WRONG_TOKEN
from tests.processes import LIMIT_S
from tests.seeds import cases
from tests.service.deployment import deployed
from tests.service.test_oidc import Issuer
from tests.service.test_processes import Commands, free_port

WORDS = ["alpha", "alpine", "beta", "betas", "gamma", "gammon", "delta", "alphas"]
PEOPLE = {
    "north": "id,age,sex,note\nn1,64,f,north-note-1\nn2,31,m,north-note-2\nn3,,f,north-note-3\n",
    "south": "id,age,sex,note\ns1,66,f,south-note-1\ns2,30,m,south-note-2\n",
}
SCHEMA = Schema(
    (
        NumericColumn("age", 0, 100, missing="keep"),
        CategoricalColumn("sex", ("f", "m"), missing="keep"),
    )
)


def offer(deployment, provider, name, section, folder):
    if provider not in deployment.identities:
        deployment.enrol(provider)
    return OfferedObjects.read(
        provider,
        name,
        OfferSection.model_validate(section),
        folder,
        secret=deployment.identities[provider].private,
        log=AccessLog(folder / f"{provider}.log.sqlite"),
    )


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """Run sealed and trusted collections of words and of people."""
    folder = tmp_path_factory.mktemp("sealed")
    (folder / "people.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    kinds = {
        "words": {"metric": "edit", "filters": {"site": "text"}},
        "people": {"metric": "tabular", "schema": "people.toml"},
    }
    collections = {
        f"{trust}-{name}": {**kind, "trust": trust, "providers": ["north", "south"]}
        for name, kind in kinds.items()
        for trust in ("sealed", "trusted")
    }
    with deployed(folder, collections) as running:
        for provider, text in PEOPLE.items():
            (folder / f"{provider}-people.csv").write_text(text)
            rows = [f"{provider}-{i},{w},{'ab'[i % 2]}" for i, w in enumerate(WORDS)]
            (folder / f"{provider}-words.csv").write_text("\n".join(["id,word,site", *rows]))
            offers = {}
            for name, collection in collections.items():
                kind = name.partition("-")[2]
                shared = {key: value for key, value in collection.items() if key != "providers"}
                source = {"file": f"{provider}-{kind}.csv", "id": "id"}
                if kind == "words":
                    source["columns"] = ["word"]
                policy = {"level": "distances", "payload": ["note"] if kind == "people" else []}
                section = {**shared, "source": source, "policy": policy}
                offers[name] = offer(running, provider, name, section, folder)
            running.start(provider, offers)
        running.wait("north", "south")
        yield running


def keys_of(deployment):
    return {
        name: make_sealing_key(identity.private).hex()
        for name, identity in deployment.identities.items()
    }


def clients(deployment, kind, **options):
    """Return a client of the sealed collection, and one of the trusted collection."""
    return (
        deployment.client(f"sealed-{kind}", keys=keys_of(deployment), **options),
        deployment.client(f"trusted-{kind}", **options),
    )


@pytest.mark.parametrize("algorithm", ["baseline", "dann", "eager", "hufu", "hufu+", "auto"])
def test_answers_equal_those_of_a_trusted_collection(deployment, algorithm):
    sealed, trusted = clients(deployment, "words", algorithm=algorithm)
    with sealed, trusted:
        for query in (["alpha", "gamma"], ["delta"]):
            for where in (None, {"site": "a"}):
                # ties are in another order, so that whole groups of equal distances are compared
                (mine, found), (theirs, expected) = (
                    client.kneighbors(query, 16, where=where) for client in (sealed, trusted)
                )
                for row in range(len(query)):
                    np.testing.assert_array_equal(mine[row], theirs[row])
                    pairs = sorted(zip(mine[row], found[row], strict=True))
                    assert pairs == sorted(zip(theirs[row], expected[row], strict=True))
        assert {answer["trust"] for answer in sealed.results_} == {"sealed"}
        assert {answer["trust"] for answer in trusted.results_} == {"trusted"}


def test_all_algorithms_return_the_same_of_tied_objects(deployment):
    for k in (1, 2, 3, 5, 9, 13):
        found = []
        for algorithm in ("baseline", "dann", "eager", "hufu", "hufu+"):
            options = {"keys": keys_of(deployment), "algorithm": algorithm}
            with deployment.client("sealed-words", **options) as search:
                found.append(search.kneighbors(["alpha", "zz", "gamm"], k)[1])
        assert found == [found[0]] * 5


def test_counts_and_searches_within_a_radius_equal_those_of_a_trusted_collection(deployment):
    sealed, trusted = clients(deployment, "words")
    with sealed, trusted:
        for radius in (0, 1, 3):
            assert sealed.count(["alpha"], radius) == trusted.count(["alpha"], radius)
            _, (found,) = sealed.radius_neighbors(["alpha"], radius)
            _, (expected,) = trusted.radius_neighbors(["alpha"], radius)
            assert set(found) == set(expected)
        assert sealed.count_filtered({"site": "a"}) == 8
        assert sealed.explain(["alpha"], 3)["k"] == 3


def test_rows_and_payloads_are_sealed(deployment):
    sealed, trusted = clients(deployment, "people", payload=True)
    query = [{"age": 65, "sex": "f"}, {"age": None, "sex": "m"}]
    with sealed, trusted:
        sealed.kneighbors(query, 5)
        trusted.kneighbors(query, 5)
        for mine, theirs in zip(sealed.results_, trusted.results_, strict=True):
            key = "distance", "provider", "id"
            order = [
                sorted(a["neighbors"], key=lambda n: [n[x] for x in key]) for a in (mine, theirs)
            ]
            assert order[0] == order[1]
        notes = {found["payload"]["note"] for found in sealed.results_[0]["neighbors"]}
    assert notes == {line[-12:] for text in PEOPLE.values() for line in text.split("\n")[1:-1]}


def test_logs_of_sealed_queries_agree(deployment, tmp_path):
    with deployment.client("sealed-words", keys=keys_of(deployment)) as search:
        search.kneighbors(["alpha"], 2)
    folder = deployment.config.folder
    own = AccessLog(folder / "north.log.sqlite")
    assert compare_logs("north", own.entries(), deployment.broker.log.entries()) == []
    own.close()


def test_logs_agree_on_all_kinds_of_queries(deployment):
    sealed, trusted = clients(deployment, "words")
    with sealed, trusted:
        for search in (sealed, trusted):
            for search.algorithm in ("auto", "baseline", "dann", "eager", "hufu", "hufu+"):
                for k in (1, 3, 9):
                    search.kneighbors(["alpha", "gamm"], k)
            search.algorithm = None
            search.count(["alpha"], 2.0)
            search.count_filtered({"site": "a"})
            search.radius_neighbors(["alpha"], 2)
            search.explain(["alpha"], 3)
    for name in ("north", "south"):
        own = AccessLog(deployment.config.folder / f"{name}.log.sqlite")
        assert compare_logs(name, own.entries(), deployment.broker.log.entries()) == []
        own.close()


def search_by_command(deployment, tmp_path, monkeypatch, keys=None, query="alpha"):
    """Return the outcome of `fedneighbors search`."""
    monkeypatch.setenv("FEDNEIGHBORS_TOKEN", deployment.token)
    options = ["-k", "2", "--certificate", str(deployment.certificate)]
    if keys is not None:
        lines = [f'"{name}" = "{key}"' for name, key in keys.items()]
        (tmp_path / "keys.toml").write_text("\n".join(lines))
        options += ["--keys", str(tmp_path / "keys.toml")]
    return CliRunner().invoke(app, ["search", deployment.url, "sealed-words", query, *options])


def test_the_command_seals_queries(deployment, tmp_path, monkeypatch):
    done = search_by_command(deployment, tmp_path, monkeypatch, keys_of(deployment))
    assert done.exit_code == 0, done.output
    assert "north-0" in done.output


def test_the_command_sends_no_readable_query(deployment, tmp_path, monkeypatch):
    n_entries = len(list(deployment.broker.log.entries()))
    done = search_by_command(deployment, tmp_path, monkeypatch)
    assert done.exit_code == 1
    assert "with --keys, or the argument keys; nothing was sent" in " ".join(done.output.split())
    assert len(list(deployment.broker.log.entries())) == n_entries


def test_a_bench_of_a_sealed_collection_needs_keys(deployment, tmp_path):
    (tmp_path / "queries.txt").write_text("alpha\nbeta\n", encoding="utf-8")
    (tmp_path / "keys.toml").write_text(
        "".join(f'{name} = "{key}"\n' for name, key in keys_of(deployment).items()),
        encoding="utf-8",
    )
    words = ["bench", deployment.url, "sealed-words", "--seconds", "0.1", "--json"]
    words += ["--certificate", str(deployment.certificate)]
    words += ["--queries", str(tmp_path / "queries.txt")]
    environment = {"FEDNEIGHBORS_TOKEN": deployment.token}
    refused = CliRunner().invoke(app, words, env=environment)
    done = CliRunner().invoke(app, [*words, "--keys", str(tmp_path / "keys.toml")], env=environment)

    assert refused.exit_code == 1
    assert "nothing was sent" in refused.output
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["failures"] == {}


def post(deployment, body, kind="search", collection="sealed-words"):
    return httpx.post(
        f"{deployment.url}/v1/collections/{collection}/{kind}",
        json=body,
        headers={"Authorization": f"Bearer {deployment.token}"},
        verify=False,
        timeout=LIMIT_S,
    ).json()


def test_a_readable_query_is_refused_by_a_sealed_collection(deployment):
    seal = QuerySeal({"query": "alpha"}, _raw_keys(deployment), "sealed-words")
    for body in (
        {"query": "alpha"},
        {"sealed": seal.text, "query": "alpha"},
        {"sealed": seal.text, "where": {"site": "a"}},
    ):
        problem = post(deployment, body)
        assert (problem["status"], problem["code"]) == (422, "invalid-query")
        assert "the broker sees no query" in problem["detail"]


def test_a_sealed_query_is_refused_by_a_trusted_collection(deployment):
    search = deployment.client("trusted-words", keys=keys_of(deployment))
    with search, pytest.raises(ServiceError, match="is not sealed: omit the keys"):
        search.kneighbors(["alpha"], 2)


def test_a_key_for_each_provider_is_needed(deployment):
    keys = keys_of(deployment)
    for some in ({}, {"north": keys["north"]}, {**keys, "west": keys["north"]}):
        search = deployment.client("sealed-words", keys=some)
        with search, pytest.raises(ServiceError, match="sealed for north, south, got one for"):
            search.kneighbors(["alpha"], 2)


@pytest.mark.parametrize("key", ["", "ab" * 31, "ab" * 33, "xy" * 32, 7, None])
def test_a_malformed_key_is_refused_before_anything_is_sent(key):
    with pytest.raises(ValueError, match="expected the key of 'north' as 64 hexadecimal digits"):
        RemoteNeighbors("https://broker.example", collection="c", token="t", keys={"north": key})


def test_a_path_of_keys_is_refused():
    with pytest.raises(TypeError, match=r"as a mapping, such as of tomllib.load, got 'keys.toml'"):
        RemoteNeighbors("https://broker.example", collection="c", token="t", keys="keys.toml")


def test_a_query_for_a_former_key_names_the_provider(deployment):
    keys = {**keys_of(deployment), "south": make_sealing_key(Identity.new().private).hex()}
    search = deployment.client("sealed-words", keys=keys)
    with search, pytest.raises(ServiceError, match="the provider's present key") as caught:
        search.kneighbors(["alpha"], 2)
    assert (caught.value.code, caught.value.party) == ("wrong-key", "south")


def test_a_query_is_valid_in_its_collection_only(deployment):
    seal = QuerySeal({"query": {"age": 3}}, _raw_keys(deployment), "sealed-people")
    assert post(deployment, {"sealed": seal.text})["code"] == "wrong-key"


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        ["query"],
        3,
        {"query": 3},
        {"query": None, "where": None},
        {"query": "a", "where": 3},
        {"query": "a", "where": {"shoe": 1}},
        {"where": {"site": "a"}},
    ],
)
def test_an_invalid_content_is_a_typed_error(deployment, content):
    seal = QuerySeal(content, _raw_keys(deployment), "sealed-words")
    problem = post(deployment, {"sealed": seal.text})
    assert problem["code"] == "invalid-query"
    assert problem["detail"].endswith(
        "collection 'sealed-words' has the metric edit, and the filters site (text)"
    )


@pytest.mark.parametrize("text", ["", "ab", "é", base64.b64encode(b"x" * 99).decode()])
def test_a_text_that_is_no_sealed_query_is_refused(deployment, text):
    problem = post(deployment, {"sealed": text})
    assert problem["code"] == "invalid-query"
    assert "expected a sealed query" in problem["detail"]


@pytest.mark.parametrize(
    ("ask", "is_answered"),
    [
        (lambda frame: NearestRequest("q", frame, 3, None), True),
        (lambda frame: EagerRequest("q", frame, 3, None), True),
        (lambda frame: PaddedNearestRequest("q", frame, np.array([3]), 3, 0.0), False),
        (lambda frame: PaddedBoundRequest("q", frame, 3, 0.0), False),
    ],
    ids=["nearest", "eager", "padded", "padded bounds"],
)
def test_no_request_of_a_broker_that_lies_returns_a_readable_name(deployment, ask, is_answered):
    folder = deployment.config.folder
    section = {"metric": "edit", "trust": "sealed", "filters": {"site": "text"}}
    section["source"] = {"file": "north-words.csv", "id": "id", "columns": ["word"]}
    north = offer(deployment, "north", "sealed-words", section, folder)
    seal = QuerySeal({"query": "alpha"}, _raw_keys(deployment), "sealed-words")
    body = encode(ask(read_sealed(seal.text, ("north", "south"))))
    request = LinkRequest(0, "sealed-words", "q", 0, 1000, body, "alice")
    reply = north.answer(request, time.monotonic() + 10)
    assert b"Refusal" not in reply if is_answered else b"Refusal" in reply
    assert b"north" not in reply


def test_a_sealed_offer_with_a_privacy_budget_is_an_error():
    section = {"metric": "edit", "trust": "sealed", "source": {"file": "a.txt"}}
    policy = {"privacy": {"epsilon": 1.0, "max_queries": 1}}
    OfferSection.model_validate(section)
    with pytest.raises(ValueError, match="a sealed collection cannot be private"):
        OfferSection.model_validate({**section, "policy": policy})


def _raw_keys(deployment):
    return {name: bytes.fromhex(key) for name, key in keys_of(deployment).items()}


def test_changed_names_and_payloads_are_noticed():
    secret = Identity.new().private
    seal = QuerySeal({"query": "a"}, {"north": make_sealing_key(secret)}, "c")
    parts = decode(base64.b64decode(seal.text), (SealedQuery,))
    content, cipher, _ = parts.unseal("north", "c", secret)
    assert json.loads(content) == {"query": "a"}
    found = {"provider": "north", "id": cipher.hide("n1"), "distance": 1.0}
    found["payload"] = json.loads(cipher.hide_payload('{"age": 3}', "n1"))
    opened = seal.open_answer({"neighbors": [found]})["neighbors"]
    assert opened == [{"provider": "north", "id": "n1", "distance": 1.0, "payload": {"age": 3}}]
    other = json.loads(cipher.hide_payload('{"age": 3}', "n2"))
    for change in (
        {"id": "n1"},
        {"id": NameCipher(bytes(32)).hide("n1")},
        {"provider": "south"},
        {"payload": other},
        {"payload": {}},
        {"payload": 3},
        {"payload": json.loads(cipher.hide_payload("[" * 9999, "n1"))},
        {"payload": json.loads(cipher.hide_payload("[3]", "n1"))},
        {"id": 3},
        {"provider": []},
    ):
        with pytest.raises(FederationError, match="is not encrypted for this query"):
            seal.open_answer({"neighbors": [{**found, **change}]})
    for neighbors in (3, None, [3], [{}], [{"provider": "north"}]):
        with pytest.raises(FederationError):
            seal.open_answer({"neighbors": neighbors})


@settings(max_examples=cases(60), deadline=None)
@given(
    st.text(max_size=80), st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32)
)
def test_names_survive_encryption_and_their_length_is_hidden(name, key, other):
    name = name.encode("utf-8", "ignore").decode()
    cipher = NameCipher(key)
    hidden = cipher.hide(name)
    assert cipher.read(hidden) == name
    assert cipher.hide(name) == hidden
    assert len(base64.urlsafe_b64decode(hidden)) % 32 == 16
    if other != key:
        with pytest.raises(ValueError, match="not encrypted with the key"):
            NameCipher(other).read(hidden)


@settings(max_examples=cases(60), deadline=None)
@given(st.data())
def test_an_altered_query_cannot_be_read(data):
    secret = Identity.new().private
    seal = QuerySeal({"query": "a"}, {"north": make_sealing_key(secret)}, "c")
    parts = decode(base64.b64decode(seal.text), (SealedQuery,))
    raw = bytearray(data.draw(st.sampled_from([parts.content, parts.keys["north"]])))
    is_content = len(raw) == len(parts.content)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    altered = (
        SealedQuery(bytes(raw), parts.keys)
        if is_content
        else SealedQuery(parts.content, {"north": bytes(raw)})
    )
    with pytest.raises(ValueError, match="not sealed for the key of 'north'"):
        decode(encode(altered), (SealedQuery,)).unseal("north", "c", secret)


@pytest.fixture
def issuer():
    """Run a login service."""
    running = Issuer()
    yield running
    running.close()


@pytest.fixture
def verified(tmp_path, issuer):
    """Run a provider that takes users from tokens in sealed queries."""
    (tmp_path / "words.csv").write_text("id,word\nw1,alpha\nw2,beta\n")
    section = {
        "metric": "edit",
        "trust": "sealed",
        "source": {"file": "words.csv", "columns": ["word"], "id": "id"},
        "oidc": {"issuer": issuer.url, "audience": "north"},
        "policy": {"level": "none", "groups": {"doctors": {"level": "ids", "queries_per_day": 2}}},
    }
    collection = {"metric": "edit", "trust": "sealed", "providers": ["north"]}
    with deployed(tmp_path, {"words": collection}) as running:
        running.start("north", {"words": offer(running, "north", "words", section, tmp_path)})
        running.wait("north")
        yield running


def search_with(running, token):
    tokens = {} if token is None else {"north": token}
    with running.client("words", keys=keys_of(running), provider_tokens=tokens) as search:
        return [found.id for found in search.kneighbors(["alpha"], 1)[1][0]]


def test_a_provider_takes_users_and_groups_from_its_own_tokens(verified, issuer):
    for token in (
        None,
        "x.y.z",
        issuer.token(aud="fedneighbors"),  # the broker's own could be used by it
        issuer.token(aud="north", exp=1),
    ):
        with pytest.raises(ServiceError, match="no valid token") as caught:
            search_with(verified, token)
        assert (caught.value.code, caught.value.party) == ("wrong-token", "north")
    with pytest.raises(ServiceError, match="not-allowed"):
        search_with(verified, issuer.token(aud="north", sub="dan", groups=[]))
    carol = issuer.token(aud="north", sub="carol")
    for _ in range(2):
        assert search_with(verified, carol) == ["w1"]
    with pytest.raises(ServiceError, match="quota-spent"):
        search_with(verified, carol)
    assert search_with(verified, issuer.token(aud="north", sub="erin")) == ["w1"]
    log = AccessLog(verified.config.folder / "north.log.sqlite")
    known = {entry["user"] for entry in log.entries() if entry["outcome"] != WRONG_TOKEN}
    assert known == {"dan", "carol", "erin"}
    log.close()


def test_a_login_service_that_is_down_is_named(verified, issuer):
    token = issuer.token(aud="north")
    issuer.pages.clear()
    with pytest.raises(ServiceError, match="login service cannot be read") as caught:
        search_with(verified, token)
    assert (caught.value.code, caught.value.retryable) == ("issuer-failed", True)


def test_a_token_is_sealed_for_its_provider_alone():
    secrets = {name: Identity.new().private for name in ("north", "south")}
    keys = {name: make_sealing_key(secret) for name, secret in secrets.items()}
    seal = QuerySeal({"query": "a"}, keys, "c", {"north": "a.b.c"})
    parts = decode(base64.b64decode(seal.text), (SealedQuery,))
    assert [parts.unseal(name, "c", secrets[name])[2] for name in keys] == ["a.b.c", ""]
    with pytest.raises(ValueError, match="not sealed for the key of 'north'"):
        parts.unseal("north", "c", secrets["south"])
    with pytest.raises(ValueError, match="expected a key of 'north', for which"):
        RemoteNeighbors("https://b", collection="c", token="t", provider_tokens={"north": "a"})


class HostileBroker:
    """Sends any request to one provider of words."""

    def __init__(self, folder, policy):
        notes = ["short", "n" * 60_000, *[""] * (len(WORDS) - 2)]
        rows = [f"secret-{i},{word},{notes[i]}" for i, word in enumerate(WORDS)]
        (folder / "words.csv").write_text("\n".join(["id,word,note", *rows]))
        self.log = AccessLog(folder / "log.sqlite")
        section = {
            "metric": "edit",
            "trust": "sealed",
            "source": {"file": "words.csv", "id": "id", "columns": ["word"]},
            "policy": policy,
        }
        secret = Identity.new().private
        self.keys = {"north": make_sealing_key(secret)}
        self.offer = OfferedObjects.read(
            "north",
            "words",
            OfferSection.model_validate(section),
            folder,
            secret=secret,
            log=self.log,
        )

    def seal(self, query):
        return base64.b64decode(QuerySeal({"query": query}, self.keys, "words").text)

    def ask(self, kind, *fields, query, name="q", step=0):
        body = encode(kind(name, query, *fields))
        sent = LinkRequest(0, "words", name, step, 1000, body, "alice")
        return self.offer.answer(sent, time.monotonic() + 60)


@pytest.fixture
def hostile(tmp_path, request):
    broker = HostileBroker(tmp_path, getattr(request, "param", {}))
    yield broker
    broker.log.close()


def test_a_private_request_returns_no_readable_names(hostile):
    count = np.array([3])
    frame = hostile.ask(PaddedNearestRequest, count, 3, 0.0, query=hostile.seal("alpha"))
    assert decode(frame, (Refusal,)).code == "malformed request"


def test_replies_to_two_queries_have_nothing_in_common_but_distances(hostile):
    replies = []
    for name in ("q", "r"):
        sealed, parts = hostile.seal("alpha"), []
        for step, count in enumerate((3, 5)):
            fields = count, 9.0, 1
            frame = hostile.ask(NearestRequest, *fields, query=sealed, name=name, step=step)
            parts.append(decode(frame, (NearestReply,)))
        replies.append(parts)
    for parts in replies:
        assert np.concatenate([part.ties for part in parts]).tolist() == list(range(8))
    shown = [{one for part in parts for one in part.ids} for parts in replies]
    assert not shown[0] & shown[1]


@pytest.mark.parametrize("hostile", [{"payload": ["note"]}], indirect=True)
def test_a_payload_that_is_too_long_to_be_encrypted_is_refused(hostile):
    for number, (name, is_long) in enumerate([("secret-0", False), ("secret-1", True)]):
        sealed = hostile.seal(WORDS[number])
        frame = hostile.ask(NearestRequest, 1, None, query=sealed, name=name)
        (hidden,) = decode(frame, (NearestReply,)).ids
        frame = hostile.ask(PayloadRequest, (hidden,), query=sealed, name=name, step=1)
        code = getattr(decode(frame, (PayloadReply, Refusal)), "code", "")
        assert code == ("a payload is too long to be encrypted" if is_long else "")


def test_a_query_that_needs_a_missing_package_is_refused(hostile, monkeypatch):
    def read(_):
        raise MissingExtraError("rdkit", "chem")

    monkeypatch.setattr(hostile.offer._served, "_read_query", read)
    frame = hostile.ask(NearestRequest, 1, None, query=hostile.seal("CCO"))
    assert "lacks a package" in decode(frame, (Refusal,)).code


def test_an_open_query_is_not_replaced_by_another(hostile):
    hostile.ask(NearestRequest, 1, None, query=hostile.seal("alpha"))
    frame = hostile.ask(NearestRequest, 1, None, query=hostile.seal("alpha"), step=1)
    assert decode(frame, (Refusal,)).code == "another query has this name"


def test_open_queries_have_a_limit_of_bytes(hostile, monkeypatch):
    monkeypatch.setattr("fedneighbors.service._sealed_party.MAX_OPEN_BYTES", 3000)
    frames = [
        hostile.ask(RangeCountRequest, None, query=hostile.seal("alpha"), name=f"q{i}")
        for i in range(9)
    ]
    refused = [frame for frame in frames if b"too many queries are open" in frame]
    assert 0 < len(refused) < 9
    hostile.offer.close_all()
    assert hostile.ask(RangeCountRequest, None, query=hostile.seal("alpha")) == frames[0]


NOT_ALLOWED = "the provider's policy does not allow this"


@pytest.mark.parametrize(
    ("hostile", "requests", "code"),
    [
        ({}, [(RangeCountRequest, None), (RangeCountRequest, 1.0)], NOT_ALLOWED),
        ({"level": "count"}, [(RangeCountRequest, 1.0), (NearestRequest, 1, None)], NOT_ALLOWED),
        ({"max_k": 3}, [(NearestRequest, 3, None), (NearestRequest, 4, None)], NOT_ALLOWED),
        ({"queries_per_day": 2}, [(NearestRequest, 1, None)] * 3, QUOTA_SPENT),
        ({"objects_per_day": 5}, [(NearestRequest, 3, None)] * 2, QUOTA_SPENT),
    ],
    indirect=["hostile"],
)
def test_the_policy_applies_to_sealed_queries(hostile, requests, code):
    found = []
    for number, (kind, *fields) in enumerate(requests):
        frame = hostile.ask(kind, *fields, query=hostile.seal("alpha"), name=f"q{number}")
        found.append(decode(frame, (Refusal, NearestReply, RangeCountReply)))
    assert [getattr(one, "code", "") for one in found] == [""] * (len(requests) - 1) + [code]


def test_a_sealed_collection_has_no_private_policy():
    section = {"metric": "edit", "trust": "sealed", "source": {"file": "a.csv"}}
    assert OfferSection.model_validate(section).trust == "sealed"
    privacy = {"epsilon": 1.0, "max_queries": 3}
    with pytest.raises(ValidationError, match="a sealed collection cannot be private"):
        OfferSection.model_validate(section | {"policy": {"privacy": privacy}})


@pytest.mark.parametrize("hostile", [{"views_per_day": 1}], indirect=True)
def test_views_are_of_the_readable_query(hostile):
    codes = []
    for number, word in enumerate(["alpha", "alpha", "beta"]):
        fields = len(WORDS), None
        frame = hostile.ask(NearestRequest, *fields, query=hostile.seal(word), name=f"q{number}")
        codes.append(getattr(decode(frame, (Refusal, NearestReply)), "code", ""))
    assert codes == ["", "", SEEN_OFTEN]


def test_a_query_for_another_key_is_logged_by_the_provider(hostile):
    hostile.keys["north"] = make_sealing_key(Identity.new().private)
    hostile.ask(NearestRequest, 1, None, query=hostile.seal("alpha"))
    (entry,) = hostile.log.entries()
    assert (entry["user"], entry["outcome"]) == (
        "alice",
        "the query is not sealed for the provider's present key",
    )


MARK = "cnry7qzw4klx"
"""Text in each canary of a sealed collection; those of the trusted collection differ."""

CONTROL = "ctrl9zpd2mvu"


def write_organisations(folder, port):
    """Write the configurations and tables of a broker and two providers."""
    rng = np.random.default_rng(5)
    shared = {
        "sealed": 'metric = "edit"\ntrust = "sealed"\n',
        "open": 'metric = "edit"\n',
        "sealed-points": 'metric = "euclidean"\ntrust = "sealed"\n',
        "open-points": 'metric = "euclidean"\n',
    }
    sections = [f'format = 1\n[server]\nlisten = "127.0.0.1:{port}"\n']
    sections += [
        f'[collections.{name}]\n{text}providers = ["north", "south"]\n'
        for name, text in shared.items()
    ]
    (folder / "broker").mkdir()
    (folder / "broker/broker.toml").write_text("".join(sections))
    for provider in ("north", "south"):
        own = folder / provider
        own.mkdir()
        parts = [f'format = 1\n[provider]\nname = "{provider}"\n']
        parts.append(f'broker = "https://127.0.0.1:{port}"\n')
        for name, text in shared.items():
            columns = '["x", "y"]' if "points" in name else '["title"]'
            parts.append(
                f'[collections.{name}]\n{text}policy = {{ payload = ["note"] }}\n'
                f'source = {{ file = "{name}.csv", id = "id", columns = {columns} }}\n'
            )
        (own / "provider.toml").write_text("".join(parts))
        for name, mark in (("sealed", MARK), ("open", CONTROL)):
            rows = [f"id-{mark}-{provider}-{i},title {i},note-{mark}-{i}" for i in range(170)]
            (own / f"{name}.csv").write_text("\n".join(["id,title,note", *rows]))
            points = rng.normal(size=(50, 2)).tolist()
            rows = [f"id-{mark}-{i},{x!r},{y!r},note-{mark}-{i}" for i, (x, y) in enumerate(points)]
            (own / f"{name}-points.csv").write_text("\n".join(["id,x,y,note", *rows]))


def read_memory(process):
    """Return the writable memory of a child process."""
    found = []
    with open(f"/proc/{process.pid}/mem", "rb", 0) as memory:
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            place, mode = line.split()[:2]
            if "w" in mode and "[v" not in line:
                first, last = (int(part, 16) for part in place.split("-"))
                memory.seek(first)
                try:
                    found.append(memory.read(last - first))
                except OSError:  # a guard page
                    continue
    return b"\n".join(found)


def forms_of(mark):
    """Return the bytes of a text in encodings in which a program may hold it."""
    aligned = [base64.b64encode((" " * n + mark).encode())[4:-4] for n in (2, 3, 4)]
    return [mark.encode(code) for code in ("utf-8", "utf-16-le", "utf-32-le")] + [
        *aligned,
        mark.encode().hex().encode(),
    ]


@pytest.mark.e2e
def test_the_broker_process_holds_no_query_name_or_payload(tmp_path):
    port = free_port()
    write_organisations(tmp_path, port)
    broker = tmp_path / "broker"
    rng = np.random.default_rng(6)
    numbers = rng.normal(size=(50, 2))
    commands, dumps, keys = Commands(), [], {}
    try:
        server = commands.start(broker, "broker", "serve")
        output = commands.wait_for(server, "the broker answers at")
        for provider in ("north", "south"):
            folder = tmp_path / provider
            commands.call(
                folder, "provider", "enrol", commands.call(broker, "broker", "enrol", provider)
            )
            commands.wait_for(commands.start(folder, "provider", "serve"), "connected to")
            keys |= tomllib.loads(commands.call(folder, "provider", "key"))
        token = commands.call(broker, "broker", "token", "alice")

        def search(collection, queries, **options):
            with RemoteNeighbors(
                f"https://127.0.0.1:{port}",
                collection=collection,
                token=token,
                certificate=broker / "state/server.crt",
                payload=True,
                **options,
            ) as client:
                client.kneighbors(queries, 3)
                return client.results_

        shown = set()
        for start in range(0, 320, 80):
            queries = [f"title {i} query-{MARK}-{i}" for i in range(start, start + 80)]
            for answer in search("sealed", queries, keys=keys):
                shown |= {(found["id"], found["payload"]["note"]) for found in answer["neighbors"]}
            search("sealed-points", numbers[start // 8 : start // 8 + 10], keys=keys)
            dumps.append(read_memory(server))
        assert all(MARK in text for pair in shown for text in pair)
        search("open", [f"title {i} query-{CONTROL}-{i}" for i in range(20)])
        search("open-points", numbers[40:])
        dumps.append(read_memory(server))
        server.terminate()
        output += server.stdout.read()
    finally:
        commands.close()
    kept = [path.read_bytes() for path in broker.rglob("*") if path.is_file()]
    held = [*dumps, *kept, output.encode()]

    assert any(CONTROL.encode() in content for content in held)  # the search finds what is there
    assert not [form for form in forms_of(MARK) if any(form in content for content in held)]
    assert any(number.tobytes() in dumps[-1] for number in numbers[40:].ravel())
    for number in numbers[:40:4].ravel():
        forms = number.tobytes(), repr(float(number)).encode()
        assert not [form for form in forms if any(form in content for content in dumps)]
