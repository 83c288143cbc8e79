"""Links between providers and the broker: identity, lost queries, deadlines, faults."""

import asyncio
import contextlib
import dataclasses
import datetime
import logging
import socket
import ssl
import struct
import threading
import time
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography import x509
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from fedneighbors.errors import DataError, FederationError, PartyMissing, PartyRefused, WireError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import MALFORMED, Refusal, Refused
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn.metrics._function import FunctionMetric
from fedneighbors.methods.fedknn.protocol import NearestReply, NearestRequest
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service import (
    BrokerUnreachable,
    ServiceError,
    _app,
    _broker,
    _limits,
    _links,
    _offers,
    _query_run,
    _rest,
    _tls,
)
from fedneighbors.service._config import ProviderConfig
from fedneighbors.service._dialling import CLOCK_CODES, explain_certificate
from fedneighbors.service._enrolment import enrol
from fedneighbors.service._limits import MAX_HELLO_BYTES
from fedneighbors.service._links import PendingReplies, ProviderLink, QueryExchange, QueryLost
from fedneighbors.service._messages import (
    MAX_LINK_VALUES,
    UNKNOWN_COLLECTION,
    Hello,
    LinkReplies,
    LinkRequest,
    LinkRequests,
    OfferedCollection,
    take_batch,
)
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.service._problems import problem_of
from fedneighbors.service._provider import ConnectionRejected, ProviderService
from fedneighbors.service._query_run import QueryOptions
from fedneighbors.service._server import add_local_provider
from fedneighbors.service._state import BrokerState, StateFailed
from fedneighbors.service._tls import make_certificate, pinned_context, read_fingerprint
from tests.service.deployment import deployed, offered

POINTS = np.arange(40.0).reshape(20, 2)
COLLECTION = {"points": {"metric": "euclidean", "providers": ["north", "south"]}}


def points(provider, **options):
    rows = POINTS[::2] if provider == "north" else POINTS[1::2]
    ids = [f"{provider}-{i}" for i in range(len(rows))]
    return {"points": offered(provider, "points", "euclidean", rows, ids=ids, **options)}


@pytest.fixture
def deployment(tmp_path):
    with deployed(tmp_path, COLLECTION) as running:
        for provider in ("north", "south"):
            running.start(provider, points(provider))
        running.wait("north", "south")
        yield running


def reason(task):
    """Return why a provider's process ended."""
    with pytest.raises(ConnectionRejected) as info:
        task.result(20)
    return str(info.value)


def test_a_provider_with_another_key_is_rejected(deployment):
    deployment.stop("north")
    task = deployment.start("north", points("north"), identity=Identity.new())
    assert "not enrolled, its key is revoked" in reason(task)


def test_a_provider_that_is_not_enrolled_is_rejected(deployment):
    deployment.identities["stranger"] = Identity.new()
    assert "not enrolled" in reason(deployment.start("stranger", points("stranger")))


def test_a_provider_may_offer_only_collections_that_list_it(deployment):
    task = deployment.start("east", points("east"))
    assert "may not offer this collection: points" in reason(task)


@pytest.mark.parametrize(
    ("offer", "message"),
    [
        (
            lambda: {"points": offered("north", "points", "manhattan", POINTS)},
            "'metric' differs: collection 'points' has 'euclidean' at the broker, 'manhattan' here",
        ),
        (lambda: points("north", tie_key="x"), "'tie_key' differs"),
        (
            lambda: points("north", columns={"age": [1] * 10}, filters={"age": "number"}),
            "'filters' differs",
        ),
        (
            lambda: {"words": offered("north", "words", "edit", ["a"])},
            "the broker has no such collection: words",
        ),
    ],
)
def test_settings_that_differ_from_the_brokers_are_rejected(deployment, offer, message):
    deployment.stop("north")
    assert message in reason(deployment.start("north", offer()))


def test_a_second_process_replaces_the_first_which_ends(deployment):
    first = deployment.tasks["north"]
    deployment.start("north", points("north"))
    assert "another process has connected as this provider" in reason(first)
    deployment.wait("north")
    assert deployment.client("points").kneighbors([[0.0, 1.0]], 1)[1][0][0] == ("north", "north-0")


