import numpy as np
import pytest

from fedneighbors.errors import PartyMissing, PartyRefused, ProtocolError, WireError
from fedneighbors.federation._loop import Ask, FrameTransport, Replies, gather, run_rounds, total
from fedneighbors.federation._messages import encode
from fedneighbors.federation._roles import Refusal, Refused, serve, serve_safely
from tests.federation.parties import (
    Counter,
    CountReply,
    CountRequest,
    Impostor,
    NameReply,
    NameRequest,
    count,
)

PARTIES = (Counter("ann", (0, 1, 1)), Counter("bob", (2,)), Counter("cyd", ()))
NAMES = tuple(party.name for party in PARTIES)


def exchange_with(parties, missing=()):
    """Return an exchange that serves all parties except the missing ones."""
    by_name = {party.name: party for party in parties}

    def exchange(frames):
        reasons = {name: "asleep" for name in frames if name in missing}
        delivered = {name: frame for name, frame in frames.items() if name not in reasons}
        return {name: serve(by_name[name], frame) for name, frame in delivered.items()}, reasons

    return exchange


class RecordingCoordinator:
    """Coordinator that records the replies, and whether it was closed."""

    def __init__(self, asks):
        self.asks = asks
        self.closed = False
        self.replies = []

    def steps(self):
        try:
            for ask in self.asks:
                self.replies.append((yield ask))
        finally:
            self.closed = True


def test_result_and_rounds_are_returned():
    outcome = run_rounds(count(3), FrameTransport(exchange_with(PARTIES), NAMES))

    assert outcome.result == (["hello ann", "hello bob", "hello cyd"], 4, [1, 2, 1])
    assert [(r.index, r.request, r.reduce) for r in outcome.rounds] == [
        (0, "NameRequest", "gather"),
        (1, "CountRequest", "sum"),
    ]


def test_recorded_bytes_are_the_frame_sizes():
    outcome = run_rounds(count(3), FrameTransport(exchange_with(PARTIES), NAMES))

    names, counts = outcome.rounds
    assert names.download_bytes == dict.fromkeys(NAMES, len(encode(NameRequest("hello"))))
    assert names.upload_bytes == {n: len(encode(NameReply(f"hello {n}"))) for n in NAMES}
    assert counts.download_bytes == dict.fromkeys(NAMES, len(encode(CountRequest(3))))
    assert counts.upload_bytes == dict.fromkeys(NAMES, len(encode(CountReply(0, np.zeros(3, int)))))


def test_coordinator_sees_only_the_sum():
    recording = RecordingCoordinator([total(CountRequest(3)), gather(CountRequest(3))])

    run_rounds(recording.steps(), FrameTransport(exchange_with(PARTIES), NAMES))

    summed, gathered = recording.replies
    assert summed == Replies({}, CountReply(4, np.array([1, 2, 1])), {})
    assert list(gathered.each) == sorted(NAMES)
    assert gathered.total is None


def test_only_named_parties_get_their_requests():
    recording = RecordingCoordinator(
        [gather({"bob": NameRequest("hi"), "ann": NameRequest("hey")})]
    )

    outcome = run_rounds(recording.steps(), FrameTransport(exchange_with(PARTIES), NAMES))

    assert recording.replies[0].each == {"ann": NameReply("hey ann"), "bob": NameReply("hi bob")}
    assert set(outcome.rounds[0].download_bytes) == {"ann", "bob"}


def test_missing_party_is_named_in_error_and_record():
    records = []

    with pytest.raises(PartyMissing, match=r"'bob' \(asleep\)") as caught:
        run_rounds(
            count(3),
            FrameTransport(exchange_with(PARTIES, {"bob"}), NAMES),
            on_round=records.append,
        )

    assert caught.value.missing == {"bob": "asleep"}
    assert caught.value.during == "the counts"
    assert [record.missing for record in records] == [{"bob": "asleep"}] * 2
    assert set(records[1].upload_bytes) == {"ann", "cyd"}
    assert set(records[1].download_bytes) == set(NAMES)


