"""Graph edit distance by definition: the minimum cost of all mappings of the nodes."""

from itertools import permutations


def edit_distance(first, second):
    """Return the least number of edits over all mappings of nodes.

    A mapping assigns each node of the smaller graph a node of the larger one. Each graph is (node
    labels, {(u, v): edge label} with u < v). Deletions of nodes of the smaller graph need not be
    considered, because a deletion and an insertion can be replaced by one relabelling.
    """
    small, large = sorted((first, second), key=lambda graph: len(graph[0]))
    return min(
        mapping_cost(small, large, mapping)
        for mapping in permutations(range(len(large[0])), len(small[0]))
    )


def mapping_cost(small, large, mapping):
    """Return the number of edits of one mapping.

    Node v of the smaller graph is mapped to ``mapping[v]``.
    """
    cost = len(large[0]) - len(small[0])
    cost += sum(label != large[0][u] for label, u in zip(small[0], mapping, strict=True))
    mapped_edges = {
        (min(mapping[u], mapping[v]), max(mapping[u], mapping[v])): label
        for (u, v), label in small[1].items()
    }
    return cost + sum(
        mapped_edges.get(pair) != large[1].get(pair)
        for pair in mapped_edges.keys() | large[1].keys()
    )


def distance_with_deletions(first, second):
    """Return the least number of edits, allowing unmatched nodes in both graphs."""
    n, m = len(first[0]), len(second[0])
    padded_first = [*first[0], *[None] * m], first[1]
    padded_second = [*second[0], *[None] * n], second[1]
    # a pair of padding nodes costs nothing, since their labels are equal and they have no edges
    return min(
        mapping_cost(padded_first, padded_second, mapping) for mapping in permutations(range(n + m))
    )


def pruned_distance(first, second):
    """Return the same as `edit_distance`, skipping mappings that cost too much.

    Feasible for graphs of up to about 10 nodes.
    """
    small, large = sorted((first, second), key=lambda graph: len(graph[0]))
    n_inserted = len(large[0]) - len(small[0])
    best = len(large[0]) + len(small[1]) + len(large[1])

    def edge_label(graph, u, v):
        return graph[1].get((min(u, v), max(u, v)))

    def extend(mapping, cost):
        nonlocal best
        if len(mapping) == len(small[0]):
            n_added_edges = sum(not {u, v} <= set(mapping) for u, v in large[1])
            best = min(best, cost + n_inserted + n_added_edges)
            return
        v = len(mapping)
        for u in set(range(len(large[0]))) - set(mapping):
            added_cost = small[0][v] != large[0][u]
            added_cost += sum(
                edge_label(small, v, w) != edge_label(large, u, x) for w, x in enumerate(mapping)
            )
            if cost + added_cost < best:
                extend([*mapping, u], cost + added_cost)

    extend([], 0)
    return best


def find_twins(labels, edges):
    """Return the last interchangeable node before each node, or -1.

    Exchanging the two nodes does not change the graph. ``edges`` is {(u, v): label} with u < v.
    """

    def is_exchangeable(a, b):
        swap = {a: b, b: a}
        exchanged_edges = {
            tuple(sorted((swap.get(u, u), swap.get(v, v)))): label
            for (u, v), label in edges.items()
        }
        return labels[a] == labels[b] and exchanged_edges == edges

    return [
        max((b for b in range(a) if is_exchangeable(a, b)), default=-1) for a in range(len(labels))
    ]
