"""Searches by inner product, whose distances may be negative, equal a sort of all objects."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors import FederatedNeighbors, FederatedNeighborsClassifier, Privacy
from fedneighbors.methods.fedknn._settings import ALGORITHMS
from fedneighbors.methods.fedknn.algorithm import tie_keys
from fedneighbors.methods.fedknn.metrics import _points as points
from fedneighbors.methods.fedknn.metrics import _vectors as vectors
from tests.naive.vectors.distances import negative_products


@st.composite
def tables(draw):
    """Draw rows, the owner of each, and queries; many inner products are tied or nearly so."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, n_columns = draw(st.integers(1, 40)), draw(st.sampled_from([1, 2, 3, 9, 20]))
    rows = rng.integers(-2, 3, (n, n_columns)) * draw(st.sampled_from([0.0, 0.1, 1.0]))
    rows = rows + draw(st.sampled_from([0.0, 0.0, 3.0, 1e6]))
    close = rng.random(n) < 0.3
    rows[close] = np.nextafter(rows[close], np.inf)
    if draw(st.booleans()):
        rows[rng.integers(n)] *= -1e6  # one row far from the others
    queries = np.concatenate([rows[:1], rng.integers(-2, 3, (3, n_columns)) * 0.1])
    units = st.sampled_from([1.0, 1.0, 1e-150, 1e-160, 1e-300, 1e130])
    rows, queries = rows * draw(units), queries * draw(units)
    return rows, rng.integers(0, draw(st.integers(1, 4)), n), queries


def nearest(rows, owners, query, k):
    """Return the distances and positions of the k nearest rows, by distance and tie key."""
    distances = negative_products(rows, query)
    ties = [tie_keys([str(row)], owner=str(owner), key=b"0")[0] for row, owner in enumerate(owners)]
    order = sorted(range(len(rows)), key=lambda row: (distances[row], ties[row]))[:k]
    return [distances[row] for row in order], order


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "auto", "dann*"])
@settings(max_examples=12, deadline=None)
@given(tables(), st.integers(1, 12), st.booleans(), st.booleans())
def test_every_algorithm_equals_a_sort(algorithm, table, k, with_codes, in_one_exchange):
    rows, owners, queries = table
    private = {"privacy": Privacy(1, delta="1e-6"), "grid_s": 0.0} if algorithm == "dann*" else {}

    with (
        mock.patch.object(vectors, "_MIN_INDEXED_ROWS", 1 if with_codes else 1024),
        mock.patch.object(vectors, "_MAX_SMALL_CELLS", 0),
        mock.patch.object(points, "_N_EXTRA", 1),
    ):
        search = FederatedNeighbors("inner_product", algorithm, **private)
        search.fit(rows, parties=owners)
        distances, positions = search.kneighbors(queries if in_one_exchange else list(queries), k)

    for query, *found in zip(queries, distances, positions, strict=True):
        assert tuple(part.tolist() for part in found) == nearest(rows, owners, query, k)
    assert all(record.exact for record in search.query_records_)


def test_a_classifier_votes_by_inner_products():
    x, y = np.array([[1.0, 0.0], [9.0, 0.0], [8.0, 1.0], [0.0, 1.0]]), ["a", "b", "b", "a"]

    model = FederatedNeighborsClassifier(2, metric="inner_product").fit(x, y, parties="stst")

    assert model.predict([[1.0, 0.0], [-1.0, 0.1]]).tolist() == ["b", "a"]
    assert model.search_.explain(x[:1], 2).algorithm == "eager"


def test_negative_distances_are_no_weights():
    model = FederatedNeighborsClassifier(metric="inner_product", weights="distance")

    with pytest.raises(ValueError, match="distances of 'inner_product' may be negative"):
        model.fit([[1.0], [2.0]], [0, 1])
