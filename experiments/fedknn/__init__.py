"""The experiments of FedKNN's paper, one module each; the paper's numbers stand beside ours."""
