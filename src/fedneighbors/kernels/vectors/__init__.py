"""Distances and dot products of vectors."""
