"""Evaluation metrics: accuracy, calibration, and comparisons of methods and clients."""

from fedneighbors.metrics._comparison import (
    PairedComparison,
    average_accuracy,
    bottom_decile,
    compare_paired,
)
from fedneighbors.metrics._scores import (
    Reliability,
    accuracy,
    agreement,
    balanced_accuracy,
    brier_score,
    confusion,
    normalized_accuracy,
    reliability,
)

__all__ = [
    "PairedComparison",
    "Reliability",
    "accuracy",
    "agreement",
    "average_accuracy",
    "balanced_accuracy",
    "bottom_decile",
    "brier_score",
    "compare_paired",
    "confusion",
    "normalized_accuracy",
    "reliability",
]
