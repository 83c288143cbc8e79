"""
Remove a party's rows from a model
==================================

A FlyNN model is a table of counts. ``unlearn`` subtracts the counts of rows; the result is
bit-identical to a model trained without them.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fedneighbors import FlyNNClassifier

X, y = load_digits(return_X_y=True)
X, X_new, y, y_new = train_test_split(X, y, stratify=y, random_state=0)

# %%
# Add rows in batches of a hundred, then remove them in the same order. ``standardize=False`` and
# a fixed ``expand`` keep the features independent of the rows; equal sizes keep the hash the same.

starts = range(0, len(X) - 99, 100)
model = FlyNNClassifier(n_units=2_560, standardize=False, expand="mirror")
sizes, scores = [], []
for start in starts:
    model.partial_fit(X[start : start + 100], y[start : start + 100], classes=np.arange(10))
    sizes.append(start + 100)
    scores.append(model.score(X_new, y_new))
for start in starts[:-1]:
    model.unlearn(X[start : start + 100], y[start : start + 100])
    sizes.append(sizes[-1] - 100)
    scores.append(model.score(X_new, y_new))

# %%
# Only the last batch remains. The counts equal those of a model trained on that batch alone.

last = slice(starts[-1], starts[-1] + 100)
retrained = FlyNNClassifier(n_units=2_560, standardize=False, expand="mirror")
retrained.partial_fit(X[last], y[last], classes=np.arange(10))
assert np.array_equal(model.counts_, retrained.counts_)

n_added = len(starts)
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
axes.plot(sizes[:n_added], scores[:n_added], "o-", label="learning")
axes.plot(
    sizes[n_added - 1 :], scores[n_added - 1 :], "s--", label="unlearning the oldest rows first"
)
axes.set(xlabel="rows in the model", ylabel="accuracy")
axes.legend()
