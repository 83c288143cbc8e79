"""kNN-Per under a privacy budget: the shared network by private steps, noised class counts."""
