"""Configuration files, enrolment and durable state."""

import contextlib
import re
import stat

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.errors import DataError, FederationError, PartyRefused
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service import _state
from fedneighbors.service._broker import Broker
from fedneighbors.service._config import BrokerConfig, OfferSection, ProviderConfig
from fedneighbors.service._enrolment import enrol, read_pin
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.service._state import (
    BrokerState,
    EnrolmentCode,
    open_state,
    server_files,
)
from fedneighbors.service._tls import make_certificate, read_fingerprint
from tests.service.deployment import deployed, offered

BROKER = """
format = 1
[collections.words]
metric = "edit"
providers = ["north", "south"]
"""
PROVIDER = """
format = 1
[provider]
name = "north"
broker = "URL"
[collections.words]
metric = "edit"
source = { file = "words.txt" }
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("format = 1", "format = 2"), "format: input should be 1, got 2"),
        (("format = 1", ""), "format: this key is required; write format = 1"),
        (("format = 1", "format = 1\nspeed = 3"), "speed: unknown key"),
        (
            ("metric", "metrc"),
            "collections.words.metrc: unknown key; did you mean 'metric'? "
            "collections.words.metric: this key is required",
        ),
        (
            ("format = 1", "server = { nams = [] }"),
            "server.nams: unknown key; did you mean 'names'? format: this key is required",
        ),
        (("format = 1", "format = 1\nfoldr = 1"), "toml: foldr: unknown key"),
        (('metric = "edit"', 'metric = "fast"'), "words.metric: value error, expected one of"),
        (('["north", "south"]', "[]"), "collections.words.providers: tuple should have at least"),
        (('["north", "south"]', '["a b"]'), "words.providers.0: string should match pattern"),
        (('metric = "edit"', 'metric = "edit"\nfilters = { a = "date" }'), "words.filters.a: "),
        (("format = 1", "format = "), "Invalid value"),
        *(
            (("format = 1", f"format = 1\n[queries]\n{name} = {value}\n"), f"queries.{name}: input")
            for name, value in [
                ("max_k", "true"),
                ("max_k", '"5"'),
                ("retries", "true"),
                ("deadline_s", "true"),
                ("deadline_s", '"1"'),
            ]
        ),
        (
            ("format = 1", "format = 1\nserver = { tls = 0 }"),
            "server.tls: input should be a valid bo",
        ),
        (
            ('metric = "edit"', 'metric = "edit"\nallow_partial = "no"'),
            "words.allow_partial: input",
        ),
        (('metric = "edit"', 'metric = "edit"\nprivacy.epsilon = true'), "privacy.epsilon: input"),
        (("format = 1", 'format = 1\nserver = { listen = "here" }'), "server.listen: "),
    ],
)
def test_an_error_in_a_file_names_its_key(tmp_path, change, message):
    path = tmp_path / "broker.toml"
    path.write_text(BROKER.replace(*change), encoding="utf-8")
    with pytest.raises(DataError) as info:
        BrokerConfig.read(path)
    assert str(path) in str(info.value)
    assert message in str(info.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('{ file = "words.txt", speed = 3 }', "collections.words.source.speed: unknown key"),
        ('{ file = "words.txt", loaded = 3 }', "collections.words.source.loaded: unknown key"),
        (
            '{ file = "words.txt", colums = [] }',
            "collections.words.source.colums: unknown key; did you mean 'columns'",
        ),
        ('{ file = "words.txt", sql = "SELECT 1" }', "collections.words.source: expected"),
        ('{ kind = "omop", file = "a" }', "collections.words.source.reference_date: this key is"),
        ("{ kind = 3 }", "collections.words.source.kind: input should be a valid string, got 3"),
    ],
)
def test_an_error_of_a_source_names_the_key_of_the_file(tmp_path, source, message):
    path = tmp_path / "provider.toml"
    text = PROVIDER.replace("URL", "https://b").replace('{ file = "words.txt" }', source)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as info:
        ProviderConfig.read(path)
    assert f"{path}: {message}" in str(info.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        BrokerConfig.read(tmp_path / "broker.toml")


def test_a_code_is_a_text_and_back():
    code = EnrolmentCode(b"s" * 16, bytes(range(32)))
    assert EnrolmentCode.parse(f" {code}\n") == code
    assert str(code).startswith("fn")


def test_paths_are_relative_to_the_file(tmp_path):
    path = tmp_path / "broker.toml"
    path.write_text(BROKER, encoding="utf-8")
    config = BrokerConfig.read(path)
    state, fingerprint = open_state(config)
    state.close()
    assert len(fingerprint) == 32
    assert sorted(file.name for file in (tmp_path / "state").iterdir()) == [
        "broker.sqlite", "server.crt", "server.key",
    ]  # fmt: skip
    for name in ("broker.sqlite", "server.key"):
        assert stat.S_IMODE((tmp_path / "state" / name).stat().st_mode) == 0o600
    again, same = open_state(config)
    again.close()
    assert same == fingerprint


@pytest.fixture
def state(tmp_path):
    opened = BrokerState(tmp_path / "state.sqlite")
    yield opened
    opened.close()


def try_code(state, provider, code, identity):
    signature = identity.sign(code.content(provider, identity.public))
    state.enrol(provider, code.secret, identity.public, signature)


def test_a_code_enrols_one_provider_once(state):
    code, identity = state.new_code("north", b""), Identity.new()
    message = r"is for another provider: set its name .* fedneighbors broker enrol south$"
    with pytest.raises(PartyRefused, match=message):
        try_code(state, "south", code, identity)
    try_code(state, "north", code, identity)
    with pytest.raises(PartyRefused, match=r"was used, or has expired; ask .* enrol north$"):
        try_code(state, "north", code, Identity.new())
    assert [(one.name, one.key) for one in state.providers()] == [("north", identity.public)]


def test_a_new_code_replaces_the_earlier_one(state):
    first, second = (state.new_code("north", b"") for _ in range(2))
    with pytest.raises(PartyRefused, match="wrong"):
        try_code(state, "north", first, Identity.new())
    try_code(state, "north", second, Identity.new())


def test_a_code_expires(state, monkeypatch):
    code = state.new_code("north", b"")
    now = _state.time.time()
    monkeypatch.setattr(_state.time, "time", lambda: now + _state.CODE_LIFETIME_S + 1)
    with pytest.raises(PartyRefused, match="expired"):
        try_code(state, "north", code, Identity.new())


def test_a_key_that_the_provider_does_not_have_is_refused(state):
    code, identity = state.new_code("north", b""), Identity.new()
    signature = Identity.new().sign(code.content("north", identity.public))
    with pytest.raises(PartyRefused, match="signature"):
        state.enrol("north", code.secret, identity.public, signature)
    try_code(state, "north", code, identity)  # the code is still valid


def test_two_providers_cannot_have_one_key(state):
    identity = Identity.new()
    try_code(state, "north", state.new_code("north", b""), identity)
    with pytest.raises(PartyRefused, match="another provider has this key"):
        try_code(state, "south", state.new_code("south", b""), identity)


def test_secrets_are_not_in_the_file(state, tmp_path):
    code, token = state.new_code("north", b""), state.new_token("alice", 1)
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"alice" in content
    assert code.secret not in content
    assert token.encode() not in content


@pytest.mark.parametrize("text", ["", "abc", "!" * 22, "A" * 21, "A" * 100])
def test_a_text_that_is_no_code_is_refused(text):
    with pytest.raises(DataError, match="expected an enrolment code"):
        EnrolmentCode.parse(text)


def write_provider(folder, url):
    (folder / "words.txt").write_text("alpha\nbeta\n", encoding="utf-8")
    path = folder / "provider.toml"
    path.write_text(PROVIDER.replace("URL", url), encoding="utf-8")
    return ProviderConfig.read(path)


def test_enrolment_over_tls_checks_the_certificate(tmp_path):
    (tmp_path / "north").mkdir()
    words = {"words": {"metric": "edit", "providers": ["north"]}}
    with deployed(tmp_path, words) as deployment:
        config = write_provider(tmp_path / "north", deployment.url)
        with pytest.raises(DataError, match="enrol first"):
            read_pin(config.path(config.provider.certificate))
        fingerprint = deployment.broker.registry._fingerprint
        other = EnrolmentCode(b"s" * 16, bytes(32))
        with pytest.raises(FederationError, match="another certificate than the broker that made"):
            enrol(config, str(other))
        wrong = EnrolmentCode(b"s" * 16, fingerprint)
        with pytest.raises(FederationError, match="wrong, was used, or has expired"):
            enrol(config, str(wrong))
        assert not (tmp_path / "north/state").exists()
        enrol(config, str(deployment.broker.state.new_code("north", fingerprint)))
        assert read_pin(config.path(config.provider.certificate)) == (
            deployment.certificate.read_text()
        )
        key = Identity.read(tmp_path / "north/state/provider.pem").public
        assert [one.key for one in deployment.broker.state.providers()] == [key]
        enrol(config, str(deployment.broker.state.new_code("north", fingerprint)))
        assert Identity.read(tmp_path / "north/state/provider.pem").public == key


def test_enrolment_at_a_broker_that_does_not_answer(tmp_path):
    config = write_provider(tmp_path, "https://127.0.0.1:9")
    with pytest.raises(FederationError, match=r"cannot reach https://127.0.0.1:9"):
        enrol(config, str(EnrolmentCode(b"s" * 16, bytes(32))))


def read(tmp_path, text, **changes):
    (tmp_path / "table.csv").write_text(text, encoding="utf-8")
    section = {
        "metric": "euclidean",
        "filters": {"age": "number", "sex": "text", "alive": "boolean"},
        "source": {"file": "table.csv", "columns": ["x", "y"], "id": "name"},
    }
    return OfferedObjects.read(
        "north",
        "points",
        OfferSection.model_validate(section | changes),
        tmp_path,
        secret=b"secret",
    )


TABLE = "name,x,y,age,sex,alive\na,0,1,40,f,true\nb,2,3,,m,false\nc,4,5,60,f,true\n"


def test_objects_and_filters_are_read_from_a_table(tmp_path):
    offered_ = read(tmp_path, TABLE)
    assert offered_.offer.n_objects == 3
    assert offered_.party.source.ids == ["a", "b", "c"]
    match = offered_.party.source._columns.match
    for where, rows in (
        ({"age": {">=": 50}}, [2]),
        ({"age": None}, [1]),
        ({"sex": "f", "alive": True}, [0, 2]),
        ({"alive": False}, [1]),
    ):
        assert np.flatnonzero(match(where)).tolist() == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TABLE.replace("b,2", "a,2"), "column 'name' has equal names; ids must be unique"),
        (TABLE.replace("age", "ages"), "no column 'age'; its .*, 'ages', .*; did you mean 'ages'"),
        (TABLE.replace("true", "yes"), "expected boolean cells in column 'alive', got text"),
        (TABLE.replace("x", "z"), "x"),
    ],
)
def test_a_table_that_does_not_suit_is_refused(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, text)


def test_an_offer_of_a_table_is_accepted_by_a_broker(tmp_path):
    filters = {"age": "number", "sex": "text", "alive": "boolean"}
    section = {"metric": "euclidean", "providers": ["north"], "filters": filters}
    empty = offered("south", "points", "euclidean", np.empty((0, 2)))
    assert empty.offer.n_objects == 0
    with deployed(tmp_path, {"points": section}) as deployment:
        deployment.start("north", {"points": read(tmp_path, TABLE)})
        deployment.wait("north")
        client = deployment.client("points")
        assert client.kneighbors([[0, 0]], 5, where={"sex": "f"})[1] == [
            [("north", "a"), ("north", "c")]
        ]


def test_the_epoch_of_objects_survives_a_restart(tmp_path):
    def read_epoch(*args, **changes):
        return read(tmp_path, *args, **changes).party.source.open([0.0, 0.0], None).epoch

    first, again = (read_epoch(TABLE) for _ in range(2))
    assert first == again
    assert read_epoch(TABLE.replace("40", "41")) != first
    assert read_epoch(TABLE, tie_key="x") != first


def write_broker(folder, text):
    path = folder / "broker.toml"
    path.write_text(text, encoding="utf-8")
    return BrokerConfig.read(path)


def test_a_broker_behind_a_proxy_has_the_certificate_of_the_proxy(tmp_path):
    make_certificate(tmp_path / "proxy.crt", tmp_path / "proxy.key", ["broker.example"])
    server = 'format = 1\n[server]\ntls = false\ncertificate = "proxy.crt"\n'
    config = write_broker(tmp_path, BROKER.replace("format = 1\n", server))
    state, fingerprint = open_state(config)
    state.close()
    assert fingerprint == read_fingerprint(tmp_path / "proxy.crt")
    assert server_files(config) == (tmp_path / "proxy.crt", None)
    assert not list((tmp_path / "state").glob("server.*"))


@pytest.mark.parametrize("server", ['certificate = "a"', 'key = "a"', 'tls = false\nkey = "a"'])
def test_a_certificate_and_its_key_belong_together(tmp_path, server):
    text = BROKER.replace("format = 1\n", f"format = 1\n[server]\n{server}\n")
    with pytest.raises(DataError, match=r"server\.key"):
        open_state(write_broker(tmp_path, text))


PRIVATE = """
format = 1
[collections.first]
metric = "edit"
providers = ["north"]
algorithm = "dann*"
privacy = { epsilon = 1.0, delta = 1e-6, max_queries = 5 }
"""


def budget(tmp_path, text):
    config = write_broker(tmp_path, text)
    state, fingerprint = open_state(config)
    broker = Broker(config, state, fingerprint)
    (found,) = broker.collections["first"].ledger.budgets()
    for collection in broker.collections.values():
        collection.ledger.close()
    state.close()
    return float(found.allowed.epsilon)


def test_a_changed_budget_is_set(tmp_path):
    assert budget(tmp_path, PRIVATE) == 5
    assert budget(tmp_path, PRIVATE.replace("max_queries = 5", "max_queries = 50")) == 50
    assert budget(tmp_path, PRIVATE.replace("max_queries = 5", "max_queries = 2")) == 2


def test_each_private_collection_has_a_ledger_of_its_own(tmp_path):
    two = PRIVATE + PRIVATE.replace("format = 1", "").replace("first", "second")
    assert budget(tmp_path, two) == 5
    assert len(list((tmp_path / "state").glob("ledger-*.sqlite"))) == 2
    shared = two.replace("max_queries = 5", 'max_queries = 5, ledger = "one.sqlite"')
    with pytest.raises(DataError, match="two collections have the ledger"):
        budget(tmp_path, shared)


def test_a_token_has_the_scopes_of_the_command(tmp_path):
    config = write_broker(tmp_path, BROKER)

    def make(*scopes):
        options = [part for scope in scopes for part in ("--scope", scope)]
        path = str(tmp_path / "broker.toml")
        return CliRunner().invoke(app, ["broker", "token", "bob", "--config", path, *options])

    unknown = make("count:word").stderr
    assert "expected a collection among 'words'; did you mean 'words'?" in unknown
    assert "did you mean 'search'?" in make("serch").stderr
    for scope in ("delete", "search:", "admin:words"):
        assert "expected a" in make(scope).stderr
    tokens = [make().stdout.strip(), make("count:words", "search:words").stdout.strip()]
    state, _ = open_state(config)
    with contextlib.closing(state):
        scopes = [state.user_of(token).scopes for token in tokens]
    assert scopes == [("search",), ("count:words", "search:words")]


def test_the_status_of_a_broker_names_who_is_connected(tmp_path):
    def call():
        path = str(tmp_path / "broker.toml")
        return CliRunner().invoke(app, ["broker", "status", "--config", path])

    words = {"words": {"metric": "edit", "providers": ["north", "south"]}}
    with deployed(tmp_path, words) as deployment:
        listen = deployment.url.removeprefix("https://")
        write_broker(tmp_path, f'{BROKER}[server]\nlisten = "{listen}"\n')
        deployment.start("north", {"words": offered("north", "words", "edit", ["alpha"])})
        deployment.enrol("south")
        deployment.wait("north")
        running = call()
        users = [token.user.name for token in deployment.broker.state.tokens()]
    stopped = call()
    assert re.search("north: enrolled, key [0-9a-f]{16}, connected\n", running.stdout)
    assert re.search("south: enrolled, key [0-9a-f]{16}, not connected\n", running.stdout)
    assert running.stderr == ""
    assert users == ["alice"]
    assert re.search("north: enrolled, key [0-9a-f]{16}\n", stopped.stdout)
    assert f"no broker with this state answers at https://{listen}" in stopped.stderr


def test_groups_of_a_login_service_have_scopes_of_known_collections(tmp_path):
    table = '[oidc]\nissuer = "https://login.example"\naudience = "a"\n'
    for scope, message in (
        ("count:word", "oidc.groups: scope 'count:word': expected a collection among 'words'"),
        ("serch", "oidc.groups: expected a scope .*; did you mean 'search'"),
    ):
        with pytest.raises(DataError, match=message):
            write_broker(tmp_path, f'{BROKER}{table}groups = {{ planners = ["{scope}"] }}\n')
    write_broker(tmp_path, f'{BROKER}{table}groups = {{ planners = ["count:words"] }}\n')


MOLECULES = """
format = 1
[provider]
name = "north"
broker = "https://127.0.0.1"
[collections.molecules]
metric = "tanimoto"
filters = { smiles = "molecule" }
source = { file = "library.smi"UNREADABLE }
"""


@pytest.mark.parametrize(
    ("setting", "status", "words"),
    [
        ("", 1, "library.smi, line 2: expected SMILES, got 'C1C'; nor can lines 4"),
        (', unreadable = "skip"', 0, "2 molecules cannot be read and are left out: lines 2, 4"),
    ],
)
def test_unreadable_molecules_are_refused_or_counted(tmp_path, caplog, setting, status, words):
    path = tmp_path / "provider.toml"
    path.write_text(MOLECULES.replace("UNREADABLE", setting), encoding="utf-8")
    (tmp_path / "library.smi").write_text("CCO a\nC1C b\nOCC c\nC(C d\n", encoding="utf-8")

    done = CliRunner().invoke(app, ["provider", "check", "--config", str(path)])

    assert done.exit_code == status
    assert words in done.stdout
    assert ("molecules: 2 objects, tanimoto" in done.stdout) == (status == 0)
    assert ("left out: lines 2, 4" in caplog.text) == (status == 0)
    assert "C1C" not in caplog.text


def test_only_files_of_molecules_can_skip_lines(tmp_path):
    path = tmp_path / "provider.toml"
    changed = MOLECULES.replace("UNREADABLE", ', unreadable = "skip"')
    path.write_text(changed.replace("library.smi", "library.csv"), encoding="utf-8")

    with pytest.raises(DataError, match="file next to unreadable; correct other ones"):
        ProviderConfig.read(path)


def test_broker_check_reads_all_that_would_be_served(tmp_path):
    path = tmp_path / "broker.toml"
    path.write_text(BROKER, encoding="utf-8")

    def check(status):
        done = CliRunner().invoke(app, ["broker", "check", "--config", str(path)])
        assert done.exit_code == status, done.output
        return done.output

    first = check(0)
    assert "words: edit, auto, 0 of 2 providers enrolled; not enrolled: north, south" in first
    assert "users would be answered at https://127.0.0.1:8443" in first
    assert [one.name for one in tmp_path.iterdir()] == ["broker.toml"]  # nothing was made
    state, _ = open_state(BrokerConfig.read(path))
    code, identity = state.new_code("north", b""), Identity.new()
    state.enrol(
        "north", code.secret, identity.public, identity.sign(code.content("north", identity.public))
    )
    state.close()
    assert "1 of 2 providers enrolled; not enrolled: south" in check(0)
    rows = (
        BROKER + '[collections.rows]\nmetric = "tabular"\nschema = "none.toml"\nproviders = ["a"]\n'
    )
    path.write_text(rows, encoding="utf-8")
    broken = check(1)
    assert "words: edit, auto" in broken
    assert "rows: there is no file" in broken


def test_provider_check_counts_the_columns_of_vectors(tmp_path):
    path = tmp_path / "provider.toml"
    path.write_text(
        'format = 1\n[provider]\nname = "north"\nbroker = "https://127.0.0.1"\n'
        '[collections.scans]\nmetric = "euclidean"\nfilters = { year = "number" }\n'
        'source = { file = "scans.csv" }\n',
        encoding="utf-8",
    )
    (tmp_path / "scans.csv").write_text("a,b,year\n1,2,2025\n3,4,2026\n", encoding="utf-8")

    done = CliRunner().invoke(app, ["provider", "check", "--config", str(path)])

    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("scans: 2 objects of 2 columns, euclidean")
