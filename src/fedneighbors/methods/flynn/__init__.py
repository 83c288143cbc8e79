"""FlyNN and FlyNNFL: federated nearest-neighbour classification with fly Bloom filters."""
