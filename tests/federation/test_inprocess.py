import _thread
import signal
import threading

import pytest

from fedneighbors.errors import PartyMissing, PartyRefused, WireError
from fedneighbors.federation._direct import run_here
from fedneighbors.federation._inprocess import ThreadPool, run
from fedneighbors.federation._loop import gather
from fedneighbors.federation._messages import encode
from tests.federation.parties import Counter, CountRequest, Impostor, NameReply, NameRequest, count

WORKERS = [("threads", 1), ("threads", 3), ("processes", 1), ("processes", 3)]


def counters(**faults):
    values = {"ann": (0, 1, 1), "bob": (2,), "cyd": ()}
    return [Counter(name, values[name], fault=faults.get(name, "")) for name in values]


def drop_times(outcome):
    """Return the result and the rounds of an outcome without times."""
    rounds = [(r.request, r.reduce, r.upload_bytes, r.download_bytes) for r in outcome.rounds]
    return outcome.result, rounds


def test_threads_and_processes_give_the_same_outcome():
    outcomes = [run(count(3), counters(), workers=w, n_workers=n) for w, n in WORKERS]

    first = drop_times(outcomes[0])
    assert first[0] == (["hello ann", "hello bob", "hello cyd"], 4, [1, 2, 1])
    assert first[1][1][3] == dict.fromkeys(("ann", "bob", "cyd"), len(encode(CountRequest(3))))
    assert all(drop_times(outcome) == first for outcome in outcomes)


def test_the_callers_thread_gives_the_same_outcome():
    outcome = run_here(count(3), counters())

    assert drop_times(outcome) == drop_times(run(count(3), counters()))
    assert all(set(r.busy_s) == {"ann", "bob", "cyd"} for r in outcome.rounds)


@pytest.mark.parametrize("fault", ["fail", "refuse"])
def test_the_callers_thread_raises_the_same_error(fault):
    raised = []
    for run_count in (run, run_here):
        with pytest.raises(Exception, match=r"secret value|refused") as caught:
            run_count(count(3), counters(bob=fault))
        error = caught.value
        raised.append((type(error), str(error), getattr(error, "__notes__", [])))

    assert raised[0] == raised[1]


def test_party_keeps_its_state_between_rounds():
    class RequestCounter(Counter):
        n_requests = 0

        def answer(self, request):
            self.n_requests += 1
            return NameReply(str(self.n_requests))

    def ask_three_times():
        for _ in range(3):
            replies = yield gather(NameRequest(""))
        return replies.each["ann"].name

    assert run(ask_three_times(), [RequestCounter("ann", ())]).result == "3"


@pytest.mark.parametrize("n_workers", [1, 3])
def test_killed_worker_process_is_a_missing_party(n_workers):
    parties = counters(bob="die")

    with pytest.raises(PartyMissing, match=r"'bob' \(its process ended\)") as caught:
        run(count(3), parties, workers="processes", n_workers=n_workers)

    assert caught.value.missing == {"bob": "its process ended"}


def test_dead_worker_stays_missing_while_others_answer():
    def ask_twice():
        yield gather(CountRequest(3))
        replies = yield gather(NameRequest("again"))
        return sorted(replies.each), dict(replies.missing)

    outcome = run(ask_twice(), counters(bob="die"), workers="processes", n_workers=2)

    assert outcome.result == (["ann", "cyd"], {"bob": "its process ended"})
    assert [r.missing for r in outcome.rounds] == [{"bob": "its process ended"}] * 2


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_refusal_is_the_same_in_threads_and_processes(workers):
    with pytest.raises(PartyRefused) as caught:
        run(count(3), counters(cyd="refuse"), workers=workers)

    error = caught.value
    assert (error.party, error.code, error.detail) == ("cyd", "a column is missing", "age")


def test_thread_exception_propagates_with_the_party_name():
    with pytest.raises(RuntimeError, match="secret value 4711") as caught:
        run(count(3), counters(bob="fail"))

    assert caught.value.__notes__ == ["raised by party 'bob'"]
    assert caught.traceback[-1].name == "_misbehave"


