"""A ledger charges once, returns the same bytes for an id, and refuses charges over budget."""

import hashlib
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from fractions import Fraction

import pytest

from fedneighbors.errors import BudgetExceeded, LedgerError
from fedneighbors.privacy._accounting import zcdp_to_approx
from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, PureDP
from fedneighbors.privacy.ledger._ledger import MAX_ANSWER_BYTES, Ledger

TENTH = PureDP("0.1")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "north.ledger"


@pytest.fixture
def ledger(path):
    with Ledger(path, party="north") as opened:
        opened.set_budget("visits", PureDP(1))
        yield opened


def ask(ledger, query="q1", draw=lambda: b"noised", **changed):
    terms = {"dataset": "visits", "user": "study", "cost": TENTH} | changed
    return ledger.release(query, draw=draw, **terms)


def kinds(ledger):
    return [entry.kind for entry in ledger.entries()]


def draw_unexpectedly():
    raise AssertionError("drawn although an answer is stored")


def fail_to_draw():
    raise RuntimeError("no entropy")


def fail_on_full_disk(*_):
    raise LedgerError("the disk is full")


def test_a_new_id_is_drawn_charged_and_stored(ledger):
    answer = ask(ledger, purpose="first look")

    assert answer == b"noised"
    assert ledger.spent("visits") == TENTH
    assert ledger.left("visits") == PureDP("0.9")
    _, reserved, released = ledger.entries()
    assert (reserved.kind, reserved.query, reserved.guarantee) == ("reserved", "q1", TENTH)
    assert (released.kind, released.user, released.note) == ("released", "study", "first look")
    assert released.sha256 == hashlib.sha256(b"noised").hexdigest()
    assert released.size == 6


def test_a_repeated_id_returns_the_stored_answer_at_no_cost(ledger, path):
    ask(ledger)

    again = ask(ledger, draw=draw_unexpectedly, purpose="second look")
    with Ledger(path) as other:
        elsewhere = ask(other, draw=draw_unexpectedly)

    assert again == elsewhere == b"noised"
    assert ledger.spent("visits") == TENTH
    assert kinds(ledger) == ["budget", "reserved", "released"]


def test_the_charge_is_stored_before_the_noise_is_drawn(ledger, path):
    seen = []

    def draw():
        with Ledger(path) as other:
            seen.append((other.spent("visits"), kinds(other)))
        return b"noised"

    ask(ledger, draw=draw)

    assert seen == [(TENTH, ["budget", "reserved"])]


def test_another_process_may_write_while_the_noise_is_drawn(ledger, path):
    def draw():
        with Ledger(path, timeout_s=0) as other:
            ask(other, "q2", lambda: b"other")
        return b"noised"

    ask(ledger, draw=draw)

    assert ledger.spent("visits") == PureDP("0.2")


def test_a_refused_charge_changes_nothing(ledger, path):
    ask(ledger, cost=PureDP("0.95"))
    before = ledger.entries()

    with pytest.raises(BudgetExceeded, match="does not allow epsilon=1/10; left: epsilon=1/20"):
        ask(ledger, "q2", draw_unexpectedly)

    assert ledger.entries() == before
    assert ask(ledger, "q3", cost=PureDP("0.05")) == b"noised"
    assert ledger.left("visits") == PureDP(0)


def test_ten_charges_of_a_tenth_spend_a_budget_of_one(ledger):
    for number in range(10):
        ask(ledger, f"q{number}")

    assert ledger.left("visits") == PureDP(0)  # in floats a tenth too much: 0.1 * 3 > 0.3
    with pytest.raises(BudgetExceeded):
        ask(ledger, "q10", cost=PureDP(Fraction(1, 10**900)))


def test_a_data_set_without_a_budget_refuses_every_charge(ledger):
    ledger.set_budget("trips", PureDP(1), user="study")  # a user limit is not a budget

    for dataset in ("trips", "other"):
        with pytest.raises(BudgetExceeded, match="left: nothing, no budget was set"):
            ask(ledger, dataset=dataset, cost=PureDP(0))
        with pytest.raises(ValueError, match="expected a data set with a budget"):
            ledger.spent(dataset)


