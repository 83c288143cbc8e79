"""Nearest-neighbour search, classification and personalisation on data that cannot be pooled.

Names resolve on first use, so that ``import fedneighbors`` loads neither numba nor scikit-learn.
"""

from fedneighbors._lazy import lazy_names
from fedneighbors._version import __version__

_HOMES = {
    "audit_node": "fedneighbors.runs._node_audit",
    "EvolvingClustering": "fedneighbors.methods.fedpnn",
    "FedPNNClassifier": "fedneighbors.methods.fedpnn",
    "FederatedEstimator": "fedneighbors.tabular._federated_estimator",
    "FederatedNeighbors": "fedneighbors.methods.fedknn",
    "FederatedNeighborsClassifier": "fedneighbors.methods.fedknn",
    "FederatedNeighborsRegressor": "fedneighbors.methods.fedknn",
    "FlyNNClassifier": "fedneighbors.methods.flynn",
    "FlyNNSearchCV": "fedneighbors.methods.flynn",
    "KNNPerClassifier": "fedneighbors.methods.knnper",
    "KNNPerRegressor": "fedneighbors.methods.knnper",
    "Privacy": "fedneighbors.privacy._policy",
    "ProbabilisticNeuralNetwork": "fedneighbors.methods.fedpnn",
    "SimHashBloomClassifier": "fedneighbors.baselines",
    "TabularSynthesizer": "fedneighbors.methods.fedpnn",
    "compare": "fedneighbors.comparison",
}

__all__ = ["__version__", *_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
