"""
Similar molecules of three companies
====================================

Three companies look for molecules that resemble one of theirs, without showing their collections.
The distance is that of Tanimoto, between Morgan fingerprints of the molecules. This example needs
the extra ``chem``.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedneighbors import FederatedNeighbors

# %%
# A molecule is given by its SMILES. Here each company has a few known drugs.

companies = {
    "Alder": {
        "aspirin": "CC(=O)Oc1ccccc1C(=O)O",
        "ibuprofen": "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
        "caffeine": "Cn1cnc2c1c(=O)n(C)c(=O)n2C",
        "diazepam": "CN1C(=O)CN=C(c2ccccc2)c2cc(Cl)ccc12",
    },
    "Birch": {
        "paracetamol": "CC(=O)Nc1ccc(O)cc1",
        "naproxen": "COc1ccc2cc(ccc2c1)C(C)C(=O)O",
        "theophylline": "Cn1c(=O)c2[nH]cnc2n(C)c1=O",
        "nordazepam": "O=C1CN=C(c2ccccc2)c2cc(Cl)ccc2N1",
    },
    "Cedar": {
        "salicylic acid": "OC(=O)c1ccccc1O",
        "ketoprofen": "CC(C(=O)O)c1cccc(c1)C(=O)c1ccccc1",
        "theobromine": "Cn1cnc2c1c(=O)[nH]c(=O)n2C",
        "temazepam": "CN1C(=O)C(O)N=C(c2ccccc2)c2cc(Cl)ccc12",
    },
}
names = [name for drugs in companies.values() for name in drugs]
smiles = [text for drugs in companies.values() for text in drugs.values()]
owner = [company for company, drugs in companies.items() for _ in drugs]

search = FederatedNeighbors(metric="tanimoto").fit(smiles, parties=owner, ids=names)
distances, positions = search.kneighbors("CN1C(=O)CN=C(c2ccccc2)c2cc(Cl)ccc12", n_neighbors=3)
for distance, position in zip(distances[0], positions[0], strict=True):
    print(f"{names[position]} of {owner[position]}: similarity {1 - distance:.2f}")

# %%
# A search by radius returns all molecules of at least a similarity, here .3 to caffeine.

distances, positions = search.radius_neighbors("Cn1cnc2c1c(=O)n(C)c(=O)n2C", radius=0.7)
print([names[position] for position in positions[0]])

# %%
# Compare all molecules.

distances, positions = search.kneighbors(smiles, n_neighbors=len(smiles))
similarities = np.empty((len(smiles), len(smiles)))
for row, near, found in zip(similarities, distances, positions, strict=True):
    row[found] = 1 - near

figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
image = axes.imshow(similarities, cmap="Blues", vmin=0, vmax=1)
axes.set_xticks(range(len(names)), names, rotation=90)
axes.set_yticks(range(len(names)), names)
figure.colorbar(image, label="Tanimoto similarity")
