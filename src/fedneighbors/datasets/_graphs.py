"""Labelled undirected graphs, and their files in gSpan format."""

import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedneighbors.datasets._files import explain_errors, open_text
from fedneighbors.errors import DataError

Label = str | int


class Graph:
    """Immutable labelled undirected graph without loops or parallel edges.

    Parameters
    ----------
    node_labels : sequence of str or int
        One per node; nodes are numbered from 0. An integer is converted to a string, so 6 and "6"
        are the same label.
    edges : iterable of pairs of int
        Nodes joined by an edge, in any order.
    edge_labels : sequence of str or int, optional
        One per edge; by default "1" for all edges.

    Attributes
    ----------
    node_labels : tuple of str
    edges : tuple of pairs of int
        Pairs with the lower node first, in ascending order. Graphs are equal if their attributes
        are equal; isomorphic graphs may be unequal.
    edge_labels : tuple of str
        In the order of ``edges``.

    Raises
    ------
    TypeError
        If a label is neither a string nor an integer, or a node number is not an integer.
    ValueError
        If an edge is a loop, a duplicate or has an unknown node, or the number of labels is wrong.

    Examples
    --------
    >>> water = Graph(["H", "O", "H"], [(1, 0), (1, 2)])
    >>> water.n_nodes, water.edges, water.edge_labels
    (3, ((0, 1), (1, 2)), ('1', '1'))
    """

    __slots__ = ("_hash", "edge_labels", "edges", "node_labels")

    node_labels: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    edge_labels: tuple[str, ...]
    _hash: int

    def __init__(
        self,
        node_labels: Sequence[Label],
        edges: Iterable[tuple[int, int]] = (),
        edge_labels: Sequence[Label] | None = None,
    ) -> None:
        nodes = tuple(_convert_label(label, "node", i) for i, label in enumerate(node_labels))
        pairs = [_convert_edge(edge, i, len(nodes)) for i, edge in enumerate(edges)]
        if edge_labels is None:
            labels = ["1"] * len(pairs)
        else:
            labels = [_convert_label(label, "edge", i) for i, label in enumerate(edge_labels)]
        if len(labels) != len(pairs):
            raise ValueError(f"expected one label per edge: {len(pairs)}, got {len(labels)}")
        order = sorted(range(len(pairs)), key=pairs.__getitem__)
        for first, second in pairwise(order):
            if pairs[first] == pairs[second]:
                raise ValueError(f"edge {pairs[first]} is repeated; list each edge once")
        self._set("node_labels", nodes)
        self._set("edges", tuple(pairs[i] for i in order))
        self._set("edge_labels", tuple(labels[i] for i in order))
        self._set("_hash", hash((self.node_labels, self.edges, self.edge_labels)))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a graph is immutable; create another one with the new {name}")

    @property
    def n_nodes(self) -> int:
        """Return the number of nodes."""
        return len(self.node_labels)

    @property
    def n_edges(self) -> int:
        """Return the number of edges."""
        return len(self.edges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Graph({list(self.node_labels)}, {list(self.edges)}, {list(self.edge_labels)})"

    def __reduce__(self) -> tuple[type["Graph"], tuple[object, ...]]:
        # a copy in another process has another hash, which the constructor computes
        return Graph, self._key()

    def _key(self) -> tuple[object, ...]:
        return self.node_labels, self.edges, self.edge_labels


class GraphSet:
    """Named graphs with optional class labels.

    Parameters
    ----------
    graphs : sequence of Graph
    names : sequence of str
        One per graph, no two equal.
    classes : sequence of str, optional
        Class of each graph, empty if unknown; by default empty for all graphs.

    Raises
    ------
    ValueError
        If the lengths differ or two names are equal.
    """

    def __init__(
        self, graphs: Sequence[Graph], names: Sequence[str], classes: Sequence[str] | None = None
    ) -> None:
        self.graphs = list(graphs)
        self.names = list(names)
        self.classes = [""] * len(self.graphs) if classes is None else list(classes)
        if not len(self.graphs) == len(self.names) == len(self.classes):
            raise ValueError(
                f"expected one name and one class per graph, got {len(self.graphs)} graphs, "
                f"{len(self.names)} names, {len(self.classes)} classes"
            )
        if len(set(self.names)) < len(self.names):
            raise ValueError("two graphs have the same name; names must be unique")

    def __len__(self) -> int:
        return len(self.graphs)


def _convert_label(label: object, kind: str, position: int) -> str:
    if isinstance(label, str):
        return label
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        return str(int(label))
    raise TypeError(
        f"expected a string or an integer as the label of {kind} {position}, "
        f"got {type(label).__name__}"
    )


def _convert_edge(edge: tuple[int, int], position: int, n_nodes: int) -> tuple[int, int]:
    try:
        first, second = edge
    except (TypeError, ValueError):
        raise TypeError(f"expected a pair of nodes as edge {position}, got {edge!r}") from None
    for end in (first, second):
        if not isinstance(end, int | np.integer) or isinstance(end, bool):
            raise TypeError(f"expected integers as the nodes of edge {position}, got {edge!r}")
        if not 0 <= end < n_nodes:
            raise ValueError(f"edge {position} has node {end}, but the graph has {n_nodes} nodes")
    if first == second:
        raise ValueError(f"edge {position} joins node {first} with itself; loops are not allowed")
    return (int(first), int(second)) if first < second else (int(second), int(first))


def read_graphs(path: str | os.PathLike[str]) -> GraphSet:
    """Read graphs from a file.

    Parameters
    ----------
    path : str or path
        UTF-8 text in gSpan format, gzipped if the name ends in ``.gz``. A graph begins with
        ``t # name`` or ``t # name class``; ``v 0 C`` is node 0 with label C, nodes are numbered
        from 0 in order; ``e 0 1 2`` is an edge between nodes 0 and 1 with label 2, after the lines
        of its nodes. Empty lines are skipped, and lines after ``t # -1`` are ignored.

    Returns
    -------
    GraphSet

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is damaged or not UTF-8, a line is malformed (the error gives its number), or
        two graphs have the same name.
    """
    file = Path(path)
    with explain_errors(file), open_text(file) as lines:
        rows = list(_parse_graphs(lines, file))
    names = [name for name, _, _ in rows]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(f"{file} has two graphs {repeated[0]!r}; names must be unique")
    return GraphSet(
        [graph for _, _, graph in rows], names, [class_label for _, class_label, _ in rows]
    )


def graph_from_text(text: str) -> Graph:
    """Return the graph of a text in gSpan format.

    The line with its name may be missing.

    Raises
    ------
    DataError
        If it is not one graph.
    """
    has_name = text.lstrip().startswith("t")
    lines = ["" if has_name else "t # 0", *text.splitlines()]
    graphs = [graph for *_, graph in _parse_graphs(lines, Path("graph"), start=0)]
    if len(graphs) != 1:
        raise DataError(f"expected one graph, got {len(graphs)}")
    return graphs[0]


_LINE_FORMATS = {
    "t": "'t # name' or 't # name class'",
    "v": "'v node label'",
    "e": "'e node node label'",
}


def _parse_graphs(
    lines: Iterable[str], file: Path, *, start: int = 1
) -> Iterator[tuple[str, str, Graph]]:
    """Yield name, class and graph of each block of lines."""
    header: tuple[str, str] | None = None
    labels: list[str] = []
    edges: dict[tuple[int, int], str] = {}
    for number, line in enumerate(lines, start):
        words = line.split()
        if words[:1] == ["t"] and header is not None:
            yield *header, Graph(labels, edges, [*edges.values()])
            header = None
        try:  # messages complete the sentence "expected ..."
            match words:
                case []:
                    continue
                case ["t", "#", "-1", *class_words] if len(class_words) <= 1:
                    return
                case ["t", "#", name, *class_words] if len(class_words) <= 1:
                    header, labels, edges = (name, "".join(class_words)), [], {}
                case ["v", _, _] | ["e", _, _, _] if header is None:
                    raise ValueError("a line 't # name' before the first node or edge")
                case ["v", node, label]:
                    if _parse_node(node) != len(labels):
                        raise ValueError(f"node {len(labels)} next, got {node}")
                    labels.append(label)
                case ["e", first, second, label]:
                    edges[_parse_edge(first, second, len(labels), edges)] = label
                case [first_word, *_]:
                    message = f"a line that begins with t, v or e, got {first_word!r}"
                    raise ValueError(_LINE_FORMATS.get(first_word, message))
        except ValueError as error:
            raise DataError(f"{file}, line {number}: expected {error}") from None
    if header is not None:
        yield *header, Graph(labels, edges, [*edges.values()])


def _parse_edge(
    first: str, second: str, n_nodes: int, existing: Container[tuple[int, int]]
) -> tuple[int, int]:
    """Return the nodes of a new edge, the lower one first."""
    u, v = sorted((_parse_node(first), _parse_node(second)))
    if v >= n_nodes:
        raise ValueError(f"a node of an earlier 'v' line, got {v}")
    if u == v:
        raise ValueError(f"an edge between two nodes, got a loop at {u}")
    if (u, v) in existing:
        raise ValueError(f"each edge once, but edge {u} {v} is repeated")
    return u, v


def _parse_node(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) < 10):
        raise ValueError(f"a node number, got {word[:20]!r}")
    return int(word)
