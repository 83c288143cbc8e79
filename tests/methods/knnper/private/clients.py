"""Small private clients, their coordinator and ledgers, for tests."""

import numpy as np
import torch
from torch import nn

from fedneighbors.federation._inprocess import run
from fedneighbors.methods.knnper._settings import RoundSettings
from fedneighbors.methods.knnper.private._party import PrivateKNNPerParty
from fedneighbors.methods.knnper.private.protocol import PrivateRounds, coordinate_private
from fedneighbors.neural._blueprint import perceptron
from fedneighbors.neural._network import Network
from fedneighbors.neural._schedule import Regime
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.ledger._ledger import Ledger

PRIVACY = Privacy(epsilon=2, delta=1e-5, classes=(0, 1, 2))
ROUNDS = RoundSettings(n_rounds=2, regime=Regime(batch_size=10))


class TwoCells(nn.Module):
    """Linear network with zero weights, whose gradients are simple to compute by hand."""

    def __init__(self):
        super().__init__()
        self.body = nn.Flatten()
        self.head = nn.Linear(2, 2, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        return self.head(self.body(x))


def make_two_cells():
    with torch.random.fork_rng(devices=[]):
        return Network(TwoCells(), embedding="body")


def make_rows(n=40, seed=0):
    """Return rows around the centers of their classes, and labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    return rng.normal(size=(n, 4)) + 3 * np.eye(3, 4)[labels], labels


def open_ledger(name, budget=PRIVACY.total, path=":memory:"):
    ledger = Ledger(path, party=name)
    ledger.set_budget("table", budget)
    return ledger


def make_client(name="north", *, table=None, privacy=PRIVACY, ledger=None, net=None, **options):
    x, y = make_rows() if table is None else table
    return PrivateKNNPerParty(
        name,
        x,
        y,
        net or perceptron(4, 3, hidden=(6,), seed=1),
        privacy=privacy,
        ledger=ledger if ledger is not None else open_ledger(name, privacy.total),
        **options,
    )


def make_clients(n, **options):
    net = perceptron(4, 3, hidden=(6,), seed=1)
    return [make_client(f"c{k}", table=make_rows(seed=k), net=net, **options) for k in range(n)]


def make_coordinator(
    members, *, privacy=PRIVACY, rounds=ROUNDS, run_name="a", bound=1.0, **options
):
    private_rounds = PrivateRounds(rounds, bound, privacy)
    return coordinate_private(private_rounds, members[0].network, run=run_name, **options)


def train(members, *, sums="plain", **options):
    return run(make_coordinator(members, **options), members, sums=sums)
