"""The provider's own budget of private queries, which no broker can evade."""

import asyncio
import sqlite3
from collections import deque
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.errors import DataError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refusal, Refused
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.private._padding import (
    PaddedBoundReply,
    PaddedBoundRequest,
    PaddedNearestReply,
    PaddedNearestRequest,
    unpad_nearest,
)
from fedneighbors.privacy import PureDP
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service import ServiceError
from fedneighbors.service._access_log import AccessLog
from fedneighbors.service._config import PolicySection, ProviderConfig
from fedneighbors.service._dialling import ConnectionRejected
from fedneighbors.service._messages import LinkReplies, LinkRequest
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.service._policy import NOT_ALLOWED, QUOTA_SPENT, PolicyParty
from fedneighbors.service._provider import ProviderService
from fedneighbors.service._query_budget import BUDGET_SPENT, LEDGER_FAILED, NO_USER
from tests.seeds import cases
from tests.service.deployment import deployed, offered

POINTS = np.arange(12.0)[:, np.newaxis]
PLACES = (0.0, 3.25, 40.0)  # without ties
QUERIES = [encode_query([value]) for value in PLACES]
LIMITS = {"epsilon": 0.5, "max_queries": 3}


@st.composite
def lies(draw):
    """Return the requests of a broker that lies about names, users, noise and sizes."""
    found = []
    for _ in range(draw(st.integers(0, 25))):
        k, position = draw(st.integers(1, 3)), draw(st.integers(0, 2))
        name = f"{draw(st.sampled_from('ab'))}{position}"
        request = PaddedBoundRequest(name, QUERIES[position], k, 0.0)
        if draw(st.booleans()):
            count = np.array([draw(st.integers(0, k))])
            request = PaddedNearestRequest(name, QUERIES[position], count, k, 0.0)
        user = draw(st.sampled_from(["alice", "bob"]))
        version, noise = draw(st.integers(0, 1)), draw(st.sampled_from(["", "1", "2"]))
        found.append((version, user, noise, request))
    return found


def make_party(ledger, log=None, *, version=0, **policy):
    party = Provider.of(
        "north", POINTS, metric_of("euclidean"), decode=decode_query, epoch=f"0{version}" * 16
    )
    section = PolicySection.model_validate({"privacy": LIMITS, **policy})
    return PolicyParty(party, "points", section, log, ledger=ledger)


def ask(party, request, *, user="alice", noise=""):
    party.user, party.query, party.noise = user, request.name, noise
    return party.answer(request)


def bounds(name="a", position=0, k=3):
    return PaddedBoundRequest(name, QUERIES[position], k, 0.0)


def nearest(name="a", position=0, k=3, count=None):
    counts = np.array([k if count is None else count])
    return PaddedNearestRequest(name, QUERIES[position], counts, k, 0.0)


@settings(max_examples=cases(60), deadline=None)
@given(lies(), st.integers(1, 2))
def test_each_distinct_query_is_charged_whatever_the_broker_says(
    tmp_path_factory, sequence, n_alice
):
    path = tmp_path_factory.mktemp("ledger") / "north.ledger"
    noises = {}  # ids of noise, by answered query
    limits = {"users": {"alice": {"private_queries": n_alice}}}
    half = len(sequence) // 2
    for part in (sequence[:half], sequence[half:]):  # two processes
        with Ledger(path, party="north") as ledger:
            parties = [make_party(ledger, version=version, **limits) for version in (0, 1)]
            for version, user, noise, request in part:
                try:
                    reply = ask(parties[version], request, user=user, noise=noise)
                except Refused:
                    continue
                key = version, user, request.query, request.k
                drawn = {noise} if noise and isinstance(request, PaddedNearestRequest) else set()
                noises[key] = noises.get(key, set()) | drawn
                if isinstance(reply, PaddedNearestReply):
                    place = PLACES[QUERIES.index(request.query)]
                    order = np.argsort(np.abs(POINTS[:, 0] - place)).tolist()
                    ids = map(int, unpad_nearest(reply, request.k).ids)
                    assert set(ids) <= set(order[: request.k])
            spent = {user: ledger.spent("points", user) for user in ("", "alice")}
    charges = {key: max(len(drawn), 1) for key, drawn in noises.items()}
    assert spent[""] == PureDP(0.5 * sum(charges.values()))
    assert sum(charges.values()) <= LIMITS["max_queries"]
    assert sum(n for key, n in charges.items() if key[1] == "alice") <= n_alice


def test_the_requests_of_one_query_are_one_charge(tmp_path):
    with Ledger(":memory:", party="north") as ledger:
        party = make_party(ledger)
        for name in ("a", "b"):  # the second is a retry
            assert isinstance(ask(party, bounds(name)), PaddedBoundReply)
            ask(party, nearest(name, count=1), noise="1")
            ask(party, nearest(name, count=2), noise="1")
        assert ledger.spent("points") == PureDP("0.5")


