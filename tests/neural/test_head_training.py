"""Training of heads only: the rest is computed once, and the result is the same."""

import numpy as np
import pytest
import torch
from torch import nn

from fedneighbors.neural._architectures import cnn, lstm
from fedneighbors.neural._blueprint import perceptron
from fedneighbors.neural._network import Network, state_of
from fedneighbors.neural._schedule import Regime, row_order
from fedneighbors.neural._trainer import LocalTask, Trainer, split_heads

RANDOM = np.random.default_rng(0)
SIZES = (0, 9, 1, 24)
N_ROWS = sum(SIZES)
TABLE = torch.tensor(RANDOM.normal(size=(N_ROWS, 5)))
IMAGES = torch.tensor(RANDOM.normal(size=(N_ROWS, 1, 16, 16)))
WINDOWS = torch.tensor(RANDOM.integers(9, size=(N_ROWS, 4)))
Y = torch.tensor(RANDOM.integers(3, size=N_ROWS))


class HalvedScores(nn.Module):
    """A module that changes the scores of its head."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.body(x))) / 2


class RepeatedHead(nn.Module):
    """A module that calls its head twice."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(torch.relu(self.head(self.body(x))))


class DropoutHead(nn.Sequential):
    """A module with dropout in its head, which has two layers."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))


def make_network(module):
    torch.manual_seed(4)
    return Network(module().double(), "body")


def to_double(network):
    return Network(network.module.double(), network.embedding, network.head, network.n_tokens)


BUILT_IN = {
    "perceptron": (to_double(perceptron(5, 3, hidden=(6, 4), seed=2)), TABLE),
    "filters": (to_double(cnn((1, 16, 16), 3, seed=2)), IMAGES),
    "LSTM": (to_double(lstm((4,), 3, n_tokens=9, hidden=5, seed=2)), WINDOWS),
}
OTHERS = {
    "scores are halved": (make_network(HalvedScores), TABLE),
    "head is called twice": (make_network(RepeatedHead), TABLE),
}


def make_tasks(network, anchor=None):
    ends = np.cumsum(SIZES)
    starts = [
        {name: tensor + n / 50 if tensor.is_floating_point() else tensor for name, tensor in state}
        for n, state in enumerate([[*state_of(network.module).items()]] * len(SIZES))
    ]
    return [
        LocalTask(np.arange(end - size, end), start, ("s", n), anchor)
        for n, (size, end, start) in enumerate(zip(SIZES, ends, starts, strict=True))
    ]


def train_with_torch(network, x, task, regime):
    """Train the head with torch's own optimizer, through the whole network in every step."""
    module = network.module
    saved = state_of(module)
    module.load_state_dict(task.start)
    module.eval()
    parameters = [dict(module.named_parameters())[name] for name in network.head_names]
    anchors = [
        parameters[i].detach() * 0 + task.anchor[name] for i, name in enumerate(network.head_names)
    ]
    optimizer = torch.optim.SGD(parameters, regime.learning_rate, regime.momentum)
    for number in range(regime.epochs):
        rows = task.rows[row_order(len(task.rows), *task.seed_parts, number)]
        for batch in np.split(rows, range(regime.batch_size, len(rows), regime.batch_size)):
            if len(batch):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(module(x[batch]), Y[batch])
                distance = sum(
                    ((p - q) ** 2).sum() for p, q in zip(parameters, anchors, strict=True)
                )
                (loss + regime.proximal / 2 * distance).backward()
                optimizer.step()
    result = state_of(module)
    module.load_state_dict(saved)
    return result


CASES = [(name, "reuse") for name in (*BUILT_IN, *OTHERS)] + [
    (name, "stacked")
    for name, (network, _) in {**BUILT_IN, **OTHERS}.items()
    if network.is_stackable
]


@pytest.mark.parametrize(("name", "method"), CASES)
def test_heads_train_as_torch_would_through_the_whole_network(name, method):
    network, x = {**BUILT_IN, **OTHERS}[name]
    anchor = {key: tensor + 0.1 for key, tensor in state_of(network.module).items()}
    regime = Regime(epochs=3, batch_size=8, weight_decay=0.0, learning_rate=0.1, proximal=0.3)
    tasks = make_tasks(network, anchor)

    states = Trainer(network, x, Y, method=method).train(tasks, regime, only=network.head_names)

    for state, task in zip(states, tasks, strict=True):
        expected = train_with_torch(network, x, task, regime)
        assert state.keys() == expected.keys()
        for key in expected:
            np.testing.assert_allclose(state[key], expected[key], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", BUILT_IN)
def test_heads_of_built_in_networks_train_separately(name):
    network, x = BUILT_IN[name]
    split = split_heads(network, make_tasks(network), x, Y, device="cpu")
    assert split is not None
    assert len(split.x) == len(split.y) == N_ROWS + 1
    assert not split.x[0].any()  # this row pads short batches


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_are_trained_as_a_whole(name):
    network, x = OTHERS[name]
    assert split_heads(network, make_tasks(network), x, Y, device="cpu") is None


def test_without_rows_no_head_is_trained_separately():
    network, x = BUILT_IN["perceptron"]
    tasks = [LocalTask(np.arange(0), state_of(network.module), ("s", 0))]
    assert split_heads(network, tasks, x, Y, device="cpu") is None
    [state] = Trainer(network, x, Y).train(tasks, Regime(), only=network.head_names)
    assert all(torch.equal(state[name], tasks[0].start[name]) for name in state)


def test_part_of_a_head_can_be_trained():
    network, x = BUILT_IN["perceptron"]
    tasks = make_tasks(network)
    states = Trainer(network, x, Y).train(tasks, Regime(), only=("head.bias",))
    for state, task in zip(states, tasks, strict=True):
        changes = {name for name in state if not torch.equal(state[name], task.start[name])}
        assert changes == ({"head.bias"} if len(task.rows) else set())


def test_dropout_of_a_head_depends_on_its_seed():
    network = make_network(DropoutHead)
    start = state_of(network.module)
    first, repeated, other = (
        Trainer(network, TABLE, Y).train(
            [LocalTask(np.arange(9), start, (seed,))], Regime(batch_size=9), only=network.head_names
        )[0]["head.1.weight"]
        for seed in "aab"
    )
    assert torch.equal(first, repeated)
    assert not torch.allclose(first, other, atol=1e-5)
