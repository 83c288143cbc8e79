"""Small federations: digits skewed by label, and groups with permuted class names."""

from copy import copy

import numpy as np

from tests.methods.knnper.federations import DIGITS, LABELS, N_ROWS, OWNER

X, Y = DIGITS[:N_ROWS] / 8 - 1, LABELS[:N_ROWS]
NAMES = np.unique(OWNER).tolist()
NEW_X, NEW_Y = DIGITS[N_ROWS : N_ROWS + 40] / 8 - 1, LABELS[N_ROWS : N_ROWS + 40]

QUICK = {
    "hidden": (16, 8),
    "n_rounds": 3,
    "batch_size": 16,
    "learning_rate": 0.1,
    "standardize": False,
    "classes": range(10),
}


def fresh(trained):
    """Return a copy of a model whose clients can change independently."""
    found = copy(trained)
    found.clients_, found.rows_ = dict(trained.clients_), dict(trained.rows_)
    return found


def two_groups(n_clients=6, rows=60, *, seed=0):
    """Return rows of three blobs; the second half of the clients names them the other way round."""
    random = np.random.default_rng(seed)
    owner = np.repeat([f"c{n}" for n in range(n_clients)], rows)
    true = random.integers(3, size=len(owner))
    x = random.normal(size=(len(owner), 4))
    x[:, 0] += 3 * (true - 1)
    other = owner >= f"c{n_clients // 2}"
    return x, np.where(other, 2 - true, true), owner
