"""After any steps of several writers, a ledger has the contents of a model of dictionaries."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fedneighbors.errors import BudgetExceeded, LedgerError
from fedneighbors.privacy._accounting import zcdp_to_approx
from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, PureDP
from fedneighbors.privacy.ledger._ledger import Ledger

N_WRITERS = 3
N_STEPS = 50  # steps in a sequence
N_SEQUENCES = 30
N_SEQUENCES_SLOW = 1000

writers = st.integers(0, N_WRITERS - 1)
queries = st.integers(0, 40).map("q{}".format)
datasets = st.sampled_from(["visits", "trips"])
users = st.sampled_from(["study", "board"])
numbers = st.sampled_from(["0", "1/100", "0.1", "1/3", "0.5"]).map(Fraction)
costs = (
    st.builds(PureDP, numbers)
    | st.builds(ZCDP, numbers)
    | st.builds(ApproxDP, numbers, st.just(Fraction("1e-7")))
)
allowances = st.sampled_from(["0", "0.5", "1", "3", "9", "20"]).map(Fraction)
budgets = (
    st.builds(PureDP, allowances)
    | st.builds(ZCDP, allowances)
    | st.builds(ApproxDP, allowances, st.sampled_from([Fraction(0), Fraction("1e-6")]))
)
fates = st.sampled_from(["answered", "answered", "failing", "unstored", "crashing"])


class DrawError(Exception):
    """A draw that fails."""


class Crash(BaseException):
    """The end of a process during a draw."""


def fail_on_full_disk(*_):
    raise LedgerError("the disk is full")


def total(charges, budget):
    """Return the total cost in a budget's type, by definition; None if there is none."""
    pure = [c.epsilon for c in charges if isinstance(c, PureDP)]
    approximate = [c for c in charges if isinstance(c, ApproxDP)]
    rho = sum((c.rho for c in charges if isinstance(c, ZCDP)), Fraction(0))
    delta = sum((c.delta for c in approximate), Fraction(0))
    if isinstance(budget, ZCDP):
        return None if approximate else ZCDP(rho + sum((e**2 / 2 for e in pure), Fraction(0)))
    if isinstance(budget, PureDP):
        return None if approximate or rho else PureDP(sum(pure, Fraction(0)))
    epsilon = sum(pure, Fraction(0)) + sum((c.epsilon for c in approximate), Fraction(0))
    if not rho:
        return ApproxDP(epsilon, delta)
    if delta >= budget.delta:
        return None
    return ApproxDP(epsilon + zcdp_to_approx(rho, budget.delta - delta), budget.delta)


def within(cost, budget):
    names = vars(budget)
    return cost is not None and all(getattr(cost, n) <= getattr(budget, n) for n in names)


