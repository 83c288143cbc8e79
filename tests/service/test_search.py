import subprocess
import sys

import numpy as np
import pytest

from fedneighbors import FederatedNeighbors
from fedneighbors.datasets._graphs import Graph
from fedneighbors.datasets._object_cells import METRIC_KINDS
from tests.service.deployment import deployed, offered

PROVIDERS = ("a", "b", "c", "empty")
ALGORITHMS = ("baseline", "dann", "eager", "hufu", "hufu+", "auto")
KINDS = {"size": "number", "kind": "text"}
TIE_KEY = "0"  # FederatedNeighbors(random_state=0)


def draw_objects(kind, rng, n):
    """Return objects with many ties."""
    match kind:
        case "vectors":
            return rng.integers(1, 5, (n, 3)).astype(np.float64)
        case "places":
            return np.column_stack([rng.integers(-3, 4, n) * 60.0, rng.integers(-2, 3, n) * 45.0])
        case "strings":
            return ["".join(rng.choice(list("ab"), rng.integers(0, 5))) for _ in range(n)]
        case "sets":
            return [frozenset(rng.integers(0, 6, rng.integers(0, 5)).tolist()) for _ in range(n)]
        case "graphs":
            return [draw_graph(rng) for _ in range(n)]
    return [rng.integers(0, 256, 4).astype(np.uint8) for _ in range(n)]


def draw_graph(rng):
    n = int(rng.integers(1, 5))
    edges = [(i, j) for i in range(n) for j in range(i) if rng.random() < 0.5]
    return Graph(rng.choice(["C", "N"], n).tolist(), edges)


class Collection:
    """Objects of one metric with two columns, over the providers at random."""

    def __init__(self, metric, rng):
        self.metric, n = metric, 60
        self.objects = draw_objects(METRIC_KINDS[metric], rng, n)
        self.owners = rng.choice(PROVIDERS[:3], n, p=[0.7, 0.2, 0.1])
        self.columns = {
            "size": rng.integers(0, 4, n).tolist(),
            "kind": rng.choice(["x", "y"], n).tolist(),
        }
        self.pooled = {
            algorithm: FederatedNeighbors(metric, algorithm).fit(
                self.objects, parties=self.owners, columns=self.columns
            )
            for algorithm in ALGORITHMS
        }

    def offer(self, provider):
        rows = np.flatnonzero(self.owners == provider).tolist()
        objects = [self.objects[row] for row in rows]
        if METRIC_KINDS[self.metric] in ("vectors", "places"):
            objects = self.objects[rows]
        return offered(
            provider,
            self.metric,
            self.metric,
            objects,
            ids=[str(row) for row in rows],
            tie_key=TIE_KEY,
            columns={name: [cells[row] for row in rows] for name, cells in self.columns.items()},
            filters=KINDS,
        )


METRICS = sorted(set(METRIC_KINDS) - {"tanimoto", "tabular"})  # with other queries than objects
FILTERS = [
    None,
    None,
    {"size": {">=": 2}},
    {"kind": "x", "size": {"in": [0, 3]}},
    {"size": {">": 9}},
    {"or": [{"kind": "y"}, {"size": 1}]},
]


def find_differences(folder, n_queries, *, seed, restart_every):
    """Return the queries whose answers differ from those of one process.

    Providers are restarted in between.
    """
    differences = []
    rng = np.random.default_rng(seed)
    collections = {metric: Collection(metric, rng) for metric in METRICS}
    sections = {
        metric: {"metric": metric, "providers": PROVIDERS, "tie_key": TIE_KEY, "filters": KINDS}
        for metric in METRICS
    }
    with deployed(folder, sections) as deployment:

        def start(provider):
            offers = {metric: one.offer(provider) for metric, one in collections.items()}
            deployment.start(provider, offers)

        for provider in PROVIDERS:
            start(provider)
        deployment.wait(*PROVIDERS)
        clients = {metric: deployment.client(metric) for metric in METRICS}
        for number in range(n_queries):
            if number % restart_every == restart_every - 1:
                provider = str(rng.choice(PROVIDERS))
                deployment.stop(provider)
                start(provider)
                deployment.wait(*PROVIDERS)
            metric, algorithm = str(rng.choice(METRICS)), str(rng.choice(ALGORITHMS))
            query = draw_objects(METRIC_KINDS[metric], rng, 1)
            k, where = int(rng.choice([1, 2, 7, 30, 100])), FILTERS[rng.integers(len(FILTERS))]
            client = clients[metric]
            client.algorithm = algorithm
            distances, objects = client.kneighbors(query, k, where=where)
            pooled = collections[metric].pooled[algorithm]
            expected, positions = pooled.kneighbors(query, k, where=where)
            owners = collections[metric].owners[positions[0]].tolist()
            are_equal = (
                distances[0].tobytes() == expected[0].tobytes(),
                [int(found.id) for found in objects[0]] == positions[0].tolist(),
                [found.provider for found in objects[0]] == owners,
                client.results_[0]["exact"],
            )
            if not all(are_equal):
                differences.append((metric, algorithm, k, where, are_equal))
    return differences


