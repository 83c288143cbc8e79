"""
What counts reveal
==================

A FlyNN party does not send rows; it sends how often each unit of the hash was active in each class.
This example attacks such counts: raw, as an exact sum over many rows, and released with
differential privacy (epsilon = 1, delta = 1e-6). The attacks are part of the repository, not of the
installed package: run the example with ``PYTHONPATH=.`` in the root of a clone.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from experiments.attacks.counts import correlate_rows, reconstruct, record_evidence, sum_evidence
from experiments.attacks.evidence import gaussian_evidence
from experiments.attacks.limits import largest_auc
from experiments.attacks.scores import auc
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn.algorithm import (
    HashPlan,
    count_activations,
    default_sizes,
    hash_with_plan,
)
from fedneighbors.privacy._accounting import largest_zcdp
from fedneighbors.privacy._guarantees import ApproxDP, Sensitivity
from fedneighbors.privacy.noise._mechanisms import DiscreteGaussian, DiscreteLaplace

X, y = load_digits(return_X_y=True)
N_UNITS, N_INPUTS, N_ACTIVE = default_sizes(len(X), 2 * X.shape[1])  # as FlyNN chooses them

# Public constants that do not depend on the data: a pixel is a number from 0 to 16.
features = FeatureMap(64, "mirror", mean=np.full(64, 8.0), scale=np.full(64, 6.0))
plan = HashPlan(features, N_UNITS, N_INPUTS, N_ACTIVE, seed=0)
active = hash_with_plan(X, plan)
counts = count_activations(active, y, n_units=N_UNITS, n_classes=10).astype(np.int64)

# %%
# A row raises 128 counts by one each: the counts change by 128 in the L1 norm, and by the root of
# 128 in the L2 norm. ``local`` adds noise to the counts of each party, ``central`` to their sum.

budget = ApproxDP(1, "1e-6")
one_row = Sensitivity("row", "add_remove", l1=N_ACTIVE, l2_squared=N_ACTIVE, linf=1)
local = DiscreteLaplace(N_ACTIVE)
variance = N_ACTIVE / (2 * largest_zcdp(budget.epsilon, budget.delta))
central = DiscreteGaussian(variance)

# %%
# If a party holds one row of a class, the counts of the class are the hash of that row. Pixels that
# its active units sum more often than other units do were bright.

shown = [int(np.flatnonzero(y == digit)[7]) for digit in (0, 3, 5, 6)]
raw = np.zeros((len(shown), N_UNITS), np.int64)
np.put_along_axis(raw, active[shown].astype(np.int64), 1, axis=1)
sums = counts[:, y[shown]].T
columns = {
    "the row": None,
    "raw counts of\none row": raw,
    "the same,\nlocal release": np.stack([local.release(row, one_row) for row in raw]),
    "exact sum over\nall of its class": sums,
    "the same,\ncentral release": np.stack([central.release(row, one_row) for row in sums]),
}

figure, axes = plt.subplots(len(shown), len(columns), figsize=(7.0, 6.2), layout="constrained")
for column, (title, released) in enumerate(columns.items()):
    images = X[shown] if released is None else reconstruct(released, plan)
    axes[0, column].set_title(title, fontsize=9)
    for row, image in enumerate(images):
        panel = axes[row, column]
        panel.imshow(image.reshape(8, 8), cmap="gray")
        panel.set(xticks=[], yticks=[])
        if released is not None:
            correlation = correlate_rows(image, X[shown[row]][None], plan)[0]
            panel.set_xlabel(f"correlation {correlation:.2f}", fontsize=8)

# %%
# A sum over 180 rows shows no single row, but it reveals membership. If an active unit of a row was
# never counted, the row is certainly not in the sum. If its active units are rare in other rows and
# were counted, it very likely is. Half of the rows are counted here. The attacker owns a quarter,
# estimates from it how often units are active, and computes the evidence for the other rows.

attacker, members, outsiders = np.array_split(
    np.random.default_rng(0).permutation(len(y)), [len(y) // 4, len(y) * 3 // 4]
)


def class_counts(rows):
    return count_activations(active[rows], y[rows], n_units=N_UNITS, n_classes=10).astype(np.int64)


def evidence(per_unit, rows):
    return np.concatenate(
        [record_evidence(per_unit[:, d], active[rows[y[rows] == d]]) for d in range(10)]
    )


sizes = np.bincount(y[members])
rates = (class_counts(attacker) + 0.5) / (np.bincount(y[attacker]) + 1)
exact = class_counts(members)
noised = central.release(exact.ravel(), one_row).reshape(exact.shape)
spread = sizes * rates * (1 - rates) + float(variance)
releases = {
    "exact sum": sum_evidence(exact, sizes, rates),
    "central release": gaussian_evidence(noised - sizes * rates, spread),
}

figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for panel, (title, per_unit) in zip(axes, releases.items(), strict=True):
    counted, left_out = evidence(per_unit, members), evidence(per_unit, outsiders)
    excluded = np.isinf(left_out).mean()
    finite = np.concatenate([counted, left_out[np.isfinite(left_out)]])
    low, high = np.quantile(finite, [0.002, 0.998])
    low = low - 0.1 * (high - low) if excluded else low
    for values, label, color in (
        (counted, "counted", "#4477AA"),
        (left_out, "not counted", "#EE6677"),
    ):
        heights, edges = np.histogram(np.clip(values, low, high), bins=24, range=(low, high))
        panel.stairs(heights / len(values), edges, fill=True, alpha=0.65, label=label, color=color)
    if excluded:
        panel.annotate(
            f"{excluded:.0%} certainly\nnot counted",
            (low + (high - low) / 24, excluded),
            xytext=(5, -22),
            textcoords="offset points",
        )
    panel.set_title(f"{title}: AUC {auc(counted, left_out):.2f}", fontsize=10)
    panel.set(xlabel="evidence that the row was counted, nats", yticks=[])
axes[0].set_ylabel("share of rows")
axes[1].legend(frameon=False)

print(f"epsilon = 1, delta = 1e-6 limits the AUC of any attack to {largest_auc(budget):.3f}")