def test_a_charge_must_fit_the_user_and_the_data_set(ledger):
    ledger.set_budget("visits", PureDP("0.2"), user="study")
    ask(ledger, "q1", cost=PureDP("0.2"))

    with pytest.raises(BudgetExceeded, match=r"for user 'study'.*left: epsilon=0\."):
        ask(ledger, "q2")
    ask(ledger, "q2", user="board", cost=PureDP("0.8"))
    with pytest.raises(BudgetExceeded, match="for user 'board'"):
        ask(ledger, "q3", user="board")

    assert ledger.spent("visits", "study") == PureDP("0.2")
    assert ledger.spent("visits", "board") == PureDP("0.8")
    assert ledger.left("visits", "study") == ledger.left("visits", "board") == PureDP(0)


def test_data_sets_have_separate_budgets(ledger):
    ledger.set_budget("trips", PureDP(1))

    ask(ledger, cost=PureDP(1))

    assert ledger.left("trips") == PureDP(1)


def test_a_changed_budget_is_a_new_entry(ledger):
    ask(ledger, cost=PureDP(1))
    ledger.set_budget("visits", PureDP("1.5"), note="second year")

    assert kinds(ledger) == ["budget", "reserved", "released", "budget"]
    (state,) = ledger.budgets()
    assert (state.allowed, state.spent, state.left, state.note) == (
        PureDP("1.5"),
        PureDP(1),
        PureDP("0.5"),
        "second year",
    )
    ask(ledger, "q2", cost=PureDP("0.5"))


def test_a_budget_below_the_cost_refuses_further_charges(ledger):
    ask(ledger, cost=PureDP("0.5"))
    ledger.set_budget("visits", PureDP("0.4"))

    assert ledger.left("visits") == PureDP(0)
    with pytest.raises(BudgetExceeded):
        ask(ledger, "q2", draw_unexpectedly, cost=PureDP(0))
    assert ask(ledger, "q1", draw_unexpectedly, cost=PureDP("0.5")) == b"noised"


def test_a_budget_may_change_type_if_charges_convert(ledger):
    ask(ledger, cost=PureDP("0.5"))
    ledger.set_budget("visits", ZCDP(1))
    assert ledger.spent("visits") == ZCDP("0.125")

    ask(ledger, "q2", cost=ZCDP("0.5"))
    ledger.set_budget("visits", ApproxDP(9, "1e-6"))

    expected = Fraction(1, 2) + zcdp_to_approx(Fraction(1, 2), Fraction("1e-6"))
    assert ledger.spent("visits") == ApproxDP(expected, "1e-6")
    with pytest.raises(ValueError, match="expected releases of pure epsilon for the budget"):
        ledger.set_budget("visits", PureDP(9))
    assert kinds(ledger).count("budget") == 3


def test_a_cost_that_the_budget_cannot_express_is_refused(ledger):
    with pytest.raises(BudgetExceeded, match=r"does not allow rho=1/100; .* set a budget of rho"):
        ask(ledger, draw=draw_unexpectedly, cost=ZCDP("0.01"))

    assert kinds(ledger) == ["budget"]


def test_zcdp_releases_are_converted_together(ledger):
    ledger.set_budget("visits", ApproxDP(1, "1e-6"))
    cost = ZCDP("0.006")  # a single one costs epsilon 0.48; four cost 0.99, not 1.93

    for number in range(4):
        ask(ledger, f"q{number}", cost=cost)

    assert Fraction("0.98") < ledger.spent("visits").epsilon < 1
    with pytest.raises(BudgetExceeded):
        ask(ledger, "q4", draw_unexpectedly, cost=cost)


@pytest.mark.parametrize(
    "changed", [{"dataset": "trips"}, {"user": "board"}, {"cost": PureDP("0.2")}], ids=str
)
def test_a_repeated_id_under_other_terms_is_an_error(ledger, changed):
    ledger.set_budget("trips", PureDP(1))
    ask(ledger)
    before = ledger.entries()

    with pytest.raises(ValueError, match="query 'q1' was first charged with data set"):
        ask(ledger, draw=draw_unexpectedly, **changed)

    assert ledger.entries() == before


def test_a_failed_draw_stays_charged_and_can_be_repeated(ledger):
    with pytest.raises(RuntimeError, match="no entropy"):
        ask(ledger, draw=fail_to_draw)

    assert ledger.spent("visits") == TENTH  # the failure may reveal something about the rows
    assert kinds(ledger) == ["budget", "reserved"]
    assert ask(ledger) == b"noised"
    assert ledger.spent("visits") == TENTH


