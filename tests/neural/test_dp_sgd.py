"""Private steps: influence of a row, randomness, refused networks, an audit."""

import sys
from collections import OrderedDict
from fractions import Fraction

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer
from torch import nn

from fedneighbors.errors import MissingExtraError
from fedneighbors.neural._dp_sgd import (
    ORDERS,
    Budget,
    StepPlan,
    check_private,
    fresh_generator,
    new_accountant,
    plan_steps,
    train_private,
)
from fedneighbors.neural._network import Network, state_of
from fedneighbors.neural._schedule import Regime
from fedneighbors.privacy._guarantees import ApproxDP, PureDP
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.audit._certificates import certified_epsilon
from tests.methods.knnper.private.clients import make_two_cells

PLAIN = Regime(learning_rate=1.0, momentum=0.0, weight_decay=0.0)


def make_plan(*, noise=0.0, rate=1.0, batch_size=1, n_steps=1):
    return StepPlan(rate, batch_size, n_steps, 1, noise, ApproxDP(1, "1e-5"))


def train_cells(x, y, *, bound=1.0, plan=None, regime=PLAIN, generator=None):
    """Return the weight changes of two cells, shape (2, 2), and the accountant."""
    net = make_two_cells()
    x = torch.tensor(x, dtype=torch.float32).reshape(-1, 2)
    state, accountant = train_private(
        net,
        state_of(net.module),
        x,
        torch.tensor(y, dtype=torch.int64),
        plan=plan or make_plan(),
        regime=regime,
        bound=bound,
        generator=generator,
    )
    return state["head.weight"].numpy().astype(float), accountant


def test_a_short_gradient_is_unchanged():
    change, _ = train_cells([[1.0, 0.0]], [0], bound=10.0)

    np.testing.assert_allclose(change, [[0.5, 0], [-0.5, 0]], atol=1e-6)


@pytest.mark.parametrize("size", [10.0, 1e4, 1e15, 1e25])
def test_no_row_moves_the_weights_by_more_than_the_bound(size):
    change, _ = train_cells([[size, 0.0]], [0], bound=0.5)

    assert np.linalg.norm(change) <= 0.5 * (1 + 1e-6)
    assert np.linalg.norm(change) > 0.49 or size > 1e18  # above, its square is infinite


def test_each_row_is_clipped_before_the_sum():
    change, _ = train_cells([[1e4, 0.0], [-1e4, 0.0], [0.0, 1e4]], [0, 0, 0], bound=1.0)

    np.testing.assert_allclose(np.abs(change), [[0, 0.5**0.5]] * 2, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_without_a_finite_gradient_counts_as_zero(value):
    without_row, _ = train_cells([[1.0, 0.0]], [0])
    with_row, _ = train_cells([[1.0, 0.0], [value, 0.0]], [0, 1])

    assert (without_row == with_row).all()


def test_a_client_without_rows_sends_noise_only():
    without_noise, accountant = train_cells(np.empty((0, 2)), [], plan=make_plan(n_steps=3))
    with_noise, _ = train_cells(np.empty((0, 2)), [], plan=make_plan(noise=1.0, n_steps=3))

    assert (without_noise == 0).all()
    assert (with_noise != 0).all()
    assert accountant.history == [(0.0, 1.0, 3)]


def test_the_accountant_records_every_step():
    _, accountant = train_cells(
        [[1.0, 0.0]] * 8, [0] * 8, plan=make_plan(noise=2.0, rate=0.25, n_steps=7)
    )

    assert accountant.history == [(2.0, 0.25, 7)]


def test_rows_are_sampled_and_divided_by_the_declared_batch():
    # 4,000 rows at 1/4, each moving the first cell by 1/2 * 1/1000: five deviations are 137 rows
    change, _ = train_cells(
        [[1.0, 0.0]] * 4000,
        [0] * 4000,
        bound=10.0,
        plan=make_plan(rate=0.25, batch_size=1000),
        generator=torch.Generator().manual_seed(3),
    )

    assert abs(change[0, 0] * 2 * 1000 - 1000) < 137
    assert change[0, 0] != 0.5


def test_the_generator_is_seeded_by_the_operating_system(monkeypatch):
    key = np.random.default_rng(0).bytes(4 * 624)
    monkeypatch.setattr("os.urandom", lambda n: key[:n])
    reference = np.random.MT19937()
    reference.state = {
        "bit_generator": "MT19937",
        "state": {"key": np.frombuffer(key, "<u4"), "pos": 624},
    }

    samples = torch.randint(0, 2**24, (2000,), generator=fresh_generator())

    assert samples.tolist() == (reference.random_raw(2000) % 2**24).tolist()


def test_noise_is_fresh_and_torchs_generator_unchanged():
    before = torch.random.get_rng_state()

    first, _ = train_cells([[1.0, 0.0]], [0], plan=make_plan(noise=1.0))
    second, _ = train_cells([[1.0, 0.0]], [0], plan=make_plan(noise=1.0))

    assert (first != second).all()
    assert torch.equal(torch.random.get_rng_state(), before)


def make_network(**layers):
    return Network(nn.Sequential(OrderedDict(layers)), embedding="body")


class Idle(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.spare = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.body(x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.LSTM(2, 2, batch_first=True), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.body(x[:, None])[0][:, 0])


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (
            make_network(body=nn.Linear(2, 2), norm=nn.BatchNorm1d(2), head=nn.Linear(2, 2)),
            "BatchNorm cannot support .* GroupNorm or LayerNorm",
        ),
        (Network(Recurrent(), embedding="body"), r"do not support nn\.LSTM"),
        (Network(Idle(), embedding="body"), r"parameters \['spare\.weight', 'spare\.bias'\]"),
    ],
    ids=["batch norm", "recurrent", "idle"],
)
def test_networks_that_mix_rows_are_refused(network, message):
    with pytest.raises(ValueError, match=message):
        check_private(network, (2,), torch.float32)