def test_the_link_of_a_revoked_provider_ends(deployment):
    task = deployment.tasks["north"]
    deployment.broker.state.revoke("north")
    assert "revoked" in reason(task)
    with pytest.raises(ServiceError, match="it is not connected") as info:
        deployment.client("points").kneighbors([[0.0, 1.0]], 1)
    assert (info.value.code, info.value.retryable) == ("provider-missing", True)


@pytest.mark.parametrize("is_revoked", [True, False])
def test_no_query_uses_the_link_of_a_former_key(tmp_path, is_revoked):
    server = {"listen": "127.0.0.1:0", "heartbeat_s": 60.0}  # nothing else looks at the keys
    with deployed(tmp_path, COLLECTION, server=server) as deployment:
        tasks = [deployment.start(name, points(name)) for name in ("north", "south")]
        deployment.wait("north", "south")
        client = deployment.client("points")
        assert client.kneighbors([[0.0, 1.0]], 1)[1][0][0].id == "north-0"
        state = BrokerState(tmp_path / "state/broker.sqlite")  # as a command opens it
        if is_revoked:
            state.revoke("north")
        else:
            identity = Identity.new()
            add_local_provider(state, "north", identity)
        state.close()
        with pytest.raises(ServiceError, match="it is not connected"):
            client.kneighbors([[0.0, 1.0]], 1)
        assert ("revoked" if is_revoked else "replaced at an enrolment") in reason(tasks[0])
        if not is_revoked:
            deployment.start("north", points("north"), identity=identity)
            deployment.wait("north")
            assert client.kneighbors([[0.0, 1.0]], 1)[1][0][0].id == "north-0"


def test_an_enrolment_with_another_key_ends_the_link_at_once(tmp_path):
    server = {"listen": "127.0.0.1:0", "heartbeat_s": 60.0}
    with deployed(tmp_path / "broker", COLLECTION, server=server) as deployment:
        task = deployment.start("north", points("north"))
        deployment.wait("north")
        fingerprint = read_fingerprint(deployment.certificate)
        code = deployment.broker.state.new_code("north", fingerprint)
        config = ProviderConfig.model_validate(
            {
                "format": 1,
                "folder": tmp_path,
                "provider": {"name": "north", "broker": deployment.url},
                "collections": {"points": {"metric": "euclidean", "source": {"file": "a.csv"}}},
            }
        )
        enrol(config, str(code))
        assert "north" not in deployment.broker.registry.links
        assert "replaced at an enrolment" in reason(task)


def test_a_revoked_provider_is_found_after_a_failure_of_the_state(deployment, monkeypatch):
    state, keys = deployment.broker.state, deployment.broker.state.keys
    failed = threading.Event()

    def fail_once():
        if not failed.is_set():
            failed.set()
            raise StateFailed("database is locked")
        return keys()

    monkeypatch.setattr(state, "keys", fail_once)
    task = deployment.tasks["north"]
    assert failed.wait(20)
    state.revoke("north")
    assert "revoked" in reason(task)


def test_a_link_whose_provider_does_not_read_is_replaced(deployment):
    async def never(_):
        await asyncio.Event().wait()

    deployment.enrol("west")
    key = deployment.identities["west"].public
    registry, hello = deployment.broker.registry, Hello("west", (), b"")
    old, new = (ProviderLink(hello, key, never, registry._check) for _ in range(2))
    for link in (old, new):
        deployment.run(asyncio.wait_for(registry.add(link), 20))
    assert registry.links["west"] is new
    assert not old.is_open


