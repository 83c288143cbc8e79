"""
Missing cells and rare classes
==============================

FedPNN measures distances over the columns that both rows have. The picture shows how its balanced
accuracy falls as more cells are missing: once with all malignant cases, and once with a third of
them.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split

from fedneighbors import FedPNNClassifier
from fedneighbors.partition import iid

X_all, y_all = load_breast_cancer(return_X_y=True)
fractions = [0.0, 0.25, 0.5]

# %%
# Draw the missing cells three times for each fraction.


def balanced_accuracy(X, y, fraction, seed):
    """Train and score with a fraction of cells missing."""
    rng = np.random.default_rng(seed)
    X_missing = np.where(rng.random(X.shape) < fraction, np.nan, X)
    X_train, X_new, y_train, y_new = train_test_split(X_missing, y, stratify=y, random_state=seed)
    model = FedPNNClassifier().fit(X_train, y_train, parties=iid(len(y_train), 3, seed=seed))
    return balanced_accuracy_score(y_new, model.predict(X_new))


malignant = np.flatnonzero(y_all == 0)
rare = np.union1d(np.flatnonzero(y_all == 1), malignant[::3])
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for label, rows in {"37 % malignant": np.arange(len(y_all)), "17 % malignant": rare}.items():
    scores = np.array(
        [
            [balanced_accuracy(X_all[rows], y_all[rows], fraction, seed) for seed in range(3)]
            for fraction in fractions
        ]
    )
    axes.errorbar(fractions, scores.mean(axis=1), scores.std(axis=1), marker="o", label=label)
axes.set(xlabel="fraction of cells missing", ylabel="balanced accuracy", ylim=(0.4, 1))
axes.legend()
