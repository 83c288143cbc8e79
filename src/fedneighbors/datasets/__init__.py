"""Data sets: bundled, local or generated; nothing is downloaded unless the user asks."""
