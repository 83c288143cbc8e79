"""Memories in a fraction of the bytes: codes of keys, and centers of classes."""
