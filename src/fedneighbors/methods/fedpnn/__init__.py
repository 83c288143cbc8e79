"""FedPNN: one-round classification with evolving clusters and probabilistic networks."""

import importlib
from typing import Any

_HOME = {
    "EvolvingClustering": "fedneighbors.methods.fedpnn.clustering",
    "FedPNNClassifier": "fedneighbors.methods.fedpnn.estimator",
    "ProbabilisticNeuralNetwork": "fedneighbors.methods.fedpnn.network",
    "TabularSynthesizer": "fedneighbors.methods.fedpnn.synthesis",
}

__all__ = [
    "EvolvingClustering",
    "FedPNNClassifier",
    "ProbabilisticNeuralNetwork",
    "TabularSynthesizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedneighbors.methods.fedpnn' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
