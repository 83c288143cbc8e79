"""Data sets of the papers' experiments."""
