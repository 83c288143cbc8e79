"""Ways to split a data set over parties."""

from fedneighbors.partition.dealing import iid, natural, quantity_skew
from fedneighbors.partition.labels import dirichlet, pathological

__all__ = ["dirichlet", "iid", "natural", "pathological", "quantity_skew"]
