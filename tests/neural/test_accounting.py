"""How much noise a budget asks for, by Opacus' accountant, and what the steps then cost."""

import sys
from fractions import Fraction

import pytest

from fedneighbors.errors import MissingExtraError
from fedneighbors.neural._accounting import ORDERS, Budget, accountant, plan_of
from fedneighbors.privacy._guarantees import ApproxDP, PureDP
from fedneighbors.privacy._policy import Privacy

SETTINGS = [
    ("0.2", 100, 10, 3, 20),
    ("1", 1000, 32, 1, 50),
    ("8", 57, 32, 1, 5),
    ("3", 5, 32, 2, 9),
]


@pytest.mark.parametrize(("epsilon", "n_rows", "batch_size", "epochs", "n_rounds"), SETTINGS)
def test_the_accountant_finds_no_more_than_was_asked_and_hardly_less(
    epsilon, n_rows, batch_size, epochs, n_rounds
):
    allowed = ApproxDP(epsilon, "1e-5")

    plan = plan_of(n_rows, batch_size, epochs=epochs, n_rounds=n_rounds, allowed=allowed)

    counted = accountant()
    for _ in range(plan.n_steps * n_rounds):
        counted.step(noise_multiplier=plan.noise_multiplier, sample_rate=plan.sample_rate)
    asked = float(allowed.epsilon)
    assert 0.9 * asked < counted.get_epsilon(1e-5, alphas=ORDERS) <= asked
    assert 0.9 * allowed.epsilon < plan.cost.epsilon <= allowed.epsilon
    assert plan.cost.delta == allowed.delta


def test_the_finer_accountant_finds_less_than_is_charged():
    from opacus.accountants import PRVAccountant

    plan = plan_of(200, 20, epochs=1, n_rounds=20, allowed=ApproxDP(1, "1e-5"))

    finer = PRVAccountant()
    finer.history = [(plan.noise_multiplier, plan.sample_rate, plan.n_steps * plan.n_rounds)]
    assert 0.8 < finer.get_epsilon(1e-5) < float(plan.cost.epsilon)


def test_more_steps_and_smaller_budgets_ask_for_more_noise():
    def noise(n_rounds, epsilon):
        allowed = ApproxDP(epsilon, "1e-5")
        return plan_of(100, 10, epochs=1, n_rounds=n_rounds, allowed=allowed).noise_multiplier

    assert noise(10, 1) < noise(40, 1) < noise(40, "1/2")


@pytest.mark.parametrize("n_rows", [1, 9, 10, 11, 33, 1000, 12345])
def test_a_row_is_in_a_step_with_a_chance_that_torch_can_draw_exactly(n_rows):
    plan = plan_of(n_rows, 10, epochs=2, n_rounds=1, allowed=ApproxDP(4, "1e-5"))

    assert (plan.sample_rate * 2**24).is_integer()
    assert 1 <= plan.sample_rate / min(10 / n_rows, 1) <= 1 + 2**-3
    assert plan.n_steps == 2 * -(-1 // Fraction(plan.sample_rate))
    assert plan.batch_size == min(10, n_rows)


def test_the_parts_of_a_budget_add_up_to_it():
    whole = Privacy(epsilon="1.5", delta="1e-6", constants_share="1/5")

    parts = Budget.of(whole)

    assert parts.counts == PureDP("0.3")
    assert parts.steps == ApproxDP("1.2", "1e-6")


def test_a_budget_that_no_noise_keeps_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"no noise keeps 10000 steps .* raise epsilon, or lower"):
        plan_of(10, 10, epochs=100, n_rounds=100, allowed=ApproxDP("1e-6", "1e-12"))


def test_without_opacus_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'fedneighbors\[dpsgd\]'"):
        accountant()
