"""
Search for similar titles over parties
======================================

Libraries hold titles that they may not share as a list. A search over all libraries finds the same
titles as a search over a pooled list. The picture shows the cost of a private search.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedneighbors import FederatedNeighbors, FederatedNeighborsClassifier, Privacy
from fedneighbors.partition import quantity_skew

# %%
# Generate titles of four fields and split them among six libraries of decreasing size.

rng = np.random.default_rng(4)
words = {
    "databases": ["query", "index", "join", "graph search", "storage", "transaction"],
    "learning": ["kernel", "gradient", "classifier", "neural network", "boosting", "margin"],
    "networks": ["routing", "packet", "latency", "congestion", "protocol", "wireless"],
    "security": ["cipher", "attack", "privacy", "key exchange", "signature", "leakage"],
}
patterns = ["Fast {} for {}", "On {} and {}", "A survey of {} in {}", "{} without {}"]
fields, titles = [], []
for field, terms in words.items():
    for _ in range(300):
        first, second = rng.choice(terms, 2, replace=False)
        titles.append(f"{rng.choice(patterns).format(first, second)} {rng.integers(1980, 2025)}")
        fields.append(field)
libraries = quantity_skew(len(titles), 6, factor=0.6, seed=1)

# %%
# A query with spelling mistakes finds the nearest titles of all libraries.

search = FederatedNeighbors(metric="edit", algorithm="dann").fit(titles, parties=libraries)
distances, positions = search.kneighbors(["Fast gradeint for boosting 2001"], n_neighbors=5)
for distance, position in zip(distances[0], positions[0], strict=True):
    print(f"{distance:4.0f}  {libraries[position]}  {titles[position]}")

# %%
# With DANN, each library learns how many of the nearest titles are its own. DANN* hides this number
# with noise and has to request more objects than needed. The answer stays the same.

k, queries = 48, titles[::150]
terms = {epsilon: Privacy(epsilon=epsilon, delta=1e-6) for epsilon in (8.0, 3.0, 1.0)}
searches = {
    "k from each\nlibrary": FederatedNeighbors("edit", algorithm="baseline"),
    "dann": FederatedNeighbors("edit", algorithm="dann"),
    **{
        f"dann*\nepsilon {epsilon:g}": FederatedNeighbors("edit", "dann*", privacy, grid_s=0)
        for epsilon, privacy in terms.items()
    },
}
returned, answers = {}, {}
for name, search in searches.items():
    answers[name] = search.fit(titles, parties=libraries).kneighbors(queries, k)[1]
    returned[name] = np.mean([sum(record.n_returned.values()) for record in search.query_records_])
expected = answers["k from each\nlibrary"]
for positions in answers.values():
    assert all(map(np.array_equal, positions, expected))

figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
axes.bar(list(returned), list(returned.values()), color="tab:blue")
axes.axhline(k, color="tab:gray", linestyle="--", label="objects in the answer")
axes.set(ylabel="objects returned by all libraries", title=f"{k} nearest titles of six libraries")
axes.legend()

# %%
# A classifier predicts by a vote of the neighbors' labels.

model = FederatedNeighborsClassifier(5, metric="edit").fit(titles, fields, parties=libraries)
print(model.predict(["a survey on attacks of ciphers", "packets of wireless routing"]))
