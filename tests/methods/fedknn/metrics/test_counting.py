"""Objects verified for a count are reused: searches by radius verify each object once."""

from unittest import mock

import numpy as np
import pytest

from fedneighbors.datasets._graphs import Graph
from fedneighbors.methods.fedknn.metrics import _vectors as vectors
from fedneighbors.methods.fedknn.metrics import metric_of

RNG = np.random.default_rng(5)


def ring(n, labels):
    return Graph([labels[i % len(labels)] for i in range(n)], [(i, (i + 1) % n) for i in range(n)])


def genome(n_changes):
    letters = list("ACGT" * 75)
    for i in RNG.integers(0, len(letters), n_changes).tolist():
        letters[i] = "T"
    return "".join(letters)


OBJECTS = {
    "edit": ["".join(RNG.choice(list("abc"), 6)) for _ in range(200)],
    "edit, long": [genome(n) for n in range(60)],
    "graph_edit": [ring(n, labels) for n in range(3, 8) for labels in ("CN", "CCO", "C", "NO")],
    "jaccard": [frozenset(RNG.integers(0, 20, 6).tolist()) for _ in range(200)],
    "tanimoto": np.packbits(RNG.random((3000, 640)) < RNG.random(640) / 8, axis=1),
    "haversine": RNG.uniform(-60, 60, (2000, 2)),
    "euclidean": RNG.normal(size=(2000, 3)),
    "cosine": RNG.normal(size=(300, 20)),
    "inner_product": RNG.normal(size=(300, 20)),
    "manhattan": np.repeat(RNG.normal(size=(2000, 3)), 40, axis=1),
    "custom": RNG.normal(size=300).tolist(),
}


def open_session(name):
    objects = OBJECTS[name]
    metric = metric_of((lambda a, b: abs(a - b)) if name == "custom" else name.split(",")[0])
    with (
        mock.patch.object(vectors, "_MIN_INDEXED_ROWS", 1),
        mock.patch.object(vectors, "_MAX_SMALL_CELLS", 0),
    ):
        return metric.index(objects, ranks=np.arange(len(objects))).open(objects[3])


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_verified_for_a_count_are_not_verified_again(name):
    farthest = float(open_session(name).next(12).distances[-1])
    session = open_session(name)

    n_within = session.count(farthest)
    n_verified = session.n_verified
    repeated = session.count(farthest)
    batch = session.next(n_within + 1, cutoff=farthest)

    assert repeated == n_within == len(batch.positions) >= 12
    assert batch.exhausted
    assert session.n_verified <= max(n_verified, n_within)


@pytest.mark.parametrize("name", OBJECTS)
def test_ascending_counts_verify_no_more_than_one_count_does(name):
    farthest = float(open_session(name).next(12).distances[-1])
    at_once, in_steps = open_session(name), open_session(name)

    at_once.count(farthest)
    steps = farthest - abs(farthest) * np.linspace(0.5, 0.0, 6)
    counts = [in_steps.count(float(radius)) for radius in steps]

    assert counts == sorted(counts)
    assert in_steps.n_verified <= max(at_once.n_verified, counts[-1])
