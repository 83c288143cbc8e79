"""Naive lower bounds of graph edit distances by multisets."""

from collections import Counter


def bound(first, second):
    """Bound the distance between two graphs (node labels, {(u, v): edge label})."""
    nodes = max(len(first[0]), len(second[0]))
    nodes -= (Counter(first[0]) & Counter(second[0])).total()
    common = (Counter(first[1].values()) & Counter(second[1].values())).total()
    own, theirs = degrees(first), degrees(second)
    length = max(len(own), len(theirs))
    gaps = [
        a - b
        for a, b in zip(
            own + [0] * (length - len(own)), theirs + [0] * (length - len(theirs)), strict=True
        )
    ]
    deleted = -(-sum(max(gap, 0) for gap in gaps) // 2)
    inserted = -(-sum(max(-gap, 0) for gap in gaps) // 2)
    return nodes + max(
        max(len(first[1]), len(second[1])) - common,
        deleted + inserted,
        deleted + len(second[1]) - common,
        inserted + len(first[1]) - common,
    )


def degrees(graph):
    """Return the degrees of all nodes in descending order."""
    found = [sum(v in pair for pair in graph[1]) for v in range(len(graph[0]))]
    return sorted(found, reverse=True)
