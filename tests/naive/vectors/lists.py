"""Slow twin of lists of the nearest objects: a sort of all."""


def list_nearest(distances, positions, ranks, k):
    """Return the k nearest objects in the order of (distance, rank)."""
    objects = sorted(zip(distances, positions, strict=True), key=lambda o: (o[0], ranks[o[1]]))
    return [distance for distance, _ in objects[:k]], [position for _, position in objects[:k]]