class LedgerMachine(RuleBasedStateMachine):
    """Three ledgers on one file against a model of dictionaries."""

    @initialize()
    def open(self):
        self.path = self.folder / f"{next(self.names)}.ledger"
        self.ledgers = [Ledger(self.path, party="north", timeout_s=0) for _ in range(N_WRITERS)]
        self.budgets = {}
        self.charges = {}  # query -> dataset, user, cost
        self.answers = {}
        self.kinds = Counter()
        self.number = 0
        for dataset in ("visits", "trips"):  # otherwise most requests would be refused
            self.set_initial_budget(dataset, ApproxDP(Fraction(20), Fraction("1e-5")))

    def set_initial_budget(self, dataset, budget):
        self.ledgers[0].set_budget(dataset, budget)
        self.budgets[dataset, ""] = budget
        self.kinds["budget"] += 1

    def teardown(self):
        for ledger in getattr(self, "ledgers", []):
            ledger.close()

    def costs_of(self, dataset, user=""):
        return [c for d, u, c in self.charges.values() if d == dataset and user in ("", u)]

    def fits(self, dataset, user, cost):
        if (dataset, "") not in self.budgets:
            return False
        limits = [(u, self.budgets[dataset, u]) for u in ("", user) if (dataset, u) in self.budgets]
        return all(
            within(total([*self.costs_of(dataset, u), cost], limit), limit) for u, limit in limits
        )

    @precondition(lambda self: len(self.charges) >= self.kinds["budget"])
    @rule(writer=writers, dataset=datasets, user=users | st.just(""), budget=budgets)
    def set_budget(self, writer, dataset, user, budget):
        if total(self.costs_of(dataset, user), budget) is None:
            with pytest.raises(ValueError, match="set a budget"):
                self.ledgers[writer].set_budget(dataset, budget, user=user)
            return
        self.ledgers[writer].set_budget(dataset, budget, user=user)
        self.budgets[dataset, user] = budget
        self.kinds["budget"] += 1

    @rule(w=writers, query=queries, dataset=datasets, user=users, cost=costs, fate=fates)
    def release(self, w, query, dataset, user, cost, fate):
        if query in self.charges:
            dataset, user, cost = self.charges[query]
        self.ask(w, query, (dataset, user, cost), fate)

    @precondition(lambda self: self.charges)
    @rule(w=writers, data=st.data(), dataset=datasets, user=users, cost=costs)
    def ask_under_other_terms(self, w, data, dataset, user, cost):
        query = data.draw(st.sampled_from(sorted(self.charges)))
        if self.charges[query] == (dataset, user, cost):
            return
        with pytest.raises(ValueError, match="was first charged with"):
            self.call(w, query, (dataset, user, cost), self.draw_unexpectedly)

    @rule(
        w=writers, v=writers, query=queries, dataset=datasets, user=users, cost=costs,
        first=fates, second=fates,
    )  # fmt: skip
    def release_while_another_draws_for_the_same_id(
        self, w, v, query, dataset, user, cost, first, second
    ):
        terms = self.charges.get(query, (dataset, user, cost))
        if w == v or query in self.answers or not (query in self.charges or self.fits(*terms)):
            return

        def meanwhile():
            self.ask(v, query, terms, first)

        self.ask(w, query, terms, second, meanwhile)

    @rule(writer=writers)
    def reopen(self, writer):
        self.ledgers[writer].close()
        self.ledgers[writer] = Ledger(self.path, timeout_s=0)

    def ask(self, w, query, terms, fate, meanwhile=None):
        """Request a release; update the model with the expected effect."""
        if query in self.answers:
            assert self.call(w, query, terms, self.draw_unexpectedly) == self.answers[query]
            return
        if query not in self.charges and not self.fits(*terms):
            with pytest.raises(BudgetExceeded):
                self.call(w, query, terms, self.draw_unexpectedly)
            return
        self.reserve(query, terms)
        steps = [meanwhile] if meanwhile else []
        draws = []

        def draw():
            if steps:
                steps.pop()()
            elif draws:  # the charge was voided meanwhile, and is repeated
                self.reserve(query, terms)
            self.number += 1
            draws.append(b"%d" % self.number)
            if fate == "failing":
                raise DrawError
            if fate == "crashing":
                self.ledgers[w]._file.close()  # a crashed process writes nothing more
                raise Crash
            return draws[-1]

        if fate == "failing":
            with pytest.raises(DrawError):
                self.call(w, query, terms, draw)
        elif fate == "unstored":
            self.fail_to_store(w, query, terms, draw)
        elif fate == "crashing":
            with pytest.raises(Crash):
                self.call(w, query, terms, draw)
            self.ledgers[w]._to_void.clear()
            self.ledgers[w] = Ledger(self.path, timeout_s=0)
        else:
            try:
                answer = self.call(w, query, terms, draw)
            except BudgetExceeded:  # the charge was voided meanwhile, after the budget was lowered
                assert draws
                assert query not in self.charges
                assert not self.fits(*terms)
                return
            if query not in self.answers:
                self.answers[query] = draws[-1]
                self.kinds["released"] += 1
            assert answer == self.answers[query]

    def fail_to_store(self, w, query, terms, draw):
        """Request a release from a writer that cannot store answers."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.ledgers[w]._tables, "add_answer", fail_on_full_disk)
            try:
                answer = self.call(w, query, terms, draw)
            except (LedgerError, BudgetExceeded):  # as above, or nothing is stored
                assert query not in self.answers
                self.void(query)
            else:
                assert answer == self.answers[query]

    def reserve(self, query, terms):
        if query not in self.charges:
            self.charges[query] = terms
            self.kinds["reserved"] += 1

    def void(self, query):
        if query in self.charges and query not in self.answers:
            del self.charges[query]
            self.kinds["voided"] += 1

    def call(self, w, query, terms, draw):
        dataset, user, cost = terms
        return self.ledgers[w].release(query, dataset=dataset, user=user, cost=cost, draw=draw)

    def draw_unexpectedly(self):
        raise AssertionError("drawn although an answer or a refusal was expected")

    @invariant()
    def every_writer_sees_the_model(self):
        if not getattr(self, "ledgers", None):
            return
        for ledger in self.ledgers:
            states = {(s.dataset, s.user): (s.allowed, s.spent) for s in ledger.budgets()}
            assert states == {
                key: (budget, total(self.costs_of(*key), budget))
                for key, budget in self.budgets.items()
            }
        entries = self.ledgers[0].entries()
        assert Counter(entry.kind for entry in entries) == self.kinds
        assert {e.query for e in entries if e.kind == "released"} == set(self.answers)


def assert_agreement(folder, n_sequences):
    class Machine(LedgerMachine):
        pass

    Machine.folder, Machine.names = folder, iter(range(10**9))
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=n_sequences,
            stateful_step_count=N_STEPS,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate, Phase.shrink],
        ),
    )


@pytest.mark.parametrize("second", ["answered", "unstored"])
def test_a_voided_charge_is_not_repeated_beyond_a_lowered_budget(tmp_path, second):
    class Machine(LedgerMachine):
        folder, names = tmp_path, iter(["model"])

    model, study = Machine(), {"dataset": "visits", "user": "study"}
    model.open()
    spent, free = ApproxDP(Fraction(0), Fraction("1e-7")), PureDP(Fraction(0))
    model.release(w=0, query="q0", cost=spent, fate="answered", **study)
    model.release(w=0, query="q1", cost=free, fate="crashing", **study)
    model.set_budget(writer=0, dataset="visits", user="", budget=ApproxDP(Fraction(0), Fraction(0)))

    model.release_while_another_draws_for_the_same_id(
        w=1, v=0, query="q1", cost=free, first="unstored", second=second, **study
    )

    model.every_writer_sees_the_model()
    assert "q1" not in model.charges


def test_several_writers_agree_with_a_model(tmp_path):
    assert_agreement(tmp_path, N_SEQUENCES)


@pytest.mark.slow
def test_long_runs_of_several_writers_agree_with_a_model(tmp_path):
    assert_agreement(tmp_path, N_SEQUENCES_SLOW)
