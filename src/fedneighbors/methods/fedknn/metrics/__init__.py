"""Distances and the indexes that make searching them fast, one file per kind of object."""
