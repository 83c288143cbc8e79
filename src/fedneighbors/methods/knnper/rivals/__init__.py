"""What kNN-Per is compared with: other ways to serve clients whose rows differ.

The estimators resolve on first use; what trains networks needs the extra ``torch``.
"""

import importlib
from typing import Any

_HOME = {
    "APFLClassifier": "apfl",
    "ClusteredFLClassifier": "clustered",
    "DittoClassifier": "ditto",
    "FedAvgClassifier": "starting",
    "FedAvgPlusClassifier": "afterwards",
    "FedPerClassifier": "heads",
    "FedProxClassifier": "averaging",
    "FedRepClassifier": "heads",
    "HeadTuningClassifier": "afterwards",
    "LocalClassifier": "alone",
    "PriorCorrectedClassifier": "afterwards",
    "Tuned": "tuning",
    "average_starts": "tuning",
    "load": "frame",
    "tuned": "tuning",
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
}
"""What the methods are called in tables, and their estimators."""

__all__ = [
    "TITLES",
    "APFLClassifier",
    "ClusteredFLClassifier",
    "DittoClassifier",
    "FedAvgClassifier",
    "FedAvgPlusClassifier",
    "FedPerClassifier",
    "FedProxClassifier",
    "FedRepClassifier",
    "HeadTuningClassifier",
    "LocalClassifier",
    "PriorCorrectedClassifier",
    "Tuned",
    "average_starts",
    "load",
    "tuned",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
