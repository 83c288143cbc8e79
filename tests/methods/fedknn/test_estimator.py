"""``FederatedNeighbors`` equals a scan of all objects, for every metric and algorithm."""

import threading
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.neighbors import NearestNeighbors

from experiments.fedknn.comparison import compare
from fedneighbors import FederatedNeighbors
from fedneighbors.datasets._graphs import Graph
from fedneighbors.datasets._molecules import graph_from_smiles
from fedneighbors.errors import DataError, PartyRefused
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn._settings import ALGORITHMS
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.privacy import Privacy

RNG = np.random.default_rng(5)
WORDS = ["bank", "blank", "tank", "thank", "think", "ink", "", "bonk", "banks", "tanks"]
RING = Graph("CCCO", [(0, 1), (1, 2), (2, 3), (3, 0)])
CHAIN = Graph("CCO", [(0, 1), (1, 2)])
OBJECTS = {
    "euclidean": RNG.normal(size=(60, 3)),
    "manhattan": RNG.integers(0, 3, (60, 2)).astype(float),
    "cosine": RNG.normal(size=(60, 30)),
    "inner_product": RNG.integers(-2, 3, (60, 2)).astype(float),
    "haversine": RNG.uniform(-80, 80, (60, 2)),
    "edit": WORDS * 3,
    "jaccard": [frozenset(word) for word in WORDS * 3],
    "tanimoto": RNG.integers(0, 4, (60, 2), np.uint8),
    "graph_edit": [CHAIN, RING, Graph("CC", [(0, 1)]), Graph("N", []), CHAIN, Graph("", [])],
}


FRAME = pd.DataFrame({"a": [0.0, 1.0, 5.0], "b": [2, 3, 4]})


@pytest.mark.parametrize("algorithm", ["auto", "dann", "baseline"])
def test_a_data_frame_of_numbers_is_an_array_of_its_columns(algorithm):
    search = FederatedNeighbors(algorithm=algorithm).fit(FRAME, parties=["p", "q", "p"])
    expected = FederatedNeighbors().fit(FRAME.to_numpy()).kneighbors(FRAME.to_numpy(), 2)

    for found, of_arrays in zip(search.kneighbors(FRAME, 2), expected, strict=True):
        np.testing.assert_array_equal(np.array(found), np.array(of_arrays))
    assert search.radius_neighbors(FRAME[:1], 2.0)[1][0].tolist() == [0, 1]
    with pytest.raises(ValueError, match="feature names should match"):
        search.kneighbors(FRAME[["b", "a"]], 1)


def test_a_data_frame_of_other_cells_needs_a_metric_of_rows():
    with pytest.raises(TypeError, match="a private search of a data frame needs a Schema"):
        FederatedNeighbors(privacy=Privacy(1, "1e-6"), algorithm="dann*").fit(FRAME)
    with pytest.raises(ValueError, match="metric='tabular' compares rows with text"):
        FederatedNeighbors().fit(FRAME.assign(c=["x", "y", "z"]))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("metric", sorted(OBJECTS))
def test_distances_equal_those_of_a_scan(metric, algorithm):
    objects, distance = OBJECTS[metric], metric_of(metric).distance
    owners = RNG.integers(0, 4, len(objects))
    search = FederatedNeighbors(metric, algorithm).fit(objects, parties=owners)

    distances, neighbors = search.kneighbors(objects[:3], n_neighbors=5)

    for query, near, positions in zip(objects[:3], distances, neighbors, strict=True):
        scanned = sorted(distance(query, other) for other in objects)[:5]
        assert near.tolist() == scanned
        assert [distance(query, objects[position]) for position in positions] == scanned
    assert all(record.exact for record in search.query_records_)


def test_answers_do_not_depend_on_the_algorithm():
    words, owners = WORDS * 4, [f"p{k % 3}" for k in range(40)]

    answers = {
        algorithm: [
            positions.tolist()
            for positions in FederatedNeighbors("edit", algorithm)
            .fit(words, parties=owners)
            .kneighbors(WORDS, 12, return_distance=False)
        ]
        for algorithm in ALGORITHMS
    }

    assert all(answers[algorithm] == answers["baseline"] for algorithm in ALGORITHMS)


def test_distances_equal_those_of_scikit_learn():
    x = RNG.normal(size=(500, 6))
    expected = NearestNeighbors(n_neighbors=7).fit(x).kneighbors(x[:20])[0]

    federated = FederatedNeighbors().fit(x, parties=np.arange(500) % 5).kneighbors(x[:20], 7)[0]

    np.testing.assert_allclose(np.stack(federated), expected, atol=1e-7)


