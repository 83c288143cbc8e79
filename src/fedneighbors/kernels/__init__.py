"""Numba loops on plain arrays, one self-contained file per family."""