def test_sum_without_any_reply_has_no_total():
    recording = RecordingCoordinator([total(CountRequest(3))])

    run_rounds(recording.steps(), FrameTransport(exchange_with(PARTIES, set(NAMES)), NAMES))

    assert recording.replies[0].total is None
    assert set(recording.replies[0].missing) == set(NAMES)


def test_refusal_names_party_code_and_detail():
    parties = (PARTIES[0], Counter("bob", (1,), fault="refuse"))

    with pytest.raises(PartyRefused, match=r"'bob' refused: a column is missing \(age\)") as caught:
        run_rounds(count(3), FrameTransport(exchange_with(parties), ("ann", "bob")))

    assert (caught.value.party, caught.value.code) == ("bob", "a column is missing")
    assert caught.value.detail == "age"


def test_refusal_text_is_truncated_and_printable():
    party = Counter("bob", (1,), fault="unprintable refusal")

    with pytest.raises(PartyRefused) as caught:
        run_rounds(count(3), FrameTransport(exchange_with([party]), ("bob",)))

    assert caught.value.code == "a?b" * 33 + "a"
    assert caught.value.detail == "?[31m" + "c" * 395


@pytest.mark.parametrize(
    ("code", "detail"), [("", ""), ("a\nb", ""), ("c" * 101, ""), ("ok", "\x1b"), ("ok", "d" * 401)]
)
def test_hostile_refusal_is_a_wire_error(code, detail):
    hostile = encode(Refusal("x", "y"))
    for valid, invalid in (("x", code), ("y", detail)):
        field = b"s\1\0\0\0" + valid.encode()
        hostile = hostile.replace(
            field, b"s" + len(invalid).to_bytes(4, "little") + invalid.encode()
        )

    with pytest.raises(WireError, match=r"party 'ann': Refusal: a (code|detail) must have"):
        run_rounds(count(3), FrameTransport(lambda frames: ({"ann": hostile}, {}), ("ann",)))


def test_reply_of_wrong_type_is_an_error_naming_the_party():
    parties = (PARTIES[0], Impostor("bob", ()))

    with pytest.raises(WireError, match="party 'bob': unexpected message 'NameReply'"):
        run_rounds(count(3), FrameTransport(exchange_with(parties), ("ann", "bob")))


@pytest.mark.parametrize("frame", [b"", b"FNM", b"garbage", encode(NameReply("a")) + b"\0"])
def test_malformed_reply_is_an_error_naming_the_party(frame):
    with pytest.raises(WireError, match="party 'ann'"):
        run_rounds(count(3), FrameTransport(lambda frames: ({"ann": frame}, {}), ("ann",)))


@pytest.mark.parametrize(
    "frame", [b"", b"noise", encode(NameReply("not a request")), encode(CountRequest(3))[:-1]]
)
def test_malformed_request_is_refused(frame):
    reply = serve(PARTIES[0], frame)

    assert reply == encode(Refusal("malformed request", ""))


def test_wire_error_in_a_party_is_not_a_malformed_request():
    class Broken(Counter):
        def answer(self, request):
            raise WireError("of its own")

    with pytest.raises(WireError, match="of its own"):
        serve(Broken("ann", ()), encode(NameRequest("")))


def test_serve_safely_sends_one_code_for_all_exceptions(caplog):
    party = Counter("ann", (), fault="fail")

    reply = serve_safely(party, encode(CountRequest(3)))

    assert reply == encode(Refusal("internal error", ""))
    assert "RuntimeError" in caplog.text
    assert "_misbehave" in caplog.text
    assert "4711" not in caplog.text


def test_refusal_without_a_code_gets_a_default():
    class RefusesWithoutCode(Counter):
        def answer(self, request):
            raise Refused("")

    reply = serve(RefusesWithoutCode("ann", ()), encode(NameRequest("")))

    assert reply == encode(Refusal("no reason given", ""))


@pytest.mark.parametrize("ask", [gather({}), total({})])
def test_asking_no_party_is_a_protocol_error(ask):
    recording = RecordingCoordinator([ask])

    with pytest.raises(ProtocolError, match="asks no party"):
        run_rounds(recording.steps(), FrameTransport(exchange_with(PARTIES), NAMES))

    assert recording.closed