class Relay:
    """Passes bytes on to the broker, and ends TLS with a certificate of its own."""

    def __init__(self, url, folder):
        self.port = int(url.rpartition(":")[2])
        self.certificate, key = folder / "relay.crt", folder / "relay.key"
        make_certificate(self.certificate, key, [])
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(self.certificate, key)

    async def start(self):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.context)
        return f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader, writer):
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        up, down = await asyncio.open_connection("127.0.0.1", self.port, ssl=trusting)
        await asyncio.gather(self._pass(reader, down), self._pass(up, writer))

    async def _pass(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()


def test_a_relay_with_another_certificate_is_noticed_by_the_provider(deployment, tmp_path):
    url = deployment.run(Relay(deployment.url, tmp_path).start())
    deployment.stop("north")
    task = deployment.start("north", points("north"), url=url)
    assert "another certificate than at the enrolment" in reason(task)


def test_a_certificate_that_the_clock_refuses_is_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(_tls, "_VALID_DAYS", -1)
    with deployed(tmp_path, COLLECTION) as running:
        with pytest.raises(ssl.SSLCertVerificationError) as info:
            running.run(open_link(running))
        with (
            running.client("points") as client,
            pytest.raises(BrokerUnreachable, match=r"has expired.*set the clock"),
        ):
            client.kneighbors([POINTS[0]], 1)

    assert info.value.verify_code in CLOCK_CODES
    assert "has expired; set the clock" in explain_certificate(running.url, info.value)


def test_a_certificate_is_valid_if_clocks_are_a_day_off(tmp_path):
    make_certificate(tmp_path / "server.crt", tmp_path / "server.key", ())
    made = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    day, now = datetime.timedelta(days=1), datetime.datetime.now(datetime.UTC)

    assert made.not_valid_before_utc < now - day < now + day < made.not_valid_after_utc


def test_a_relay_that_the_provider_trusts_is_noticed_by_the_broker(deployment, tmp_path):
    relay = Relay(deployment.url, tmp_path)
    url = deployment.run(relay.start())
    deployment.stop("north")
    service = ProviderService("north", deployment.identities["north"], points("north"))
    with pytest.raises(ConnectionRejected, match="another server certificate"):
        deployment.run(service.run(url, relay.certificate.read_text()))


def slow_down(collections, *, calls, before):
    """Call ``before`` before the answers with these numbers."""
    one, count = collections["points"], iter(range(1000))
    answer = one.answer

    def slow(request, deadline):
        if next(count) in calls:
            before()
        return answer(request, deadline)

    one.answer = slow
    return collections


@pytest.mark.parametrize("algorithm", ["dann", "hufu", "hufu+"])
def test_a_query_is_run_again_if_a_provider_is_restarted_during_it(deployment, algorithm):
    deployment.stop("north")
    restarted = threading.Event()

    def restart():
        deployment.tasks["north"].cancel()
        deployment.start("north", points("north"))
        restarted.set()

    offers = slow_down(points("north"), calls={1}, before=restart)
    deployment.start("north", offers)
    deployment.wait("north")
    client = deployment.client("points", algorithm=algorithm)
    distances, _ = client.kneighbors([[0.0, 1.0]], 4)
    assert restarted.is_set()
    steps = np.arange(4) * 8**0.5
    np.testing.assert_array_equal(distances[0], np.sqrt((np.arange(4) * 2) ** 2 * 2))
    assert np.allclose(distances[0], steps)


def test_a_lost_provider_leaves_time_for_a_partial_answer(deployment, monkeypatch):
    link, query = deployment.broker.registry.links["north"], encode_query([0.0, 1.0])
    passed = [0.0]

    async def close(_):
        deployment.tasks["north"].cancel()
        link.close()

    async def pass_time(_, seconds):  # the provider stays away
        passed[0] += seconds

    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: time.monotonic() + passed[0]})
    for module in (_broker, _query_run, _links):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(_broker, "_RECONNECT_S", 600.0)
    monkeypatch.setattr(deployment.broker.registry, "wait_for", pass_time)
    monkeypatch.setattr(link, "_send", close)
    search = deployment.broker.search("points", query, 1, deadline_s=600.0, allow_partial=True)
    answer = deployment.run(search).outcome.result
    assert 0 < passed[0] <= 300
    assert list(answer.missing) == ["north"]


def test_a_query_is_lost_if_its_link_closes_between_exchanges(deployment):
    registry = deployment.broker.registry
    later = time.monotonic() + 10
    exchange = QueryExchange(registry, "points", "q", later, is_patient=True)
    frames = {"north": request("q", 0).body}
    assert list(deployment.run(exchange(frames)).answers) == ["north"]
    registry.links["north"].close()
    with pytest.raises(QueryLost, match="'north' was lost during the query"):
        deployment.run(exchange(frames))


