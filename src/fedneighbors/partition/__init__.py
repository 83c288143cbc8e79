"""Ways to split a data set over parties."""

from fedneighbors.partition._dealing import iid, natural, quantity_skew
from fedneighbors.partition._hierarchy import pachinko
from fedneighbors.partition._labels import dirichlet, pathological, pathological_v2
from fedneighbors.partition._manifest import Manifest, describe
from fedneighbors.partition._roles import RowRoles, ordered_roles, row_roles, unseen_parties
from fedneighbors.partition._shifts import by_time, groups, permute_labels, shift_features
from fedneighbors.partition._splitting import KINDS, split

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
