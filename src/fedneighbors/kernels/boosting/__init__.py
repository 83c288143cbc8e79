"""Kernels of gradient boosting: histograms, splits, losses and trees."""
