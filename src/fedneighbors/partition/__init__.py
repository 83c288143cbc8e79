"""Ways to split a data set over parties."""

from fedneighbors.partition.dealing import iid, natural, quantity_skew
from fedneighbors.partition.hierarchy import pachinko
from fedneighbors.partition.labels import dirichlet, pathological, pathological_v2
from fedneighbors.partition.manifest import Manifest, describe
from fedneighbors.partition.roles import RowRoles, ordered_roles, row_roles, unseen_parties
from fedneighbors.partition.shifts import by_time, groups, permute_labels, shift_features
from fedneighbors.partition.splitting import KINDS, split

__all__ = [
    "KINDS",
    "Manifest",
    "RowRoles",
    "by_time",
    "describe",
    "dirichlet",
    "groups",
    "iid",
    "natural",
    "ordered_roles",
    "pachinko",
    "pathological",
    "pathological_v2",
    "permute_labels",
    "quantity_skew",
    "row_roles",
    "shift_features",
    "split",
    "unseen_parties",
]
