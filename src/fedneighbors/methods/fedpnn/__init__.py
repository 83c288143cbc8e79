"""FedPNN: one-round classification with evolving clusters and probabilistic networks."""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "EvolvingClustering": "fedneighbors.methods.fedpnn._clustering",
    "FedPNNClassifier": "fedneighbors.methods.fedpnn.estimator",
    "ProbabilisticNeuralNetwork": "fedneighbors.methods.fedpnn._network",
    "TabularSynthesizer": "fedneighbors.methods.fedpnn.synthesis",
}

__all__ = [
    "EvolvingClustering",
    "FedPNNClassifier",
    "ProbabilisticNeuralNetwork",
    "TabularSynthesizer",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