class Mixing(nn.Module):
    """Network whose ``forward`` combines rows by an operation."""

    def __init__(self, mix):
        super().__init__()
        self.body, self.head = nn.Linear(2, 4), nn.Linear(4, 2)
        self.mix = mix

    def forward(self, x):
        return self.head(self.mix(torch.relu(self.body(x))))


class Memory:
    """Operation that adds the mean of the previous batch."""

    mean = 0.0

    def __call__(self, x):
        before, self.mean = self.mean, x.detach().mean()
        return x + before


MIXING = {
    "centered": lambda x: x - x.mean(dim=0),
    "detached mean": lambda x: x - x.mean(dim=0).detach(),
    "rolled": lambda x: x.roll(1, dims=0),
    "cumulative": lambda x: x.cumsum(dim=0),
    "scaled by the largest row": lambda x: x / (1e-3 + x.detach().abs().max()),
    "softmax over rows": lambda x: x.softmax(dim=0),
    "mean of large batches": lambda x: x - x.mean(dim=0) if len(x) > 2 else x,
    "scaled by the number of rows": lambda x: x * len(x),
    "sorted": lambda x: x.sort(dim=0).values,
    "memory": Memory(),
}


@pytest.mark.parametrize("mix", MIXING.values(), ids=MIXING)
def test_networks_that_mix_rows_in_forward_are_refused(mix):
    with pytest.raises(ValueError, match="the gradient of a row depends on other rows"):
        check_private(Network(Mixing(mix), embedding="body"), (2,), torch.float32)


torch.manual_seed(0)  # the weights of these networks do not depend on earlier imports


@pytest.mark.parametrize(
    "network",
    [
        Network(Mixing(torch.tanh), embedding="body"),
        Network(Mixing(nn.Dropout(0.5)), embedding="body"),
        make_two_cells(),
        make_network(body=nn.Linear(2, 4), norm=nn.GroupNorm(2, 4), head=nn.Linear(4, 2)),
    ],
)
def test_networks_that_see_one_row_at_a_time_are_accepted(network):
    before = state_of(network.module)

    check_private(network, (2,), torch.float32)

    assert all(torch.equal(before[name], value) for name, value in state_of(network.module).items())


def sample_step_sums(n_rows, monkeypatch, *, seed, n=300, noise=1.0, rate=1.0):
    """Return the noisy sum of each step along the gradient of a canary row, in quarters.

    The learning rate is so small that the weights stay the same: the steps are independent.
    """
    gradients = []
    original_step = torch.optim.SGD.step

    def record_gradient(self):
        gradients.append(self.param_groups[0]["params"][0].grad.numpy().copy())
        return original_step(self)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", record_gradient)
        train_cells(
            [[100.0, 0.0]] * n_rows,
            [0] * n_rows,
            plan=make_plan(noise=noise, rate=rate, n_steps=n),
            regime=Regime(learning_rate=1e-30, momentum=0.0, weight_decay=0.0),
            generator=torch.Generator().manual_seed(seed),
        )
    columns = np.array(gradients)[:, :, 0]
    return np.floor(4 * (columns[:, 1] - columns[:, 0]) / 2**0.5).astype(np.int64)


