"""The experiments of FedKNN's paper, one module each, with the paper's numbers."""
