"""
Find similar objects over several providers
===========================================

Five archives hold images of handwritten digits. A user searches all archives for the images most
similar to a given one. The archives return names and distances; the images stay at the archives.
The answer is exact: the same objects in the same order as a search of one pooled collection.
"""

from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from fedneighbors import FederatedNeighbors, FederatedNeighborsClassifier
from fedneighbors.partition import quantity_skew

# %%
# The data
# --------
#
# 1,797 images of 8 x 8 pixels. ``quantity_skew`` gives the archives tables of different sizes. The
# last three images are the queries.

X, y = load_digits(return_X_y=True)
images, queries = X[:-3], X[-3:]
archive = quantity_skew(len(images), 5, factor=0.7, seed=0)
print(Counter(archive.tolist()))

# %%
# Search
# ------
#
# ``kneighbors`` has the signature of scikit-learn's. The second array holds positions in the
# collection, or the names that were given as ``ids``.

search = FederatedNeighbors(metric="euclidean").fit(images, parties=archive)
distances, positions = search.kneighbors(queries, n_neighbors=6)

pooled = NearestNeighbors(n_neighbors=6).fit(images)
assert np.allclose(distances, pooled.kneighbors(queries)[0])

figure, axes = plt.subplots(3, 7, figsize=(8, 4), layout="constrained")
for row, query in enumerate(queries):
    axes[row, 0].imshow(query.reshape(8, 8), cmap="Blues")
    axes[row, 0].set_xlabel("query", fontsize=8)
    for panel, distance, index in zip(axes[row, 1:], distances[row], positions[row], strict=True):
        panel.imshow(images[index].reshape(8, 8), cmap="gray")
        panel.set_xlabel(f"{archive[index]}\n{distance:.1f}", fontsize=8)
for panel in axes.ravel():
    panel.set(xticks=[], yticks=[])

# %%
# Inspect the search
# ------------------
#
# The record of a query names the algorithm and the number of objects that each archive returned.
# ``explain`` measures the cost of each algorithm for one query.

record = search.query_records_[0]
print(record.algorithm, record.exact, record.n_returned)
print(search.explain(queries[:1], n_neighbors=6))

# %%
# Search by radius, and classify
# ------------------------------
#
# ``radius_neighbors`` returns all objects within a distance. The neighbors can vote:
# ``FederatedNeighborsClassifier`` predicts what ``KNeighborsClassifier`` predicts on pooled rows.

_, positions = search.radius_neighbors(queries, radius=20.0)
print([len(near) for near in positions])

digits = FederatedNeighborsClassifier(n_neighbors=5, metric="euclidean")
digits.fit(images, y[:-3], parties=archive)
print(digits.predict(queries), y[-3:])

# %%
# There are metrics for strings, sets, places on a map and labelled graphs; any function of two
# objects works too: see `Add a metric <../how-to/add-a-metric.html>`_. With the fast algorithms an
# archive learns about how many of the nearest objects are its own; see
# `Search in private <../how-to/search-privately.html>`_ for the protection.