def test_a_charge_is_voided_if_the_answer_cannot_be_stored(ledger, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ledger._tables, "add_answer", fail_on_full_disk)
        with pytest.raises(LedgerError, match="full"):
            ask(ledger)

    assert ledger.spent("visits") == PureDP(0)
    assert kinds(ledger) == ["budget", "reserved", "voided"]
    assert ask(ledger) == b"noised"
    assert ledger.spent("visits") == TENTH


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        ("text", TypeError, "expected draw to return bytes, got str"),
        (None, TypeError, "got NoneType"),
        (bytes(MAX_ANSWER_BYTES + 1), ValueError, "at most 67108864 bytes, got 67108865"),
    ],
    ids=["text", "nothing", "too long"],
)
def test_an_invalid_answer_is_refused_and_stays_charged(ledger, answer, error, match):
    with pytest.raises(error, match=match):
        ask(ledger, draw=lambda: answer)

    assert ledger.spent("visits") == TENTH


@pytest.mark.parametrize("answer", [b"", b"\0", bytes(16 * 2**20), bytes(range(256)) * 256])
def test_stored_answers_are_returned_unchanged(ledger, path, answer):
    ask(ledger, draw=lambda: answer)

    with Ledger(path) as other:
        assert ask(other, draw=draw_unexpectedly) == answer


def test_the_first_stored_of_two_draws_is_returned(ledger, path):
    with Ledger(path) as other:
        answer = ask(ledger, draw=lambda: ask(other, draw=lambda: b"first") and b"second")

    assert answer == b"first"
    assert kinds(ledger) == ["budget", "reserved", "released"]


def fail_to_store_elsewhere(path, monkeypatch):
    """Request the same release from a second ledger that cannot store its answer."""
    with Ledger(path) as other, monkeypatch.context() as patch:
        patch.setattr(other._tables, "add_answer", fail_on_full_disk)
        with pytest.raises(LedgerError, match="full"):
            ask(other)


def test_a_failed_draw_keeps_another_processs_release(ledger, path):
    def draw():
        with Ledger(path) as other:
            ask(other, draw=lambda: b"first")
        raise RuntimeError("no entropy")

    with pytest.raises(RuntimeError, match="no entropy"):
        ask(ledger, draw=draw)

    assert ledger.spent("visits") == TENTH
    assert ask(ledger, draw=draw_unexpectedly) == b"first"


def test_a_charge_voided_by_another_process_is_repeated(ledger, path, monkeypatch):
    draws = []

    def draw():
        draws.append(ledger.spent("visits"))
        if len(draws) == 1:
            fail_to_store_elsewhere(path, monkeypatch)
        return b"noised %d" % len(draws)

    answer = ask(ledger, draw=draw)

    assert answer == b"noised 2"
    assert draws == [TENTH, TENTH]
    assert kinds(ledger) == ["budget", "reserved", "voided", "reserved", "released"]


def test_a_voided_charge_is_not_repeated_over_budget(ledger, path, monkeypatch):
    def draw():
        fail_to_store_elsewhere(path, monkeypatch)
        with Ledger(path) as other:
            ask(other, "q2", cost=PureDP(1))
        return b"noised"

    with pytest.raises(BudgetExceeded):
        ask(ledger, draw=draw)

    assert ledger.spent("visits") == PureDP(1)
    assert [e.query for e in ledger.entries() if e.kind == "released"] == ["q2"]


def test_a_budget_spent_before_the_lock_is_not_spent_twice(ledger, path):
    taken = []

    def before_the_lock(statement):
        if statement == "BEGIN IMMEDIATE" and not taken:
            with Ledger(path) as other:
                taken.append(ask(other, "q2", cost=PureDP(1)))

    ledger._file._connection.set_trace_callback(before_the_lock)

    with pytest.raises(BudgetExceeded):
        ask(ledger, draw=draw_unexpectedly)

    assert taken == [b"noised"]
    assert ledger.spent("visits") == PureDP(1)