def test_a_query_that_a_provider_dropped_is_run_again(deployment, monkeypatch):
    deployment.stop("north")
    offers = points("north")
    forget = slow_down(offers, calls={1}, before=offers["points"]._steps.clear)
    deployment.start("north", forget)
    deployment.wait("north")
    distances, _ = deployment.client("points", algorithm="dann").kneighbors([[0.0, 1.0]], 2)
    assert np.allclose(distances[0], [0, 8**0.5])


def test_a_provider_without_an_answer_before_the_deadline_is_missing(deployment):
    deployment.stop("north")
    is_released = threading.Event()
    offers = slow_down(points("north"), calls={0}, before=lambda: is_released.wait(60))
    deployment.start("north", offers)
    deployment.wait("north")
    with pytest.raises(ServiceError, match="no answer before the deadline"):
        deployment.client("points", deadline_s=1.0).kneighbors([[0.0, 1.0]], 1)
    partial = deployment.client("points", deadline_s=1.0, allow_partial=True, algorithm="dann")
    _, objects = partial.kneighbors([[0.0, 1.0]], 1)  # north still answers the first request
    assert partial.results_[0]["exact"] is False
    assert list(partial.results_[0]["missing"]) == ["north"]
    assert objects[0][0].provider == "south"
    is_released.set()
    assert deployment.client("points").kneighbors([[0.0, 1.0]], 1)[1][0][0].provider == "north"


def test_a_slow_collection_does_not_delay_another(tmp_path):
    names = ("slow", "fast")
    sections = {name: {"metric": "euclidean", "providers": ["north"]} for name in names}
    offers = {name: offered("north", name, "euclidean", POINTS) for name in names}
    has_begun, is_released, found = threading.Event(), threading.Event(), []

    def wait():
        has_begun.set()
        is_released.wait(60)

    slow_down({"points": offers["slow"]}, calls={0}, before=wait)
    with deployed(tmp_path, sections) as deployment:
        deployment.start("north", offers)
        deployment.wait("north")

        def search():
            found.append(deployment.client("slow").kneighbors([[0.0, 1.0]], 1)[1][0][0].id)

        thread = threading.Thread(target=search)
        thread.start()
        assert has_begun.wait(20)
        client = deployment.client("fast", deadline_s=5.0)
        try:
            assert client.kneighbors([[0.0, 1.0]], 1)[1][0][0].id == "0"
            assert not found
        finally:
            is_released.set()
            thread.join(60)
    assert found == ["0"]


def test_a_malformed_frame_ends_the_link_and_the_provider_connects_again(deployment):
    link = deployment.broker.registry.links["north"]
    deployment.run(link._send(b"not a frame"))

    async def wait():
        while deployment.broker.registry.links.get("north") in (link, None):
            await asyncio.sleep(0.01)

    deployment.run(asyncio.wait_for(wait(), 20))
    assert deployment.client("points").kneighbors([[0.0, 1.0]], 1)[1][0][0].provider == "north"


def test_a_late_reply_is_ignored(deployment):
    link = deployment.broker.registry.links["north"]
    link.receive(encode(LinkReplies((10**9,), (0,), (b"",), (b"",))))
    with pytest.raises(FederationError):
        link.receive(b"")


@pytest.mark.parametrize(
    "origin",
    [
        {"user": "u" * 201},
        {"groups": ("g" * 16_384,)},
        {"groups": ("",) * 16_385},
        {"purpose": "p" * 101},
        {"query_id": "q" * 65},
    ],
    ids=lambda origin: next(iter(origin)),
)
def test_a_provider_refuses_long_names_and_keeps_the_link(deployment, origin):
    link, query = deployment.broker.registry.links["north"], encode_query([0.0, 1.0])
    with pytest.raises(PartyRefused, match="too long"):
        deployment.run(deployment.broker.search("points", query, 1, **origin))
    assert deployment.broker.registry.links["north"] is link


def test_a_provider_refuses_a_long_reply_and_keeps_the_link(deployment, monkeypatch):
    monkeypatch.setattr("fedneighbors.service._provider.MAX_REPLY_BYTES", 100)
    link, query = deployment.broker.registry.links["north"], encode_query([0.0, 1.0])
    with pytest.raises(PartyRefused, match="too large"):
        deployment.run(deployment.broker.search("points", query, 20, algorithm="baseline"))
    assert deployment.broker.registry.links["north"] is link


