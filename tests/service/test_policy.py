"""Policies of providers: levels, limits, quotas of users, rounded distances."""

import json
import math
import ssl
import sys
import time

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.errors import DataError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._eager import EagerRequest
from fedneighbors.methods.fedknn._filters import FilterColumns, filter_text
from fedneighbors.methods.fedknn._payloads import PayloadRequest
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import FilteredQuery, decode_query, encode_query
from fedneighbors.methods.fedknn._sources import MemorySource
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.private._padding import (
    PaddedBoundReply,
    PaddedBoundRequest,
    PaddedNearestReply,
    PaddedNearestRequest,
)
from fedneighbors.methods.fedknn.protocol import (
    BoundReply,
    BoundRequest,
    FinishRequest,
    NearestRequest,
    RangeCountReply,
    RangeCountRequest,
)
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.service import RemoteNeighborsClassifier, ServiceError
from fedneighbors.service._access_log import LOG_FAILED, AccessLog, LogFailed
from fedneighbors.service._config import LIMITS, STEP_ERROR, OfferSection, PolicySection
from fedneighbors.service._limits import MAX_HELLO_BYTES
from fedneighbors.service._messages import Hello, OfferedCollection
from fedneighbors.service._offers import OfferedObjects, describe_offer
from fedneighbors.service._policy import NOT_ALLOWED, QUOTA_SPENT, PolicyParty
from fedneighbors.service._shards import BrokerSource
from fedneighbors.service._stored import describe_neighbors
from fedneighbors.sources import SourceSettings
from tests.processes import LIMIT_S
from tests.seeds import cases
from tests.service.deployment import deployed, offered

POINTS = np.arange(12.0)[:, np.newaxis]
QUERIES = [encode_query([value]) for value in (0.0, 3.5, 40.0)]
counts = st.integers(0, 14)
radii = st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.5, 8.0, 100.0, math.inf])
queries = st.sampled_from([*zip("abc", QUERIES, strict=True)])


@st.composite
def requests(draw):
    (name, query), k = draw(queries), draw(st.integers(1, 14))
    kind = draw(st.integers(0, 7))
    return [
        lambda: BoundRequest(name, query, k),
        lambda: NearestRequest(name, query, draw(counts), draw(st.none() | radii)),
        lambda: EagerRequest(name, query, draw(counts), None),
        lambda: RangeCountRequest(name, query, draw(st.none() | radii)),
        lambda: PaddedBoundRequest(name, query, k, 0.0),
        lambda: PaddedNearestRequest(name, query, np.array([draw(st.integers(0, k))]), k, 0.0),
        lambda: PayloadRequest(
            name, query, tuple(draw(st.lists(st.sampled_from("012"), min_size=1)))
        ),
        lambda: FinishRequest((name,)),
    ][kind]()


sequences = st.lists(st.tuples(st.sampled_from(["alice", "bob"]), requests()), max_size=25)


def make_party(log=None, *, ledger=None, points=POINTS, **policy):
    notes = {"note": [f"note {row}" for row in range(len(points))]}
    source = MemorySource(
        points, metric_of("euclidean"), owner="north", epoch=bytes(16), payload=notes
    )
    party = Provider("north", source, decode=decode_query)
    section = PolicySection.model_validate({"level": "distances", **policy})
    return PolicyParty(party, "points", section, log, ledger=ledger)


def answers(party, sequence):
    """Return the requests that are answered, with user and reply."""
    found = []
    for user, request in sequence:
        if isinstance(request, FinishRequest):
            party.finish(request.names)
            continue
        party.user, party.query = user, request.name
        try:
            found.append((user, request, party.answer(request)))
        except Refused:
            continue
    return found


def ids_of(reply):
    if isinstance(reply, PaddedNearestReply):
        return int(reply.numbers[0])
    return len(getattr(reply, "ids", ()))


@settings(max_examples=cases(150), deadline=None)
@given(sequences, st.sampled_from(["none", "boolean", "count"]), st.integers(0, 4))
def test_replies_are_those_of_the_level(sequence, level, min_count):
    for _, _, reply in answers(make_party(level=level, min_count=min_count), sequence):
        assert isinstance(reply, RangeCountReply)
        assert level != "none"
        assert (
            reply.count in (0, 1) if level == "boolean" else reply.count not in range(1, min_count)
        )


@settings(max_examples=cases(150), deadline=None)
@given(sequences)
def test_other_users_have_the_general_level(sequence):
    party = make_party(level="none", users={"bob": {"level": "distances"}})
    assert {user for user, _, _ in answers(party, sequence)} <= {"bob"}


@settings(max_examples=cases(150), deadline=None)
@given(sequences)
def test_users_of_ids_count_within_no_radius(sequence):
    party = make_party(level="ids", users={"bob": {"level": "distances"}})
    for user, request, _ in answers(party, sequence):
        assert user == "bob" or getattr(request, "radius", None) is None


