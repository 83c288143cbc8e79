from dataclasses import replace
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors import FederatedNeighbors, FederatedNeighborsClassifier
from fedneighbors.datasets import CategoricalColumn, NumericColumn, Schema
from fedneighbors.errors import DataError
from fedneighbors.methods.fedknn.metrics import _mixed, metric_of
from fedneighbors.methods.fedknn.metrics._mixed import TabularMetric
from fedneighbors.privacy import Privacy
from tests.methods.fedknn.metrics.brute_force import searches
from tests.naive import gower as naive
from tests.seeds import cases

SCHEMA = Schema(
    (
        NumericColumn("age", 0, 100, missing="keep"),
        NumericColumn("lactate", 0, 20, missing="keep"),
        CategoricalColumn("sex", ("f", "m"), missing="keep"),
        CategoricalColumn("ward", ("a", "b", "c"), missing="keep"),
    )
)
NAN = float("nan")
ROWS = st.tuples(
    st.sampled_from([0.0, 0.5, 0.51, 1.0, NAN]) | st.floats(0, 1),
    st.sampled_from([0.0, 0.25, 1.0, NAN]),
    st.sampled_from([0.0, 1.0, NAN]),
    st.sampled_from([0.0, 1.0, 2.0, NAN]),
).map(np.array)


@pytest.mark.parametrize("max_left", [1.0, 0.3])
@settings(max_examples=cases(150), deadline=None)
@given(search=searches(objects=ROWS), has_bounds=st.booleans())
def test_a_search_equals_brute_force(search, has_bounds, max_left):
    with (
        mock.patch.object(_mixed, "_MIN_CODED_ROWS", 1 if has_bounds else 1024),
        mock.patch.object(_mixed, "_MIN_COMMON_CELLS", 0),
        mock.patch.object(_mixed, "_MAX_LEFT", max_left),
    ):
        search.assert_equals_brute_force(TabularMetric(SCHEMA))


@pytest.mark.parametrize("row", [[None] * 4, {}, {"age": None, "sex": ""}, [NAN, 3.0, "", None]])
def test_a_query_without_a_value_to_compare_is_refused(row):
    age, lactate, *others = SCHEMA.columns
    schema = Schema((age, replace(lactate, weight=0), *others))
    search = FederatedNeighbors(schema).fit([{"age": 50}, {"sex": "f"}])
    with pytest.raises(
        DataError, match=r"row 2 of the query has no .* one of 'age', 'sex', 'ward'"
    ):
        search.kneighbors([{"age": 50} if isinstance(row, dict) else [50, 1, "f", "a"], row], 1)


KINDS = {
    "numbers": lambda cells: cells,
    "few values": lambda cells: (4 * cells).round() / 4,
    "constant columns": lambda cells: np.full_like(cells, 0.5),
    "one ulp": lambda cells: np.nextafter(0.5, 4 * cells.round() - 1),
    "outliers": lambda cells: cells**40,
    "outside the range": lambda cells: 1e3 * cells - 500,
}


@pytest.mark.parametrize("missing", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("n_categories", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_searches_of_many_rows_equal_a_scan(kind, n_categories, missing):
    rng = np.random.default_rng(0)
    numbers = KINDS[kind](rng.random((3000, 3)))
    rows = np.column_stack([numbers, rng.integers(0, n_categories, (3000, 2))])
    rows[rng.random(rows.shape) < missing] = np.nan
    schema = Schema(
        (
            *(NumericColumn(name, 0, 1, missing="keep") for name in "abc"),
            *(CategoricalColumn(name, ("x", "y", "z"), missing="keep") for name in "de"),
        )
    )
    ranks = rng.permutation(3000)
    index = TabularMetric(schema).index(rows, ranks=ranks)

    for query in rows[:8]:
        expected = np.array(naive.gower_distances(rows, np.arange(5) > 2, query))
        order = np.lexsort((ranks, expected))
        session = index.open(query)
        found = [session.next(k) for k in (10, 200)]
        assert np.concatenate([batch.positions for batch in found]).tolist() == order[:210].tolist()
        assert found[1].distances.tolist() == expected[order[10:210]].tolist()
        for radius in (float(expected[order[100]]), -1.0, 0.0, 2.0):
            assert index.open(query).count(radius) == np.count_nonzero(expected <= radius)
        assert (index.open(query).bounds() <= expected).all()


def test_bounds_save_most_distances():
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.random((4000, 2)), rng.integers(0, 3, (4000, 2))])

    session = TabularMetric(SCHEMA).index(rows, ranks=np.arange(4000)).open(rows[0])
    session.next(5)

    assert session.n_verified < 200


