"""kNN-Per under a privacy budget: private training steps and noisy class counts."""
