import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import distance as reference

from fedneighbors.kernels.vectors import _duplicates as duplicates
from fedneighbors.kernels.vectors._table import TableRows
from fedneighbors.methods.fedknn.metrics import _points as points
from fedneighbors.methods.fedknn.metrics import _vectors as vectors
from fedneighbors.methods.fedknn.metrics._vectors import VECTOR_METRICS, VectorMetric
from tests.methods.fedknn.metrics.brute_force import BruteForce, Search, Step, searches
from tests.seeds import cases

NAMES = list(VECTOR_METRICS)
# Multiples of 1/4 tie; the others stress sums: tiny, huge, and differing in the last bit.
NUMBERS = st.integers(-8, 8).map(lambda n: n / 4) | st.sampled_from(
    [1e-200, -1e-200, 1e150, -1e150, 1.0 + 2**-52, 1e8, 1e8 + 2**-26, 0.1, 0.3, 5e-324]
)


def rows(n_columns, name, numbers=NUMBERS):
    row = st.lists(numbers, min_size=n_columns, max_size=n_columns)
    return row.filter(any) if name == "cosine" else row


@pytest.fixture
def trees_of_any_size():
    """Use trees for any number of rows, and never change to a scan."""
    with (
        mock.patch.object(vectors, "_MIN_INDEXED_ROWS", 1),
        mock.patch.object(vectors, "_MAX_SMALL_CELLS", 0),
        mock.patch.object(points, "_MAX_TREE_FRACTION", 1.0),
        mock.patch.object(points, "_N_EXTRA", 1),
    ):
        yield


@pytest.fixture
def codes_of_any_size():
    """Use lower bounds for any number of rows and columns."""
    with (
        mock.patch.object(vectors, "_MIN_INDEXED_ROWS", 1),
        mock.patch.object(vectors, "_MAX_SMALL_CELLS", 0),
        mock.patch.object(vectors, "_MAX_TREE_COLUMNS", 0),
        mock.patch.object(points, "_N_EXTRA", 1),
    ):
        yield


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=cases(150), deadline=None)
@given(st.data())
def test_a_scan_equals_brute_force(name, data):
    n_columns = data.draw(st.integers(1, 20))

    search = data.draw(searches(objects=rows(n_columns, name)))

    search.assert_equals_brute_force(VectorMetric(name))


@pytest.mark.usefixtures("trees_of_any_size")
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=cases(300), deadline=None)
@given(st.data())
def test_a_tree_search_equals_brute_force(name, data):
    n_columns = data.draw(st.integers(1, 4))

    search = data.draw(searches(objects=rows(n_columns, name), max_size=30))

    search.assert_equals_brute_force(VectorMetric(name))


@pytest.mark.usefixtures("codes_of_any_size")
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=cases(300), deadline=None)
@given(st.data())
def test_a_search_by_codes_equals_brute_force(name, data):
    n_columns = data.draw(st.integers(1, 9))

    search = data.draw(searches(objects=rows(n_columns, name), max_size=80))

    search.assert_equals_brute_force(VectorMetric(name))


