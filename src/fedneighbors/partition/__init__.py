"""Partitions of a data set into parties, for simulations."""

from fedneighbors.partition._clients import (
    RowRoles,
    groups,
    ordered_roles,
    permute_labels,
    row_roles,
    shift_features,
    unseen_parties,
)
from fedneighbors.partition._labels import dirichlet, pachinko, pathological, pathological_v2
from fedneighbors.partition._manifest import Manifest, describe
from fedneighbors.partition._splits import KINDS, by_time, iid, natural, quantity_skew, split

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
