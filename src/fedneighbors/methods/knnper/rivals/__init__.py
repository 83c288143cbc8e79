"""What kNN-Per is compared with: other ways to serve clients whose rows differ.

The estimators resolve on first use; what trains networks needs the extra ``torch``.
"""

import importlib
from typing import Any

_HOME = {
    "FedAvgClassifier": "starting",
    "FedAvgPlusClassifier": "afterwards",
    "HeadTuningClassifier": "afterwards",
    "LocalClassifier": "alone",
    "PriorCorrectedClassifier": "afterwards",
}

__all__ = [
    "FedAvgClassifier",
    "FedAvgPlusClassifier",
    "HeadTuningClassifier",
    "LocalClassifier",
    "PriorCorrectedClassifier",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