def test_asking_an_unknown_party_is_a_protocol_error():
    recording = RecordingCoordinator([gather({"eve": NameRequest("hi"), "ann": NameRequest("hi")})])

    with pytest.raises(ProtocolError, match=r"do not take part: \['eve'\]"):
        run_rounds(recording.steps(), FrameTransport(exchange_with(PARTIES), NAMES))


@pytest.mark.parametrize(
    "result",
    [
        ({}, {}),
        ({"ann": b"", "eve": b""}, {}),
        ({"ann": b""}, {"ann": "asleep"}),
        ({}, {"eve": "asleep"}),
    ],
)
def test_wrong_parties_of_a_runtime_are_a_protocol_error(result):
    with pytest.raises(ProtocolError, match="report each party as either answering or missing"):
        run_rounds(count(3), FrameTransport(lambda frames: result, ("ann",)))


def test_incompatible_replies_are_a_protocol_error():
    class OneBinTooFew(Counter):
        def answer(self, request):
            return CountReply(1, np.zeros(request.n_bins - 1, np.int64))

    recording = RecordingCoordinator([total(CountRequest(3))])
    with pytest.raises(ProtocolError, match=r"CountReply\.counts of party 'bob'"):
        run_rounds(
            recording.steps(),
            FrameTransport(exchange_with([PARTIES[0], OneBinTooFew("bob", ())]), ("ann", "bob")),
        )


@pytest.mark.parametrize("failure", [OSError("line cut"), KeyboardInterrupt()])
def test_coordinator_is_closed_when_the_exchange_fails(failure):
    recording = RecordingCoordinator([gather(NameRequest("hi"))])

    def exchange(frames):
        raise failure

    with pytest.raises(type(failure)):
        run_rounds(recording.steps(), FrameTransport(exchange, NAMES))

    assert recording.closed


def test_stop_iteration_of_a_hook_is_not_a_normal_end():
    recording = RecordingCoordinator([gather(NameRequest("hi"))] * 2)

    def hook(record):
        raise StopIteration

    with pytest.raises(StopIteration):
        run_rounds(recording.steps(), FrameTransport(exchange_with(PARTIES), NAMES), on_round=hook)

    assert recording.closed


def test_hook_is_called_before_the_coordinator_resumes():
    events = []

    def coordinator():
        for step in range(3):
            yield gather(NameRequest("hi"))
            events.append(f"step {step}")

    outcome = run_rounds(
        coordinator(),
        FrameTransport(exchange_with(PARTIES), NAMES),
        on_round=lambda record: events.append(record.index),
    )

    assert events == [0, "step 0", 1, "step 1", 2, "step 2"]
    assert [record.index for record in outcome.rounds] == [0, 1, 2]


def test_coordinator_without_rounds_returns_at_once():
    def coordinator():
        return "done"
        yield

    outcome = run_rounds(coordinator(), FrameTransport(exchange_with(PARTIES), NAMES))

    assert (outcome.result, outcome.rounds) == ("done", ())


def test_coordinator_error_propagates_unchanged():
    def coordinator():
        yield gather(NameRequest("hi"))
        raise LookupError("of the coordinator")

    with pytest.raises(LookupError, match="of the coordinator"):
        run_rounds(coordinator(), FrameTransport(exchange_with(PARTIES), NAMES))


def test_one_request_for_all_is_encoded_once():
    frame_ids = []

    def exchange(frames):
        frame_ids.append({id(frame) for frame in frames.values()})
        return exchange_with(PARTIES)(frames)

    run_rounds(
        RecordingCoordinator([Ask(NameRequest("hi"), "gather")]).steps(),
        FrameTransport(exchange, NAMES),
    )

    assert len(frame_ids[0]) == 1


def test_round_log_contains_only_numbers(caplog):
    caplog.set_level("INFO", "fedneighbors.federation")

    run_rounds(count(3), FrameTransport(exchange_with(PARTIES), NAMES))

    lines = [r.getMessage() for r in caplog.records]
    assert lines[0].startswith("round 0, NameRequest: 3 replies, 0 missing, ")
    assert lines[1].startswith("round 1, CountRequest: 3 replies, 0 missing, ")