def test_an_audit_of_private_steps_finds_planted_breaches_only(monkeypatch):
    """A correct claim is disproved once in a thousand audits; seeds are fixed."""
    delta = 0.1
    claims = {}
    for rate in (1.0, 0.25):
        accountant = new_accountant()
        accountant.step(noise_multiplier=1.0, sample_rate=rate)
        claims[rate] = accountant.get_epsilon(delta, alphas=ORDERS)

    def audit(seed, **settings):
        members = sample_step_sums(1, monkeypatch, seed=seed, **settings)
        outsiders = sample_step_sums(0, monkeypatch, seed=seed + 1, **settings)
        return certified_epsilon(members, outsiders, delta=delta).epsilon(delta)

    correct, sampled, half_noise = audit(10), audit(20, rate=0.25), audit(30, noise=0.5, n=1300)
    monkeypatch.setattr(DPOptimizer, "clip_and_accumulate", sum_unclipped)
    unclipped = audit(40)

    assert correct <= claims[1.0]
    assert sampled <= claims[0.25]
    assert half_noise > claims[1.0]
    assert unclipped > claims[1.0]


def sum_unclipped(self):
    """Return the plain sum of gradients."""
    for parameter in self.params:
        parameter.summed_grad = parameter.grad_sample.sum(dim=0)


SETTINGS = [
    ("0.2", 100, 10, 3, 20),
    ("1", 1000, 32, 1, 50),
    ("8", 57, 32, 1, 5),
    ("3", 5, 32, 2, 9),
]


@pytest.mark.parametrize(("epsilon", "n_rows", "batch_size", "epochs", "n_rounds"), SETTINGS)
def test_the_plan_uses_nearly_all_of_the_requested_epsilon(
    epsilon, n_rows, batch_size, epochs, n_rounds
):
    allowed = ApproxDP(epsilon, "1e-5")

    plan = plan_steps(n_rows, batch_size, epochs=epochs, n_rounds=n_rounds, allowed=allowed)

    accountant = new_accountant()
    for _ in range(plan.n_steps * n_rounds):
        accountant.step(noise_multiplier=plan.noise_multiplier, sample_rate=plan.sample_rate)
    limit = float(allowed.epsilon)
    assert 0.9 * limit < accountant.get_epsilon(1e-5, alphas=ORDERS) <= limit
    assert 0.9 * allowed.epsilon < plan.cost.epsilon <= allowed.epsilon
    assert plan.cost.delta == allowed.delta


def test_a_tighter_accountant_finds_less_than_the_charge():
    from opacus.accountants import PRVAccountant

    plan = plan_steps(200, 20, epochs=1, n_rounds=20, allowed=ApproxDP(1, "1e-5"))

    finer = PRVAccountant()
    finer.history = [(plan.noise_multiplier, plan.sample_rate, plan.n_steps * plan.n_rounds)]
    assert 0.8 < finer.get_epsilon(1e-5) < float(plan.cost.epsilon)


def test_more_steps_and_smaller_budgets_need_more_noise():
    def noise(n_rounds, epsilon):
        allowed = ApproxDP(epsilon, "1e-5")
        return plan_steps(100, 10, epochs=1, n_rounds=n_rounds, allowed=allowed).noise_multiplier

    assert noise(10, 1) < noise(40, 1) < noise(40, "1/2")


@pytest.mark.parametrize("n_rows", [1, 9, 10, 11, 33, 1000, 12345])
def test_sampling_rates_are_exact_in_torch(n_rows):
    plan = plan_steps(n_rows, 10, epochs=2, n_rounds=1, allowed=ApproxDP(4, "1e-5"))

    assert (plan.sample_rate * 2**24).is_integer()
    assert 1 <= plan.sample_rate / min(10 / n_rows, 1) <= 1 + 2**-3
    assert plan.n_steps == 2 * -(-1 // Fraction(plan.sample_rate))
    assert plan.batch_size == min(10, n_rows)


def test_the_parts_of_a_budget_add_up_to_it():
    privacy = Privacy(epsilon="1.5", delta="1e-6", constants_share="1/5")

    budget = Budget.of(privacy)

    assert budget.counts == PureDP("0.3")
    assert budget.steps == ApproxDP("1.2", "1e-6")


def test_an_impossible_budget_is_refused_with_a_remedy():
    with pytest.raises(ValueError, match=r"cost of 10000 steps .* raise epsilon, or lower"):
        plan_steps(10, 10, epochs=100, n_rounds=100, allowed=ApproxDP("1e-6", "1e-12"))


def test_without_opacus_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'fedneighbors\[dpsgd\]'"):
        new_accountant()
