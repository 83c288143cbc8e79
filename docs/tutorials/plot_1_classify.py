"""
Classify patients of three hospitals
====================================

Three hospitals want to distinguish benign from malignant tumours. Each has its own table, and no
table may leave its hospital. This tutorial trains one classifier over the three tables, compares
it with a classifier of one hospital, and saves it.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from fedneighbors import FlyNNClassifier
from fedneighbors.partition import dirichlet

# %%
# The data
# --------
#
# The Wisconsin breast cancer data set has 569 rows of 30 measurements. A quarter is held out for
# testing. ``dirichlet`` assigns the others to three hospitals so that their class shares differ.

X, y = load_breast_cancer(return_X_y=True)
X, X_new, y, y_new = train_test_split(X, y, stratify=y, random_state=0)
hospital = dirichlet(y, 3, alpha=1.0, min_rows=20, seed=3)

names = np.unique(hospital)
figure, axes = plt.subplots(figsize=(6, 2.4), layout="constrained")
left = np.zeros(len(names))
for label, word in enumerate(["malignant", "benign"]):
    rows = [np.sum((hospital == name) & (y == label)) for name in names]
    axes.barh(names, rows, left=left, label=word)
    left += rows
axes.set_xlabel("training rows")
axes.legend()

# %%
# Train over all hospitals
# ------------------------
#
# ``parties`` names the owner of each row. The parties are simulated in this process: each sees only
# its own rows, and they exchange the same messages as over a network.

federated = FlyNNClassifier().fit(X, y, parties=hospital)
print(f"accuracy on new patients: {federated.score(X_new, y_new):.3f}")
print(f"bytes sent by all hospitals: {federated.run_record_.upload_bytes:,}")

# %%
# The result equals that of the pooled table, bit for bit: a party sends counts, and sums of whole
# numbers are exact.

pooled = FlyNNClassifier().fit(X, y)
assert np.array_equal(federated.counts_, pooled.counts_)
assert np.array_equal(federated.predict_proba(X_new), pooled.predict_proba(X_new))

# %%
# Compare with one hospital
# -------------------------

scores = {"all hospitals": federated.score(X_new, y_new)}
for name in names:
    rows = hospital == name
    scores[f"{name} alone"] = FlyNNClassifier().fit(X[rows], y[rows]).score(X_new, y_new)

figure, axes = plt.subplots(figsize=(6, 2.4), layout="constrained")
bars = axes.barh(list(scores), list(scores.values()), color=["tab:blue"] + ["tab:gray"] * 3)
axes.bar_label(bars, fmt="%.3f", padding=3)
axes.set(xlabel="accuracy on new patients", xlim=(0, 1.1))
axes.invert_yaxis()

# %%
# Use the model
# -------------
#
# Every hospital holds the whole model and predicts without contacting the others. ``save`` writes
# one file, which contains arrays and settings but no code.

file = Path(tempfile.mkdtemp(), "tumours.fnn")
federated.save(file)
at_a_hospital = FlyNNClassifier.load(file)
print(at_a_hospital.predict_proba(X_new[:3]).round(3))

# %%
# Anyone who has the exact model can infer which rows it was trained on. See
# `What counts reveal <../explanation/what-counts-reveal.html>`_ for the attack, and
# `Train under a privacy budget <../how-to/train-privately.html>`_ for the protection.
