"""Measured searches: collections, algorithms, replay with timers and time limits."""