def test_a_link_takes_no_more_values_than_replies_have(deployment):
    link, n = deployment.broker.registry.links["north"], MAX_LINK_VALUES // 4
    with pytest.raises(WireError, match=f"more than {MAX_LINK_VALUES} values"):
        link.receive(encode(LinkReplies((0,) * n, (0,) * n, (b"",) * n, (b"",) * n)))


def test_tokens_have_names_that_fit_into_requests(deployment):
    groups = ("g" * 200,) * 80
    token = deployment.broker.state.new_token("u" * 200, 1, groups=groups)
    with deployment.client("points", token=token, purpose="p" * 100) as client:
        assert client.kneighbors([[0.0, 1.0]], 1)[1][0][0].provider == "north"
    for user, given in (("u" * 201, ()), ("u", ("g" * 16_384,))):
        with pytest.raises(DataError, match="expected at most 200 characters of the user"):
            deployment.broker.state.new_token(user, 1, groups=given)


@pytest.mark.parametrize(
    ("missing", "error"),
    [(("north",), PartyMissing), (("south",), QueryLost), (("south", "north"), QueryLost)],
    ids=str,
)
def test_a_repetition_without_time_accuses_no_other_provider(deployment, missing, error):
    late = PartyMissing(dict.fromkeys(missing, "no answer before the deadline"), "the counts")
    errors = [QueryLost("north", "the link was lost"), late]

    async def fail(_):
        raise errors.pop(0)

    with pytest.raises(error) as caught:
        deployment.run(deployment.broker.perform("points", QueryOptions(), fail))
    content = problem_of(caught.value).content
    assert (content["party"], content["retryable"]) == ("north", True)


def request(query, step):
    frame = encode(NearestRequest(query, encode_query([0.0, 1.0]), 1, None))
    return LinkRequest(0, "points", query, step, 1000, frame)


def test_a_repeated_request_is_refused(deployment):
    one = points("north")["points"]
    later = time.monotonic() + 10
    first = one.answer(request("q", 0), later)
    assert b"unknown query" in one.answer(request("q", 0), later)  # it was answered
    assert b"unknown query" not in one.answer(request("q", 1), later)
    assert b"unknown query" in one.answer(request("q", 3), later)
    one.close(("q",))
    assert first == one.answer(request("q", 0), later)


def test_queries_that_are_idle_or_too_many_are_closed(monkeypatch):
    monkeypatch.setattr(_offers, "MAX_OPEN_QUERIES", 3)
    one = points("north")["points"]
    later = time.monotonic() + 1000
    for number in range(5):
        one.answer(request(f"q{number}", 0), later)
    assert len(one.party._open) == 3
    assert b"unknown query" in one.answer(request("q0", 1), later)
    monkeypatch.setattr(_offers, "IDLE_S", -2000.0)  # the deadlines were long ago
    one.answer(request("last", 0), later)
    assert list(one.party._open) == ["last"]


def test_queries_of_a_lost_link_are_closed(tmp_path):
    one, closed = points("north")["points"], threading.Event()
    one.answer(request("q", 0), time.monotonic() + 1000)
    close_all = one.close_all
    one.close_all = lambda: (close_all(), closed.set())
    with deployed(tmp_path, COLLECTION) as deployment:
        deployment.start("north", {"points": one})
        deployment.wait("north")
        assert one.has("q")
        deployment.stop("north")
        assert closed.wait(20)
    assert not one.party._open


def test_a_request_after_its_deadline_is_not_searched():
    one = points("north")["points"]
    assert b"deadline" in one.answer(request("q", 0), time.monotonic() - 1)
    assert not one.party._open


def test_a_search_stops_at_its_deadline(monkeypatch):
    seconds = iter(range(10**6))  # each reading of the clock takes a second
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    metric = FunctionMetric(lambda first, second: abs(first[0] - second[0]), "slow")
    rows = [[float(i), 0.0] for i in range(500)]
    party = Provider.of("north", rows, metric, decode=decode_query)
    one = OfferedObjects(party, OfferedCollection("points", "euclidean", "", 500, {}))
    opened, open_query = [], party.source.open

    def keep(*args, **options):
        opened.append(open_query(*args, **options))
        return opened[-1]

    monkeypatch.setattr(party.source, "open", keep)
    assert b"deadline" in one.answer(request("q", 0), 20.0)
    assert opened[0].n_verified < 500
    assert not party._open  # a payload of its objects cannot be asked for


