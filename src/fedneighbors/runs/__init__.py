"""Runs of a method on one table: train, score, compare and record."""
