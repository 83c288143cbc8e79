"""Numba loops on plain arrays, one self-contained file per group of functions."""
