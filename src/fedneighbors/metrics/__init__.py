"""Measures of a result: accuracy and its relatives."""

from fedneighbors.metrics._clients import average_accuracy, bottom_decile
from fedneighbors.metrics._comparison import PairedComparison, compare_paired
from fedneighbors.metrics._labels import (
    accuracy,
    agreement,
    balanced_accuracy,
    confusion,
    normalized_accuracy,
)
from fedneighbors.metrics._probabilities import Reliability, brier_score, reliability

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
