"""Fruit-fly hashing and Bloom filters."""