def test_answers_equal_those_of_one_process_bit_for_bit(tmp_path):
    assert find_differences(tmp_path, 150, seed=0, restart_every=40) == []


@pytest.mark.slow
def test_answers_of_3000_queries_equal_those_of_one_process(tmp_path):
    assert find_differences(tmp_path, 3000, seed=1, restart_every=100) == []


def test_a_private_search_is_exact_and_charged_once(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 9, (90, 2)).astype(np.float64)
    section = {
        "metric": "euclidean",
        "providers": ["a", "b", "c"],
        "algorithm": "dann*",
        "tie_key": TIE_KEY,
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "grid_s": 0.0, "max_queries": 2},
    }
    with deployed(tmp_path, {"points": section}) as deployment:
        for position, provider in enumerate("abc"):
            own = list(range(position, 90, 3))
            ids = [str(row) for row in own]
            one = offered(provider, "points", "euclidean", rows[own], ids=ids, tie_key=TIE_KEY)
            deployment.start(provider, {"points": one})
        deployment.wait("a", "b", "c")
        client = deployment.client("points")
        expected, positions = (
            FederatedNeighbors(algorithm="baseline")
            .fit(rows, parties=list("abc") * 30)
            .kneighbors([[4.0, 4.0]], 5)
        )
        for _ in range(3):  # the same query is charged once
            distances, objects = client.kneighbors([[4.0, 4.0]], 5)
            assert distances[0].tobytes() == expected[0].tobytes()
            assert [int(found.id) for found in objects[0]] == positions[0].tolist()
            assert client.results_[0]["algorithm"] == "dann*"
        client.kneighbors([[1.0, 1.0]], 5)
        with pytest.raises(Exception, match="budget-exceeded"):
            client.kneighbors([[2.0, 2.0]], 5)


def test_smiles_are_queries_of_fingerprints_and_graphs(tmp_path):
    from fedneighbors.datasets._molecules import fingerprint_from_smiles, graph_from_smiles

    molecules = ["CCO", "CCN", "c1ccccc1", "CC(=O)O"]
    makers = {"tanimoto": fingerprint_from_smiles, "graph_edit": graph_from_smiles}
    sections = {metric: {"metric": metric, "providers": ["lab"]} for metric in makers}
    with deployed(tmp_path, sections) as deployment:
        offers = {
            metric: offered("lab", metric, metric, [make(text) for text in molecules])
            for metric, make in makers.items()
        }
        deployment.start("lab", offers)
        deployment.wait("lab")
        for metric in makers:
            distances, objects = deployment.client(metric).kneighbors("CCO", 2)
            assert distances[0][0] == 0
            assert objects[0][0] == ("lab", "0")


LOADED = """
import sys
from pathlib import Path
from fedneighbors.service._broker import BrokerCollection
from fedneighbors.service._config import CollectionSection

options = {"metric": "euclidean", "providers": ["a", "b"], "algorithm": sys.argv[1]}
privacy = {"privacy": {"epsilon": 1.0, "delta": 1e-6}} if sys.argv[1] == "dann*" else {}
section = CollectionSection.model_validate({**options, **privacy})
BrokerCollection("points", section, None, Path())
module = sys.modules.get("fedneighbors.kernels._bitonic")
print(bool(module and module._exchange.signatures and module._move.signatures))
"""


@pytest.mark.parametrize(("algorithm", "is_loaded"), [("dann*", True), ("dann", False)])
def test_a_private_collection_loads_its_kernels_before_a_query(algorithm, is_loaded):
    command = [sys.executable, "-c", LOADED, algorithm]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(is_loaded)