@settings(max_examples=cases(150), deadline=None)
@given(sequences)
def test_other_requests_are_answered_with_ids_as_with_distances(sequence):
    sequence = [one for one in sequence if getattr(one[1], "radius", None) is None]
    found = [answers(make_party(level=level), sequence) for level in ("ids", "distances")]
    first, second = ([encode(reply) for _, _, reply in one] for one in found)
    assert first == second


AGES = np.array([30, 30, 30, 40, 40, 40, 50, 50, 50, 60, 60, 99])  # a group of one, and one of two
SITES = np.array(list("ababababaabb"))
comparisons = st.one_of(
    st.builds(
        lambda symbol, age: {"age": {symbol: age}},
        st.sampled_from([">=", ">", "<=", "<"]),
        st.sampled_from([30, 40, 50, 60, 99]),
    ),
    st.sampled_from([{"age": 99}, {"age": 60}, {"site": "a"}, {"age": {"in": [30, 99]}}, {}]),
)
wheres = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds(lambda one: {"not": one}, inner),
        st.builds(
            lambda name, some: {name: some},
            st.sampled_from(["and", "or"]),
            st.lists(inner, min_size=1, max_size=2),
        ),
    ),
    max_leaves=3,
)


@st.composite
def filtered_requests(draw, asked):
    """Return the filter of one of some queries, and a request of it."""
    name, where, item = draw(st.sampled_from(asked))
    query = encode(FilteredQuery(item, filter_text(where)))
    k, kind = draw(st.integers(1, 12)), draw(st.integers(0, 7))
    ids = st.sets(st.sampled_from([str(row) for row in range(12)]), min_size=1, max_size=2)
    return where, [
        lambda: RangeCountRequest(name, encode(FilteredQuery(b"", filter_text(where))), None),
        lambda: RangeCountRequest(name, query, draw(radii)),
        lambda: NearestRequest(name, query, k, None),
        lambda: NearestRequest(draw(st.sampled_from("abc")), query, k, None),
        lambda: EagerRequest(name, query, k, None),
        lambda: BoundRequest(name, query, k),
        lambda: PayloadRequest(name, query, tuple(draw(ids))),
        lambda: FinishRequest((name,)),
    ][kind]()


@st.composite
def filtered(draw):
    """Return users and their requests of few queries with filters."""
    items = [encode_query([point]) for point in (0.0, 3.0, 7.0)]
    asked = [(name, draw(wheres), item) for name, item in zip("abc", items, strict=True)]
    pairs = st.tuples(st.sampled_from(["alice", "bob"]), filtered_requests(asked))
    return draw(st.lists(pairs, min_size=5, max_size=30))


def matches(where):
    columns = {"age": AGES.tolist(), "site": SITES.tolist()}
    return FilterColumns.of(columns, len(AGES)).match(where)


def groups_of(wheres):
    """Return the sizes of the groups that filters tell apart."""
    return np.unique([matches(one) for one in wheres], axis=1, return_counts=True)[1]


def answer_filtered(party, sequence):
    """Return user, filter, request and reply of the requests that are answered."""
    filters = {id(request): where for _, (where, request) in sequence}
    found = answers(party, [(user, request) for user, (_, request) in sequence])
    return [(user, filters[id(request)], request, reply) for user, request, reply in found]


def make_filtered(log=None, **policy):
    source = MemorySource(
        POINTS, metric_of("euclidean"), owner="north", epoch=bytes(16),
        columns=FilterColumns.of({"age": AGES.tolist(), "site": SITES.tolist()}, len(AGES)),
        payload={"note": [f"note {row}" for row in range(len(AGES))]},
    )  # fmt: skip
    section = PolicySection.model_validate({"level": "distances", "payload": ["note"], **policy})
    party = Provider("north", source, decode=decode_query, min_filtered=section.least_filtered)
    return PolicyParty(party, "points", section, log)


@settings(max_examples=cases(200), deadline=None)
@given(filtered(), st.integers(1, 5), st.sampled_from(["count", "ids", "distances"]))
def test_every_answered_filter_leaves_and_leaves_out_enough(sequence, least, level):
    party, shown = make_filtered(min_filtered=least, level=level), {}
    for one in sequence:
        for user, where, request, reply in answer_filtered(party, [one]):
            is_left = matches(where)
            assert is_left.sum() >= least
            assert not 0 < (~is_left).sum() < least
            assert level != "count" or isinstance(reply, RangeCountReply)
            assert all(is_left[int(row)] for row in getattr(reply, "ids", ()))
            seen, ids = shown.setdefault((request.name, request.query), set()), set()
            ids.update(getattr(reply, "ids", ()))
            seen |= ids
            # a request for an object that was not shown ends the query
            for row in sorted(map(str, range(12)), key=lambda row: row not in ids):
                asked = PayloadRequest(request.name, request.query, (row,))
                rows = [one.rows for *_, one in answers(party, [(user, asked)])]
                assert rows in ([], [(json.dumps({"note": f"note {row}"}),)])
                assert not rows or row in seen
                assert rows or row not in ids


