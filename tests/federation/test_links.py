"""Emulated links, connections shared by several coordinators, and deadlines."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from queue import SimpleQueue
from typing import ClassVar

import pytest

from fedneighbors.errors import PartyMissing, PartyRefused
from fedneighbors.federation._inprocess import PartyReply, _next_reply, connected, run
from fedneighbors.federation._links import Link
from fedneighbors.federation._loop import gather
from fedneighbors.federation._messages import message
from tests.architecture.tree import ROOT
from tests.federation.parties import Counter, CountRequest, NameReply, NameRequest, count

LATE = "no answer within 1 s"
NAMES = ("ann", "bob", "cyd")


@message
class ProcessReply:
    process: int
    n_requests: int


@message
class ProcessRequest:
    reply: ClassVar[type] = ProcessReply


class ProcessReporter(Counter):
    """Party that reports its process id and how many such requests it received."""

    accepts = (*Counter.accepts, ProcessRequest)
    n_requests = 0

    def answer(self, request):
        if not isinstance(request, ProcessRequest):
            return super().answer(request)
        self.n_requests += 1
        return ProcessReply(os.getpid(), self.n_requests)


class BlockedCounter(Counter):
    """Party that records its requests and answers once ``may_answer`` is set."""

    def __init__(self, name):
        super().__init__(name, ())
        self.may_answer = threading.Event()
        self.greetings = []

    def answer(self, request):
        self.greetings.append(request.greeting)
        self.may_answer.wait()
        return super().answer(request)


class EndlessCounter(Counter):
    """Party that never answers, and sets ``is_stopped`` when it is stopped."""

    def __init__(self, name):
        super().__init__(name, ())
        self.is_stopped = threading.Event()

    def answer(self, request):
        try:
            while True:
                repr(request)
        finally:
            self.is_stopped.set()


class LimitedCounter(Counter):
    """Party that never greets before its deadline."""

    end = math.inf

    def answer(self, request):
        while time.monotonic() <= self.end and request == NameRequest("early"):
            pass
        return super().answer(request)


def request_processes():
    return (yield gather(ProcessRequest())).complete("the processes").each


def greet(*greetings):
    """Greet the parties; return the names and the missing parties per greeting."""
    results = []
    for greeting in greetings:
        replies = yield gather(NameRequest(greeting))
        results.append(({n: r.name for n, r in replies.each.items()}, dict(replies.missing)))
    return results


@pytest.mark.usefixtures("all_processes_end")
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_several_coordinators_use_the_same_parties(workers):
    with connected([ProcessReporter(name, ()) for name in NAMES], workers=workers) as federation:
        replies_of_runs = [federation.run(request_processes()).result for _ in range(3)]
        greetings, *_ = federation.run(count(3)).result

    n_requests = [{reply.n_requests for reply in replies.values()} for replies in replies_of_runs]
    assert n_requests == [{1}, {2}, {3}]
    ids = [{n: reply.process for n, reply in replies.items()} for replies in replies_of_runs]
    assert ids[0] == ids[1] == ids[2]
    in_processes = workers == "processes"
    assert len(set(ids[0].values())) == (3 if in_processes else 1)
    assert (os.getpid() in ids[0].values()) != in_processes
    assert greetings == [f"hello {name}" for name in NAMES]


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_parties_survive_an_error_of_a_coordinator(workers):
    parties = [Counter("ann", (1,)), Counter("bob", (), fault="refuse")]

    with connected(parties, workers=workers) as federation:
        with pytest.raises(PartyRefused):
            federation.run(count(3))
        results = federation.run(greet("hi")).result

    assert results == [({"ann": "hi ann", "bob": "hi bob"}, {})]


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


@pytest.mark.usefixtures("all_processes_end")
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_party_beyond_the_deadline_is_missing(workers):
    parties = [Counter("ann", ()), Counter("bob", (), fault="block"), Counter("cyd", ())]

    with pytest.raises(PartyMissing) as caught:
        run(count(3), parties, workers=workers, deadline_s=1)

    assert caught.value.missing == {"bob": LATE}


def test_a_party_in_a_thread_is_stopped_at_the_end():
    endless = EndlessCounter("bob")

    with (
        pytest.raises(PartyMissing),
        connected([Counter("ann", ()), endless], deadline_s=1) as federation,
    ):
        federation.run(count(2))

    assert endless.is_stopped.wait(60)


@pytest.mark.usefixtures("all_processes_end")
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_a_party_stops_its_work_at_the_deadline(workers):
    parties = [LimitedCounter("ann", ())]

    with connected(parties, workers=workers, deadline_s=1) as federation:
        (early,) = federation.run(greet("early")).result
        while not federation._connections["ann"].is_idle:  # it works until its deadline only
            pass
        (later,) = federation.run(greet("later")).result

    assert early == ({}, {"ann": LATE})
    assert later == ({"ann": "later ann"}, {})


def test_hanging_party_stays_missing_while_others_answer():
    parties = [Counter("ann", ()), Counter("bob", (), fault="block")]

    def ask_twice():
        first = yield gather(CountRequest(2))
        second = yield gather(NameRequest("hi"))
        return [sorted(r.each) for r in (first, second)], [dict(r.missing) for r in (first, second)]

    with connected(parties, workers="processes", deadline_s=1) as federation:
        outcomes = [federation.run(ask_twice()).result for _ in range(2)]

    late = {"bob": LATE}
    assert outcomes == [([["ann"], ["ann"]], [late, late])] * 2


def test_late_reply_never_answers_a_later_request():
    blocked = BlockedCounter("ann")

    with connected([blocked, Counter("bob", ())], deadline_s=1) as federation:
        (early,) = federation.run(greet("first")).result
        blocked.may_answer.set()
        while not federation._connections["ann"].is_idle:  # wait until its late reply was sent
            pass
        (later,) = federation.run(greet("second")).result

    assert early == ({"bob": "first bob"}, {"ann": LATE})
    assert later == ({"ann": "second ann", "bob": "second bob"}, {})


def test_late_reply_during_another_request_is_dropped():
    blocked = BlockedCounter("ann")

    def ask_twice():
        first = yield gather(NameRequest("first"))
        threading.Timer(0.02, blocked.may_answer.set).start()  # during the second exchange
        second = yield gather(NameRequest("second"))
        return dict(first.missing), second.complete("the second").each["ann"]

    with connected([blocked], deadline_s=1) as federation:
        missing, reply = federation.run(ask_twice()).result

    assert missing == {"ann": LATE}
    assert reply == NameReply("second ann")
    assert blocked.greetings == ["first", "second"]


def test_a_reply_that_was_ready_in_time_counts_if_it_is_read_late():
    replies = SimpleQueue()
    replies.put(PartyReply("ann", b""))
    deadline = time.monotonic()
    replies.put(PartyReply("bob", b"", ready=math.nextafter(deadline, math.inf)))

    assert _next_reply(replies, deadline).name == "ann"
    assert _next_reply(replies, deadline) is None


def test_abandoned_request_is_not_started():
    blocked = BlockedCounter("ann")

    with connected([blocked], deadline_s=1) as federation:
        federation.run(greet("first", "second"))
        blocked.may_answer.set()
        while not federation._connections["ann"].is_idle:
            pass

    assert blocked.greetings == ["first"]


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

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )

    assert result.stdout == "missing ann\n"


@pytest.mark.usefixtures("all_processes_end")
def test_worker_killed_between_two_runs_is_missing():
    with connected(
        [ProcessReporter(name, ()) for name in NAMES], workers="processes"
    ) as federation:
        replies = federation.run(request_processes()).result
        os.kill(replies["bob"].process, signal.SIGKILL)
        ((answered, missing),) = federation.run(greet("hi")).result
        with pytest.raises(PartyMissing, match=r"'bob' \(its process ended\)"):
            federation.run(request_processes())

    assert sorted(answered) == ["ann", "cyd"]
    assert missing == {"bob": "its process ended"}


def test_first_party_in_order_is_named_when_two_raise():
    parties = [Counter(name, (), fault="fail") for name in NAMES]

    for _ in range(20):
        with pytest.raises(RuntimeError) as caught:
            run(_request_counts(), parties, n_workers=3)
        assert caught.value.__notes__ == ["raised by party 'ann'"]


def _request_counts():
    yield gather(CountRequest(3))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"deadline_s": 0}, "deadline_s above 0 or None, got 0"),
        ({"deadline_s": float("nan")}, "deadline_s above 0"),
        ({"link": {"eve": Link(0.1)}}, r"links for \['eve'\], which do not take part"),
    ],
)
def test_invalid_links_and_deadlines_raise_value_error(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        run(count(3), [Counter("ann", ())], **arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((-0.1,), "delay_s of 0 or more seconds, got -0.1"),
        ((float("inf"),), "delay_s of 0 or more"),
        ((0.1, 0), "bytes_per_s above 0 or None, got 0"),
    ],
)
def test_invalid_delay_or_bandwidth_raises_value_error(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        Link(*arguments)


def test_parties_answering_in_turn_share_few_threads():
    before = threading.active_count()
    n_threads = []

    class ThreadCounter(Counter):
        def answer(self, request):
            n_threads.append(threading.active_count() - before)
            return super().answer(request)

    parties = [ThreadCounter(f"p{number}", ()) for number in range(200)]
    with connected(parties) as federation:
        for _ in range(3):
            federation.run(greet("hi"))

    assert len(n_threads) == 600
    assert max(n_threads) < 20  # one works, and few are about to become idle
    assert threading.active_count() == before
