"""
Accuracy under a privacy budget
===============================

Under a budget each party adds a share of the noise to its masked counts, so that the sum of the
counts is differentially private. A smaller epsilon needs more noise; with more rows, the noise
matters less.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split

from fedneighbors import FlyNNClassifier, Privacy
from fedneighbors.partition import iid

X, y = make_classification(11_000, 12, n_informative=8, class_sep=0.8, random_state=0)
X, X_new, y, y_new = train_test_split(X, y, test_size=2_000, random_state=0)

# %%
# Train with three parties and budgets from .25 to 16. The labels and the range of the values are
# declared. A tenth of the budget is spent on the number of rows and the scaling, the rest on the
# counts.

budgets = [0.25, 1.0, 4.0, 16.0]
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for n_rows in (1_000, 3_000, 9_000):
    parties = iid(n_rows, 3, seed=0)
    scores = []
    for epsilon in budgets:
        terms = Privacy(epsilon, delta=1e-6, mechanism="central", classes=(0, 1), bounds=(-10, 10))
        model = FlyNNClassifier(privacy=terms).fit(X[:n_rows], y[:n_rows], parties=parties)
        scores.append(model.score(X_new, y_new))
    lines = axes.plot(budgets, scores, "o-", label=f"{n_rows:,} rows")
    exact = FlyNNClassifier().fit(X[:n_rows], y[:n_rows]).score(X_new, y_new)
    axes.axhline(exact, color=lines[0].get_color(), linestyle=":")

# %%
# Dotted lines show the accuracy without noise. A private model has fewer active units per row, so
# that one row changes few counts; this costs accuracy at any epsilon. The points show one draw of
# the noise. Another run gives slightly different points, since noise never comes from a seed.

axes.set(xscale="log", xlabel="epsilon (delta = 1e-6)", ylabel="accuracy")
axes.legend()
