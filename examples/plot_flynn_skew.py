"""
Gain from joining a federation
==============================

A party with few rows of a class cannot recognise the class alone. The more the parties' tables
differ, the more each party gains by joining. The federated model does not depend on the partition:
it equals the model of the pooled table.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fedneighbors import FlyNNClassifier
from fedneighbors.partition import dirichlet

X, y = load_digits(return_X_y=True)
X, X_new, y, y_new = train_test_split(X, y, test_size=0.25, stratify=y, random_state=0)

# %%
# One partition for each strength of label skew: a low alpha gives each party few classes.

alphas = [0.1, 0.3, 1.0, 10.0]
alone, federated = [], []
for alpha in alphas:
    parties = dirichlet(y, 6, alpha=alpha, min_rows=20, seed=1)
    federated.append(FlyNNClassifier().fit(X, y, parties=parties).score(X_new, y_new))
    masks = [parties == name for name in np.unique(parties)]
    alone.append([FlyNNClassifier().fit(X[mask], y[mask]).score(X_new, y_new) for mask in masks])

# %%
# The federated accuracy is the same at every skew.

figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
for alpha, scores in zip(alphas, alone, strict=True):
    axes.plot([alpha] * len(scores), scores, "o", color="tab:gray", alpha=0.7)
axes.plot(alphas, federated, "-", color="tab:blue", label="federated")
axes.plot([], [], "o", color="tab:gray", label="one party alone")
axes.set(xscale="log", xlabel="alpha (label skew: low is strong)", ylabel="accuracy", ylim=(0, 1))
axes.legend(loc="lower right")
