"""Local training: a batched product equals training client by client."""

import numpy as np
import pytest
import torch
from torch import nn

from fedneighbors.neural._blueprint import perceptron
from fedneighbors.neural._network import Network, clone, state_of
from fedneighbors.neural._schedule import Regime, batch_plan, row_order
from fedneighbors.neural._trainer import LocalTask, Trainer

RANDOM = np.random.default_rng(0)
SIZES = (7, 0, 33, 1, 16)
ENDS = np.concatenate([[0], np.cumsum(SIZES)])
X = torch.tensor(RANDOM.normal(size=(ENDS[-1], 5)))
Y = torch.tensor(RANDOM.integers(3, size=ENDS[-1]))


def make_network():
    net = perceptron(5, 3, hidden=(6, 4), seed=2)
    return Network(net.module.double(), "body")


def make_tasks(net, start=None):
    start = start or state_of(net.module)
    return [
        LocalTask(np.arange(ENDS[i], ENDS[i + 1]), start, ("seed", i)) for i in range(len(SIZES))
    ]


def train_with_torch(net, task, regime, only=None, anchor=None):
    """Train one client with torch's own optimizer, a separate model and a separate loop."""
    module = perceptron(5, 3, hidden=(6, 4), seed=2).module.double()
    module.load_state_dict(task.start)
    trained = [p for name, p in module.named_parameters() if only is None or name in only]
    optimizer = torch.optim.SGD(
        trained, regime.learning_rate, regime.momentum, weight_decay=regime.weight_decay
    )
    for number in range(regime.epochs):
        rows = task.rows[row_order(len(task.rows), *task.seed_parts, number)]
        for first in range(0, len(rows), regime.batch_size):
            batch = rows[first : first + regime.batch_size]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(X[batch]), Y[batch])
            if regime.proximal:
                parameters = dict(module.named_parameters())
                squares = [((parameters[k] - anchor[k]) ** 2).sum() for k in parameters]
                loss = loss + regime.proximal / 2 * sum(squares)
            loss.backward()
            optimizer.step()
    return module.state_dict()


@pytest.mark.parametrize("method", ["stacked", "reuse"])
@pytest.mark.parametrize(
    "regime", [Regime(batch_size=4), Regime(epochs=3, batch_size=8, momentum=0.0, weight_decay=0.1)]
)
def test_clients_train_as_with_torch_one_by_one(method, regime):
    net = make_network()

    states = Trainer(net, X, Y, method=method).train(make_tasks(net), regime)

    for state, task in zip(states, make_tasks(net), strict=True):
        expected = train_with_torch(net, task, regime)
        for name in expected:
            np.testing.assert_allclose(state[name], expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n_bytes", [1, 2 * 8 * 79, 10**9])
def test_no_more_clients_train_together_than_fit_the_cache(n_bytes, monkeypatch):
    monkeypatch.setattr("fedneighbors.neural._trainer.MAX_STACKED_BYTES", n_bytes)
    stacked, net = [], make_network()  # it has 79 weights
    train_stacked = Trainer._train_stacked
    monkeypatch.setattr(
        Trainer,
        "_train_stacked",
        lambda self, batch, *rest: stacked.append(len(batch)) or train_stacked(self, batch, *rest),
    )

    states = Trainer(net, X, Y, method="stacked").train(make_tasks(net), Regime())

    assert stacked == {1: [1] * 5, 2 * 8 * 79: [2, 2, 1], 10**9: [5]}[n_bytes]
    for state, task in zip(states, make_tasks(net), strict=True):
        expected = train_with_torch(net, task, Regime())
        for name in expected:
            np.testing.assert_allclose(state[name], expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["stacked", "reuse"])
def test_a_proximal_term_pulls_to_the_anchor(method):
    net, regime = make_network(), Regime(batch_size=8, proximal=0.7)
    anchor = {name: tensor + 0.1 for name, tensor in state_of(net.module).items()}
    anchored = [LocalTask(t.rows, t.start, t.seed_parts, anchor) for t in make_tasks(net)]

    states = Trainer(net, X, Y, method=method).train(anchored, regime)

    for state, task in zip(states, anchored, strict=True):
        expected = train_with_torch(net, task, regime, anchor=anchor)
        for name in expected:
            np.testing.assert_allclose(state[name], expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["stacked", "reuse"])
def test_untrained_parameters_are_bit_identical(method):
    net = make_network()
    before = state_of(net.module)

    states = Trainer(net, X, Y, method=method).train(make_tasks(net), Regime(), only=net.head_names)

    for state, size in zip(states, SIZES, strict=True):
        assert all(torch.equal(state[name], before[name]) for name in net.body_names)
        is_changed = not all(torch.equal(state[name], before[name]) for name in net.head_names)
        assert is_changed == (size > 0)


def test_training_changes_neither_the_start_nor_the_network():
    net = make_network()
    start = state_of(net.module)
    start_before, network_before = clone(start), state_of(net.module)

    Trainer(net, X, Y).train(make_tasks(net, start), Regime())

    assert all(torch.equal(start[name], start_before[name]) for name in start_before)
    assert all(
        torch.equal(state_of(net.module)[name], network_before[name]) for name in network_before
    )


@pytest.mark.parametrize("method", ["stacked", "reuse"])
def test_equal_seeds_give_equal_bits(method):
    net = make_network()

    first, second = (
        Trainer(net, X, Y, method=method).train(make_tasks(net), Regime()) for _ in "ab"
    )

    for state, repeated in zip(first, second, strict=True):
        assert all(torch.equal(state[name], repeated[name]) for name in state)


def test_a_batch_plan_gives_every_client_its_rows_in_order():
    passes = [[row_order(n, "s", i, p) + 100 * i for p in range(2)] for i, n in enumerate(SIZES)]

    plan = batch_plan(passes, 8)

    rows_of_client = [[] for _ in SIZES]
    for rows, weights in zip(plan.rows, plan.weights, strict=True):
        for place, (row, weight) in enumerate(zip(rows, weights, strict=True)):
            batch = row[weight > 0].tolist()
            assert weight.sum() == pytest.approx(1)
            rows_of_client[plan.order[place]] += batch
    assert rows_of_client == [[row for part in parts for row in part.tolist()] for parts in passes]


def make_normalized_network():
    """Return a network with running averages, which a batched product does not support."""

    class Normalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU())
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.body(x))

    torch.manual_seed(0)
    return Network(Normalized().double(), "body")


