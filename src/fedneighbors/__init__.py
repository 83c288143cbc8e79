"""Nearest-neighbour search, classification and personalisation for data that may not be pooled.

Names resolve on first use, so that ``import fedneighbors`` loads neither numba nor scikit-learn.
"""

import importlib
from typing import Any

from fedneighbors._version import __version__

_HOME = {
    "EvolvingClustering": "fedneighbors.methods.fedpnn",
    "FedPNNClassifier": "fedneighbors.methods.fedpnn",
    "FederatedNeighbors": "fedneighbors.methods.fedknn",
    "FederatedNeighborsClassifier": "fedneighbors.methods.fedknn",
    "FederatedNeighborsRegressor": "fedneighbors.methods.fedknn",
    "FlyNNClassifier": "fedneighbors.methods.flynn",
    "FlyNNSearchCV": "fedneighbors.methods.flynn",
    "KNNPerClassifier": "fedneighbors.methods.knnper",
    "KNNPerRegressor": "fedneighbors.methods.knnper",
    "Privacy": "fedneighbors.privacy.policy",
    "ProbabilisticNeuralNetwork": "fedneighbors.methods.fedpnn",
    "SimHashBloomClassifier": "fedneighbors.methods.flynn",
    "TabularSynthesizer": "fedneighbors.methods.fedpnn",
}

__all__ = [
    "__version__",
    "EvolvingClustering",
    "FedPNNClassifier",
    "FederatedNeighbors",
    "FederatedNeighborsClassifier",
    "FederatedNeighborsRegressor",
    "FlyNNClassifier",
    "FlyNNSearchCV",
    "KNNPerClassifier",
    "KNNPerRegressor",
    "Privacy",
    "ProbabilisticNeuralNetwork",
    "SimHashBloomClassifier",
    "TabularSynthesizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedneighbors' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
