"""kNN-Per: a shared model, and a memory of its own for each client."""
