"""Cryptography of secure aggregation: keys, masks and secret sharing (Bonawitz et al. 2017).

The protocol that uses it is in ``fedneighbors.federation``.
"""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "check_threshold": "fedneighbors.secure_sum._shares",
    "combine": "fedneighbors.secure_sum._shares",
    "default_threshold": "fedneighbors.secure_sum._shares",
    "derive_public_key": "fedneighbors.secure_sum._masks",
    "digest": "fedneighbors.secure_sum._keys",
    "from_cells": "fedneighbors.secure_sum._masks",
    "generate_secret": "fedneighbors.secure_sum._masks",
    "Identity": "fedneighbors.secure_sum._keys",
    "mask": "fedneighbors.secure_sum._masks",
    "Roster": "fedneighbors.secure_sum._keys",
    "seal": "fedneighbors.secure_sum._keys",
    "Secrets": "fedneighbors.secure_sum._masks",
    "split": "fedneighbors.secure_sum._shares",
    "to_cells": "fedneighbors.secure_sum._masks",
    "unmask": "fedneighbors.secure_sum._masks",
    "unseal": "fedneighbors.secure_sum._keys",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
