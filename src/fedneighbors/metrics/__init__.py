"""Measures of a result: accuracy and its relatives."""

from fedneighbors.metrics.labels import (
    accuracy,
    agreement,
    balanced_accuracy,
    confusion,
    normalized_accuracy,
)

__all__ = ["accuracy", "agreement", "balanced_accuracy", "confusion", "normalized_accuracy"]