def test_concurrent_processes_never_overspend(ledger, path):
    ledger.set_budget("visits", PureDP("0.5"))
    code = (
        "import sys\n"
        "from fedneighbors.errors import BudgetExceeded\n"
        "from fedneighbors.privacy._guarantees import PureDP\n"
        "from fedneighbors.privacy.ledger._ledger import Ledger\n"
        "ask = dict(dataset='visits', user='study', cost=PureDP('0.01'), draw=lambda: b'noised')\n"
        "sys.stdin.read(1)\n"
        "with Ledger(sys.argv[1]) as ledger:\n"
        "    for number in range(40):\n"
        "        try: ledger.release(f'{sys.argv[2]}-{number}', **ask)\n"
        "        except BudgetExceeded: print('refused')\n"
        "        else: print('released')\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]

    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    outcomes = Counter(word for process in processes for word in process.communicate()[0].split())

    assert outcomes == {"released": 50, "refused": 70}
    assert ledger.left("visits") == PureDP(0)


def test_concurrent_threads_share_one_charge(ledger):
    start = threading.Barrier(8)
    answers = []

    def work(number):
        start.wait()
        for query in ("q1", "q2", "q3"):
            answers.append((query, ask(ledger, query, lambda: b"%d" % number)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(answers) == 24
    assert len(set(answers)) == 3
    assert ledger.spent("visits") == PureDP("0.3")


def test_a_ledger_in_memory_charges_as_one_on_disk_does():
    with Ledger(":memory:", party="north") as ledger:
        ledger.set_budget("visits", PureDP("0.1"))

        assert ask(ledger) == ask(ledger, draw=draw_unexpectedly) == b"noised"
        with pytest.raises(BudgetExceeded):
            ask(ledger, "q2")


def test_a_ledger_has_an_owner(ledger, path):
    with Ledger(path) as other:
        assert ledger.party == other.party == "north"


def test_a_closed_ledger_raises_its_own_error(ledger):
    ledger.close()
    ledger.close()

    with pytest.raises(LedgerError, match="is closed; open it again"):
        ask(ledger)


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"query": ""}, ValueError, "expected a query_id that is not empty"),
        ({"user": ""}, ValueError, "expected a user that is not empty"),
        ({"dataset": "a\nb"}, ValueError, "expected dataset of at most 500 printable"),
        ({"user": "\ud800"}, ValueError, "expected user of at most 500 printable"),
        ({"query": "q" * 501}, ValueError, "expected query_id of at most 500"),
        ({"purpose": "\x1b[2J"}, ValueError, "expected purpose of at most 2000"),
        ({"dataset": 7}, TypeError, "expected dataset as text, got int"),
        ({"cost": 0.1}, TypeError, "expected a PureDP, ApproxDP or ZCDP, got 0.1"),
        ({"cost": PureDP(Fraction(1, 10**1000))}, ValueError, "at most 1000 digits"),
    ],
    ids=str,
)
def test_bad_arguments_are_named_and_change_nothing(ledger, changed, error, match):
    with pytest.raises(error, match=match):
        ask(ledger, draw=draw_unexpectedly, **changed)

    assert kinds(ledger) == ["budget"]


def test_bad_budgets_are_named(ledger):
    with pytest.raises(TypeError, match="expected a PureDP, ApproxDP or ZCDP, got 1"):
        ledger.set_budget("visits", 1)
    with pytest.raises(ValueError, match="expected a dataset"):
        ledger.set_budget("", PureDP(1))
    with pytest.raises(ValueError, match="expected user of at most 500 printable"):
        ledger.set_budget("visits", PureDP(1), user="u" * 501)

    assert kinds(ledger) == ["budget"]


def test_the_longest_user_name_can_be_limited_and_charged(ledger):
    longest = "u" * 500
    ledger.set_budget("visits", TENTH, user=longest)

    ask(ledger, user=longest)

    assert ledger.left("visits", longest) == PureDP(0)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entry",
        "UPDATE entry SET user = 'nobody'",
        "UPDATE charge SET first = '0/1'",
        "DELETE FROM answer",
        "UPDATE answer SET content = x'00'",
        "PRAGMA foreign_keys = ON; DELETE FROM charge",
    ],
)
def test_triggers_refuse_changes_and_deletions(ledger, path, statement):
    ask(ledger)
    *before, last = statement.split("; ")
    connection = sqlite3.connect(path)
    for pragma in before:
        connection.execute(pragma)

    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(last)

    connection.close()


def test_every_commit_waits_for_the_disk(ledger):
    assert ledger._file.rows("PRAGMA synchronous") == [(2,)]  # FULL
    assert ledger._file.rows("PRAGMA journal_mode") == [("wal",)]
    assert ledger._file.rows("PRAGMA foreign_keys") == [(1,)]
