"""The experiments of FlyNN's paper, one module each; the paper's numbers stand beside ours."""
