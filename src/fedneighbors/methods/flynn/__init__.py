"""FlyNN and FlyNNFL: federated nearest-neighbour classification with fly Bloom filters.

The estimators resolve on first use, so that a party that only counts does not load scikit-learn.
"""

import importlib
from typing import Any

_HOME = {
    "FlyNNClassifier": "fedneighbors.methods.flynn.estimator",
    "FlyNNSearchCV": "fedneighbors.methods.flynn.selection",
    "SimHashBloomClassifier": "fedneighbors.methods.flynn.simhash",
}

__all__ = ["FlyNNClassifier", "FlyNNSearchCV", "SimHashBloomClassifier"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedneighbors.methods.flynn' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
