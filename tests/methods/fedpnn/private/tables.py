"""Fixtures: small tables, private parties, and private training."""

import numpy as np

from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedpnn.private._party import PrivateFedPNNParty
from fedneighbors.methods.fedpnn.private.protocol import coordinate_private
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.ledger._ledger import Ledger

BOUNDS = (-4.0, 4.0)
LOCAL = Privacy(epsilon=1, classes=(0, 1), bounds=BOUNDS)
CENTRAL = Privacy(epsilon=1, delta="1e-6", mechanism="central", classes=(0, 1), bounds=BOUNDS)


def make_table(n_rows=30, n_columns=4, n_classes=2, seed=0):
    """Draw rows around a center of their class, some beyond the bounds."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n_rows) % n_classes
    centers = np.random.default_rng(99).normal(size=(n_classes, n_columns)) * 2
    return rng.normal(size=(n_rows, n_columns)) + centers[labels], labels


def open_ledger(name, budget, path=":memory:"):
    ledger = Ledger(path, party=name)
    ledger.set_budget("table", budget)
    return ledger


def make_party(name="north", *, privacy=LOCAL, ledger=None, rows=None, bits_seed=None, **options):
    """Create a party; ``bits_seed`` makes its noise reproducible."""
    if bits_seed is not None:
        options["bits"] = np.random.default_rng(bits_seed).bytes
    own_ledger = ledger if ledger is not None else open_ledger(name, privacy.total)
    x, y = make_table() if rows is None else rows
    return PrivateFedPNNParty(name, x, y, privacy=privacy, ledger=own_ledger, **options)


def make_parties(n, privacy, *, n_classes=2, **options):
    """Create parties with different rows and seeded noise."""
    return [
        make_party(
            f"p{k}",
            privacy=privacy,
            rows=make_table(seed=k, n_classes=n_classes),
            bits_seed=100 + k,
            **options,
        )
        for k in range(n)
    ]


def train(members, privacy, *, run_name="a", **options):
    sums = "masked" if privacy.mechanism == "central" and len(members) > 1 else "plain"
    return run(coordinate_private(privacy, run=run_name), members, sums=sums, **options)
