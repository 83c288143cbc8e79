"""Ways to split a data set over parties."""

from fedneighbors.partition.dealing import iid, natural, quantity_skew
from fedneighbors.partition.labels import dirichlet, pathological
from fedneighbors.partition.manifest import Manifest, describe
from fedneighbors.partition.splitting import KINDS, split

__all__ = [
    "KINDS",
    "Manifest",
    "describe",
    "dirichlet",
    "iid",
    "natural",
    "pathological",
    "quantity_skew",
    "split",
]
