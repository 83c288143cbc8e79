"""Nodes that can be exchanged, found by exchanging them."""


def twins(labels, edges):
    """Return for each node the last one before it whose exchange with it changes nothing, or -1.

    ``edges`` is {(u, v): label} with u < v.
    """

    def exchanged(a, b):
        swap = {a: b, b: a}
        ends = {
            tuple(sorted((swap.get(u, u), swap.get(v, v)))): bond for (u, v), bond in edges.items()
        }
        return labels[a] == labels[b] and ends == edges

    return [max((b for b in range(a) if exchanged(a, b)), default=-1) for a in range(len(labels))]
