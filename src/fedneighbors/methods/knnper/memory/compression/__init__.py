"""Memories in a fraction of the bytes: codes of keys, centers of classes, learned prototypes."""
