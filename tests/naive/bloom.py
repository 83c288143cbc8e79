"""Fly Bloom filters with nested loops."""


def accumulate(active, labels, counts, step=1):
    for units, label in zip(active, labels, strict=True):
        for unit in units:
            counts[unit][label] += step


def novelty(active, counts, weights, offsets):
    """One float for each row and class, added in the order of the units."""
    result = []
    for units in active:
        totals = [0.0] * len(offsets)
        for unit in units:
            for label, offset in enumerate(offsets):
                totals[label] += weights[offset + counts[unit][label]]
        result.append(totals)
    return result