def test_rows_with_infinite_cells_are_refused():
    rows = np.zeros((2000, 4))
    rows[1500, 1] = np.inf

    with pytest.raises(ValueError, match="object 1500: expected finite or missing cells"):
        TabularMetric(SCHEMA).index(rows, ranks=np.arange(2000))


def gower(first, second, ranges):
    """Return Gower's distance of two rows, from their cells as a user gives them."""
    differences = []
    for name, (low, high) in ranges.items():
        if pd.notna(first[name]) and pd.notna(second[name]):
            differences.append(abs(first[name] - second[name]) / (high - low))
    for name in ("sex", "ward"):
        if pd.notna(first[name]) and pd.notna(second[name]):
            differences.append(float(first[name] != second[name]))
    return sum(differences) / len(differences) if differences else 1.0


def patients(n, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 90, n).astype(float),
            "lactate": rng.gamma(2.0, 1.5, n).round(1).clip(0, 20),
            "sex": rng.choice(["f", "m"], n),
            "ward": rng.choice(["a", "b", "c"], n),
        },
        index=rng.permutation(n) + 100,
    )
    return frame.mask(rng.random(frame.shape) < 0.15)


@pytest.mark.parametrize("algorithm", ["baseline", "dann", "hufu+"])
@pytest.mark.parametrize("metric", ["tabular", SCHEMA], ids=["ranges of all rows", "schema"])
def test_patients_equal_those_of_gowers_formula(metric, algorithm):
    frame, queries = patients(90), patients(5, seed=1)
    search = FederatedNeighbors(metric, algorithm).fit(frame, parties=np.arange(90) % 3)

    distances, positions = search.kneighbors(queries, 6)

    own = {name: (frame[name].min(), frame[name].max()) for name in ("age", "lactate")}
    ranges = own if metric == "tabular" else {"age": (0, 100), "lactate": (0, 20)}
    clipped = queries.assign(**{name: queries[name].clip(*ranges[name]) for name in ranges})
    for query, near, found in zip(clipped.to_dict("records"), distances, positions, strict=True):
        expected = [gower(query, row, ranges) for row in frame.to_dict("records")]
        np.testing.assert_allclose(near, sorted(expected)[:6], rtol=0, atol=1e-12)
        np.testing.assert_allclose(near, np.array(expected)[found], rtol=0, atol=1e-12)


def test_parties_give_the_same_answer_as_one_table():
    frame = patients(200)
    pooled = FederatedNeighbors("tabular").fit(frame, parties=["all"] * 200)
    parted = FederatedNeighbors("tabular", "dann").fit(frame, parties=np.arange(200) % 7)

    for query in range(5):
        rows = frame.iloc[[query]]
        distances = [search.kneighbors(rows, 12)[0][0].tolist() for search in (pooled, parted)]
        assert distances[0] == distances[1]


def test_a_query_may_leave_out_columns():
    frame = patients(50)
    search = FederatedNeighbors("tabular").fit(frame)

    by_mapping = search.kneighbors([{"age": 60, "sex": "f"}], 5)
    by_frame = search.kneighbors(
        pd.DataFrame({"ward": [None], "sex": ["f"], "age": [60], "lactate": [None]}), 5
    )

    assert by_mapping[0][0].tolist() == by_frame[0][0].tolist()
    assert by_mapping[1][0].tolist() == by_frame[1][0].tolist()


