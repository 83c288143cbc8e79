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


def named(lacking):
    """Return answers that identify the drawn terms."""
    return [f"noised {each.query}".encode() for each in lacking]


def never(_):
    raise AssertionError("drawn though the answers were there")


def full_disk(*_):
    raise LedgerError("the disk is full")


def kinds(ledger):
    return [entry.kind for entry in ledger.entries() if entry.kind != "budget"]


def test_answers_are_in_the_order_of_requests(ledger):
    asked = [terms("q2", "stays"), terms("q1")]

    answers = ledger.release_all(asked, named)

    assert answers == [b"noised q2", b"noised q1"]
    assert kinds(ledger) == ["reserved"] * 2 + ["released"] * 2
    assert ledger.release_all(asked[::-1], never) == answers[::-1]
    assert ledger.release("q1", dataset="visits", user="study", cost=TENTH, draw=lambda: b"") == (
        b"noised q1"
    )


def test_no_requests_cost_nothing(ledger):
    assert ledger.release_all([], never) == []
    assert kinds(ledger) == []


def test_only_ids_without_an_answer_are_charged(ledger):
    ledger.release_all([terms("q1")], named)
    drawn = []

    answers = ledger.release_all(
        [terms("q1"), terms("q2")], lambda lacking: drawn.extend(lacking) or [b"second"]
    )

    assert answers == [b"noised q1", b"second"]
    assert [each.query for each in drawn] == ["q2"]
    assert ledger.spent("visits") == PureDP("0.2")


def test_one_that_does_not_fit_means_that_none_is_charged(ledger):
    before = ledger.entries()

    with pytest.raises(BudgetExceeded):
        ledger.release_all([terms("q1"), terms("q2", "stays", cost=PureDP(2))], never)

    assert ledger.entries() == before


def test_those_that_fit_one_by_one_must_fit_together(ledger):
    before = ledger.entries()

    with pytest.raises(BudgetExceeded):
        ledger.release_all([terms(f"q{n}", cost=PureDP("0.4")) for n in range(3)], never)

    assert ledger.entries() == before


@pytest.mark.parametrize(
    ("draw", "match"),
    [(lambda lacking: named(lacking)[1:], "expected draw to return 2 answers, got 1"),
     (lambda lacking: [b"", *named(lacking)], "expected draw to return 2 answers, got 3")],
)  # fmt: skip
def test_another_number_of_answers_is_refused_charges_stay(ledger, draw, match):
    with pytest.raises(ValueError, match=match):
        ledger.release_all([terms("q1"), terms("q2")], draw)

    assert kinds(ledger) == ["reserved"] * 2


def test_a_repeated_id_is_refused(ledger):
    with pytest.raises(ValueError, match="each id once"):
        ledger.release_all([terms("q1"), terms("q1")], never)


def test_all_charges_are_voided_if_one_answer_is_not_stored(ledger, monkeypatch):
    stored, add_answer = [], ledger._tables.add_answer

    def once(each, answer):
        if stored:
            full_disk()
        stored.append(answer)
        add_answer(each, answer)

    with monkeypatch.context() as patch:
        patch.setattr(ledger._tables, "add_answer", once)
        with pytest.raises(LedgerError, match="full"):
            ledger.release_all([terms("q1"), terms("q2")], named)

    assert stored
    assert kinds(ledger) == ["reserved"] * 2 + ["voided"] * 2
    assert ledger.spent("visits") == PureDP(0)


def test_only_a_voided_charge_is_made_again(ledger, path, monkeypatch):
    drawn = []

    def draw(lacking):
        drawn.append([each.query for each in lacking])
        if len(drawn) == 1:
            with Ledger(path) as other, monkeypatch.context() as patch:
                patch.setattr(other._tables, "add_answer", full_disk)
                with pytest.raises(LedgerError, match="full"):
                    other.release_all([terms("q2")], named)
        return named(lacking)

    answers = ledger.release_all([terms("q1"), terms("q2")], draw)

    assert answers == [b"noised q1", b"noised q2"]
    assert drawn == [["q1", "q2"], ["q2"]]
    assert ledger.spent("visits") == PureDP("0.2")


def test_a_ledger_returns_the_user_of_an_id(ledger):
    ledger.release_all([terms("q1"), terms("q2", user="other")], named)

    assert ledger.users_of(["q1", "q2", "q3"]) == {"q1": "study", "q2": "other"}
    assert ledger.users_of([]) == {}
