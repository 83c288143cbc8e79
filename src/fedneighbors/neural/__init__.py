"""Federated training of torch networks."""
