"""Baselines for comparison with the methods, as scikit-learn estimators.

The estimators are imported on first use; training networks needs the extra ``torch``.
"""

from fedneighbors._lazy import lazy_names

_MODULES = {
    "FederatedBoostingClassifier": "fedneighbors.baselines.boosting._estimator",
    "FederatedBoostingRegressor": "fedneighbors.baselines.boosting._estimator",
    "FederatedDiscriminantClassifier": "fedneighbors.baselines._discriminant",
    "FederatedNaiveBayes": "fedneighbors.baselines._tabular",
    "CentralModel": "fedneighbors.baselines._tabular",
    "AveragedModels": "fedneighbors.baselines._tabular",
    "APFLClassifier": "fedneighbors.baselines._client_networks",
    "ClusteredFLClassifier": "fedneighbors.baselines._clustered",
    "DittoClassifier": "fedneighbors.baselines._client_networks",
    "FedAvgClassifier": "fedneighbors.baselines._averaging",
    "FedAvgPlusClassifier": "fedneighbors.baselines._averaging",
    "FedPerClassifier": "fedneighbors.baselines._heads",
    "FedProtoClassifier": "fedneighbors.baselines._class_means",
    "FedProxClassifier": "fedneighbors.baselines._averaging",
    "FedRepClassifier": "fedneighbors.baselines._heads",
    "HeadTuningClassifier": "fedneighbors.baselines._averaging",
    "LocalClassifier": "fedneighbors.baselines._client_networks",
    "PFedFDAClassifier": "fedneighbors.baselines._class_means",
    "PriorCorrectedClassifier": "fedneighbors.baselines._averaging",
    "SimHashBloomClassifier": "fedneighbors.baselines._simhash",
    "TuningResult": "fedneighbors.baselines._tuning",
    "train_start_networks": "fedneighbors.baselines._tuning",
    "load": "fedneighbors.baselines._base",
    "tune": "fedneighbors.baselines._tuning",
}

TITLES = {
    "Local": "LocalClassifier",
    "FedAvg": "FedAvgClassifier",
    "FedAvg, local class shares": "PriorCorrectedClassifier",
    "FedAvg+": "FedAvgPlusClassifier",
    "head fine-tuning": "HeadTuningClassifier",
    "FedProx": "FedProxClassifier",
    "ClusteredFL": "ClusteredFLClassifier",
    "Ditto": "DittoClassifier",
    "FedRep": "FedRepClassifier",
    "FedPer": "FedPerClassifier",
    "APFL": "APFLClassifier",
    "FedProto": "FedProtoClassifier",
    "pFedFDA": "PFedFDAClassifier",
}
"""Estimator of each method that trains networks, by the method's title in tables of results."""

__all__ = ["TITLES", *_MODULES]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