@pytest.mark.parametrize(
    "other",
    [
        {"request": bounds("b", k=2)},
        {"request": bounds("b", position=1)},
        {"request": bounds("b"), "user": "bob"},
        {"request": nearest("b"), "noise": "2"},
    ],
    ids=["k", "query", "user", "noise"],
)
def test_another_query_is_another_charge(other):
    with Ledger(":memory:", party="north") as ledger:
        party = make_party(ledger)
        ask(party, bounds())
        ask(party, nearest(), noise="1")
        ask(party, other.pop("request"), **other)
        assert ledger.spent("points") == PureDP(1)


def test_no_requests_return_more_than_the_k_nearest_objects():
    with Ledger(":memory:", party="north") as ledger:
        party = make_party(ledger)
        ask(party, nearest())
        for request in (nearest(count=1), nearest(k=1)):
            with pytest.raises(Refused, match=NOT_ALLOWED):
                ask(party, request)
        ask(party, nearest(k=4, count=1))  # the fourth, for another charge
        assert ledger.spent("points") == PureDP(1)


def test_a_failed_search_moves_no_query_past_its_k_nearest(tmp_path):
    log, limits = AccessLog(tmp_path / "log.sqlite"), {"objects_per_day": 3}
    with Ledger(":memory:", party="north") as ledger:
        party = make_party(ledger, log, **limits)
        ask(party, nearest("a", position=1))
        with pytest.raises(Refused, match=QUOTA_SPENT):  # after the search
            ask(party, nearest("b"))
        with pytest.raises(Refused, match=NOT_ALLOWED):
            ask(party, nearest("b"), user="bob")


def test_nothing_is_answered_that_cannot_be_charged(tmp_path, caplog):
    path, log = tmp_path / "north.ledger", AccessLog(tmp_path / "log.sqlite")
    with Ledger(path, party="north", timeout_s=0.05) as ledger:
        party, other = make_party(ledger, log), sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for request in (bounds(), nearest()):
            with pytest.raises(Refused, match=LEDGER_FAILED):
                ask(party, request)
        assert [entry["outcome"] for entry in log.entries()] == [LEDGER_FAILED] * 2
        assert "north.ledger" in caplog.text
        other.execute("ROLLBACK")
        ask(party, bounds("b"))
        assert ledger.spent("points") == PureDP("0.5")
        other.close()


def test_a_policy_with_a_budget_answers_nothing_without_a_ledger():
    with pytest.raises(Refused, match=LEDGER_FAILED):
        ask(make_party(None), bounds())


@pytest.mark.parametrize("user", ["", "a\n", "a" * 501])
def test_users_without_a_name_get_no_private_answer(user):
    with Ledger(":memory:", party="north") as ledger:
        party = make_party(ledger, private_queries=1)
        with pytest.raises(Refused, match=NO_USER):
            ask(party, bounds(), user=user)
        assert ledger.budget("points") == PureDP("1.5")
        assert ledger.spent("points") == PureDP(0)


def test_a_changed_budget_is_in_force_at_the_next_start():
    with Ledger(":memory:", party="north") as ledger:
        ask(make_party(ledger, private_queries=1), bounds())
        with pytest.raises(Refused, match=BUDGET_SPENT):
            ask(make_party(ledger, private_queries=1), bounds(position=1))
        ask(make_party(ledger), bounds(position=1))  # the user's limit was removed
        lower = {"epsilon": 0.5, "max_queries": 1}
        with pytest.raises(Refused, match=BUDGET_SPENT):
            ask(make_party(ledger, privacy=lower), bounds(position=2))
        assert ledger.spent("points") == PureDP(1)


PRIVACY = {"epsilon": 1.0, "delta": 1e-6, "grid_s": 0.0}
SECTION = {
    "points": {
        "metric": "euclidean",
        "providers": ["north", "south"],
        "algorithm": "dann*",
        "tie_key": "0",
        "privacy": PRIVACY,
    }
}
NORTH = {"privacy": {"epsilon": 1.0, "delta": 1e-6, "max_queries": 3}}


def offer(name, points, ledger=None, epoch=None, **policy):
    one = offered(name, "points", "euclidean", points, tie_key="0", epoch=epoch)
    section = PolicySection.model_validate({"level": "distances", **policy})
    return {"points": OfferedObjects(one.party, one.offer, policy=section, ledger=ledger)}


def test_a_spent_budget_is_a_problem_that_names_the_provider(tmp_path):
    with (
        Ledger(tmp_path / "north.ledger", party="north") as ledger,
        deployed(tmp_path, SECTION) as deployment,
    ):
        deployment.start("north", offer("north", POINTS[::2], ledger, "0" * 32, **NORTH))
        deployment.start("south", offer("south", POINTS[1::2]))
        deployment.wait("north", "south")
        with deployment.client("points") as search:
            for _ in range(2):  # a repetition is free
                assert search.kneighbors([[0.0]], 3)[0][0].tolist() == [0.0, 1.0, 2.0]
            assert ledger.spent("points").epsilon == 1
            deployment.stop("south")
            deployment.start("south", offer("south", POINTS[1::2] + 0.25))
            deployment.wait("south")
            for _ in range(2):  # other objects of south: the broker draws new noise
                search.kneighbors([[0.0]], 3)
            assert ledger.spent("points").epsilon == 2
            search.kneighbors([[5.0]], 3)
            with pytest.raises(ServiceError, match="budget-exceeded") as caught:
                search.kneighbors([[6.0]], 3)
            assert (caught.value.status, caught.value.party) == (403, "north")
            search.kneighbors([[5.0]], 3)