def test_rows_by_position_need_a_schema():
    rows = [[50, 1.0, "f", "a"], [60, None, "m", "b"]]

    distances, _ = FederatedNeighbors(SCHEMA).fit(rows).kneighbors([[50, 1.0, "f", None]], 2)

    assert distances[0].tolist() == [0.0, (0.1 + 1.0) / 2]
    with pytest.raises(TypeError, match="give a Schema as metric"):
        FederatedNeighbors("tabular").fit(rows)


def test_rows_without_a_common_cell_have_distance_1():
    search = FederatedNeighbors(SCHEMA).fit([{"age": 50}, {"sex": "f"}])

    distances, _ = search.kneighbors([{"sex": "f"}], 2)

    assert distances[0].tolist() == [0.0, 1.0]


def test_a_column_of_one_value_makes_no_difference():
    frame = pd.DataFrame({"age": [30.0, 30.0], "sex": ["f", "m"], "none": [None, None]})

    distances, _ = FederatedNeighbors("tabular").fit(frame).kneighbors(frame.iloc[[0]], 2)

    assert distances[0].tolist() == [0.0, 0.5]


def test_labels_of_similar_patients_are_predicted():
    frame = patients(60)
    labels = np.where(frame["sex"].to_numpy() == "f", "yes", "no")
    model = FederatedNeighborsClassifier(1, metric="tabular").fit(frame, labels)

    assert model.predict(frame.iloc[:5]).tolist() == labels[:5].tolist()


def test_under_privacy_the_columns_must_be_declared():
    frame, privacy = patients(20), Privacy(epsilon=1)

    with pytest.raises(ValueError, match="no privacy budget covers; give a Schema"):
        FederatedNeighbors("tabular", "dann*", privacy, "certified").fit(frame)
    search = FederatedNeighbors(SCHEMA, "dann*", privacy, "certified", grid_s=0).fit(frame)
    assert len(search.kneighbors(frame.iloc[[0]], 2)[0][0]) == 2


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (pd.DataFrame({"age": [1.0]}), "the rows have no column 'lactate', 'sex', 'ward'"),
        ([{"age": 1, "height": 2}], "expected the columns .* got 'height'"),
        ([[1.0, 2.0]], "expected rows with the 4 cells 'age'"),
        ("text", "expected rows with the 4 cells"),
    ],
)
def test_a_query_with_other_columns_is_refused(query, words):
    with pytest.raises(DataError, match=words):
        FederatedNeighbors(SCHEMA).fit(patients(5)).kneighbors(query)


def test_columns_without_a_scale_or_of_several_kinds_are_refused():
    with pytest.raises(ValueError, match="low and high of column 'age'"):
        FederatedNeighbors(Schema((NumericColumn("age"),))).fit([{"age": 1}])
    with pytest.raises(DataError, match="one of them, got float, str"):
        FederatedNeighbors("tabular").fit([{"age": 1.0}, {"age": "x"}])
    with pytest.raises(DataError, match="infinite number"):
        FederatedNeighbors("tabular").fit([{"age": float("inf")}])
    with pytest.raises(DataError, match="row 2 has no valid cell in column 'age'"):
        FederatedNeighbors(Schema((NumericColumn("age", 0, 1),))).fit([{"age": 1}, {"age": None}])
    with pytest.raises(ValueError, match="the ranges of the columns are unknown"):
        metric_of("tabular").distance([0.0], [1.0])
    with pytest.raises(ValueError, match="object 1: expected 4 coded cells, got shape"):
        TabularMetric(SCHEMA).index([np.zeros(4), np.zeros(3)], ranks=np.arange(2))
