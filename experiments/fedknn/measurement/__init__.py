"""Measured searches: collections, algorithms, replay with clocks and limits."""
