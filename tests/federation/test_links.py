"""Emulated links, connections shared by several coordinators, and deadlines."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from typing import ClassVar

import pytest

from fedneighbors.errors import PartyMissing, PartyRefused
from fedneighbors.federation._inprocess import Link, connected, run
from fedneighbors.federation._loop import gather
from fedneighbors.federation._messages import message
from tests.architecture.tree import ROOT
from tests.federation.parties import Counter, CountRequest, NameReply, NameRequest, count

LATE = "no answer within 1 s"
NAMES = ("ann", "bob", "cyd")


@message
class WhereReply:
    process: int
    asked: int


@message
class WhereRequest:
    reply: ClassVar[type] = WhereReply


class ProcessReporter(Counter):
    """Party that reports its process id and the number of its requests."""

    accepts = (*Counter.accepts, WhereRequest)
    asked = 0

    def answer(self, request):
        if not isinstance(request, WhereRequest):
            return super().answer(request)
        self.asked += 1
        return WhereReply(os.getpid(), self.asked)


class GatedCounter(Counter):
    """Party that blocks until its gate opens and records its requests."""

    def __init__(self, name):
        super().__init__(name, ())
        self.gate = threading.Event()
        self.asked = []

    def answer(self, request):
        self.asked.append(request.greeting)
        self.gate.wait()
        return super().answer(request)


def locate():
    return (yield gather(WhereRequest())).complete("the places").each


def greet(*greetings):
    """Greet the parties; return the names and the missing parties per greeting."""
    came = []
    for greeting in greetings:
        replies = yield gather(NameRequest(greeting))
        came.append(({n: r.name for n, r in replies.each.items()}, dict(replies.missing)))
    return came


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_several_coordinators_use_the_same_parties(workers):
    with connected([ProcessReporter(name, ()) for name in NAMES], workers=workers) as federation:
        seen = [federation.run(locate()).result for _ in range(3)]
        counted = federation.run(count(3)).result

    assert [{reply.asked for reply in replies.values()} for replies in seen] == [{1}, {2}, {3}]
    places = [{n: reply.process for n, reply in replies.items()} for replies in seen]
    assert places[0] == places[1] == places[2]
    apart = workers == "processes"
    assert len(set(places[0].values())) == (3 if apart else 1)
    assert (os.getpid() in places[0].values()) != apart
    assert counted[0] == [f"hello {name}" for name in NAMES]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_parties_survive_an_error_of_a_coordinator(workers):
    parties = [Counter("ann", (1,)), Counter("bob", (), fault="refuse")]

    with connected(parties, workers=workers) as federation:
        with pytest.raises(PartyRefused):
            federation.run(count(3))
        again = federation.run(greet("hi")).result

    assert again == [({"ann": "hi ann", "bob": "hi bob"}, {})]


def test_disconnected_parties_cannot_be_reached():
    with connected([Counter("ann", ())]) as federation:
        pass

    with pytest.raises(ValueError, match="no longer connected; connect them again"):
        federation.run(count(3))


def test_link_delays_of_parties_overlap():
    with connected([Counter(name, ()) for name in NAMES], link=Link(0.03)) as federation:
        (record,) = federation.run(greet("hi")).rounds

    assert record.seconds >= 0.03  # a sleep is never shorter than requested
    assert sorted(record.busy_s) == list(NAMES)


def test_bandwidth_delays_both_directions():
    slow = {"bob": Link(0.01, bytes_per_s=10_000)}

    outcome = run(greet("x" * 90), [Counter(name, ()) for name in NAMES], link=slow)

    (record,) = outcome.rounds
    n_bytes = record.upload_bytes["bob"] + record.download_bytes["bob"]
    assert n_bytes > 180
    assert record.seconds >= 0.01 + n_bytes / 10_000


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_rounds_record_the_work_time_of_each_party(workers):
    outcome = run(count(3), [Counter(name, (1, 2)) for name in NAMES], workers=workers)

    for record in outcome.rounds:
        assert sorted(record.busy_s) == list(NAMES)
        assert all(0 < busy_s < record.seconds for busy_s in record.busy_s.values())


def test_link_delay_does_not_count_as_work():
    outcome = run(greet("hi"), [Counter("ann", ())], link=Link(0.05))

    (record,) = outcome.rounds
    assert record.busy_s["ann"] <= record.seconds - 0.05


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_party_beyond_the_deadline_is_missing(workers):
    parties = [Counter("ann", ()), Counter("bob", (), fault="block"), Counter("cyd", ())]

    with pytest.raises(PartyMissing) as caught:
        run(count(3), parties, workers=workers, deadline_s=1)

    assert caught.value.missing == {"bob": LATE}
    assert multiprocessing.active_children() == []


def test_hanging_party_stays_missing_while_others_answer():
    parties = [Counter("ann", ()), Counter("bob", (), fault="block")]

    def stubborn():
        first = yield gather(CountRequest(2))
        second = yield gather(NameRequest("hi"))
        return [sorted(r.each) for r in (first, second)], [dict(r.missing) for r in (first, second)]

    with connected(parties, workers="processes", deadline_s=1) as federation:
        outcomes = [federation.run(stubborn()).result for _ in range(2)]

    late = {"bob": LATE}
    assert outcomes == [([["ann"], ["ann"]], [late, late])] * 2


def test_late_reply_never_answers_a_later_request():
    held = GatedCounter("ann")

    with connected([held, Counter("bob", ())], deadline_s=1) as federation:
        (early,) = federation.run(greet("first")).result
        held.gate.set()
        while not federation._connections["ann"].idle:  # until its late reply was sent
            pass
        (later,) = federation.run(greet("second")).result

    assert early == ({"bob": "first bob"}, {"ann": LATE})
    assert later == ({"ann": "second ann", "bob": "second bob"}, {})


def test_late_reply_during_another_request_is_dropped():
    held = GatedCounter("ann")

    def hurry():
        first = yield gather(NameRequest("first"))
        threading.Timer(0.02, held.gate.set).start()  # during the second exchange
        second = yield gather(NameRequest("second"))
        return dict(first.missing), second.complete("the second").each["ann"]

    with connected([held], deadline_s=1) as federation:
        missing, reply = federation.run(hurry()).result

    assert missing == {"ann": LATE}
    assert reply == NameReply("second ann")
    assert held.asked == ["first", "second"]


def test_abandoned_request_is_not_started():
    held = GatedCounter("ann")

    with connected([held], deadline_s=1) as federation:
        federation.run(greet("first", "second"))
        held.gate.set()
        while not federation._connections["ann"].idle:
            pass

    assert held.asked == ["first"]


def test_hanging_threads_do_not_block_program_exit():
    program = """
