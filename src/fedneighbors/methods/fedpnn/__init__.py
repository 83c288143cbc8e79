"""FedPNN: one-round classification with evolving clusters and probabilistic networks."""
