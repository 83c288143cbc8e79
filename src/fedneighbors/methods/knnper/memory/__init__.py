"""What a client remembers: keys and labels, their neighbors, and when they go; needs no torch."""
