"""Generated labelled graphs with common substructures, similar to those of GraphGen."""

import math

import numpy as np

from fedneighbors.datasets._graphs import Graph, GraphSet

_PATTERN_SHARE = 0.3
_ATTEMPTS = 50


def synthetic_graphs(
    n_graphs: int,
    *,
    mean_edges: float = 20.0,
    density: float = 0.3,
    n_node_labels: int = 20,
    n_edge_labels: int = 5,
    n_patterns: int = 100,
    seed: int,
) -> GraphSet:
    """Generate labelled graphs that have substructures in common.

    A pool of connected patterns is drawn first, some of them frequent and most of them rare
    (weights fall off exponentially). A graph then lays patterns side by side until it has about
    its number of edges, shares nodes between a new pattern and the old ones where the wanted
    density asks for fewer nodes than the patterns have, joins what is not connected, and adds or
    leaves out edges until their number is right.

    Parameters
    ----------
    n_graphs : int
        How many, 1 or more.
    mean_edges : float
        Average number of edges, 1 or more; numbers follow a Poisson law, at least 1.
    density : float
        Edges over pairs of nodes, 2 E / (V (V - 1)), in (0, 1]; it sets the number of nodes, as
        far as a connected graph allows.
    n_node_labels, n_edge_labels : int
        Labels, the lower the more frequent (weight 1 / rank); written as digits from 0.
    n_patterns : int
        Patterns in the pool, of about three tenths of a graph's edges each.
    seed : int
        Not negative.

    Returns
    -------
    GraphSet
        ConnectedParties graphs, named by their numbers.

    Raises
    ------
    ValueError
        If an argument is out of range.

    References
    ----------
    .. [1] Cheng, Ke, Ng and Lu, "FG-Index: Towards Verification-Free Query Processing on Graph
       Databases", SIGMOD 2007, whose generator GraphGen has the same parameters.
    .. [2] Kuramochi and Karypis, "Frequent Subgraph Discovery", ICDM 2001: the pool of patterns.

    Examples
    --------
    >>> graphs = synthetic_graphs(100, mean_edges=10, density=0.3, seed=0).graphs
    >>> len(graphs), min(graph.n_edges for graph in graphs) >= 1
    (100, True)
    """
    for name, value in (
        ("n_graphs", n_graphs),
        ("mean_edges", mean_edges),
        ("n_node_labels", n_node_labels),
        ("n_edge_labels", n_edge_labels),
        ("n_patterns", n_patterns),
    ):
        if not 1 <= value < math.inf:
            raise ValueError(f"expected {name} of 1 or more, got {value!r}")
    if not 0 < density <= 1:
        raise ValueError(f"expected density in (0, 1], got {density!r}")
    if seed < 0:
        raise ValueError(f"expected a seed that is not negative, got {seed}")
    drawer = _Drawer(n_node_labels, n_edge_labels, density, seed)
    n_edges = np.maximum(drawer.rng.poisson(_PATTERN_SHARE * mean_edges, n_patterns), 1)
    pool = [drawer.pattern(int(n)) for n in n_edges]
    weights = drawer.rng.exponential(size=n_patterns)
    drawer.cumulated = np.cumsum(weights / weights.sum())
    sizes = np.maximum(drawer.rng.poisson(mean_edges, n_graphs), 1)
    graphs = [drawer.graph(pool, int(n)) for n in sizes]
    return GraphSet(graphs, [str(number) for number in range(n_graphs)])


class _Sketch:
    """A graph under construction."""

    def __init__(self) -> None:
        self.labels: list[int] = []
        self.edges: dict[tuple[int, int], int] = {}

    def join(self, first: int, second: int, label: int) -> bool:
        """Add an edge; return whether it was new and not a loop."""
        pair = (min(first, second), max(first, second))
        if first == second or pair in self.edges:
            return False
        self.edges[pair] = label
        return True


