"""Naive lower bounds of graph edit distances from multisets of labels and degrees."""

from collections import Counter
from itertools import zip_longest


def bound_distance(first, second):
    """Bound the distance between two graphs (node labels, {(u, v): edge label})."""
    nodes = max(len(first[0]), len(second[0]))
    nodes -= (Counter(first[0]) & Counter(second[0])).total()
    common = (Counter(first[1].values()) & Counter(second[1].values())).total()
    pairs = zip_longest(list_degrees(first), list_degrees(second), fillvalue=0)
    differences = [a - b for a, b in pairs]
    deleted = -(-sum(max(d, 0) for d in differences) // 2)
    inserted = -(-sum(max(-d, 0) for d in differences) // 2)
    return nodes + max(
        max(len(first[1]), len(second[1])) - common,
        deleted + inserted,
        deleted + len(second[1]) - common,
        inserted + len(first[1]) - common,
    )


def list_degrees(graph):
    """Return the degrees of all nodes in descending order."""
    degrees = [sum(v in pair for pair in graph[1]) for v in range(len(graph[0]))]
    return sorted(degrees, reverse=True)
