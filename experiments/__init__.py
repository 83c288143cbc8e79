"""The papers' experiments, attacks and data sets; not installed."""