def test_a_k_above_the_number_of_objects_returns_all():
    search = FederatedNeighbors("edit").fit(["a", "b"], parties=["x", "y"], ids=["one", "two"])

    distances, neighbors = search.kneighbors("a", n_neighbors=9)

    assert [search.ids_[position] for position in neighbors[0]] == ["one", "two"]
    assert distances[0].tolist() == [0.0, 1.0]


def test_an_empty_table_returns_no_neighbors():
    neighbors = FederatedNeighbors("edit").fit([]).kneighbors("a", return_distance=False)

    assert [positions.tolist() for positions in neighbors] == [[]]


def test_a_distance_function_is_accepted_as_metric():
    search = FederatedNeighbors(lambda a, b: abs(float(a[0]) - float(b[0])))

    _, neighbors = search.fit([[1.0], [5.0], [2.0]], parties=[0, 1, 1]).kneighbors([[1.8]], 2)

    assert neighbors[0].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metric": "hamming"}, "expected a metric among"),
        ({"algorithm": "magic"}, "expected algorithm as one of"),
        ({"random_state": -1}, "expected random_state of 0 or more"),
    ],
)
def test_invalid_settings_are_refused_at_fit(change, words):
    with pytest.raises(ValueError, match=words):
        FederatedNeighbors(**change).fit([[0.0]])


@pytest.mark.parametrize("k", [0, -1])
def test_zero_neighbors_are_refused(k):
    with pytest.raises(ValueError, match="expected n_neighbors of 1 or more"):
        FederatedNeighbors().fit([[0.0]]).kneighbors([[0.0]], k)


def test_each_object_needs_one_party_and_a_unique_name():
    with pytest.raises(ValueError, match="expected one party for each of 2 objects"):
        FederatedNeighbors().fit([[0.0], [1.0]], parties=["a"])
    with pytest.raises(ValueError, match="expected ids with a unique name"):
        FederatedNeighbors().fit([[0.0], [1.0]], ids=["a", "a"])


@pytest.mark.parametrize(
    ("metric", "objects", "query", "error", "words"),
    [
        ("euclidean", [[0.0, 1.0]], [0.0, 1.0, 2.0], ValueError, "expected 2 numbers, got 3"),
        ("euclidean", [[0.0]], [np.nan], ValueError, "expected finite numbers, got NaN"),
        ("cosine", [[1.0]], [0.0], ValueError, "a zero vector has no angle"),
        ("haversine", [[2.0, 48.0]], [2.0, 95.0], ValueError, r"within \[-90, 90\].*latitude 95"),
        ("edit", ["a"], [1.0], TypeError, "expected a string as the query, got list"),
        ("tanimoto", ["CCO"], "C((", DataError, "the query: expected SMILES, got 'C"),
        ("tanimoto", ["CCO"], [1, 2], TypeError, "the query: expected packed bits.* got list"),
        ("graph_edit", [RING], "C((", DataError, "the query: expected SMILES, got 'C"),
        ("graph_edit", [RING], {1}, TypeError, "expected a Graph or SMILES as the query, got set"),
    ],
)
def test_a_query_of_another_kind_is_refused_before_the_search(metric, objects, query, error, words):
    search = FederatedNeighbors(metric).fit(objects)

    with pytest.raises(error, match=words):
        search.kneighbors([objects[0], query])
    assert search.query_records_ == []


def test_parties_refuse_a_query_of_another_kind():
    search = FederatedNeighbors().fit([[0.0, 1.0]])
    search.n_objects_ = 0  # so that the estimator does not check the query

    with pytest.raises(PartyRefused, match="the query is not an object of this metric"):
        search.kneighbors([[0.0, 1.0, 2.0]])


def test_smiles_are_graphs():
    smiles = ["CCO", "CC=O", "c1ccccc1", "CCN"]
    graphs = [graph_from_smiles(text) for text in smiles]
    search = FederatedNeighbors("graph_edit").fit(smiles, parties=list("aabb"))
    expected = FederatedNeighbors("graph_edit").fit(graphs, parties=list("aabb"))

    found = search.kneighbors(["CCO", "C"], 4), search.kneighbors("c1ccncc1", 2)

    assert [d.tolist() for d in found[0][0]] == [
        d.tolist() for d in expected.kneighbors([graphs[0], graph_from_smiles("C")], 4)[0]
    ]
    assert found[1][1][0][0] == 2
    with pytest.raises(DataError, match="object 1: expected SMILES"):
        FederatedNeighbors("graph_edit").fit(["CCO", "C(("])


