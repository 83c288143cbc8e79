"""Implementations of published methods, one package per paper, without imports between them."""
