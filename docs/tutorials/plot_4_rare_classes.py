"""
Classify rare cases in tables with missing cells
================================================

Banks want to recognise rare cases, and their tables have missing cells. FedPNN asks each party
once for the centers of its clusters; each center represents at least five rows. The centers become
the neurons of a probabilistic network, in which a rare class weighs as much as a frequent one.
"""

from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split

from fedneighbors import FedPNNClassifier
from fedneighbors.partition import iid

# %%
# The data
# --------
#
# Real measurements of tumours, made difficult: nine of ten malignant cases are left out, so that
# they are rare, and one cell in ten is missing.

X, y = load_breast_cancer(return_X_y=True)
rng = np.random.default_rng(0)
malignant = np.flatnonzero(y == 0)
keep = np.union1d(np.flatnonzero(y == 1), rng.choice(malignant, 70, replace=False))
X, y = X[keep], np.where(y[keep] == 0, "malignant", "benign")
X[rng.random(X.shape) < 0.1] = np.nan

X, X_new, y, y_new = train_test_split(X, y, test_size=0.4, stratify=y, random_state=0)
bank = iid(len(y), 3, seed=0)
print(Counter(y.tolist()))

# %%
# Train
# -----
#
# A missing cell counts as the median of its column. A column with many missing cells also gets a
# coordinate that marks them.

model = FedPNNClassifier().fit(X, y, parties=bank)
predicted = model.predict(X_new)
print(f"balanced accuracy: {balanced_accuracy_score(y_new, predicted):.3f}")
print(f"{len(model.centers_)} centers represent {len(y)} rows")

# %%
# The picture shows new rows by the probability that the model gives to the rare class.

probability = model.predict_proba(X_new)[:, list(model.classes_).index("malignant")]
figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
bins = np.linspace(0, 1, 21)
for word in ("benign", "malignant"):
    axes.hist(probability[y_new == word], bins, alpha=0.7, label=word)
axes.set(xlabel="predicted probability of malignant", ylabel="new rows", yscale="log")
axes.legend()

# %%
# Disclosure by centers
# ---------------------
#
# A center is a mean of at least ``min_count`` rows. ``exposures_`` reports for each party how much
# its centers reveal about single rows.

for name, exposure in model.exposures_.items():
    print(name, exposure)
