"""
Nearest places over several providers
=====================================

Four providers hold places on a map. A query finds the nearest places of all providers, in metres on
the sphere. Each provider returns few places that are not in the answer.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedneighbors import FederatedNeighbors

# %%
# Generate places around four cities; the areas of the providers overlap.

rng = np.random.default_rng(0)
cities = {
    "Bern": (7.45, 46.95),
    "Basel": (7.59, 47.56),
    "Zurich": (8.54, 47.38),
    "Geneva": (6.14, 46.2),
}
places = np.concatenate([rng.normal(center, 0.5, (400, 2)) for center in cities.values()])
provider = np.repeat(list(cities), 400)

query = np.array([[7.9, 47.2]])
search = FederatedNeighbors(metric="haversine", algorithm="dann").fit(places, parties=provider)
distances, positions = search.kneighbors(query, n_neighbors=60)
record = search.query_records_[0]
print(f"farthest of the 60 nearest: {distances[0][-1] / 1000:.1f} km")
print("returned:", record.n_returned)

# %%
# Plot the nearest places, coloured by provider.

figure, axes = plt.subplots(figsize=(6, 4.2), layout="constrained")
axes.plot(*places.T, ".", color="lightgray", markersize=3)
for name in cities:
    nearest = [position for position in positions[0] if provider[position] == name]
    axes.plot(*places[nearest].T, "o", markersize=4, label=f"{name}: {len(nearest)}")
axes.plot(*query[0], "k*", markersize=12, label="query")
axes.set(xlabel="longitude", ylabel="latitude")
axes.legend()