@pytest.mark.usefixtures("codes_of_any_size")
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=cases(200), deadline=None)
@given(st.data())
def test_a_search_of_repeated_rows_equals_brute_force(name, data):
    n_columns = data.draw(st.integers(1, 3))
    few = data.draw(st.lists(rows(n_columns, name), min_size=1, max_size=5))

    search = data.draw(searches(objects=st.sampled_from(few), max_size=80))

    search.assert_equals_brute_force(VectorMetric(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_columns", [2, 20])
def test_batches_of_repeated_rows_equal_single_queries(name, n_columns):
    rng = np.random.default_rng(8)
    few = rng.integers(1, 4, (40, n_columns)).astype(float)
    x, ranks = few[rng.integers(40, size=2000)], rng.permutation(2000)
    index = VectorMetric(name).index(x, ranks=ranks)

    distances, positions = index.nearest(few[:9], 300, peak=4.0)

    assert index._distinct is not None
    for query, *found in zip(few, distances, positions, strict=False):
        expected = index.open(query).next(300)
        assert found[0].tolist() == expected.distances.tolist()
        assert found[1].tolist() == expected.positions.tolist()
        order = np.lexsort((ranks, [VectorMetric(name).distance(query, row) for row in x]))
        assert found[1].tolist() == order[:300].tolist()


def test_rows_of_one_hash_are_not_merged(monkeypatch):
    monkeypatch.setattr(duplicates, "hash_rows", lambda rows: np.zeros(len(rows), np.uint64))
    x = np.eye(2)[np.arange(2000) % 2]

    batch = VectorMetric("euclidean").index(x, ranks=np.arange(2000)).open(x[1]).next(2000)

    assert batch.positions.tolist() == [*range(1, 2000, 2), *range(0, 2000, 2)]


@pytest.mark.usefixtures("codes_of_any_size")
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_search_of_long_rows_equals_brute_force(name, data):
    # few distinct numbers, because drawing long rows takes most of the time
    base = np.array(data.draw(rows(5, name)))
    shifts = st.tuples(st.integers(0, 63), st.integers(-2, 2), st.sampled_from([1.0, 2**-52, 1e9]))

    def shift_row(shift):
        column, steps, size = shift
        row = np.tile(base, 13)[:64]
        row[column] += steps * size
        return (row if row.any() else row + 1).tolist()

    search = data.draw(searches(objects=shifts.map(shift_row)))

    search.assert_equals_brute_force(VectorMetric(name))


def table(n_rows, n_columns, seed):
    """Return clustered rows; half lie on a grid and some are repeated, so that ties occur."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(20, n_columns)) * 4
    x = centers[rng.integers(0, 20, n_rows)] + rng.normal(size=(n_rows, n_columns))
    x[n_rows // 2 :] = np.round(x[n_rows // 2 :])
    x[::17] = x[0]
    return x + 0.25


STEPS = [
    Step("next", 10, "none", 0),
    Step("count", 0, "at", 40),
    Step("next", 1, "none", 0),
    Step("next", 200, "at", 99),
    Step("deadline", 50, "none", 0),
    Step("next", 400, "none", 0),
    Step("count", 0, "below", 900),
    Step("count", 0, "at", 4000),
    Step("bounds", 0, "none", 0),
    Step("next", 2000, "above", 2500),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("n_rows", "n_columns", "kind"),
    [
        (6000, 3, "tree"),
        (5000, 91, "codes"),
        (6000, 3, "scan"),
        (1000, 20, "scan"),
        (1000, 91, "scan"),
    ],
)
@pytest.mark.parametrize("query_at", ["an object", "near", "far"])
def test_large_tables_equal_brute_force(monkeypatch, name, n_rows, n_columns, kind, query_at):
    if kind == "tree":
        monkeypatch.setattr(vectors, "_MAX_SMALL_CELLS", 0)
    x = table(n_rows, n_columns, seed=n_columns)
    query = {"an object": x[0], "near": x[5] + 0.01, "far": x[5] + 1e6}[query_at]
    ranks = np.random.default_rng(1).permutation(n_rows)

    index = VectorMetric(name).index(x, ranks=ranks)
    search = Search(list(x), query, ranks.tolist(), STEPS)

    has_tree = name != "inner_product"
    assert (index._tree is not None) == (kind == "tree" and has_tree)
    assert (index._quantized is not None) == (kind == "codes" or (kind == "tree" and not has_tree))
    brute_force = BruteForce(VectorMetric(name), search)
    brute_force.check_at_once(index.open(query))
    brute_force.check_in_batches(index.open(query), STEPS)
    brute_force.check_in_batches(index.open(query), [Step("next", 1001, "none", 0)] * 2)


@pytest.mark.parametrize(
    ("shape", "session"), [((1023, 65), points.ScanSession), ((1008, 65), points.SmallSession)]
)
def test_wide_tables_of_few_rows_are_scanned_in_steps(shape, session):
    x = np.zeros(shape)

    assert type(VectorMetric("euclidean").index(x, ranks=np.arange(len(x))).open(x[0])) is session


def orthogonal(directions, query):
    """Return directions without their part along a query."""
    return directions - directions @ query[:, None] * query / (query @ query)


SMALL_STEPS = [
    Step(call, k, "at", index)
    for k, index in [(1, 3), (5, 40), (20, 50), (60, 200), (100, 700), (500, 1000)]
    for call in ("next", "count")
]


@pytest.mark.usefixtures("trees_of_any_size")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_columns", [2, 3, 7, 9, 64, 90])
@pytest.mark.parametrize("size", [1.0, 1e-150, 1e120])
def test_objects_of_almost_equal_distance_are_in_order(name, n_columns, size):
    rng = np.random.default_rng(n_columns)
    directions = rng.normal(size=(1000, n_columns))
    power = 1 if name == "manhattan" else 2
    directions /= np.linalg.norm(directions, ord=power, axis=1, keepdims=True)
    query = np.full(n_columns, 1 / 3)
    # all on a sphere about the query: trees and bounds round differently from the metric
    x = size * (
        query
        + (directions if name in ("euclidean", "manhattan") else orthogonal(directions, query))
    )
    search = Search(list(x), size * query, rng.permutation(1000).tolist(), SMALL_STEPS)

    search.assert_equals_brute_force(VectorMetric(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_columns", [3, 90])
def test_a_small_k_verifies_few_objects(name, n_columns):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, n_columns))
    session = VectorMetric(name).index(x, ranks=np.arange(5000)).open(x[3] + 1e-4)

    session.next(10)
    first = session.n_verified
    session.next(0)

    assert 10 <= first <= 100
    assert session.n_verified == first


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"inner_product"}))
def test_distances_equal_those_of_scipy(name):
    rng = np.random.default_rng(0)
    pairs = rng.normal(size=(50, 2, 30))
    function = {"manhattan": "cityblock"}.get(name, name)

    distances = [VectorMetric(name).distance(a, b) for a, b in pairs]

    expected = [getattr(reference, function)(a, b) for a, b in pairs]
    np.testing.assert_allclose(distances, expected, rtol=1e-12)


def test_the_distance_of_an_inner_product_has_the_opposite_sign():
    metric = VectorMetric("inner_product")

    assert metric.distance([1.0, 2.0], [3.0, 4.0]) == -11.0
    assert metric.distance([1.0, 2.0], [-3.0, 1.0]) == 1.0
    assert math.copysign(1.0, metric.distance([0.0], [7.0])) == 1.0


@pytest.mark.parametrize("size", [1.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_inner_products_of_tables_far_from_zero_equal_brute_force(monkeypatch, size, offset):
    monkeypatch.setattr(vectors, "_MAX_SMALL_CELLS", 0)
    rng = np.random.default_rng(2)
    x = offset + size * rng.normal(size=(2000, 20))
    x[::5] = np.nextafter(x[1::5], np.inf)
    search = Search(list(x), rng.normal(size=20), rng.permutation(2000).tolist(), STEPS)
    session = VectorMetric("inner_product").index(x, ranks=np.arange(2000)).open(search.query)

    search.assert_equals_brute_force(VectorMetric("inner_product"))

    session.next(10)
    assert 10 <= session.n_verified <= 300


def test_cosine_ignores_length_and_is_exact_near_zero():
    metric = VectorMetric("cosine")

    assert metric.distance([1e-300, 0.0], [1e300, 0.0]) == 0.0
    assert metric.distance([1.0, 0.0], [-5.0, 0.0]) == 2.0
    assert metric.distance([1.0, 0.0], [1.0, 1e-10]) == pytest.approx(0.5e-20, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("objects", "position", "reason"),
    [
        ([[1.0, 2.0], [1.0, math.nan]], 1, "finite"),
        ([[1.0, 2.0], [2.0, 2.0], [math.inf, 1.0]], 2, "finite"),
        (np.array([[1.0, 2.0], [-np.inf, 1.0]]), 1, "finite"),
        ([[1.0, 2.0], [1.0]], 1, "expected 2 numbers, got 1"),
        ([[1.0, 2.0], [1.0, 2.0, 3.0]], 1, "expected 2 numbers, got 3"),
        ([[1.0], "text"], 1, "vector of real numbers"),
        ([[1.0], None], 1, "vector of real numbers"),
        ([[1.0], [[2.0]]], 1, "vector of real numbers"),
        ([[1.0], [[2.0], [1.0, 2.0]]], 1, "vector of real numbers"),
        ([[1.0], [1j]], 1, "vector of real numbers"),
        ([[1.0], ["1"]], 1, "vector of real numbers"),
        ([3.0], 0, "vector of real numbers"),
        ([[]], 0, "expected 1 numbers, got 0"),
        (np.empty((2, 0)), 0, "expected 1 numbers, got 0"),
    ],
)
def test_an_error_of_an_invalid_vector_gives_its_position(name, objects, position, reason):
    with pytest.raises(ValueError, match=f"object {position}: .*{reason}"):
        VectorMetric(name).index(objects, ranks=np.arange(len(objects)))


def test_a_zero_vector_has_no_angle():
    with pytest.raises(ValueError, match=r"object 1: .* zero vector"):
        VectorMetric("cosine").index([[1.0], [0.0]], ranks=np.arange(2))


@pytest.mark.parametrize("name", ["euclidean", "manhattan", "inner_product"])
def test_magnitudes_whose_squares_overflow_are_refused(name):
    with pytest.raises(ValueError, match=r"object 1: .* rescale"):
        VectorMetric(name).index([[1.0], [-(2.0**500)]], ranks=np.arange(2))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("query", [[1.0], [1.0, math.nan], "ab", [[1.0, 2.0]], None])
def test_an_invalid_query_is_refused(name, query):
    index = VectorMetric(name).index([[1.0, 2.0]], ranks=np.arange(1))

    with pytest.raises(ValueError, match="the query: expected"):
        index.open(query)


@pytest.mark.parametrize(
    "ranks", [np.arange(3), np.array([1, 1]), np.array([0.5, 1.0]), np.arange(2)[None]]
)
def test_invalid_ranks_are_refused(ranks):
    with pytest.raises(ValueError, match=r"expected .*ranks"):
        VectorMetric("euclidean").index([[1.0], [2.0]], ranks=ranks)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint64, np.bool_])
def test_rows_of_other_dtypes_are_converted_exactly(dtype):
    x = np.array([[0, 1], [1, 1], [1, 0]], dtype)

    batch = VectorMetric("manhattan").index(x, ranks=np.arange(3)).open(x[0]).next(3)

    assert batch.positions.tolist() == [0, 1, 2]
    assert batch.distances.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.usefixtures("codes_of_any_size")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("n_columns", [5, 40])
def test_small_dtypes_have_the_distances_of_float64(name, dtype, n_columns):
    rng = np.random.default_rng(4)
    x = rng.integers(1, 255, (300, n_columns)).astype(dtype)
    x[::3] = x[0]
    queries = np.array([x[0], *rng.normal(100, 50, (5, n_columns))])
    ranks = rng.permutation(300)
    small, wide = (
        VectorMetric(name).index(rows, ranks=ranks) for rows in (x, x.astype(np.float64))
    )

    for query in queries:
        found, expected = small.open(query).next(150), wide.open(query).next(150)
        assert found.positions.tolist() == expected.positions.tolist()
        assert found.distances.tolist() == expected.distances.tolist()
    peak = float(np.abs(queries).max())
    for ours, theirs in zip(
        small.nearest(queries, 150, peak=peak), wide.nearest(queries, 150, peak=peak), strict=True
    ):
        assert ours.tolist() == theirs.tolist()


def test_an_index_copies_its_table():
    x = np.array([[0.0], [5.0]])
    index = VectorMetric("euclidean").index(x, ranks=np.arange(2))

    x[:] = 9.0

    assert index.open([0.0]).next(2).distances.tolist() == [0.0, 5.0]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8, np.int16])
@pytest.mark.parametrize("n_columns", [2, 20])
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_shared_table_equal_a_copy(name, n_columns, dtype):
    rng = np.random.default_rng(9)
    table = rng.integers(1, 120, (5000, n_columns)).astype(dtype)
    positions, ranks = np.arange(0, 5000, 3), rng.permutation(1667)
    copied = VectorMetric(name).index(table[positions], ranks=ranks)

    shared = VectorMetric(name).index(TableRows(table, positions), ranks=ranks)

    query = rng.integers(1, 120, (1, n_columns)).astype(float)
    for index in (copied, shared):
        session = index.open(query[0])
        first, bounds = session.next(30), session.bounds()
        batch = index.nearest(query, 30, peak=120.0)
        for found, expected in zip(batch, (first.distances, first.positions), strict=True):
            assert found[0].tolist() == expected.tolist()
        if index is copied:
            wanted = first.positions.tolist(), first.distances.tolist(), bounds.tolist()
    assert (first.positions.tolist(), first.distances.tolist(), bounds.tolist()) == wanted
    assert (shared._rows.table is table) == (name != "cosine" and dtype != np.int16)


def test_an_invalid_row_of_a_shared_table_is_refused():
    table = np.zeros((9000, 2))
    table[8998, 1] = np.nan

    with pytest.raises(ValueError, match="object 4499: expected finite numbers"):
        VectorMetric("euclidean").index(
            TableRows(table, np.arange(0, 9000, 2)), ranks=np.arange(4500)
        )


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.next(-1),
        lambda session: session.next(1, cutoff=math.nan),
        lambda session: session.count(math.nan),
    ],
)
def test_invalid_arguments_are_refused(call):
    session = VectorMetric("euclidean").index([[1.0]], ranks=np.arange(1)).open([1.0])

    with pytest.raises(ValueError, match="expected"):
        call(session)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="manhattan"):
        VectorMetric("chebyshev")