def test_a_request_for_a_collection_without_a_printable_name_is_refused():
    service = ProviderService("north", Identity.new(), points("north"))
    odd = dataclasses.replace(request("q", 0), collection="\0" * 500)
    waiting = deque([(time.monotonic() + 10, odd)])
    replies = decode(service._answer(odd.collection, waiting, ()), (LinkReplies,))
    assert decode(replies.bodies[0], (Refusal,)).code == UNKNOWN_COLLECTION


def test_a_request_for_more_objects_than_can_be_counted_is_malformed():
    one, later = offered("north", "words", "edit", ["cat", "dog", "cart"]), time.monotonic() + 60
    query = encode_query("cot")
    replies = []
    for step, count in enumerate((2, 2**62)):
        frame = encode(NearestRequest("q", query, count, None))
        replies.append(one.answer(LinkRequest(0, "words", "q", step, 1000, frame), later))
    assert [len(decode(reply, (NearestReply,)).ids) for reply in replies] == [2, 1]
    frame = frame.replace(struct.pack("<q", 2**62), struct.pack("<q", 2**63 - 1))
    reply = one.answer(LinkRequest(0, "words", "q", 2, 1000, frame), later)
    assert decode(reply, (Refusal,)).code == MALFORMED


def test_ended_queries_of_all_collections_are_closed():
    collections = {name: points("north")["points"] for name in ("points", "others")}
    service = ProviderService("north", Identity.new(), collections)
    later = time.monotonic() + 10
    service._answer("points", deque([(later, request("q", 0))]), ())
    assert list(collections["points"].party._open) == ["q"]
    other = dataclasses.replace(request("other", 0), collection="others")
    received = LinkRequests(("q",), (encode(other),))
    for name, waiting in service._sort(received).items():
        service._answer(name, waiting, received.closed)
    assert list(collections["others"].party._open) == ["other"]
    assert not collections["points"].party._open


def test_a_long_hello_is_refused_before_it_is_read(deployment):
    with pytest.raises(Refused, match="not a hello"):
        deployment.broker.registry.accept(b"x" * (1 << 17), b"", None)


def test_a_link_that_cannot_send_counts_as_lost(deployment):
    link = deployment.broker.registry.links["north"]

    async def fail(_):
        raise RuntimeError("the transport is closed")

    link._send = fail
    with pytest.raises(ServiceError, match=r"provider-(restarted|missing)"):
        deployment.client("points", deadline_s=1.0).kneighbors([[0.0, 1.0]], 1)
    partial = deployment.client("points", allow_partial=True)
    assert partial.kneighbors([[0.0, 1.0]], 1)[1][0][0].provider == "south"
    assert partial.results_[0]["missing"] == {"north": "it is not connected"}


def test_a_broker_leaves_the_loggers_of_others_as_they_are(tmp_path):
    logger = logging.getLogger("somebody else's")
    logger.disabled = True
    with deployed(tmp_path, COLLECTION):
        assert logger.disabled


async def open_link(deployment):
    """Open a WebSocket whose peer has not signed anything."""
    context = pinned_context(deployment.certificate.read_text())
    url = deployment.url.replace("https", "wss") + "/v1/link"
    return await connect(url, ssl=context, compression=None)


def test_a_stranger_cannot_send_a_long_message(deployment):
    async def attack():
        async with await open_link(deployment) as socket:
            await socket.recv()
            await socket.send(bytes(MAX_HELLO_BYTES + 1))
            with pytest.raises(ConnectionClosed) as info:
                await socket.recv()
            return info.value.rcvd.code

    assert deployment.run(attack()) == 1009  # "message too big"


def test_few_strangers_may_wait_at_a_time(deployment, monkeypatch):
    monkeypatch.setattr(_app, "MAX_JOINING", 1)

    async def attack():
        async with await open_link(deployment) as socket:
            await socket.recv()
            with pytest.raises(InvalidHandshake):
                await open_link(deployment)
        while deployment.broker.registry.n_joining:
            await asyncio.sleep(0.01)

    deployment.run(attack())
    assert deployment.client("points").kneighbors([[0.0, 1.0]], 1)[1][0][0].provider == "north"


