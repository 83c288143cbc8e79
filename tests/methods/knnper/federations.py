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
N_ROWS = 240
OWNER = dirichlet(LABELS[:N_ROWS], 5, alpha=0.5, min_rows=8, seed=0)
ROUNDS = RoundSettings(n_rounds=3, regime=Regime(batch_size=16))


def make_network():
    return perceptron(64, 10, hidden=(16, 8), seed=1)


def make_members(net=None, *, settings=None, owner=OWNER):
    """Return a client for each owner of the first digits."""
    net = net or make_network()
    x, y = DIGITS[:N_ROWS] / 16, LABELS[:N_ROWS]
    settings = settings or MemorySettings()
    return [
        KNNPerParty(name, x[owner == name], y[owner == name], net, settings=settings)
        for name in np.unique(owner).tolist()
    ]


class RecordingCohort(Cohort):
    """Cohort that records (requests, reduction, replies) of each exchange in ``exchanges``."""

    def __init__(self, parties, **options):
        super().__init__(parties, **options)
        self.exchanges = []

    def deliver(self, requests, *, reduce):
        delivery = super().deliver(requests, reduce=reduce)
        self.exchanges.append((requests, reduce, delivery.replies))
        return delivery


class MemoryCheckpoint:
    """Checkpoint that resumes a given stage and passes each written stage to a function."""

    def __init__(self, write, stage):
        self.write, self._stage = write, stage

    def resume(self):
        return self._stage


def build_coordinator(
    parties, *, rounds=ROUNDS, on_stage=lambda _stage: None, resumed=None, **options
):
    """Return a coordinator for these clients."""
    first, checkpoint = parties[0], MemoryCheckpoint(on_stage, resumed)
    return coordinate(
        rounds, first.settings, first.network, first.task, checkpoint=checkpoint, **options
    )
