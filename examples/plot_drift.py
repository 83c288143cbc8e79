"""
Forget outdated rows after a drift
==================================

The meaning of a client's rows can change: here the labels of one client are permuted. A
memory with ``strategy="drift"`` detects the change and drops the earlier rows; a memory that keeps
all rows still predicts from them.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from fedneighbors import KNNPerClassifier

X, y = load_digits(return_X_y=True)
owner = np.where(np.arange(len(y)) % 3, "others", "device")
rng = np.random.default_rng(0)
stream = rng.permutation(np.flatnonzero(owner == "device"))
is_other = owner == "others"
changed = np.roll(np.arange(10), 3)  # after the change, 0 means 3, 1 means 4, ...

# %%
# The client joins with 100 rows; then its rows come in batches of 20. Each batch is predicted
# before it is added.

figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
for strategy in ("concatenate", "drift"):
    model = KNNPerClassifier(n_rounds=10, strategy=strategy, capacity=2_000)
    model.fit(X[is_other], y[is_other], parties=owner[is_other])
    model.add_client("device", X[stream[:100]], y[stream[:100]])
    scores = []
    for step, start in enumerate(range(100, len(stream) - 20, 20)):
        rows = stream[start : start + 20]
        labels = y[rows] if step < 8 else changed[y[rows]]
        scores.append(model.score(X[rows], labels, parties=["device"] * len(rows)))
        model.update("device", X[rows], labels)
    axes.plot(scores, "o-", label=strategy)

# %%
# Directly after the change both memories predict wrong labels. The one that drops outdated rows
# recovers as new rows arrive.

axes.axvline(7.5, color="gray", linestyle=":")
axes.set(xlabel="batch of 20 rows", ylabel="accuracy before the batch is added", ylim=(0, 1.05))
axes.legend()