class _Drawer:
    """Draws labels, patterns and graphs from one generator."""

    def __init__(self, n_node_labels: int, n_edge_labels: int, density: float, seed: int) -> None:
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.cumulated = np.empty(0)
        self._density = density
        self._node_law = _falling(n_node_labels)
        self._edge_law = _falling(n_edge_labels)

    def pattern(self, n_edges: int) -> _Sketch:
        """Return a connected graph with a given number of edges."""
        sketch = _Sketch()
        n_nodes = self._n_nodes(n_edges)
        for node in range(n_nodes):
            sketch.labels.append(self._node_label())
            if node:
                sketch.join(node, self._below(node), self._edge_label())
        self._fill(sketch, n_edges)
        return sketch

    def graph(self, pool: list[_Sketch], n_edges: int) -> Graph:
        """Return a connected graph of patterns with about that many edges."""
        sketch = _Sketch()
        n_nodes = self._n_nodes(n_edges)
        while len(sketch.edges) < n_edges:
            chosen = pool[int(np.searchsorted(self.cumulated, self.rng.random(), side="right"))]
            if sketch.edges and len(sketch.edges) + len(chosen.edges) > n_edges + 1:
                break
            self._lay(sketch, chosen, n_nodes)
        while len(sketch.labels) < n_nodes:
            sketch.labels.append(self._node_label())
            new = len(sketch.labels) - 1
            sketch.join(new, self._below(new), self._edge_label())
        self._fill(sketch, n_edges)
        pairs = list(sketch.edges)
        return Graph(sketch.labels, pairs, [sketch.edges[pair] for pair in pairs])

    def _lay(self, sketch: _Sketch, pattern: _Sketch, n_nodes: int) -> None:
        """Insert a pattern; share nodes of equal label if space is short."""
        free = [True] * len(sketch.labels)
        place = []
        lacking = max(len(sketch.labels) + len(pattern.labels) - n_nodes, 1 if free else 0)
        for label in pattern.labels:
            same = [
                i for i, old in enumerate(sketch.labels[: len(free)]) if free[i] and old == label
            ]
            if lacking > 0 and same:
                place.append(same[self._below(len(same))])
                free[place[-1]] = False
                lacking -= 1
            else:
                place.append(len(sketch.labels))
                sketch.labels.append(label)
        for (first, second), label in pattern.edges.items():
            sketch.join(place[first], place[second], label)
        if free and all(free):  # nothing is shared yet: one edge connects the two
            sketch.join(place[0], self._below(len(free)), self._edge_label())

    def _fill(self, sketch: _Sketch, n_edges: int) -> None:
        """Add random edges until there are enough or no pairs left."""
        n_nodes = len(sketch.labels)
        for _ in range(_ATTEMPTS * n_edges):
            if len(sketch.edges) >= n_edges:
                return
            sketch.join(self._below(n_nodes), self._below(n_nodes), self._edge_label())

    def _n_nodes(self, n_edges: int) -> int:
        """Return the node count with density nearest the given one.

        V with density V (V - 1) / 2 nearest ``n_edges``, and at most a tree.

        At most a tree.
        """
        wanted = (1 + math.sqrt(1 + 8 * n_edges / self._density)) / 2
        fewest = math.ceil((1 + math.sqrt(1 + 8 * n_edges)) / 2)
        return max(min(round(wanted), n_edges + 1), fewest, 2)

    def _below(self, n: int) -> int:
        return int(self.rng.integers(n))

    def _node_label(self) -> int:
        return int(np.searchsorted(self._node_law, self.rng.random(), side="right"))

    def _edge_label(self) -> int:
        return int(np.searchsorted(self._edge_law, self.rng.random(), side="right"))


def _falling(n_labels: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    weights = 1 / np.arange(1, n_labels + 1)
    cumulated = np.cumsum(weights / weights.sum())
    cumulated[-1] = 1.0  # whatever the sum was rounded to
    return cumulated
