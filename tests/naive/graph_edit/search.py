"""Graph edit distance by definition: the minimum over all ways to match the nodes."""

from itertools import permutations


def distance(first, second):
    """Return the least number of edits over all maps of nodes.

    Maps assign each node of the smaller graph a node of the larger one. Each graph is (node labels,
    {(u, v): edge label} with u < v). Deletions of nodes of the smaller graph need not be
    considered, because a deletion and an insertion can be replaced by one relabelling.
    """
    small, large = sorted((first, second), key=lambda graph: len(graph[0]))
    return min(
        cost_of(small, large, images)
        for images in permutations(range(len(large[0])), len(small[0]))
    )


def cost_of(small, large, images):
    """Return the number of edits of one map.

    ``images[v]`` is the node of the larger graph to which v is mapped.
    """
    cost = len(large[0]) - len(small[0])
    cost += sum(label != large[0][u] for label, u in zip(small[0], images, strict=True))
    mapped = {
        (min(images[u], images[v]), max(images[u], images[v])): bond
        for (u, v), bond in small[1].items()
    }
    return cost + sum(
        mapped.get(pair) != large[1].get(pair) for pair in mapped.keys() | large[1].keys()
    )


def distance_with_deletions(first, second):
    """Return the least number of edits, allowing unmatched nodes in both graphs."""
    n, m = len(first[0]), len(second[0])
    padded = [*first[0], *[None] * m], first[1]
    goal = [*second[0], *[None] * n], second[1]
    # a pair of padding nodes costs nothing, since their labels are equal and they have no edges
    return min(cost_of(padded, goal, images) for images in permutations(range(n + m)))


def pruned_distance(first, second):
    """Return the same as `distance`, skipping maps that cost too much.

    Feasible for graphs of up to about 10 nodes.
    """
    small, large = sorted((first, second), key=lambda graph: len(graph[0]))
    rest = len(large[0]) - len(small[0])
    best = len(large[0]) + len(small[1]) + len(large[1])

    def bond(graph, u, v):
        return graph[1].get((min(u, v), max(u, v)))

    def extend(images, cost):
        nonlocal best
        if len(images) == len(small[0]):
            added = sum(not {u, v} <= set(images) for u, v in large[1])
            best = min(best, cost + rest + added)
            return
        v = len(images)
        for u in set(range(len(large[0]))) - set(images):
            more = small[0][v] != large[0][u]
            more += sum(bond(small, v, w) != bond(large, u, x) for w, x in enumerate(images))
            if cost + more < best:
                extend([*images, u], cost + more)

    extend([], 0)
    return best


def twins(labels, edges):
    """Return the previous interchangeable node of each node, or -1.

    Exchanging the two nodes does not change the graph. ``edges`` is {(u, v): label} with u < v.
    """

    def exchanged(a, b):
        swap = {a: b, b: a}
        ends = {
            tuple(sorted((swap.get(u, u), swap.get(v, v)))): bond for (u, v), bond in edges.items()
        }
        return labels[a] == labels[b] and ends == edges

    return [max((b for b in range(a) if exchanged(a, b)), default=-1) for a in range(len(labels))]
