"""Small federations: digits skewed by label, and two groups with different class labels."""

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


def copy_model(model):
    """Return a copy of a model whose clients can change independently."""
    result = copy(model)
    result.clients_, result.rows_ = dict(model.clients_), dict(model.rows_)
    return result


def make_two_groups(n_clients=6, n_rows=60, *, seed=0):
    """Return rows of three clusters, whose labels 0 and 2 are swapped in half of the clients."""
    rng = np.random.default_rng(seed)
    owner = np.repeat([f"c{n}" for n in range(n_clients)], n_rows)
    labels = rng.integers(3, size=len(owner))
    x = rng.normal(size=(len(owner), 4))
    x[:, 0] += 3 * (labels - 1)
    swapped = owner >= f"c{n_clients // 2}"
    return x, np.where(swapped, 2 - labels, labels), owner
