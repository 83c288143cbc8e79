"""
Compressed memories
===================

A device may not have room for the embeddings of all its rows. kNN-Per can quantize them or store
centers instead. The picture shows accuracy against the size of the saved model of one client.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fedneighbors import KNNPerClassifier
from fedneighbors.partition import dirichlet

X, y = load_digits(return_X_y=True)
device = dirichlet(y, 4, alpha=0.5, min_rows=60, seed=0)
X, X_new, y, y_new, device, device_new = train_test_split(X, y, device, random_state=0)

# %%
# Train once for each kind of memory. The seed is the same, so the networks are equal.

figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for memory in ("exact", "8-bit", "product", "centers"):
    model = KNNPerClassifier(n_rounds=10, memory=memory).fit(X, y, parties=device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "client.fnk")
        model.save(path, client=device[0])
        size = path.stat().st_size / 1024
    score = model.score(X_new, y_new, parties=device_new)
    axes.plot(size, score, "o")
    axes.annotate(memory, (size, score), xytext=(6, 4), textcoords="offset points")
    print(f"{memory:8} {size:7.1f} KiB, accuracy {score:.3f}")
axes.margins(0.2)
axes.set(xlabel="file of one client, including the network (KiB)", ylabel="accuracy")
print(f"{np.sum(device == device[0])} rows in this client's memory")
