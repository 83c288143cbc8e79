"""
Adapt a model to each client
============================

Twelve devices recognise handwritten digits. Each owner writes some digits more often than others,
so a model for all devices is not the best model for each. kNN-Per trains one network over all
devices and gives each a *memory*: the embeddings and labels of its own rows. A prediction mixes
network and memory.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from fedneighbors import KNNPerClassifier
from fedneighbors.baselines import FedAvgClassifier, LocalClassifier
from fedneighbors.partition import dirichlet

# %%
# The data
# --------
#
# Twelve devices with different class shares. A quarter of each device's rows is for testing.

X, y = load_digits(return_X_y=True)
device = dirichlet(y, 12, alpha=0.4, min_rows=40, seed=2)
test = np.zeros(len(y), bool)
for name in np.unique(device):
    rows = np.flatnonzero(device == name)
    test[np.random.default_rng(0).choice(rows, len(rows) // 4, replace=False)] = True
train = ~test

# %%
# Train and compare
# -----------------
#
# ``parties`` is needed for predictions too: it selects the memory of each row's client.

models = {
    "each device alone": LocalClassifier(n_rounds=20),
    "one model for all (FedAvg)": FedAvgClassifier(n_rounds=20),
    "kNN-Per": KNNPerClassifier(n_rounds=20),
    "kNN-Per, combine='pool'": KNNPerClassifier(n_rounds=20, combine="pool"),
}
scores = {}
for name, model in models.items():
    model.fit(X[train], y[train], parties=device[train])
    scores[name] = model.score(X[test], y[test], parties=device[test])

figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
bars = axes.barh(list(scores), list(scores.values()), color="tab:blue")
axes.bar_label(bars, fmt="%.3f", padding=3)
axes.set(xlabel="accuracy on the devices' test rows", xlim=(0, 1.15))
axes.invert_yaxis()

# %%
# There are few rounds here and the settings are not tuned: this is an illustration, not a
# comparison of methods.
#
# New clients and new rows
# ------------------------
#
# A new device joins with one pass over its rows; nothing is trained. Rows can be added later, and
# deleted by their names.

model = models["kNN-Per"]
rows = np.flatnonzero(test)
model.add_client("new device", X[rows[:60]], y[rows[:60]], ids=range(60))
model.update("new device", X[rows[60:80]], y[rows[60:80]], ids=range(60, 80))
model.forget("new device", [0, 1])
print(model.predict(X[rows[80:85]], parties=["new device"] * 5), y[rows[80:85]])

# %%
# Weight of each client's memory
# ------------------------------
#
# Each client chooses the weight of its memory on held-out rows: 0 is the network alone, 1 the
# memory alone.

weights = {name: part.weight for name, part in sorted(model.clients_.items())}
figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
axes.bar(list(weights), list(weights.values()), color="tab:orange")
axes.set(ylabel="weight of the memory", ylim=(0, 1))
axes.tick_params(axis="x", rotation=45)
