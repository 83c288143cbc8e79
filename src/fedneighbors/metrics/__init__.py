"""Measures of a result: accuracy and its relatives."""

from fedneighbors.metrics.clients import average_accuracy, bottom_decile
from fedneighbors.metrics.comparison import PairedComparison, compare_paired
from fedneighbors.metrics.labels import (
    accuracy,
    agreement,
    balanced_accuracy,
    confusion,
    normalized_accuracy,
)
from fedneighbors.metrics.probabilities import Reliability, brier_score, reliability

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
