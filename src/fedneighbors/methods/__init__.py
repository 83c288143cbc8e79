"""One folder per paper; the methods never import one another."""
