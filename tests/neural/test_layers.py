"""Layers with running averages, dropout or recurrence: training one client after another."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import run_rounds
from fedneighbors.methods.knnper._settings import RoundSettings
from fedneighbors.methods.knnper._training import Cohort
from fedneighbors.methods.knnper.protocol import TrainRequest
from fedneighbors.neural._architectures import cnn, lstm, mobilenet
from fedneighbors.neural._network import Network, state_of
from fedneighbors.neural._schedule import Regime, batch_plan, row_order
from fedneighbors.neural._trainer import LocalTask, Trainer
from tests.methods.knnper.federations import build_coordinator, make_members

RANDOM = torch.Generator().manual_seed(1)
IMAGES, CLASSES = torch.rand(8, 32, 32, generator=RANDOM), torch.arange(8) % 3


class Averaging(nn.Module):
    """A classifier of digits with batch normalization and dropout."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(6, 10)

    def forward(self, x):
        return self.head(self.body(x))


def make_averaging_network():
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return Network(Averaging(), "body")


def are_equal(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_mobilenet_trains_by_name_and_moves_its_averages():
    net = mobilenet((32, 32), 3, width=0.25, seed=1)
    start = state_of(net.module)
    trainer = Trainer(net, IMAGES, CLASSES)
    before = torch.get_rng_state()

    [first], [repeated], [other] = (
        trainer.train([LocalTask(np.arange(8), start, (seed,))], Regime(batch_size=4))
        for seed in ("a", "a", "b")
    )

    assert trainer.method == "reuse"
    assert are_equal(first, repeated)
    assert not are_equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
    averages = [name for name in start if "running" in name]
    assert len(averages) == 2 * 52
    assert not any(torch.equal(first[name], start[name]) for name in averages)
    assert {int(first[name]) for name in start if "batches" in name} == {2}
    assert all(torch.isfinite(tensor).all() for tensor in first.values())


def test_dropout_does_not_depend_on_other_clients():
    net = make_averaging_network()
    x, y = torch.rand(20, 64, generator=RANDOM), torch.arange(20) % 10
    start = state_of(net.module)
    first, second = (LocalTask(np.arange(i, i + 10), start, ("seed", i)) for i in (0, 10))
    trainer = Trainer(net, x, y)

    together = trainer.train([first, second], Regime(batch_size=4))

    alone = trainer.train([second], Regime(batch_size=4))
    assert are_equal(together[1], alone[0])


def test_running_averages_are_averaged_like_weights():
    parties = make_members(make_averaging_network())
    rounds = RoundSettings(n_rounds=1, regime=Regime(batch_size=16))
    stages, network = [], parties[0].network

    run_rounds(build_coordinator(parties, rounds=rounds, on_stage=stages.append), Cohort(parties))

    regime = replace(rounds.regime, learning_rate=rounds.learning_rate(0))
    request = TrainRequest(
        number=0,
        held_out=False,
        seed=rounds.seed,
        bits=40,
        weights=network.initial,
        regime=regime,
    )
    total = sum(party.n_rows for party in parties)
    expected = torch.zeros(6)
    for party in parties:
        [state] = Trainer(party.network, party.x, party.targets).train(
            [party.local_task(request)], regime
        )
        expected += state["body.1.running_var"] * (party.n_rows / total)
    averaged = network.state(stages[-1].weights)
    np.testing.assert_allclose(averaged["body.1.running_var"], expected, rtol=1e-5)
    assert int(averaged["body.1.num_batches_tracked"]) == 0


def test_framed_training_equals_direct_training_bit_for_bit():
    framed_parties, direct_parties = (
        make_members(make_averaging_network()),
        make_members(make_averaging_network()),
    )

    framed = run(build_coordinator(framed_parties), framed_parties)
    direct = run_rounds(build_coordinator(direct_parties), Cohort(direct_parties))

    assert framed.result.weights.tobytes() == direct.result.weights.tobytes()


def test_head_training_keeps_averages_and_drops_nothing():
    net = make_averaging_network()
    x, y = torch.rand(12, 64, generator=RANDOM), torch.arange(12) % 10
    start = state_of(net.module)
    regime = Regime(batch_size=12, momentum=0.0, weight_decay=0.0, learning_rate=0.5)

    [trained] = Trainer(net, x, y).train(
        [LocalTask(np.arange(12), start, ("a",))], regime, only=net.head_names
    )

    assert are_equal(
        {name: tensor for name, tensor in trained.items() if name.startswith("body")}, start
    )
    keys, _ = net.embed(start, x)
    head = nn.Linear(6, 10)
    head.load_state_dict({"weight": start["head.weight"], "bias": start["head.bias"]})
    order = row_order(12, "a", 0)
    nn.functional.cross_entropy(head(keys[order]), y[order]).backward()
    expected = start["head.weight"] - 0.5 * head.weight.grad
    np.testing.assert_allclose(trained["head.weight"], expected, atol=1e-6)


def test_a_last_single_row_joins_the_batch_before():
    rows = np.arange(9)

    plan = batch_plan([[rows], [rows[:1]], [rows[:0]], [rows[:6]]], 4, min_rows=2)

    sizes = {
        int(client): [
            int((weights[index] > 0).sum()) for weights in plan.weights if index < len(weights)
        ]
        for index, client in enumerate(plan.order)
    }
    assert sizes == {0: [4, 5], 1: [], 2: [], 3: [4, 2]}
    assert plan.rows[1][0].tolist() == [4, 5, 6, 7, 8]


def test_a_single_row_is_not_normalized_and_changes_nothing():
    net = make_averaging_network()
    x, y = torch.rand(5, 64, generator=RANDOM), torch.arange(5)
    start = state_of(net.module)
    trainer = Trainer(net, x, y)

    one_row, five_rows = trainer.train(
        [LocalTask(np.arange(n), start, ("a",)) for n in (1, 5)], Regime(batch_size=4)
    )

    assert are_equal(one_row, start)
    assert int(five_rows["body.1.num_batches_tracked"]) == 1
    with pytest.raises(ValueError, match="raise batch_size to 2"):
        trainer.train([], Regime(batch_size=1))


def test_an_lstm_trains_as_torch_would():
    net = lstm((6,), 5, n_tokens=11, width=3, hidden=4, seed=2)
    x = torch.randint(11, (9, 6), generator=RANDOM)
    y = torch.arange(9) % 5
    regime = Regime(epochs=2, batch_size=4, learning_rate=0.3)

    [trained] = Trainer(net, x, y).train(
        [LocalTask(np.arange(9), state_of(net.module), ("a",))], regime
    )

    module = lstm((6,), 5, n_tokens=11, width=3, hidden=4, seed=2).module
    optimizer = torch.optim.SGD(module.parameters(), 0.3, 0.9, weight_decay=regime.weight_decay)
    for number in range(2):
        order = row_order(9, "a", number)
        for first in (0, 4, 8):
            batch = order[first : first + 4]
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimizer.step()
    for name, weights in module.state_dict().items():
        np.testing.assert_allclose(trained[name], weights, atol=1e-6)


def test_the_weight_vector_has_running_averages_but_no_counts():
    network = make_averaging_network()

    assert {"body.1.running_mean", "body.1.running_var"} <= set(network.weight_names)
    assert "body.1.num_batches_tracked" not in network.weight_names


@pytest.mark.parametrize("shape", [(9, 8), (3, 9, 8)])
def test_stacked_convolutions_equal_clients_one_by_one(shape):
    net = cnn(shape, 3, channels=(4, 5), width=6, seed=1)
    x, y = torch.rand(15, *shape, generator=RANDOM), torch.arange(15) % 3
    tasks = [
        LocalTask(np.arange(first, first + n), state_of(net.module), ("a", first))
        for first, n in ((0, 8), (8, 2), (10, 5))
    ]

    stacked, reused = (
        Trainer(net, x, y, method=method).train(tasks, Regime(batch_size=4))
        for method in ("stacked", "reuse")
    )

    assert Trainer(net, x, y).method == "reuse"
    for actual, expected in zip(stacked, reused, strict=True):
        for name in actual:
            np.testing.assert_allclose(actual[name], expected[name], atol=1e-6)
