"""FedKNN: exact k-nearest-neighbour search over the private objects of a federation."""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "FederatedNeighbors": "fedneighbors.methods.fedknn.estimator",
    "FederatedNeighborsClassifier": "fedneighbors.methods.fedknn._classification",
    "FederatedNeighborsRegressor": "fedneighbors.methods.fedknn._classification",
}

__all__ = ["FederatedNeighbors", "FederatedNeighborsClassifier", "FederatedNeighborsRegressor"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
