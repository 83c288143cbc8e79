"""Bounds for DANN*: replacing an object changes one bound, for every metric."""

import random
from collections import Counter

import numpy as np
import pytest

from fedneighbors.datasets._graphs import Graph
from fedneighbors.errors import PartyRefused
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.metrics._function import FunctionMetric
from fedneighbors.methods.fedknn.private._padding import PaddedBoundRequest
from fedneighbors.methods.fedknn.private.protocol import dann_star

RNG, RANDOM = np.random.default_rng(0), random.Random(0)
ROWS = RNG.normal(size=(4200, 64))
SHORT = RNG.normal(size=(1100, 3))


def random_text(alphabet, n):
    return "".join(RANDOM.choice(alphabet) for _ in range(n))


def make_path(labels, bond):
    n = len(labels)
    return Graph(tuple(labels), [(i, i + 1) for i in range(n - 1)], (bond,) * (n - 1))


CASES = {  # objects, replacement of the first object, query
    "euclidean": (ROWS, np.full(64, 1e6), ROWS[7] + 0.5),
    "manhattan": (ROWS, np.full(64, 1e6), ROWS[7] + 0.5),
    "cosine": (ROWS, -ROWS[0], ROWS[7] + 0.5),
    "euclidean in few columns": (SHORT, np.full(3, 1e6), SHORT[7]),
    "haversine": (SHORT[:, :2], np.array([100.0, 80.0]), SHORT[7, :2]),
    "jaccard": ([{7, 8, 9}, *({1, 2, 100 + i} for i in range(50))], {500}, {1, 2, 7, 8, 9}),
    "tanimoto": (
        list(np.packbits(np.eye(60, 960, dtype=np.uint8), axis=1)),
        np.full(120, 255, np.uint8),
        np.packbits(np.arange(960) < 30),
    ),
    "edit": (
        [random_text("ACGT", 300) for _ in range(60)],
        "\u0001" * 300,
        random_text("ACGT", 300),
    ),
    "graph_edit": (
        [make_path(random_text("CNO", RANDOM.randint(2, 9)), "1") for _ in range(60)],
        make_path("XXXXXXXX", "9"),
        make_path("CXZN", "9"),
    ),
}


def bounds_of(metric, objects, query):
    """Return all bounds that a provider sends, with repetitions."""
    provider = Provider.of("p", objects, metric, decode=decode_query)
    request = PaddedBoundRequest("q", encode_query(query), len(objects), 0.0)
    return Counter(provider.answer(request).bounds.tolist())


@pytest.mark.parametrize("case", sorted(CASES))
def test_replacing_an_object_changes_one_bound(case):
    objects, replacement, query = CASES[case]
    metric = metric_of(case.split()[0])
    changed = objects.copy()
    changed[0] = replacement

    before, after = (bounds_of(metric, table, query) for table in (objects, changed))

    assert (before - after).total() <= 1
    assert (after - before).total() <= 1


@pytest.mark.parametrize("case", sorted(CASES))
def test_bounds_are_bounds_and_not_all_zero(case):
    objects, _, query = CASES[case]
    metric = metric_of(case.split()[0])

    bounds = sorted(bounds_of(metric, objects, query).elements())
    distances = sorted(metric.distance(query, item) for item in objects)

    assert all(bound <= distance for bound, distance in zip(bounds, distances, strict=True))
    assert bounds[-1] > 0


class JointBounds(FunctionMetric):
    """A metric whose sessions have no separate bounds."""

    exact = True

    def index(self, objects, *, ranks):
        inner, exact = super().index(objects, ranks=ranks), self.exact

        class Session:
            def __init__(self, query):
                self.inner, self.exact, self.n_verified = inner.open(query), exact, 0

            def bounds(self, *, deadline_s=None):
                return np.full(len(objects), 7.0)

            def next(self, k, **options):
                return self.inner.next(k, **options)

        class Index:
            n_objects, open = inner.n_objects, Session

        return Index()


def test_without_separate_bounds_all_are_zero():
    metric = JointBounds(lambda a, b: abs(a - b).sum())

    assert bounds_of(metric, np.ones((3, 1)), np.zeros(1)) == Counter({0.0: 3})


def test_an_approximate_index_refuses_private_searches():
    metric = JointBounds(lambda a, b: abs(a - b).sum())
    metric.exact = False
    provider = Provider.of("p", np.ones((3, 1)), metric, decode=decode_query)
    query = encode_query(np.zeros(1))

    with pytest.raises(PartyRefused, match="exact index"):
        run(dann_star(query, 2, name="q", noise_of=lambda *_: {"p": (0, 0)}), [provider])
