"""
Find similar objects over several providers
===========================================

Five archives hold images of handwritten digits. A user looks for the images that resemble a
given one, wherever they are. The archives return names and distances; the images stay where they
are. The answer is exact: the same objects in the same order as a search of one pooled collection.
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
distances, found = search.kneighbors(queries, n_neighbors=6)

pooled = NearestNeighbors(n_neighbors=6).fit(images)
assert np.allclose(distances, pooled.kneighbors(queries)[0])

figure, axes = plt.subplots(3, 7, figsize=(8, 4), layout="constrained")
for row, query in enumerate(queries):
    axes[row, 0].imshow(query.reshape(8, 8), cmap="Blues")
    axes[row, 0].set_xlabel("query", fontsize=8)
    for panel, distance, place in zip(axes[row, 1:], distances[row], found[row], strict=True):
        panel.imshow(images[place].reshape(8, 8), cmap="gray")
        panel.set_xlabel(f"{archive[place]}\n{distance:.1f}", fontsize=8)
for panel in axes.ravel():
    panel.set(xticks=[], yticks=[])

# %%
# What the search did
# -------------------
#
# The record of a query names the algorithm and the number of objects that each archive returned.
# ``explain`` predicts the cost of each algorithm before a search.

record = search.query_records_[0]
print(record.algorithm, record.exact, record.n_returned)
print(search.explain(queries[:1], n_neighbors=6))

# %%
# Other questions
# ---------------
#
# ``radius_neighbors`` returns all objects within a distance. The neighbors can vote:
# ``FederatedNeighborsClassifier`` predicts what ``KNeighborsClassifier`` predicts on pooled rows.

_, near = search.radius_neighbors(queries, radius=20.0)
print([len(objects) for objects in near])

digits = FederatedNeighborsClassifier(n_neighbors=5, metric="euclidean")
digits.fit(images, y[:-3], parties=archive)
print(digits.predict(queries), y[-3:])

# %%
# Metrics exist for strings, sets, places on a map and labelled graphs, and any function of two
# objects will do: see `Add a metric <../how-to/add-a-metric.html>`_. An archive can learn from a
# fast search how many of the nearest objects are its own; see
# `Search in private <../how-to/search-privately.html>`_ for the protection.
