"""kNN-Per: a network trained by all clients, and a memory of rows for each client.

The estimators are imported on first use; training networks needs the extra ``torch``.
"""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "KNNPerClassifier": "fedneighbors.methods.knnper.estimator",
    "KNNPerRegressor": "fedneighbors.methods.knnper.estimator",
}

__all__ = ["KNNPerClassifier", "KNNPerRegressor"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
