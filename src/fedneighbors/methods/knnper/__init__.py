"""kNN-Per: a network that all clients train, and a memory of its own for each of them.

The estimators resolve on first use; what trains networks needs the extra ``torch``.
"""

import importlib
from typing import Any

_HOME = {
    "KNNPerClassifier": "fedneighbors.methods.knnper.estimator",
    "KNNPerRegressor": "fedneighbors.methods.knnper.regressor",
}

__all__ = ["KNNPerClassifier", "KNNPerRegressor"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedneighbors.methods.knnper' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
