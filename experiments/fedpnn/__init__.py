"""The experiments of FedPNN: measurements and their tables."""
