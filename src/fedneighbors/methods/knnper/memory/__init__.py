"""Memories of clients: keys and labels, neighbor search and eviction; needs no torch."""