from fedneighbors.errors import PartyMissing
from fedneighbors.federation._inprocess import run
from tests.federation.parties import Counter, count
try:
    run(count(3), [Counter("ann", (), fault="block")], deadline_s=0.05)
except PartyMissing as error:
    print("missing", *error.missing)
"""

    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )

    assert ended.stdout == "missing ann\n"


def test_worker_killed_between_two_runs_is_missing():
    with connected(
        [ProcessReporter(name, ()) for name in NAMES], workers="processes"
    ) as federation:
        places = federation.run(locate()).result
        os.kill(places["bob"].process, signal.SIGKILL)
        ((there, missing),) = federation.run(greet("hi")).result
        with pytest.raises(PartyMissing, match=r"'bob' \(its process ended\)"):
            federation.run(locate())

    assert sorted(there) == ["ann", "cyd"]
    assert missing == {"bob": "its process ended"}
    assert multiprocessing.active_children() == []


def test_first_party_in_order_is_named_when_two_raise():
    parties = [Counter(name, (), fault="fail") for name in NAMES]

    for _ in range(20):
        with pytest.raises(RuntimeError) as caught:
            run(_request_counts(), parties, n_workers=3)
        assert caught.value.__notes__ == ["raised by party 'ann'"]


def _request_counts():
    yield gather(CountRequest(3))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"deadline_s": 0}, "deadline_s above 0 or None, got 0"),
        ({"deadline_s": float("nan")}, "deadline_s above 0"),
        ({"link": {"eve": Link(0.1)}}, r"links for \['eve'\], which do not take part"),
    ],
)
def test_invalid_links_and_deadlines_raise_value_error(given, reason):
    with pytest.raises(ValueError, match=reason):
        run(count(3), [Counter("ann", ())], **given)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ((-0.1,), "delay_s of 0 or more seconds, got -0.1"),
        ((float("inf"),), "delay_s of 0 or more"),
        ((0.1, 0), "bytes_per_s above 0 or None, got 0"),
    ],
)
def test_a_link_has_a_delay_and_a_bandwidth(given, reason):
    with pytest.raises(ValueError, match=reason):
        Link(*given)


def test_parties_answering_in_turn_share_few_threads():
    before = threading.active_count()
    most = []

    class Watching(Counter):
        def answer(self, request):
            most.append(threading.active_count() - before)
            return super().answer(request)

    parties = [Watching(f"p{number}", ()) for number in range(200)]
    with connected(parties) as federation:
        for _ in range(3):
            federation.run(greet("hi"))

    assert len(most) == 600
    assert max(most) < 20  # one at work, and few about to become idle
    assert threading.active_count() == before
