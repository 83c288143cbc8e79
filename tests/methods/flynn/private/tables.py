"""Helpers: small tables, private parties with ledgers, and training in one process."""

import numpy as np

from fedneighbors.federation._inprocess import run
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.private._party import PrivateFlyNNParty
from fedneighbors.methods.flynn.private.protocol import coordinate_private
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.ledger._ledger import Ledger

BOUNDS = (-4.0, 4.0)
SETTINGS = FlyNNSettings(n_units=40, n_inputs=2, n_active=5, standardize=False)
LOCAL = Privacy(epsilon=1, mechanism="local", classes=(0, 1), bounds=BOUNDS)
CENTRAL = Privacy(epsilon=1, delta="1e-6", mechanism="central", classes=(0, 1), bounds=BOUNDS)
PAPER = Privacy(epsilon=1, mechanism="paper", classes=(0, 1), bounds=BOUNDS, n_picks=6)


def table(n_rows=30, n_columns=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, n_columns)), np.arange(n_rows) % 2


def ledger_of(name, budget, path=":memory:"):
    ledger = Ledger(path, party=name)
    ledger.set_budget("table", budget)
    return ledger


def party(name="north", *, privacy=LOCAL, ledger=None, rows=None, noise_seed=None, **options):
    """Return a party; with ``noise_seed`` its noise is the same in every test run."""
    if noise_seed is not None:
        options["bits"] = np.random.default_rng(noise_seed).bytes
    ledger = ledger if ledger is not None else ledger_of(name, privacy.total)
    x, y = table() if rows is None else rows
    return PrivateFlyNNParty(name, x, y, privacy=privacy, ledger=ledger, **options)


def parties(n, privacy, **options):
    """Return parties of different rows, with seeded noise."""
    return [
        party(f"p{k}", privacy=privacy, rows=table(seed=k), noise_seed=100 + k, **options)
        for k in range(n)
    ]


def train(members, privacy, settings=SETTINGS, *, run_name="a", **options):
    sums = "masked" if privacy.mechanism == "central" and len(members) > 1 else "plain"
    return run(coordinate_private(settings, privacy, run=run_name), members, sums=sums, **options)