def test_connections_without_a_request_are_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(_limits, "FIRST_REQUEST_S", 0.1)
    with deployed(tmp_path, COLLECTION) as running:
        context = pinned_context(running.certificate.read_text())

        async def wait():
            reader, _ = await asyncio.open_connection(
                "127.0.0.1", int(running.url.rpartition(":")[2]), ssl=context
            )
            return await reader.read()

        assert running.run(wait()) == b""


def test_connections_that_stop_within_a_request_are_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(_limits, "FIRST_REQUEST_S", 0.2)
    monkeypatch.setattr(_rest, "BODY_S", 0.2)
    with deployed(tmp_path, COLLECTION) as running:
        context = pinned_context(running.certificate.read_text())

        async def send(*requests):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", int(running.url.rpartition(":")[2]), ssl=context
            )
            for request in requests[:-1]:
                writer.write(request)
                await reader.readuntil(b"}")
            writer.write(requests[-1])
            async with asyncio.timeout(20):
                return await reader.read()

        host = b" HTTP/1.1\r\nHost: a\r\n"
        assert running.run(send(b"GET /healthz" + host + b"\r\n", b"GET /healthz" + host)) == b""
        late = running.run(send(b"POST /v1/enrolments" + host + b"Content-Length: 9\r\n\r\n"))
        assert late.startswith(b"HTTP/1.1 408")
        assert b'"code":"slow-body"' in late


@pytest.mark.parametrize("start", ["GET /healthz", "POST /v1/enrolments"])
def test_connections_with_long_headers_are_closed(tmp_path, monkeypatch, start):
    monkeypatch.setattr(_limits, "FIRST_REQUEST_S", 60.0)
    with deployed(tmp_path, COLLECTION) as running:
        context = pinned_context(running.certificate.read_text())
        body = "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n" if "POST" in start else ""

        async def send():
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", int(running.url.rpartition(":")[2]), ssl=context
            )
            writer.write(f"{start} HTTP/1.1\r\nHost: a\r\n{body}a: ".encode())
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(20):
                    while not reader.at_eof():
                        writer.write(b"a" * (1 << 14))
                        await writer.drain()
                        await asyncio.sleep(0)  # let the reader see the end
            return "closed"

        assert running.run(send()) == "closed"  # before the timeout


def test_connections_above_the_limit_are_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(_limits, "MAX_CONNECTIONS", 0)
    with deployed(tmp_path, COLLECTION) as running, pytest.raises(FederationError):
        running.client("points").kneighbors([[0.0, 1.0]], 1)


def test_replies_sent_together_are_of_equal_number():
    with pytest.raises(ValueError, match="differ in number"):
        LinkReplies((1,), (), (), ())


def test_frames_sent_together_fit_into_one_message():
    waiting = deque([bytes(600_000), bytes(400_000), bytes(100_000), bytes(3 << 20), b"last"])
    sizes = []
    while waiting:
        sizes.append([len(frame) for frame in take_batch(waiting)])
    assert sizes == [[600_000, 400_000], [100_000], [3 << 20], [4]]


def test_replies_that_a_busy_broker_reads_late_count():
    async def receive():
        replies, received = PendingReplies(["north"]), asyncio.Queue()
        loop, (provider, broker) = asyncio.get_running_loop(), socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=broker)

        async def deliver():
            replies.deliver("north", await received.get(), 0, b"")

        async def read():
            received.put_nowait(await reader.readexactly(5))

        tasks = [asyncio.create_task(work()) for work in (deliver, read)]
        waiting = asyncio.create_task(replies.wait(0.01))
        await asyncio.sleep(0)
        end = loop.time() + 0.01
        provider.sendall(b"reply")
        while loop.time() <= end:  # the broker works for another query
            pass
        await waiting
        bodies = dict(replies.bodies)
        await asyncio.gather(*tasks)
        writer.close()
        provider.close()
        return bodies

    assert asyncio.run(receive()) == {"north": b"reply"}
