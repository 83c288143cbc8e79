"""FedKNN: exact k-nearest-neighbour search over the private data of a federation."""