def test_running_averages_are_per_client():
    net = make_normalized_network()
    task = LocalTask(np.arange(16), state_of(net.module), ("a",))

    [state] = Trainer(net, X, Y).train([task], Regime(batch_size=8, learning_rate=1e-9))

    order = row_order(16, "a", 0)
    mean = torch.zeros(4, dtype=torch.float64)
    for first in (0, 8):
        with torch.no_grad():
            inner = net.module.body[0](X[order[first : first + 8]])
        mean = 0.9 * mean + 0.1 * inner.mean(dim=0)
    np.testing.assert_allclose(state["body.1.running_mean"], mean, rtol=1e-6)
    assert int(state["body.1.num_batches_tracked"]) == 2
    assert int(task.start["body.1.num_batches_tracked"]) == 0


def test_networks_that_cannot_be_stacked_train_in_turn():
    assert Trainer(make_normalized_network(), X, Y).method == "reuse"
    assert Trainer(make_network(), X, Y).method == "stacked"
    with pytest.raises(ValueError, match="cannot be stacked; use method='reuse'"):
        Trainer(make_normalized_network(), X, Y, method="stacked")


def test_a_missing_layer_is_named_with_existing_ones():
    with pytest.raises(ValueError, match=r"no layer named 'trunk'; its layers are: body, body\.0"):
        Network(make_network().module, "trunk")
    with pytest.raises(ValueError, match="has no trainable parameters"):
        Network(make_network().module, "body", ("body.2",))


def test_embeddings_equal_the_layer_in_any_batch_size():
    net = make_network()

    keys, scores = net.embed(state_of(net.module), X, batch_size=10)

    whole, _ = net.embed(state_of(net.module), X)
    np.testing.assert_allclose(keys, whole, rtol=1e-12)
    np.testing.assert_allclose(scores, net.module(X).detach(), rtol=1e-12)
    assert keys.shape == (len(X), 4)


def test_states_of_a_recurrent_layer_are_concatenated():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.LSTM(5, 3, batch_first=True)
            self.head = nn.Linear(3, 2)

        def forward(self, x):
            return self.head(self.body(x)[0][:, -1])

    net = Network(Recurrent(), "body")

    keys, _ = net.embed(state_of(net.module), torch.randn(4, 6, 5))

    assert keys.shape == (4, 2 * 3)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"epochs": 0}, "epochs"),
        ({"batch_size": True}, "batch_size"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("inf")}, "learning_rate"),
        ({"momentum": 1.0}, "momentum"),
        ({"proximal": -1.0}, "proximal"),
    ],
)
def test_a_regime_is_checked_before_anything_runs(changed, words):
    with pytest.raises(ValueError, match=f"expected {words}"):
        Regime(**changed)
