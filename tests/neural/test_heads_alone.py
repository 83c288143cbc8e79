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


class Halved(nn.Module):
    """A module that changes the scores of its head."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.body(x))) / 2


class Twice(nn.Module):
    """A module that calls its head twice."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(torch.relu(self.head(self.body(x))))


class Dropping(nn.Sequential):
    """Drops in its head, which has two layers."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))


def made(module):
    torch.manual_seed(4)
    return Network(module().double(), "body")


def doubled(network):
    return Network(network.module.double(), network.embedding, network.head, network.n_tokens)


BUILT_IN = {
    "perceptron": (doubled(perceptron(5, 3, hidden=(6, 4), seed=2)), TABLE),
    "filters": (doubled(cnn((1, 16, 16), 3, seed=2)), IMAGES),
    "LSTM": (doubled(lstm((4,), 3, n_tokens=9, hidden=5, seed=2)), WINDOWS),
}
OTHERS = {"scores are halved": (made(Halved), TABLE), "asked twice": (made(Twice), TABLE)}


def tasks(network, anchor=None):
    ends = np.cumsum(SIZES)
    starts = [
        {name: tensor + n / 50 if tensor.is_floating_point() else tensor for name, tensor in s}
        for n, s in enumerate([[*state_of(network.module).items()]] * len(SIZES))
    ]
    return [
        LocalTask(np.arange(end - size, end), start, ("s", n), anchor)
        for n, (size, end, start) in enumerate(zip(SIZES, ends, starts, strict=True))
    ]


def by_hand(network, x, task, regime):
    """Train the head with torch's own optimizer, through the whole network in every step."""
    module = network.module
    own = state_of(module)
    module.load_state_dict(task.start)
    module.eval()
    moving = [dict(module.named_parameters())[name] for name in network.head_names]
    fast = [moving[i].detach() * 0 + task.anchor[name] for i, name in enumerate(network.head_names)]
    steps = torch.optim.SGD(moving, regime.learning_rate, regime.momentum)
    for number in range(regime.epochs):
        rows = task.rows[row_order(len(task.rows), *task.seed_parts, number)]
        for batch in np.split(rows, range(regime.batch_size, len(rows), regime.batch_size)):
            if len(batch):
                steps.zero_grad()
                loss = nn.functional.cross_entropy(module(x[batch]), Y[batch])
                pull = sum(((p - q) ** 2).sum() for p, q in zip(moving, fast, strict=True))
                (loss + regime.proximal / 2 * pull).backward()
                steps.step()
    found = state_of(module)
    module.load_state_dict(own)
    return found


WAYS = [(name, "reuse") for name in (*BUILT_IN, *OTHERS)] + [
    (name, "stacked")
    for name, (network, _) in {**BUILT_IN, **OTHERS}.items()
    if network.is_stackable
]


@pytest.mark.parametrize(("name", "method"), WAYS)
def test_heads_train_as_torch_would_through_the_whole_network(name, method):
    network, x = {**BUILT_IN, **OTHERS}[name]
    anchor = {key: tensor + 0.1 for key, tensor in state_of(network.module).items()}
    regime = Regime(epochs=3, batch_size=8, weight_decay=0.0, learning_rate=0.1, proximal=0.3)
    given = tasks(network, anchor)

    found = Trainer(network, x, Y, method=method).train(given, regime, only=network.head_names)

    for state, task in zip(found, given, strict=True):
        expected = by_hand(network, x, task, regime)
        assert state.keys() == expected.keys()
        for key in expected:
            np.testing.assert_allclose(state[key], expected[key], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", BUILT_IN)
def test_ready_networks_have_heads_that_train_apart(name):
    network, x = BUILT_IN[name]
    apart = split_heads(network, tasks(network), x, Y, device="cpu")
    assert apart is not None
    assert len(apart.x) == len(apart.y) == N_ROWS + 1
    assert not apart.x[0].any()  # stands in short batches, whatever clients' weights are


@pytest.mark.parametrize("name", OTHERS)
def test_networks_that_do_more_are_trained_as_a_whole(name):
    network, x = OTHERS[name]
    assert split_heads(network, tasks(network), x, Y, device="cpu") is None


def test_without_rows_no_head_is_trained_separately():
    network, x = BUILT_IN["perceptron"]
    none = [LocalTask(np.arange(0), state_of(network.module), ("s", 0))]
    assert split_heads(network, none, x, Y, device="cpu") is None
    [state] = Trainer(network, x, Y).train(none, Regime(), only=network.head_names)
    assert all(torch.equal(state[name], none[0].start[name]) for name in state)


def test_part_of_a_head_can_be_trained():
    network, x = BUILT_IN["perceptron"]
    given = tasks(network)
    found = Trainer(network, x, Y).train(given, Regime(), only=("head.bias",))
    for state, task in zip(found, given, strict=True):
        moved = {name for name in state if not torch.equal(state[name], task.start[name])}
        assert moved == ({"head.bias"} if len(task.rows) else set())


def test_dropout_of_a_head_depends_on_its_seed():
    network = made(Dropping)
    start = state_of(network.module)
    one, again, other = (
        Trainer(network, TABLE, Y).train(
            [LocalTask(np.arange(9), start, (word,))], Regime(batch_size=9), only=network.head_names
        )[0]["head.1.weight"]
        for word in "aab"
    )
    assert torch.equal(one, again)
    assert not torch.allclose(one, other, atol=1e-5)
