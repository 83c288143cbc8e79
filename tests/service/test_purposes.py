"""Purposes of queries and groups of users, from REST to the policy and the logs."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.errors import DataError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.protocol import BoundRequest, NearestRequest, RangeCountRequest
from fedneighbors.service import ServiceError
from fedneighbors.service._access_log import AccessLog, compare_logs
from fedneighbors.service._config import PolicySection, ProviderConfig
from fedneighbors.service._messages import OfferedCollection
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.service._policy import OTHER_PURPOSE, PolicyParty
from tests.service.deployment import deployed, offered

POINTS = np.arange(12.0)[:, np.newaxis]
QUERY = encode_query([0.0])
SECTIONS = {"points": {"metric": "euclidean", "providers": ["north", "south"], "tie_key": "0"}}
POLICY = {
    "level": "none",
    "purposes": ["treatment", "quality control"],
    "users": {"bob": {"max_k": 1}},
    "groups": {
        "doctors": {"level": "distances", "max_k": 4},
        "planners": {"level": "count", "max_k": 9, "purposes": ["planning"]},
    },
}


def make_party(log=None, **policy):
    party = Provider.of("north", POINTS, metric_of("euclidean"), decode=decode_query)
    section = PolicySection.model_validate({"level": "distances", **policy})
    return PolicyParty(party, "points", section, log)


@pytest.mark.parametrize("purpose", ["", "Treatment", "treatment ", "marketing"])
@pytest.mark.parametrize(
    "request_",
    [
        NearestRequest("a", QUERY, 3, None),
        BoundRequest("a", QUERY, 3),
        RangeCountRequest("a", QUERY, None),
        RangeCountRequest("a", QUERY, 1.0),
    ],
)
def test_other_purposes_are_refused_and_logged(tmp_path, request_, purpose):
    log = AccessLog(tmp_path / "log.sqlite")
    party = make_party(log, purposes=["treatment"])
    party.query, party.purpose = "a", purpose
    with pytest.raises(Refused, match=OTHER_PURPOSE):
        party.answer(request_)
    party.purpose = "treatment"
    party.answer(request_)
    entries = [(entry["purpose"], entry["outcome"]) for entry in log.entries()]
    assert entries == [(purpose, OTHER_PURPOSE), ("treatment", "")]


@pytest.mark.parametrize(
    ("user", "groups", "level", "max_k", "purposes"),
    [
        ("alice", (), "none", None, ("treatment", "quality control")),
        ("alice", ("others",), "none", None, ("treatment", "quality control")),
        ("alice", ("planners",), "count", 9, ("planning",)),
        ("alice", ("planners", "doctors"), "distances", 4, ("planning",)),
        ("bob", ("planners",), "count", 1, ("planning",)),
        ("bob", (), "none", 1, ("treatment", "quality control")),
        ("doctors", (), "none", None, ("treatment", "quality control")),
    ],
)
def test_fields_are_of_the_user_then_of_the_groups_in_order(user, groups, level, max_k, purposes):
    grant = PolicySection.model_validate(POLICY).grant_of(user, groups)
    assert (grant.level, grant.max_k, grant.purposes) == (level, max_k, purposes)


@pytest.mark.parametrize(
    ("user", "groups", "is_shown"),
    [
        ("alice", (), False),
        ("alice", ("others", "readers"), True),
        ("alice", ("readers", "guests"), False),  # guests come first in the file
        ("bob", ("guests",), True),
        ("carol", ("readers",), True),  # her own table has no level
        ("readers", (), False),
    ],
)
def test_users_and_groups_see_the_distances_of_their_level(user, groups, is_shown):
    policy = PolicySection.model_validate(
        {
            "users": {"bob": {"level": "distances"}, "carol": {"max_k": 3}},
            "groups": {"guests": {"level": "ids"}, "readers": {"level": "distances"}},
        }
    )
    one = offered("north", "points", "euclidean", POINTS)
    offer = OfferedObjects(one.party, one.offer, policy=policy).offer
    received = decode(encode(offer), (OfferedCollection,))
    assert (received.step_for(user, groups) is not None) == is_shown
    assert (policy.grant_of(user, groups).level == "distances") == is_shown


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    with deployed(folder, SECTIONS) as running:
        for provider, policy in (("north", POLICY), ("south", {"level": "distances"})):
            one = offered(provider, "points", "euclidean", POINTS, tie_key="0")
            log = AccessLog(folder / f"{provider}.sqlite")
            section = PolicySection.model_validate(policy)
            offers = {"points": OfferedObjects(one.party, one.offer, policy=section, log=log)}
            running.start(provider, offers)
        running.wait("north", "south")
        running.folder = folder
        yield running


def token(deployment, *groups):
    return deployment.broker.state.new_token("carol", 1, groups=groups)


def test_purposes_and_groups_reach_the_providers(deployment):
    with deployment.client("points", token=token(deployment, "doctors")) as search:
        with pytest.raises(ServiceError, match="purpose-refused") as caught:
            search.kneighbors([[0.0]], 1)
        assert (caught.value.status, caught.value.party) == (403, "north")
    doctor, nobody = token(deployment, "doctors"), token(deployment)
    options = {"purpose": "quality control"}
    with deployment.client("points", token=doctor, **options) as search:
        assert search.kneighbors([[0.0]], 1)[0][0].tolist() == [0.0]
        assert search.count([[0.0]], 1.0).tolist() == [4]
    with (
        deployment.client("points", token=nobody, **options) as search,
        pytest.raises(ServiceError, match="not-allowed"),
    ):
        search.kneighbors([[0.0]], 1)


def test_both_logs_have_the_purpose_and_a_change_of_it_shows(deployment):
    with deployment.client(
        "points", token=token(deployment, "doctors"), purpose="treatment"
    ) as search:
        search.kneighbors([[0.0]], 1)
        query = search.results_[0]["query_id"]
    logs = [deployment.broker.log, AccessLog(deployment.folder / "north.sqlite")]
    broker, north = (
        [entry for entry in log.entries() if entry["query"].startswith(query)] for log in logs
    )
    assert {entry["purpose"] for entry in broker + north} == {"treatment"}
    assert compare_logs("north", iter(north), iter(broker)) == []
    changed = [{**entry, "purpose": "other"} for entry in broker]
    assert compare_logs("north", iter(north), iter(changed)) == [
        f"query {query} has purpose 'other' in the broker's log, 'treatment' here"
    ]


@pytest.mark.parametrize("purpose", ["", "a\n", "a" * 101, 3])
def test_a_purpose_is_a_short_line(deployment, purpose):
    with (
        deployment.client("points", purpose=purpose) as search,
        pytest.raises(ServiceError, match="purpose: ") as caught,
    ):
        search.kneighbors([[0.0]], 1)
    assert caught.value.code == "invalid-body"


def test_the_command_states_a_purpose(deployment, monkeypatch):
    monkeypatch.setenv("FEDNEIGHBORS_TOKEN", token(deployment, "doctors"))
    command = ["search", deployment.url, "points", "0", "-k", "1", "--json"]
    command += ["--certificate", str(deployment.certificate)]
    answer = CliRunner().invoke(app, [*command, "--purpose", "treatment"])
    assert json.loads(answer.output)["neighbors"][0]["distance"] == 0
    assert CliRunner().invoke(app, command).exit_code != 0


def test_the_command_for_tokens_takes_groups(deployment):
    path = deployment.folder / "broker.toml"
    path.write_text(
        'format = 1\n[collections.points]\nmetric = "euclidean"\nproviders = ["north"]\n'
    )
    command = ["broker", "token", "dora", "--group", "doctors", "--group", "night shift"]
    found = CliRunner().invoke(app, [*command, "--config", str(path)])
    user = deployment.broker.state.user_of(found.output.strip())
    assert (user.name, user.groups) == ("dora", ("doctors", "night shift"))


def test_no_purpose_at_all_is_an_error_of_the_file(tmp_path):
    path = tmp_path / "provider.toml"
    path.write_text(
        'format = 1\n[provider]\nname = "north"\nbroker = "https://b"\n[collections.points]\n'
        'metric = "euclidean"\nsource = { file = "a.csv" }\npolicy = { purposes = [] }\n'
    )
    with pytest.raises(DataError, match=r"policy\.purposes"):
        ProviderConfig.read(path)
