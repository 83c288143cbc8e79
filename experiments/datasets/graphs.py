"""Generated labelled graphs with common substructures, similar to those of GraphGen."""

import math

import numpy as np

from fedneighbors.datasets._graphs import Graph, GraphSet

_PATTERN_FRACTION = 0.3  # mean edges of a pattern, as a fraction of those of a graph
_ATTEMPTS_PER_EDGE = 50  # a random pair of nodes may have an edge already


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

    First, a pool of connected patterns is drawn, with weights from an exponential distribution. A
    graph is then composed of patterns, drawn by weight, until it has about its number of edges. A
    new pattern shares a node of equal label with the graph, or several if the density requires
    fewer nodes; if no labels are equal, an edge connects it. Finally, nodes and random edges are
    added until their numbers are reached.

    Parameters
    ----------
    n_graphs : int
        Number of graphs, 1 or more.
    mean_edges : float
        Mean number of edges, 1 or more; the numbers are Poisson distributed and at least 1.
    density : float
        Fraction of node pairs with an edge, 2 E / (V (V - 1)), in (0, 1]. It determines the number
        of nodes, as far as a connected graph allows.
    n_node_labels, n_edge_labels : int
        Numbers of labels, which are integers from 0; label i has the weight 1 / (i + 1).
    n_patterns : int
        Number of patterns in the pool; a pattern has about 0.3 times the edges of a graph.
    seed : int
        Not negative.

    Returns
    -------
    GraphSet
        Connected graphs, named by their numbers from 0.

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
    sampler = _Sampler(n_node_labels, n_edge_labels, density, seed)
    n_edges = np.maximum(sampler.rng.poisson(_PATTERN_FRACTION * mean_edges, n_patterns), 1)
    pool = [sampler.draw_pattern(int(n)) for n in n_edges]
    weights = sampler.rng.exponential(size=n_patterns)
    sampler.pattern_distribution = np.cumsum(weights / weights.sum())
    sizes = np.maximum(sampler.rng.poisson(mean_edges, n_graphs), 1)
    graphs = [sampler.draw_graph(pool, int(n)) for n in sizes]
    return GraphSet(graphs, [str(number) for number in range(n_graphs)])


class _GraphBuilder:
    """A graph under construction."""

    def __init__(self) -> None:
        self.labels: list[int] = []
        self.edges: dict[tuple[int, int], int] = {}

    def add_edge(self, first: int, second: int, label: int) -> bool:
        """Add an edge; return whether it was new and not a loop."""
        pair = (min(first, second), max(first, second))
        if first == second or pair in self.edges:
            return False
        self.edges[pair] = label
        return True


class _Sampler:
    """Random labels, patterns and graphs from one generator."""

    def __init__(self, n_node_labels: int, n_edge_labels: int, density: float, seed: int) -> None:
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.pattern_distribution = np.empty(0)
        self._density = density
        self._node_label_distribution = _rank_distribution(n_node_labels)
        self._edge_label_distribution = _rank_distribution(n_edge_labels)

    def draw_pattern(self, n_edges: int) -> _GraphBuilder:
        """Draw a connected graph with about the given number of edges."""
        builder = _GraphBuilder()
        n_nodes = self._choose_n_nodes(n_edges)
        for node in range(n_nodes):
            builder.labels.append(self._draw_node_label())
            if node:
                builder.add_edge(node, self._random_index(node), self._draw_edge_label())
        self._add_random_edges(builder, n_edges)
        return builder

    def draw_graph(self, pool: list[_GraphBuilder], n_edges: int) -> Graph:
        """Draw a connected graph of patterns with about that many edges."""
        builder = _GraphBuilder()
        n_nodes = self._choose_n_nodes(n_edges)
        while len(builder.edges) < n_edges:
            pattern = pool[
                int(np.searchsorted(self.pattern_distribution, self.rng.random(), side="right"))
            ]
            if builder.edges and len(builder.edges) + len(pattern.edges) > n_edges + 1:
                break
            self._insert_pattern(builder, pattern, n_nodes)
        while len(builder.labels) < n_nodes:
            builder.labels.append(self._draw_node_label())
            node = len(builder.labels) - 1
            builder.add_edge(node, self._random_index(node), self._draw_edge_label())
        self._add_random_edges(builder, n_edges)
        pairs = list(builder.edges)
        return Graph(builder.labels, pairs, [builder.edges[pair] for pair in pairs])

    def _insert_pattern(self, builder: _GraphBuilder, pattern: _GraphBuilder, n_nodes: int) -> None:
        """Insert a pattern that shares nodes of equal label, if any."""
        free = [True] * len(builder.labels)
        positions = []
        n_shared = max(len(builder.labels) + len(pattern.labels) - n_nodes, 1 if free else 0)
        for label in pattern.labels:
            candidates = [
                i
                for i, existing in enumerate(builder.labels[: len(free)])
                if free[i] and existing == label
            ]
            if n_shared > 0 and candidates:
                positions.append(candidates[self._random_index(len(candidates))])
                free[positions[-1]] = False
                n_shared -= 1
            else:
                positions.append(len(builder.labels))
                builder.labels.append(label)
        for (first, second), label in pattern.edges.items():
            builder.add_edge(positions[first], positions[second], label)
        if free and all(free):  # no node is shared: connect the pattern by an edge
            builder.add_edge(positions[0], self._random_index(len(free)), self._draw_edge_label())

    def _add_random_edges(self, builder: _GraphBuilder, n_edges: int) -> None:
        """Add random edges until there are enough, with limited attempts."""
        n_nodes = len(builder.labels)
        for _ in range(_ATTEMPTS_PER_EDGE * n_edges):
            if len(builder.edges) >= n_edges:
                return
            builder.add_edge(
                self._random_index(n_nodes), self._random_index(n_nodes), self._draw_edge_label()
            )

    def _choose_n_nodes(self, n_edges: int) -> int:
        """Return the number of nodes for a number of edges.

        It makes density V (V - 1) / 2 nearest to ``n_edges``, within the limits of a connected
        graph: a tree has ``n_edges + 1`` nodes, and a complete graph the minimum.
        """
        nearest = (1 + math.sqrt(1 + 8 * n_edges / self._density)) / 2
        minimum = math.ceil((1 + math.sqrt(1 + 8 * n_edges)) / 2)
        return max(min(round(nearest), n_edges + 1), minimum, 2)

    def _random_index(self, n: int) -> int:
        return int(self.rng.integers(n))

    def _draw_node_label(self) -> int:
        return int(np.searchsorted(self._node_label_distribution, self.rng.random(), side="right"))

    def _draw_edge_label(self) -> int:
        return int(np.searchsorted(self._edge_label_distribution, self.rng.random(), side="right"))


def _rank_distribution(n_labels: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    weights = 1 / np.arange(1, n_labels + 1)
    cumulative = np.cumsum(weights / weights.sum())
    cumulative[-1] = 1.0  # exact in spite of rounding, so that every draw finds a label
    return cumulative
