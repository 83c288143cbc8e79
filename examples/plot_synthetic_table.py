"""
Synthetic rows that resemble a table
====================================

``TabularSynthesizer`` learns one generator for each class. The rows are for trying things out: they
resemble the table and are **not** differentially private.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

from fedneighbors import TabularSynthesizer

X, y = load_wine(return_X_y=True)

# %%
# A small generator and few epochs, for a first look; the defaults take minutes and do better.

synthesizer = TabularSynthesizer(generator=(64,), critic=(64,), epochs=60).fit(X, y)
X_made, y_made = synthesizer.sample(len(X))

# %%
# Alcohol and colour of the real and of the synthetic wines.

figure, panels = plt.subplots(
    1, 2, figsize=(7.5, 3.2), sharex=True, sharey=True, layout="constrained"
)
for axes, title, rows, labels in (
    (panels[0], "real", X, y),
    (panels[1], "synthetic", X_made, y_made),
):
    for label in np.unique(y):
        axes.plot(rows[labels == label, 0], rows[labels == label, 9], "o", markersize=3)
    axes.set(title=title, xlabel="alcohol", ylabel="colour intensity")
