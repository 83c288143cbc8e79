"""The experiments of FedPNN: what is measured, and the tables that come of it."""
