"""FedKNN: exact k-nearest-neighbour search over the private objects of a federation."""

import importlib
from typing import Any

_HOME = {
    "FederatedNeighbors": "fedneighbors.methods.fedknn.estimator",
    "FederatedNeighborsClassifier": "fedneighbors.methods.fedknn.classification",
    "FederatedNeighborsRegressor": "fedneighbors.methods.fedknn.classification",
}

__all__ = ["FederatedNeighbors", "FederatedNeighborsClassifier", "FederatedNeighborsRegressor"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedneighbors.methods.fedknn' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