@settings(max_examples=cases(200), deadline=None)
@given(filtered(), st.integers(1, 5), st.sampled_from(["count", "distances"]), st.booleans())
def test_filters_of_a_day_tell_no_small_group_apart(
    tmp_path_factory, sequence, least, level, is_restarted
):
    path, asked = tmp_path_factory.mktemp("log") / "log.sqlite", {}
    half = len(sequence) // 2 if is_restarted else 0
    for part in (sequence[:half], sequence[half:]):  # two processes
        log = AccessLog(path)
        party = make_filtered(log, min_difference=least, level=level)
        for user, where, _, _ in answer_filtered(party, part):
            asked.setdefault(user, []).append(where)
        log.close()
    for wheres in asked.values():
        assert min(groups_of(wheres)) >= least


OLD, OTHER = {"age": 99}, {"site": "a"}
ATTACKS = {  # sums of counts that are the number of objects aged 99
    "alone": [(1, OLD)],
    "complement": [(12, None), (-1, {"not": OLD})],
    "difference": [(1, {"age": {">=": 50}}), (-1, {"age": {">=": 50, "<": 99}})],
    "tracker": [
        (1, {"or": [OLD, OTHER]}), (1, {"or": [OLD, {"not": OTHER}]}), (-12, None),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("limit", ["min_filtered", "min_difference"])
def test_differences_of_counts_single_nobody_out(tmp_path, name, limit):
    party = make_filtered(AccessLog(tmp_path / "log.sqlite"), **{limit: 2}, level="count")
    refused = []
    for number, (_, where) in enumerate(ATTACKS[name]):
        if where is not None:
            query = encode(FilteredQuery(b"", filter_text(where)))
            request = RangeCountRequest(f"q{number}", query, None)
            refused.append(not answers(party, [("alice", request)]))
            assert answers(party, [("bob", request)]) or refused[-1] or number
    is_compared = name in ("difference", "tracker")
    assert any(refused) == (limit == "min_difference" or not is_compared)


def test_a_filter_may_be_repeated_and_each_day_begins_again(tmp_path, monkeypatch):
    log = AccessLog(tmp_path / "log.sqlite")
    party, now = make_filtered(log, min_difference=2), time.time()

    def ask(number, where):
        query = encode(FilteredQuery(encode_query([0.0]), filter_text(where)))
        return bool(answers(party, [("alice", NearestRequest(str(number), query, number, None))]))

    first, second = {"age": {">=": 50}}, {"age": {">=": 50, "<": 99}}
    assert [ask(number, first) for number in (1, 2, 3)] == [True] * 3
    assert [ask(number, {"age": {"<": 50}}) for number in (4, 5)] == [True] * 2
    assert not ask(6, second)
    assert log.filters("points", "alice") == [filter_text(first)]  # the others tell nothing apart
    monkeypatch.setattr(time, "time", lambda: now + 86_400)
    assert ask(7, second)
    assert not ask(8, first)


levels = st.sampled_from(["none", "boolean", "count", "ids", "distances"])
grants = st.fixed_dictionaries({}, optional={"level": levels, "max_k": st.just(3)})
policies = st.builds(
    lambda general, users, step: general | {"users": users, "distance_step": step},
    grants,
    st.dictionaries(st.sampled_from(["alice", "bob"]), grants),
    st.sampled_from([0.0, 0.5]),
)


@settings(max_examples=cases(150), deadline=None)
@given(policies, policies, st.sampled_from(["", "alice", "bob", "carol"]))
def test_distances_are_shown_if_every_policy_allows_them(first, second, user):
    steps, allowed = {}, []
    for name, content in (("north", first), ("south", second)):
        one = offered(name, "points", "euclidean", POINTS)
        policy = PolicySection.model_validate(content)
        steps[name] = OfferedObjects(one.party, one.offer, policy=policy).offer.step_for(user)
        allowed.append(policy.grant_of(user).level == "distances")
    shown = describe_neighbors([("north", "1", 0.7), ("south", "2", 0.8)], steps)
    assert [(one["provider"], one["id"]) for one in shown] == [("north", "1"), ("south", "2")]
    expected = [
        distance if policy["distance_step"] == 0.0 else 1.0
        for policy, distance in ((first, 0.7), (second, 0.8))
    ]
    assert [one["distance"] for one in shown] == (expected if all(allowed) else [None, None])


numbers = {limit: st.integers(int(limit.endswith("k")), 9) for limit in LIMITS[:4]}
limited = st.fixed_dictionaries({}, optional={"level": levels, **numbers})
named = st.dictionaries(st.sampled_from("abc"), limited)


@settings(max_examples=cases(150), deadline=None)
@given(limited, named, named, st.sampled_from("abx"), st.lists(st.sampled_from("abx")))
def test_an_offer_states_the_rights_of_each_user(general, users, groups, user, member_of):
    policy = PolicySection.model_validate({**general, "users": users, "groups": groups})
    one = offered("north", "points", "euclidean", POINTS)
    offer = OfferedObjects(one.party, one.offer, policy=policy).offer
    received = decode(encode(offer), (OfferedCollection,))
    grant = policy.grant_of(user, member_of)
    stated = {n: value for n in ("level", *LIMITS) if (value := getattr(grant, n)) is not None}
    assert {"min_k": 1, **received.grant_for(user, member_of)} == stated


def test_a_hello_has_the_rights_of_a_thousand_users():
    grant = {"level": "distances", **dict.fromkeys(LIMITS[:5], 10)}
    users = {f"user-{number:04}@hospital.example": grant for number in range(1000)}
    one = offered("north", "points", "euclidean", POINTS)
    policy = PolicySection.model_validate({"users": users})
    offer = OfferedObjects(one.party, one.offer, policy=policy).offer
    assert len(encode(Hello("north", (offer,), bytes(64)))) < MAX_HELLO_BYTES


@settings(max_examples=cases(200), deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(5e-324, sys.float_info.max))
def test_a_distance_is_rounded_up_to_the_next_of_any_steps(distance, step):
    (one,) = describe_neighbors([("north", "1", distance)], {"north": step})

    error = max(abs(distance), step) * 2 * STEP_ERROR
    assert math.isfinite(one["distance"])
    assert distance - error <= one["distance"] <= distance + step + error


def test_a_provider_without_an_offer_shows_no_distance():
    assert describe_neighbors([("north", "1", 0.7)], {"south": 0.0})[0]["distance"] is None


def test_distances_are_shown_to_nobody_by_default():
    assert PolicySection().level == "ids"
    assert OfferedCollection("points", "euclidean", "", 3, {}).step_for("alice") is None


@pytest.mark.parametrize("step", [math.inf, math.nan, -1.0])
def test_a_distance_step_is_a_finite_number(step):
    with pytest.raises(ValueError, match="distance_step"):
        PolicySection(distance_step=step)
    with pytest.raises(ValueError, match="expected a distance step"):
        OfferedCollection("points", "euclidean", "", 3, {}, distance_step=step)


AREA = {"source": {"file": "x.csv", "columns": ["a", "b"]}, "metric": "haversine"}


@pytest.mark.parametrize(
    ("area", "metric"),
    [
        ([-181, 0, 0, 0], "haversine"),
        ([0, 0, math.nan, 0], "haversine"),
        ([math.nan, 0, 0, 0], "haversine"),
        ([0, 0, 0, 90.5], "haversine"),
        ([0, 2, 0, 1], "haversine"),
        ([0, 0, 1, 1], "euclidean"),
    ],
)
def test_an_area_is_one_of_places_in_degrees(area, metric):
    with pytest.raises(ValueError, match="area"):
        OfferSection.model_validate({**AREA, "metric": metric, "policy": {"area": area}})
    if metric == "haversine":
        with pytest.raises(ValueError, match="expected an area in degrees"):
            OfferedCollection("cities", metric, "", 3, {}, area=tuple(map(float, area)))


@pytest.mark.parametrize("area", [[-10, 40, 10, 50], [170, -20, -175, -10], [5, 50, 5, 50]])
def test_a_provider_states_its_area_and_no_other_by_default(area):
    section = OfferSection.model_validate({**AREA, "policy": {"area": area}})
    assert describe_offer("cities", section, "").area == tuple(area)
    section = OfferSection.model_validate(AREA)
    assert describe_offer("cities", section, "").area is None


@settings(max_examples=cases(150), deadline=None)
@given(sequences, st.integers(1, 6))
def test_no_query_returns_more_than_max_k(sequence, max_k):
    returned = {}
    sequence = [one for one in sequence if not isinstance(one[1], FinishRequest)]
    for _, request, reply in answers(make_party(max_k=max_k), sequence):
        if isinstance(reply, BoundReply | PaddedBoundReply):
            assert len(reply.bounds) <= max_k
        if isinstance(request, NearestRequest | PaddedNearestRequest):
            returned[request.name] = returned.get(request.name, 0) + ids_of(reply)
    assert max(returned.values(), default=0) <= max_k


@settings(max_examples=cases(150), deadline=None)
@given(sequences, st.integers(0, 14), st.integers(2, 14))
def test_searches_for_fewer_than_min_k_are_refused(sequence, k, min_k):
    party = make_party(min_k=min_k, users={"bob": {"min_k": 1}})
    party.k = k
    for user, request, _ in answers(party, sequence):
        of_private = isinstance(request, PaddedBoundRequest | PaddedNearestRequest)
        asked = request.k if of_private else k
        assert user == "bob" or asked >= min_k or isinstance(request, RangeCountRequest)


def test_objects_of_several_requests_are_counted_together():
    party = make_party(max_k=5)
    party.query = "a"
    party.answer(NearestRequest("a", QUERIES[0], 3, None))
    with pytest.raises(Refused, match=NOT_ALLOWED):
        party.answer(NearestRequest("a", QUERIES[0], 3, None))
    assert len(party.answer(NearestRequest("a", QUERIES[0], 2, None)).ids) == 2
    party.query = "b"
    assert len(party.answer(NearestRequest("b", QUERIES[1], 5, None)).ids) == 5


def test_padded_objects_of_several_requests_are_counted_together():
    party, query = make_party(max_k=3), QUERIES[0]
    party.query = "a"
    party.answer(PaddedBoundRequest("a", query, 3, 0.0))
    party.answer(PaddedNearestRequest("a", query, np.array([3]), 3, 0.0))
    with pytest.raises(Refused, match=NOT_ALLOWED):
        party.answer(PaddedNearestRequest("a", query, np.array([1]), 3, 0.0))


def test_no_bounds_are_sent_in_padded_messages_either():
    party = make_party(bounds=False)
    party.query = "a"
    for request in (BoundRequest("a", QUERIES[0], 3), PaddedBoundRequest("a", QUERIES[0], 3, 0.0)):
        with pytest.raises(Refused, match=NOT_ALLOWED):
            party.answer(request)


def test_a_request_of_another_query_is_refused():
    party = make_party()
    party.query = "a"
    with pytest.raises(Refused, match="of another query"):
        party.answer(NearestRequest("b", QUERIES[0], 3, None))


def test_small_counts_of_users_who_may_search_are_exact(tmp_path):
    party = make_party(min_count=5)
    party.query = "a"
    assert party.answer(RangeCountRequest("a", QUERIES[0], 1.0)).count == 2


def test_a_failure_is_logged_as_one(tmp_path, monkeypatch):
    log = AccessLog(tmp_path / "log.sqlite")
    party = make_party(log)
    party.query = "a"
    monkeypatch.setattr(party._party, "answer", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        party.answer(NearestRequest("a", QUERIES[0], 3, None))
    assert [entry["outcome"] for entry in log.entries()] == ["failed"]


@settings(max_examples=cases(150), deadline=None)
@given(sequences)
def test_private_collections_send_padded_messages_only(sequence):
    with Ledger(":memory:", party="north") as ledger:
        party = make_party(ledger=ledger, privacy={"epsilon": 1.0, "max_queries": 100})
        for _, _, reply in answers(party, sequence):
            assert isinstance(reply, PaddedBoundReply | PaddedNearestReply)


@settings(max_examples=cases(150), deadline=None)
@given(sequences)
def test_counts_have_allowed_radii(sequence):
    party = make_party(distance_step=2.0, max_radius=8.0, bounds=False)
    for _, request, reply in answers(party, sequence):
        assert not isinstance(reply, BoundReply)
        if isinstance(request, RangeCountRequest) and request.radius is not None:
            assert request.radius in (0.0, 2.0, 8.0)
    for _, request, _ in answers(make_party(distance_step=2.0), sequence):
        assert getattr(request, "radius", None) in (None, 0.0, 2.0, 8.0, 100.0)


@pytest.mark.parametrize(
    ("radius", "step", "is_allowed"),
    [(0.3, 0.1, True), (0.7, 0.1, True), (0.35, 0.1, False), (1e308, 5e-324, False)],
)
def test_radii_are_multiples_up_to_rounding(radius, step, is_allowed):
    party, request = make_party(distance_step=step), RangeCountRequest("a", QUERIES[0], radius)
    assert len(answers(party, [("alice", request)])) == is_allowed


@settings(max_examples=cases(60), deadline=None)
@given(sequences, st.integers(0, 5), st.integers(0, 20))
def test_users_stay_within_their_quotas_also_after_restarts(
    tmp_path_factory, sequence, n_queries, n_objects
):
    path = tmp_path_factory.mktemp("log") / "log.sqlite"
    policy = {"queries_per_day": n_queries, "objects_per_day": n_objects}
    objects, half = {"alice": 0, "bob": 0}, len(sequence) // 2
    for part in (sequence[:half], sequence[half:]):  # two processes
        log = AccessLog(path)
        for user, _, reply in answers(make_party(log, **policy), part):
            objects[user] += ids_of(reply)
        used = {user: log.usage("points", user) for user in objects}
        log.close()
    for user, n in objects.items():
        assert n <= used[user][1] <= n_objects
        assert used[user][0] <= n_queries


@settings(max_examples=cases(60), deadline=None)
@given(sequences, st.integers(1, 3))
def test_no_object_is_seen_in_more_queries_than_allowed(tmp_path_factory, sequence, n_views):
    log = AccessLog(tmp_path_factory.mktemp("log") / "log.sqlite")
    seen = {}
    for user, request, reply in answers(make_party(log, views_per_day=n_views), sequence):
        assert not isinstance(reply, PaddedBoundReply | PaddedNearestReply)
        assert getattr(request, "radius", None) is None
        for name in getattr(reply, "ids", ()):
            seen.setdefault((user, name), set()).add(request.query)
    log.close()
    assert max(map(len, seen.values()), default=0) <= n_views


@pytest.mark.parametrize("reason", ["quota", "views", "log", "late"])
def test_a_withheld_reply_leaves_no_payload(tmp_path, monkeypatch, reason):
    log = AccessLog(tmp_path / "log.sqlite")
    limits = {"quota": {"objects_per_day": 4}, "views": {"views_per_day": 1}}
    party = make_party(log, **limits.get(reason, {}))
    search = party._party._answer
    party.query = "a"
    party.answer(NearestRequest("a", QUERIES[0], 3, None))
    party.query, second = "b", QUERIES[1]
    with monkeypatch.context() as patched:
        if reason == "log":
            patched.setattr(log, "append", raise_full)
        if reason == "late":
            patched.setattr(party._party, "_answer", lambda request: raise_late(search(request)))
        with pytest.raises(Refused):
            party.answer(NearestRequest("b", second, 4, None))
    with pytest.raises(Refused, match="not open"):
        party.answer(PayloadRequest("b", second, ("2",)))
    party.query = "a"
    assert party.answer(PayloadRequest("a", QUERIES[0], ("2",))).rows == ('{"note": "note 2"}',)


def raise_late(_):
    raise TimeoutError


def raise_full(*_, **__):
    raise LogFailed("the disk is full")


@pytest.mark.parametrize(("views", "n_located"), [(None, 40), (2, 0)])
def test_counts_confirm_no_place_that_two_views_leave(tmp_path, views, n_located):
    points = np.random.default_rng(3).normal(size=(40, 2))
    party = make_party(AccessLog(tmp_path / "log.sqlite"), points=points, views_per_day=views)
    seen, located = {}, 0
    for name, east in (("a", -5.0), ("b", 5.0)):
        request = NearestRequest(name, encode_query([east, 0.0]), 40, None)
        ((_, _, reply),) = answers(party, [("alice", request)])
        for one, distance in zip(reply.ids, reply.distances, strict=True):
            seen.setdefault(int(one), []).append(distance)
    for row, (first, second) in seen.items():
        x = (first**2 - second**2) / 20
        y = math.sqrt(first**2 - (x + 5) ** 2)
        for place in ((x, y), (x, -y)):  # a mirror image
            request = RangeCountRequest(str(place), encode_query(place), 1e-6)
            counts = [reply.count for _, _, reply in answers(party, [("alice", request)])]
            located += counts == [1] and np.allclose(points[row], place, atol=1e-5)
    assert located == n_located


def test_views_of_private_searches_are_an_error():
    privacy = {"epsilon": 1.0, "max_queries": 3}
    for views in ({"views_per_day": 2}, {"users": {"bob": {"views_per_day": 2}}}):
        with pytest.raises(ValueError, match="omit views_per_day, or privacy"):
            PolicySection.model_validate({"privacy": privacy, **views})


def test_a_spent_quota_is_refused_before_the_search(tmp_path):
    log = AccessLog(tmp_path / "log.sqlite")
    party = make_party(log, queries_per_day=1)
    party.user = "alice"
    party.query = "a"
    party.answer(NearestRequest("a", QUERIES[0], 3, None))
    party.answer(NearestRequest("a", QUERIES[0], 3, None))  # the same query
    party.query = "b"
    with pytest.raises(Refused, match=QUOTA_SPENT):
        party.answer(NearestRequest("b", QUERIES[0], 3, None))
    party.user = "bob"
    party.answer(NearestRequest("b", QUERIES[0], 3, None))
    assert [entry["outcome"] for entry in log.entries()] == ["", "", QUOTA_SPENT, ""]
    assert log.usage("points", "alice") == (1, 6)


SECTIONS = {
    name: {"metric": "euclidean", "providers": ["north", "south"], "tie_key": "0"}
    for name in ("points", "ranks", "counts", "several")
}
POLICIES = {
    "points": {
        "north": {
            "level": "distances",
            "distance_step": 0.5,
            "users": {"bob": {"level": "count"}},
            "queries_per_day": 9,
        },
        "south": {"level": "distances"},
    },
    "ranks": {name: {} for name in ("north", "south")},
    "counts": {name: {"level": "count", "min_count": 3} for name in ("north", "south")},
    "several": {"north": {"level": "distances", "min_k": 3}, "south": {"level": "distances"}},
}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    with deployed(folder, SECTIONS) as running:
        for number, provider in enumerate(["north", "south"]):
            log = AccessLog(folder / f"{provider}.sqlite")
            offers = {}
            for name, policies in POLICIES.items():
                points = POINTS[number::2] + 0.2
                one = offered(provider, name, "euclidean", points, tie_key="0")
                policy = PolicySection.model_validate(policies[provider])
                offers[name] = OfferedObjects(one.party, one.offer, policy=policy, log=log)
            running.start(provider, offers)
        running.wait("north", "south")
        yield running


def test_users_see_rounded_distances_in_exact_order(deployment):
    with deployment.client("points") as search:
        distances, objects = search.kneighbors([[0.0]], 4)

    assert [provider for provider, _ in objects[0]] == ["north", "south", "north", "south"]
    np.testing.assert_allclose(distances[0], [0.5, 1.2, 2.5, 3.2])
    assert search.results_[0]["exact"]


def test_the_default_level_hides_distances(deployment):
    with deployment.client("ranks") as search:
        distances, objects = search.kneighbors([[0.0]], 12)
        assert np.isnan(distances[0]).all()
        labels = {(p, str(n)): n % 2 for p in ("north", "south") for n in range(6)}
        uniform = RemoteNeighborsClassifier(search, n_neighbors=3).fit(labels)
        assert uniform.predict_proba([[0.0]]).tolist() == [[2 / 3, 1 / 3]]  # rows 0, 0 and 1
        votes = RemoteNeighborsClassifier(search, weights="distance").fit(labels)
        with pytest.raises(ValueError, match="shows no distances"):
            votes.predict([[0.0]])
        search.kneighbors([[0.0]], 12)
        found = [POINTS[2 * int(name) + (provider == "south"), 0] for provider, name in objects[0]]
        assert found == sorted(found)
        for ask in (search.count, search.radius_neighbors):
            with pytest.raises(ServiceError, match="not-allowed"):
                ask([[0.0]], 3.0)


@pytest.mark.parametrize(("collection", "is_shown"), [("ranks", False), ("points", True)])
def test_command_prints_distances_if_shown(deployment, monkeypatch, collection, is_shown):
    monkeypatch.setenv("FEDNEIGHBORS_TOKEN", deployment.token)
    options = ["-k", "2", "--certificate", str(deployment.certificate)]
    result = CliRunner().invoke(app, ["search", deployment.url, collection, "0", *options])
    assert result.stdout.startswith("2 nearest objects")
    assert ("distance" in result.stdout) == is_shown


@pytest.mark.parametrize("collection", ["ranks", "points"])
def test_shards_must_show_exact_distances(deployment, tmp_path, collection):
    (tmp_path / "token").write_text(deployment.token)
    options = {
        "url": deployment.url,
        "collection": collection,
        "token_file": "token",
        "certificate": str(deployment.certificate),
    }
    with pytest.raises(DataError, match="the shards show no exact distances"):
        BrokerSource(SourceSettings("euclidean", options, folder=tmp_path))


def test_certified_events_hide_distances(deployment):
    headers = {"Authorization": f"Bearer {deployment.token}", "Prefer": "respond-async"}
    context = ssl.create_default_context(cafile=str(deployment.certificate))
    with httpx.Client(
        base_url=deployment.url, headers=headers, verify=context, timeout=LIMIT_S
    ) as client:
        body = {"query": [0.0], "k": 5}
        location = client.post("/v1/collections/ranks/search", json=body).headers["location"]
        events = client.get(f"{location}/events").text
    assert "event: certified" in events
    assert '"distance":null' in events.replace(" ", "")
    assert '"distance":0' not in events.replace(" ", "")


def test_level_count_answers_counts_only(deployment):
    with deployment.client("counts") as search:
        assert search.count([[0.0], [0.0]], 6.0).tolist() == [6, 6]
        assert search.count([[0.0]], 3.0).tolist() == [0]  # two at one provider, one at the other
        with pytest.raises(ServiceError, match="not-allowed") as caught:
            search.kneighbors([[0.0]], 1)
    assert caught.value.status == 403


@pytest.mark.parametrize("algorithm", ["baseline", "dann", "hufu", "hufu+", "eager"])
def test_every_algorithm_tells_the_number_of_neighbors(deployment, algorithm):
    with deployment.client("several", algorithm=algorithm) as search:
        assert len(search.kneighbors([[0.0]], 3)[1][0]) == 3
        with pytest.raises(ServiceError, match="at least 3") as caught:
            search.kneighbors([[0.0]], 2)
        assert (caught.value.code, caught.value.party) == ("few-asked", "north")


def test_min_k_allows_counts_and_no_radius(deployment):
    with deployment.client("several") as search:
        assert search.count([[0.0]], 2.0) == [2]
        with pytest.raises(ServiceError, match="within a radius"):
            search.radius_neighbors([[0.0]], 2.0)


def test_users_have_their_own_levels_and_quotas(deployment):
    token = deployment.broker.state.new_token("bob", 1)
    with deployment.client("points", token=token) as search:
        with pytest.raises(ServiceError, match="not-allowed"):
            search.kneighbors([[0.0]], 1)
        assert search.count([[0.0]], 3.0).tolist() == [3]
    token = deployment.broker.state.new_token("carol", 1)
    with deployment.client("points", token=token) as search:
        for _ in range(9):
            search.kneighbors([[0.0]], 1)
        with pytest.raises(ServiceError, match="quota-spent") as caught:
            search.kneighbors([[0.0]], 1)
    assert caught.value.status == 429
    assert caught.value.party == "north"


def test_nothing_is_answered_that_cannot_be_logged(tmp_path, caplog):
    log = AccessLog(tmp_path / "log.sqlite")
    party = make_party(log, queries_per_day=9)
    log.close()
    party.query = "a"
    with pytest.raises(Refused, match=LOG_FAILED):
        party.answer(NearestRequest("a", QUERIES[0], 3, None))
    assert "log.sqlite cannot be used" in caplog.text


def test_a_log_that_fails_is_named(tmp_path):
    section = {"points": {"metric": "euclidean", "providers": ["north"]}}
    with deployed(tmp_path, section) as deployment:
        log = AccessLog(tmp_path / "north.sqlite")
        one = offered("north", "points", "euclidean", POINTS)
        deployment.start("north", {"points": OfferedObjects(one.party, one.offer, log=log)})
        deployment.wait("north")
        with deployment.client("points") as search:
            search.kneighbors([[0.0]], 1)
            log.close()
            with pytest.raises(ServiceError, match="log-failed") as caught:
                search.kneighbors([[0.0]], 1)
            assert (caught.value.party, caught.value.retryable) == ("north", True)
            deployment.broker.log.close()
            with pytest.raises(ServiceError, match="the broker cannot write its log"):
                search.kneighbors([[0.0]], 1)


def test_users_read_their_own_entries_of_the_log(deployment):
    token = deployment.broker.state.new_token("dora", 1)
    context = ssl.create_default_context(cafile=str(deployment.certificate))
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(
        base_url=deployment.url, headers=headers, verify=context, timeout=LIMIT_S
    ) as client:
        assert client.get("/v1/audit").json() == {"entries": [], "next": None}
        answers = [
            client.post("/v1/collections/points/search", json={"query": [1.0], "k": k}).json()
            for k in (1, 2, 3)
        ]
        client.post("/v1/collections/ranks/count", json={"query": [1.0], "radius": 2})
        page = client.get("/v1/audit", params={"limit": 3}).json()
        rest = client.get("/v1/audit", params={"cursor": page["next"]}).json()
    entries = page["entries"] + rest["entries"]
    assert [entry["query"] for entry in entries[:3]] == [one["query_id"] for one in answers]
    assert [(entry["kind"], entry["size"], entry["outcome"]) for entry in entries] == [
        ("search", 1, ""),
        ("search", 2, ""),
        ("search", 3, ""),
        ("count", 2, "not-allowed"),
    ]
    assert {entry["user"] for entry in entries} == {"dora"}
    assert rest["next"] is None


def test_repeated_queries_are_one_view(tmp_path):
    log = AccessLog(tmp_path / "log.sqlite")
    party = make_party(log, views_per_day=2)
    for name, query, is_allowed in (
        ("a", QUERIES[0], True),
        ("b", QUERIES[0], True),  # the same query again
        ("c", encode_query([0.1]), True),
        ("d", encode_query([0.2]), False),
        ("e", QUERIES[2], True),  # shows other objects
        ("f", QUERIES[0], True),
    ):
        party.query = name
        if is_allowed:
            assert len(party.answer(NearestRequest(name, query, 2, None)).ids) == 2
        else:
            with pytest.raises(Refused, match="more queries of a day than allowed"):
                party.answer(NearestRequest(name, query, 2, None))
    party.user, party.query = "bob", "d"
    party.answer(NearestRequest("d", encode_query([0.2]), 2, None))