def test_a_broker_whose_queries_cost_more_is_refused(tmp_path):
    cheap = {"privacy": {**NORTH["privacy"], "epsilon": 0.9}}
    with deployed(tmp_path, SECTION) as deployment:
        task = deployment.start("north", offer("north", POINTS, **cheap))
        with pytest.raises(ConnectionRejected, match="costs more than the provider charges"):
            task.result(20)


PROVIDER = """
format = 1
[provider]
name = "north"
broker = "https://127.0.0.1:8443"
[collections.points]
metric = "euclidean"
source = { file = "points.csv", columns = ["x"] }
[collections.points.policy]
private_queries = 1
[collections.points.policy.privacy]
epsilon = 0.5
max_queries = 3
"""


def test_a_command_prints_what_is_left(tmp_path):
    path = tmp_path / "provider.toml"
    path.write_text(PROVIDER, encoding="utf-8")
    command = ["provider", "budget", "--config", str(path)]
    assert CliRunner().invoke(app, command).exit_code != 0  # there is no ledger yet
    config = ProviderConfig.read(path)
    with config.open_ledger() as ledger:
        policy = config.collections["points"].policy
        party = Provider.of("north", POINTS, metric_of("euclidean"), decode=decode_query)
        ask(PolicyParty(party, "points", policy, ledger=ledger), bounds())
    lines = CliRunner().invoke(app, command).output.splitlines()
    assert lines == [
        "points: 2 of 3 private queries are left; spent epsilon=1/2",
        "points, alice: 0 of 1 private queries are left; spent epsilon=1/2",
    ]


def test_a_provider_that_restarts_keeps_its_budget(tmp_path):
    path = tmp_path / "provider.toml"
    path.write_text(PROVIDER, encoding="utf-8")
    np.savetxt(tmp_path / "points.csv", POINTS, header="x", comments="")
    (tmp_path / "state").mkdir()
    Identity.new().write(tmp_path / "state/provider.pem")
    for _ in range(2):
        service = ProviderService.of(ProviderConfig.read(path))
        replies = []
        for number, request in enumerate([bounds("a"), bounds("b", position=1)]):
            asked = LinkRequest(
                number, "points", request.name, 0, 1000, encode(request), user="alice"
            )
            frame = service._answer("points", deque([(np.inf, asked)]), ())
            replies += decode(frame, (LinkReplies,)).bodies
        assert isinstance(decode(replies[0], (PaddedBoundReply,)), PaddedBoundReply)
        assert decode(replies[1], (Refusal,)).code == BUDGET_SPENT


def test_a_policy_that_is_read_again_keeps_what_was_spent(tmp_path):
    path, words = tmp_path / "provider.toml", tmp_path / "words.txt"
    text = PROVIDER.replace("private_queries = 1\n", "")
    text += '[collections.words]\nmetric = "edit"\nsource = { file = "words.txt" }\n'
    np.savetxt(tmp_path / "points.csv", POINTS, header="x", comments="")
    words.write_text("alpha\n", encoding="utf-8")
    (tmp_path / "state").mkdir()
    Identity.new().write(tmp_path / "state/provider.pem")
    path.write_text(text, encoding="utf-8")
    config = ProviderConfig.read(path)
    service = ProviderService.of(config, path)
    ask(service._collections["points"]._guarded, bounds())
    for n_stated, is_readable, n_allowed in [(1, True, 1), (9, False, 1), (2, True, 2)]:
        path.write_text(text.replace("max_queries = 3", f"max_queries = {n_stated}"), "utf-8")
        if not is_readable:
            words.rename(tmp_path / "away")
        assert asyncio.run(service.reload(policies=True)) == is_readable
        if not is_readable:
            (tmp_path / "away").rename(words)
        with config.open_ledger() as ledger:
            epsilons = [state.allowed.epsilon for state in ledger.budgets() if not state.user]
        assert epsilons == [n_allowed * LIMITS["epsilon"]]
        answered, guarded = [], service._collections["points"]._guarded
        for position in range(3):  # the first was charged before
            with suppress(Refused):
                answered.append(ask(guarded, bounds(f"b{position}", position)))
        assert len(answered) == n_allowed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[collections.points.policy.privacy]\nepsilon = 0.5\nmax_queries = 3", ""), "privacy"),
        (("max_queries = 3", ""), "max_queries: this key is required"),
        (("max_queries = 3", "max_queries = 3\ndelta = 0.5"), "delta times max_queries below 1"),
    ],
)
def test_an_incomplete_budget_is_an_error(tmp_path, change, message):
    path = tmp_path / "provider.toml"
    path.write_text(PROVIDER.replace(*change), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        ProviderConfig.read(path)
