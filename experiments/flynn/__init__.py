"""The experiments of FlyNN's paper, one module each, with the paper's numbers."""
