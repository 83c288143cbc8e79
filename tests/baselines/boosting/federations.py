"""Random federations: empty parties, parties of one class, ties, missing and extreme cells."""

import numpy as np

from fedneighbors.baselines.boosting._party import BoostingParty
from fedneighbors.baselines.boosting._protocol import BoostingSettings

COLUMNS = [
    lambda rng, n: rng.normal(size=n),
    lambda rng, n: rng.integers(0, 3, n).astype(float),
    lambda rng, n: np.full(n, 7.0),
    lambda rng, n: np.full(n, np.nan),
    lambda rng, n: rng.choice([1e300, -1e300, 5e-324, 0.0, -0.0], n),
    lambda rng, n: np.round(rng.exponential(size=n), 1),
    lambda rng, n: np.where(rng.random(n) < 0.4, np.nan, rng.normal(size=n)),
]


def draw_table(rng, task):
    """Return rows and labels or numbers; labels depend on the first column."""
    n_rows = int(rng.integers(2, 120))
    columns = [COLUMNS[k](rng, n_rows) for k in rng.integers(0, len(COLUMNS), rng.integers(1, 5))]
    x = np.column_stack(columns)
    signal = np.nan_to_num(np.clip(x[:, 0], -3, 3)) + rng.normal(scale=0.5, size=n_rows)
    if task == "regression":
        return x, signal * rng.choice([1.0, 1e-9, 1e9])
    n_classes = int(rng.integers(2, 5))
    y = np.digitize(signal, np.linspace(-1, 1, n_classes - 1))
    y[:2] = 0, 1
    return x, rng.choice(["ill", "well", "none", "both"], n_classes, replace=False)[y]


def draw_owners(rng, y):
    """Return the owner of each row: at random, or by label; party 3 is often empty."""
    if rng.random() < 0.3:
        return np.unique(y, return_inverse=True)[1] % 4
    return rng.integers(0, rng.integers(1, 5), len(y))


def draw_settings(rng, task):
    """Return random settings of a short training."""
    return BoostingSettings(
        task,
        learning_rate=float(rng.choice([0.1, 1.0])),
        max_iter=int(rng.integers(1, 5)),
        max_leaf_nodes=int(rng.choice([2, 3, 8, 31])),
        max_depth=rng.choice([None, 1, 3]),
        min_samples_leaf=int(rng.choice([1, 2, 10])),
        l2_regularization=float(rng.choice([0.0, 1.0])),
        max_bins=int(rng.choice([2, 5, 255])),
        class_weight="balanced" if task == "classification" and rng.random() < 0.3 else None,
        early_stopping=bool(rng.random() < 0.5),
        validation_fraction=0.3,
        n_iter_no_change=1,
    )


def draw_federation(seed):
    """Return settings, the pooled rows, and parties with them."""
    rng = np.random.default_rng(seed)
    task = "regression" if seed % 3 == 0 else "classification"
    x, y = draw_table(rng, task)
    owners = draw_owners(rng, y)
    parties = [BoostingParty(f"p{k}", x[owners == k], y[owners == k]) for k in range(4)]
    return draw_settings(rng, task), x, y, parties