@pytest.mark.parametrize("algorithm", ["auto", "dann", "hufu+"])
def test_molecules_are_found_by_their_fingerprints(algorithm):
    smiles = ["CCO", "CCN", "c1ccccc1O", "c1ccccc1N", "CCCO", "OCC"]
    search = FederatedNeighbors("tanimoto", algorithm).fit(smiles, parties=list("aabbcc"))

    distances, positions = search.kneighbors("c1ccccc1O", 2)
    within, _ = search.radius_neighbors("CCO", 0.0)

    assert positions[0].tolist() == [2, 3]
    assert distances[0].tolist() == [0.0, metric_of("tanimoto").distance(smiles[2], smiles[3])]
    assert within[0].tolist() == [0.0, 0.0]


def test_packed_bits_are_decoded_unchanged():
    row = np.array([0, 255, 7], np.uint8)

    decoded = decode_query(encode_query(row))

    assert decoded.dtype == np.uint8
    assert decoded.tolist() == row.tolist()


@pytest.mark.parametrize("query", ["", "Zürich", frozenset(), frozenset({"a", 3}), RING, CHAIN])
def test_queries_are_decoded_unchanged(query):
    assert decode_query(encode_query(query)) == query


def test_a_query_of_unsupported_type_is_refused():
    with pytest.raises(TypeError, match="expected a vector, string, set or Graph"):
        encode_query(object())


def test_the_comparison_reports_each_algorithms_cost():
    record = compare(WORDS * 4, WORDS[:3], np.arange(40) % 3, metric="edit", k=4)

    (table,) = record.tables
    n_returned = {row[0]: row[1] for row in table.rows}
    assert record.notes == ("All algorithms give the same answers.",)
    assert n_returned["dann"] <= n_returned["baseline"] == 12  # 3 parties, k = 4


@pytest.mark.parametrize("metric", ["euclidean", "manhattan", "cosine", "inner_product"])
@pytest.mark.parametrize("n_queries", [1, 2, 30])
def test_vectors_that_share_an_exchange_have_the_answers_of_single_queries(metric, n_queries):
    rng = np.random.default_rng(0)
    points = rng.integers(1, 5, (90, 3)).astype(np.float32)  # many equal distances
    queries = rng.integers(1, 5, (n_queries, 3))
    owners = np.arange(90) % 4

    search = FederatedNeighbors(metric=metric, algorithm="baseline").fit(points, parties=owners)
    distances, rows = search.kneighbors(queries, 20)

    records = search.query_records_
    assert [record.n_rounds for record in records] == [1] * n_queries
    one_by_one = search.kneighbors([query.tolist() for query in queries], 20)
    assert [found.tolist() for found in distances] == [found.tolist() for found in one_by_one[0]]
    assert [found.tolist() for found in rows] == [found.tolist() for found in one_by_one[1]]


def test_an_invalid_vector_among_others_is_named():
    search = FederatedNeighbors().fit(np.eye(3), parties=["a", "b", "b"])

    with pytest.raises(ValueError, match="the query: expected finite numbers"):
        search.kneighbors(np.array([[0.0, 1.0, 2.0], [1.0, np.nan, 0.0]]), 2)


@pytest.mark.parametrize(
    ("settings", "parties", "is_at_once"),
    [({}, None, True), ({"deadline_s": 60.0}, None, False), ({}, [0, 1] * 30, False)],
)
def test_one_party_without_deadline_searches_at_once(settings, parties, is_at_once):
    points = OBJECTS["euclidean"]
    search = FederatedNeighbors(**settings).fit(points, parties=parties)

    distances, positions = search.kneighbors(points[:1], 7)

    expected = np.linalg.norm(points - points[0], axis=1)
    assert positions[0].tolist() == np.argsort(expected)[:7].tolist()
    np.testing.assert_allclose(distances[0], np.sort(expected)[:7], rtol=1e-12)
    assert ("share one exchange" in search.query_records_[0].why) == is_at_once


@pytest.mark.parametrize("n_parties", [1, 3])
def test_vectors_are_searched_in_the_callers_thread(n_parties, monkeypatch):
    x = np.random.default_rng(3).normal(size=(90, 5))
    owners = np.arange(90) % n_parties
    patient = FederatedNeighbors(algorithm="baseline", deadline_s=60).fit(x, parties=owners)
    expected = patient.kneighbors(x[:4], 7)
    search = FederatedNeighbors(algorithm="baseline").fit(x, parties=owners)

    monkeypatch.setattr(threading.Thread, "start", None)
    found = search.kneighbors(x[:4], 7)

    assert np.array_equal(found, expected)
    times = dict.fromkeys(("seconds", "phase_seconds", "busy_seconds"), None)
    records = [
        [replace(record, **times) for record in one.query_records_] for one in (search, patient)
    ]
    assert records[0] == records[1]
    assert len(search.query_records_[0].busy_seconds) == n_parties
