"""FlyNN and FlyNNFL: federated nearest-neighbour classification with fly Bloom filters."""

from fedneighbors.methods.flynn.estimator import FlyNNClassifier
from fedneighbors.methods.flynn.selection import FlyNNSearchCV
from fedneighbors.methods.flynn.simhash import SimHashBloomClassifier

__all__ = ["FlyNNClassifier", "FlyNNSearchCV", "SimHashBloomClassifier"]
