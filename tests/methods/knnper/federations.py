"""Small federations of digits, for tests."""

import numpy as np
from sklearn.datasets import load_digits

from fedneighbors.methods.knnper._client import KNNPerParty
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.methods.knnper._training import Cohort
from fedneighbors.methods.knnper.protocol import coordinate
from fedneighbors.neural._blueprint import perceptron
from fedneighbors.neural._schedule import Regime
from fedneighbors.partition import dirichlet

DIGITS, LABELS = load_digits(return_X_y=True)
ROWS = 240
OWNER = dirichlet(LABELS[:ROWS], 5, alpha=0.5, min_rows=8, seed=0)
ROUNDS = RoundSettings(n_rounds=3, regime=Regime(batch_size=16))


def network():
    return perceptron(64, 10, hidden=(16, 8), seed=1)


def members(net=None, *, settings=None, owner=OWNER):
    """Return a client for each owner of the first digits."""
    net = net or network()
    x, y = DIGITS[:ROWS] / 16, LABELS[:ROWS]
    settings = settings or MemorySettings()
    return [
        KNNPerParty(name, x[owner == name], y[owner == name], net, settings=settings)
        for name in np.unique(owner).tolist()
    ]


class Overheard(Cohort):
    """A cohort that remembers requests, ways to reduce and replies."""

    def __init__(self, parties, **options):
        super().__init__(parties, **options)
        self.seen = []

    def carry(self, requests, *, reduce):
        delivery = super().carry(requests, reduce=reduce)
        self.seen.append((requests, reduce, delivery.replies))
        return delivery


class Kept:
    """A checkpoint in memory that passes each stage on and starts at a given one."""

    def __init__(self, keep, stage):
        self.keep, self._stage = keep, stage

    def resume(self):
        return self._stage


def training(parties, *, rounds=ROUNDS, keep=lambda _stage: None, resumed=None, **options):
    """Return a coordinator for these clients."""
    first = parties[0]
    return coordinate(
        rounds, first.settings, first.network, first.kind, checkpoint=Kept(keep, resumed), **options
    )
