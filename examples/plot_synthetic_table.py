"""
Synthetic rows that resemble a table
====================================

``TabularSynthesizer`` trains one generator for each class. Synthetic rows are useful for testing
programs: they resemble the table, but are **not** differentially private.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

from fedneighbors import TabularSynthesizer

X, y = load_wine(return_X_y=True)

# %%
# Use a small generator and few epochs. The defaults take minutes and give better rows.

synthesizer = TabularSynthesizer(generator=(64,), critic=(64,), epochs=60).fit(X, y)
X_synthetic, y_synthetic = synthesizer.sample(len(X))

# %%
# Plot alcohol and colour intensity of the real and of the synthetic wines.

figure, panels = plt.subplots(
    1, 2, figsize=(7.5, 3.2), sharex=True, sharey=True, layout="constrained"
)
for axes, title, rows, labels in (
    (panels[0], "real", X, y),
    (panels[1], "synthetic", X_synthetic, y_synthetic),
):
    for label in np.unique(y):
        axes.plot(rows[labels == label, 0], rows[labels == label, 9], "o", markersize=3)
    axes.set(title=title, xlabel="alcohol", ylabel="colour intensity")
