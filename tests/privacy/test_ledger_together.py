"""Several releases of one ledger are charged together or not at all, in two commits."""

import pytest

from fedneighbors.errors import BudgetExceeded, LedgerError
from fedneighbors.privacy._guarantees import PureDP
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.ledger._tables import ChargeTerms

TENTH = PureDP("0.1")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "north.ledger"


@pytest.fixture
def ledger(path):
    with Ledger(path, party="north") as opened:
        for dataset in ("visits", "stays"):
            opened.set_budget(dataset, PureDP(1))
        yield opened


def terms(query, dataset="visits", *, user="study", cost=TENTH):
    return ChargeTerms(query, dataset, user, cost)


def answer_by_id(missing):
    """Return answers that contain the id of each release."""
    return [f"noised {charge.query}".encode() for charge in missing]


def draw_unexpectedly(_):
    raise AssertionError("drawn although all answers are stored")


def fail_on_full_disk(*_):
    raise LedgerError("the disk is full")


def kinds(ledger):
    return [entry.kind for entry in ledger.entries() if entry.kind != "budget"]


def test_answers_are_in_the_order_of_requests(ledger):
    requests = [terms("q2", "stays"), terms("q1")]

    answers = ledger.release_all(requests, answer_by_id)

    assert answers == [b"noised q2", b"noised q1"]
    assert kinds(ledger) == ["reserved"] * 2 + ["released"] * 2
    assert ledger.release_all(requests[::-1], draw_unexpectedly) == answers[::-1]
    assert ledger.release("q1", dataset="visits", user="study", cost=TENTH, draw=lambda: b"") == (
        b"noised q1"
    )


def test_an_empty_request_costs_nothing(ledger):
    assert ledger.release_all([], draw_unexpectedly) == []
    assert kinds(ledger) == []


def test_only_ids_without_an_answer_are_charged(ledger):
    ledger.release_all([terms("q1")], answer_by_id)
    draws = []

    answers = ledger.release_all(
        [terms("q1"), terms("q2")], lambda missing: draws.extend(missing) or [b"second"]
    )

    assert answers == [b"noised q1", b"second"]
    assert [charge.query for charge in draws] == ["q2"]
    assert ledger.spent("visits") == PureDP("0.2")


def test_no_release_is_charged_if_one_does_not_fit(ledger):
    before = ledger.entries()

    with pytest.raises(BudgetExceeded):
        ledger.release_all([terms("q1"), terms("q2", "stays", cost=PureDP(2))], draw_unexpectedly)

    assert ledger.entries() == before


def test_releases_must_fit_the_budget_together(ledger):
    before = ledger.entries()

    with pytest.raises(BudgetExceeded):
        ledger.release_all(
            [terms(f"q{n}", cost=PureDP("0.4")) for n in range(3)], draw_unexpectedly
        )

    assert ledger.entries() == before


@pytest.mark.parametrize(
    ("draw", "match"),
    [(lambda missing: answer_by_id(missing)[1:], "expected draw to return 2 answers, got 1"),
     (lambda missing: [b"", *answer_by_id(missing)], "expected draw to return 2 answers, got 3")],
)  # fmt: skip
def test_a_wrong_number_of_answers_is_refused_but_charged(ledger, draw, match):
    with pytest.raises(ValueError, match=match):
        ledger.release_all([terms("q1"), terms("q2")], draw)

    assert kinds(ledger) == ["reserved"] * 2


def test_a_repeated_id_is_refused(ledger):
    with pytest.raises(ValueError, match="each id once"):
        ledger.release_all([terms("q1"), terms("q1")], draw_unexpectedly)


def test_all_charges_are_voided_if_one_answer_is_not_stored(ledger, monkeypatch):
    stored, add_answer = [], ledger._tables.add_answer

    def add_once(charge, answer):
        if stored:
            fail_on_full_disk()
        stored.append(answer)
        add_answer(charge, answer)

    with monkeypatch.context() as patch:
        patch.setattr(ledger._tables, "add_answer", add_once)
        with pytest.raises(LedgerError, match="full"):
            ledger.release_all([terms("q1"), terms("q2")], answer_by_id)

    assert stored
    assert kinds(ledger) == ["reserved"] * 2 + ["voided"] * 2
    assert ledger.spent("visits") == PureDP(0)


def test_only_a_voided_charge_is_repeated(ledger, path, monkeypatch):
    draws = []

    def draw(missing):
        draws.append([charge.query for charge in missing])
        if len(draws) == 1:
            with Ledger(path) as other, monkeypatch.context() as patch:
                patch.setattr(other._tables, "add_answer", fail_on_full_disk)
                with pytest.raises(LedgerError, match="full"):
                    other.release_all([terms("q2")], answer_by_id)
        return answer_by_id(missing)

    answers = ledger.release_all([terms("q1"), terms("q2")], draw)

    assert answers == [b"noised q1", b"noised q2"]
    assert draws == [["q1", "q2"], ["q2"]]
    assert ledger.spent("visits") == PureDP("0.2")


def test_a_ledger_returns_the_user_of_an_id(ledger):
    ledger.release_all([terms("q1"), terms("q2", user="other")], answer_by_id)

    assert ledger.users_of(["q1", "q2", "q3"]) == {"q1": "study", "q2": "other"}
    assert ledger.users_of([]) == {}
