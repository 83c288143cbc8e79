"""FlyNN and FlyNNFL: federated nearest-neighbour classification with fly Bloom filters.

The estimators are imported on first use, so that a party that only counts does not load
scikit-learn.
"""

from fedneighbors._lazy import lazy_names

_MODULES = {
    "FlyNNClassifier": "fedneighbors.methods.flynn.estimator",
    "FlyNNSearchCV": "fedneighbors.methods.flynn._selection",
}

__all__ = ["FlyNNClassifier", "FlyNNSearchCV"]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
