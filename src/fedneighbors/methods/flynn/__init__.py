"""FlyNN and FlyNNFL: federated nearest-neighbour classification with fly Bloom filters."""

from fedneighbors.methods.flynn.estimator import FlyNNClassifier

__all__ = ["FlyNNClassifier"]
