"""Collections to search: molecules, generated graphs, titles, parts of genomes, and places."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.datasets.graphs import synthetic_graphs
from fedneighbors.datasets._catalog import find_file
from fedneighbors.datasets._files import read_lines
from fedneighbors.datasets._objects import read_objects

WINDOW = 1000
"""Bases of a part of a genome."""


@dataclass(frozen=True)
class SynSettings:
    """Settings of the generated graphs that replace the paper's SYN.

    Parameters
    ----------
    n_graphs : int
        Number of graphs, the 100 % of the paper's Figure 12.
    mean_edges, density : float
        Mean number of edges, and density, of a graph.
    n_node_labels, n_edge_labels, n_patterns : int
        Number of labels, and of substructures that graphs share.
    """

    n_graphs: int = 20_000
    mean_edges: float = 18.0
    density: float = 0.2
    n_node_labels: int = 20
    n_edge_labels: int = 4
    n_patterns: int = 40


SYN = SynSettings()


@dataclass(frozen=True, eq=False)
class Collection:
    """Objects of one kind.

    Parameters
    ----------
    name : str
        Name in tables.
    metric : str
        Name of the metric.
    objects : sequence
        All objects.
    paper : str
        Corresponding data set of the paper.
    step : float
        Distances are multiples of it; 0 if there is no step.
    is_costly : bool
        True if a search may take seconds; it is then recorded once and replayed.
    is_shuffled : bool
        True if the objects are in random order.
    """

    name: str
    metric: str
    objects: Sequence[Any]
    paper: str
    step: float
    is_costly: bool = False
    is_shuffled: bool = False

    def sample(self, n_objects: int, *, seed: int) -> "Collection":
        """Return at most ``n_objects`` objects in random order.

        A smaller sample is a prefix of a larger one and has the same queries.
        """
        rng = np.random.Generator(np.random.PCG64(seed))
        rows = rng.permutation(len(self.objects))[:n_objects]
        objects = (
            self.objects[rows]
            if isinstance(self.objects, np.ndarray)
            else [self.objects[row] for row in rows.tolist()]
        )
        return replace(self, objects=objects, is_shuffled=True)

    def queries(self, n_queries: int, *, seed: int) -> list[int]:
        """Return the rows of random query objects, as in the paper.

        A shorter list is a prefix of a longer one.
        """
        if self.is_shuffled:
            return list(range(n_queries))
        rng = np.random.Generator(np.random.PCG64([seed, 1]))
        rows: list[int] = rng.permutation(len(self.objects))[:n_queries].tolist()
        return rows


def _molecules() -> Collection:
    graphs = read_objects("aids_hiv_ged", "graphs").items
    return Collection("molecules", "graph_edit", graphs, "AIDS", 1.0, is_costly=True)


def generate_syn(n_graphs: int = SYN.n_graphs, *, seed: int = 0) -> Collection:
    """Return the first graphs that the SYN generator draws with a seed."""
    graphs = synthetic_graphs(
        n_graphs,
        mean_edges=SYN.mean_edges,
        density=SYN.density,
        n_node_labels=SYN.n_node_labels,
        n_edge_labels=SYN.n_edge_labels,
        n_patterns=SYN.n_patterns,
        seed=seed,
    ).graphs
    return Collection("SYN", "graph_edit", graphs, "SYN", 1.0, is_costly=True)


def _titles() -> Collection:
    titles = read_objects("dblp_titles_14k", "strings").items
    return Collection("titles", "edit", titles, "DBLP", 1.0)


def _genomes() -> Collection:
    genomes: list[list[str]] = []
    for line in read_lines(find_file("sarscov2_genomes")):
        if line.startswith(">"):
            genomes.append([])
        else:
            genomes[-1].append(line)
    windows = [
        genome[start : start + WINDOW]
        for genome in map("".join, genomes)
        for start in range(0, len(genome) - WINDOW + 1, WINDOW)
    ]
    return Collection("genomes", "edit", windows, "GENOME", 1.0)


def _places() -> Collection:
    places = read_objects("geonames_west_africa", "places").items
    return Collection("places", "haversine", places, "OSM", 0.0)


COLLECTIONS: Mapping[str, Callable[[], Collection]] = {
    "molecules": _molecules,
    "SYN": generate_syn,
    "titles": _titles,
    "genomes": _genomes,
    "places": _places,
}
"""Functions that read or generate the collections, by name."""


def load_collection(name: str) -> Collection:
    """Return a collection.

    Parameters
    ----------
    name : str
        A key of ``COLLECTIONS``. All but SYN are read from the folder in the environment variable
        ``FEDNEIGHBORS_DATA``.

    Raises
    ------
    MissingDataError
        If the variable is not set, or the folder lacks the file.
    """
    return COLLECTIONS[name]()
