"""Cryptography of secure aggregation: keys, masks and secret sharing (Bonawitz et al. 2017).

The protocol that uses it is in ``fedneighbors.federation``.
"""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "check_threshold": "fedneighbors.secure_sum._shares",
    "combine": "fedneighbors.secure_sum._shares",
    "default_threshold": "fedneighbors.secure_sum._shares",
    "digest": "fedneighbors.secure_sum._keys",
    "from_cells": "fedneighbors.secure_sum._masks",
    "Identity": "fedneighbors.secure_sum._keys",
    "lift": "fedneighbors.secure_sum._masks",
    "mask": "fedneighbors.secure_sum._masks",
    "new_private": "fedneighbors.secure_sum._masks",
    "public_of": "fedneighbors.secure_sum._masks",
    "Roster": "fedneighbors.secure_sum._keys",
    "seal": "fedneighbors.secure_sum._keys",
    "Secrets": "fedneighbors.secure_sum._masks",
    "split": "fedneighbors.secure_sum._shares",
    "to_cells": "fedneighbors.secure_sum._masks",
    "unseal": "fedneighbors.secure_sum._keys",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
