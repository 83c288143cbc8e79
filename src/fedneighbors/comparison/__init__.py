"""Comparison of all methods and baselines on a user's rows, within a time budget."""

from fedneighbors.comparison._compare import Comparison, compare

__all__ = ["Comparison", "compare"]
