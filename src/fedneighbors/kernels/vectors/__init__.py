"""Distances and products of vectors."""