def test_eof_error_of_a_party_does_not_end_its_process():
    with pytest.raises(EOFError, match="the party's own file is short"):
        run(count(3), counters(bob="end of file"))
    with pytest.raises(PartyRefused, match=r"'bob' refused: internal error$"):
        run(count(3), counters(bob="end of file"), workers="processes")


def test_process_exception_is_sent_without_type_or_values():
    with pytest.raises(PartyRefused) as caught:
        run(count(3), counters(bob="fail"), workers="processes")

    error = caught.value
    assert (error.party, error.code, error.detail) == ("bob", "internal error", "")
    assert "4711" not in str(error)


@pytest.fixture
def interruptible():
    """Make interrupts raise KeyboardInterrupt, even if the parent process ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible", "all_processes_end")
def test_interrupt_ends_a_worker_that_never_answers():
    n_threads = threading.active_count()

    with pytest.raises(KeyboardInterrupt):
        run(
            _request_counts(),
            counters(ann="interrupt", bob="block"),
            workers="processes",
            n_workers=2,
        )

    assert threading.active_count() == n_threads


@pytest.mark.usefixtures("all_processes_end")
def test_interrupt_during_thread_start_is_raised(monkeypatch):
    n_threads, start, shutdown = (
        threading.active_count(),
        threading.Thread.start,
        ThreadPool.shutdown,
    )
    shutting_down = threading.Event()

    def interrupt_start(thread):
        _thread.start_new_thread(lambda: (shutting_down.wait(), start(thread)), ())
        raise KeyboardInterrupt

    def signal_shutdown(pool, *, wait):
        shutting_down.set()
        shutdown(pool, wait=wait)

    monkeypatch.setattr(threading.Thread, "start", interrupt_start)
    monkeypatch.setattr(ThreadPool, "shutdown", signal_shutdown)
    with pytest.raises(KeyboardInterrupt):
        run(_request_counts(), counters(), workers="processes")

    assert threading.active_count() == n_threads


def test_a_request_to_all_parties_is_decoded_once():
    requests = []

    class Listener(Counter):
        def answer(self, request):
            requests.append(request)
            return super().answer(request)

    run(count(3), [Listener("ann", (1,)), Listener("bob", (2,))])

    by_class = {kind: [r for r in requests if type(r) is kind] for kind in map(type, requests)}
    assert all(len(set(map(id, each[:2]))) == 1 for each in by_class.values())


def test_waiting_parties_are_not_asked_after_an_error():
    requested = []

    class RecordedCounter(Counter):
        def answer(self, request):
            requested.append(self.name)
            return super().answer(request)

    parties = [RecordedCounter(name, ()) for name in ("ann", "bob", "cyd", "dan", "eve")]
    parties[0]._fault = "fail"
    with pytest.raises(RuntimeError):
        run(_request_counts(), parties, n_workers=1)

    assert requested[0] == "ann"
    assert len(requested) < len(parties)


def _request_counts():
    yield gather(CountRequest(3))


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_reply_of_another_type_is_a_wire_error(workers):
    parties = [*counters(), Impostor("dan", ())]

    with pytest.raises(WireError, match="party 'dan': unexpected message 'NameReply'"):
        run(count(3), parties, workers=workers)


@pytest.mark.parametrize("names", [[], ["ann", "ann"], ["ann", "bob", "ann"]])
def test_missing_or_duplicate_names_raise_value_error(names):
    parties = [Counter(name, ()) for name in names]

    with pytest.raises(ValueError, match="distinct names"):
        run(count(3), parties)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [({"workers": "fibres"}, "'fibres'"), ({"n_workers": 0}, "at least 1, got 0")],
)
def test_argument_out_of_range_raises_value_error(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        run(count(3), counters(), **arguments)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_hook_is_called_after_each_round(workers):
    records = []

    outcome = run(count(3), counters(), workers=workers, on_round=records.append)

    assert tuple(records) == outcome.rounds
    assert [record.request for record in records] == ["NameRequest", "CountRequest"]
