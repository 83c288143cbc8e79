"""Evolving clusters and kernel densities."""
