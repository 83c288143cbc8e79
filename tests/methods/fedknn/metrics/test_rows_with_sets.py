"""Rows with sets and weights against the naive Gower distance, alone and over parties."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors import FederatedNeighbors, FederatedNeighborsClassifier
from fedneighbors.datasets import CategoricalColumn, NumericColumn, Schema, SetColumn
from fedneighbors.errors import DataError, WireError
from fedneighbors.federation._messages import encode
from fedneighbors.methods.fedknn._queries import RowQuery, decode_query, encode_query
from fedneighbors.methods.fedknn.metrics._mixed import SetRow, TabularMetric
from fedneighbors.privacy import Privacy
from tests.methods.fedknn.metrics.brute_force import searches
from tests.naive import gower as naive
from tests.seeds import cases

NAN = float("nan")
IS_CATEGORY = (False, True, False, False)
SETS = st.none() | st.frozensets(st.sampled_from("abcdefg"), max_size=5)
WEIGHTS = st.sampled_from([0.0, 1.0, 1.0, 0.1, 3.0])


def make_schema(weights=(1.0, 1.0, 1.0, 1.0)):
    age, sex, codes, genes = weights
    return Schema(
        (
            NumericColumn("age", 0.0, 100.0, missing="keep", weight=age),
            CategoricalColumn("sex", ("F", "M"), missing="keep", weight=sex),
            SetColumn("codes", missing="keep", weight=codes),
            SetColumn("genes", missing="keep", weight=genes),
        )
    )


def code(age, sex, *sets):
    cells = [age, sex, *(NAN if one is None else 0.0 for one in sets)]
    return SetRow(np.array(cells), tuple(one or frozenset() for one in sets))


def cells_of(row):
    """Return the cells of a coded row for the naive distance."""
    pairs = zip(row.cells[2:], row.sets, strict=True)
    present = [None if np.isnan(cell) else one for cell, one in pairs]
    return [*row.cells[:2].tolist(), *present]


ROWS = st.builds(
    code,
    st.sampled_from([0.0, 0.5, 0.51, 1.0, NAN]) | st.floats(0, 1),
    st.sampled_from([0.0, 1.0, NAN]),
    SETS,
    SETS,
)


@settings(max_examples=cases(150), deadline=None)
@given(search=searches(objects=ROWS), weights=st.tuples(*[WEIGHTS] * 4).filter(any))
def test_a_search_equals_brute_force(search, weights):
    search.assert_equals_brute_force(TabularMetric(make_schema(weights)))


@settings(max_examples=cases(300), deadline=None)
@given(ROWS, ROWS, st.tuples(*[WEIGHTS] * 4).filter(any))
def test_distances_equal_the_naive_ones(first, second, weights):
    found = TabularMetric(make_schema(weights)).distance(first, second)

    assert found == naive.gower_distance(cells_of(first), IS_CATEGORY, cells_of(second), weights)
    assert found == TabularMetric(make_schema(weights)).distance(second, first)
    assert 0 <= found <= 1


def draw_rows(n, seed):
    rng = np.random.default_rng(seed)

    def draw_set():
        return (
            None if rng.random() < 0.2 else frozenset(rng.choice(list("abcdef"), rng.integers(4)))
        )

    return [
        {
            "age": rng.choice([None, 40.0, 41.0, 63.5]),
            "sex": rng.choice([None, "F", "M"]),
            "codes": draw_set(),
            "genes": draw_set(),
        }
        for _ in range(n)
    ]


@pytest.mark.parametrize("algorithm", ["baseline", "dann", "eager", "hufu", "hufu+", "auto"])
def test_parties_give_the_answer_of_the_naive_distance(algorithm):
    weights, rows, queries = (1.0, 0.5, 2.0, 0.0), draw_rows(120, 0), draw_rows(6, 1)
    metric = TabularMetric(make_schema(weights))
    search = FederatedNeighbors(make_schema(weights), algorithm, random_state=0)

    distances, positions = search.fit(rows, parties=np.arange(120) % 3).kneighbors(queries, 9)

    coded = [cells_of(row) for row in metric.read(rows)]
    for query, near, found in zip(metric.read(queries), distances, positions, strict=True):
        expected = np.array(naive.gower_distances(coded, IS_CATEGORY, cells_of(query), weights))
        assert near.tolist() == np.sort(expected)[:9].tolist()
        assert near.tolist() == expected[found].tolist()


def test_a_private_search_of_rows_with_sets_is_exact():
    rows, queries = draw_rows(20, 0), draw_rows(1, 1)
    search = FederatedNeighbors(make_schema(), "dann*", Privacy(epsilon=1), "certified", grid_s=0)

    distances, _ = search.fit(rows).kneighbors(queries, 2)

    plain, _ = FederatedNeighbors(make_schema()).fit(rows).kneighbors(queries, 2)
    assert distances[0].tolist() == plain[0].tolist()


def test_weights_alone_change_the_distance():
    schema = Schema(
        (NumericColumn("age", 0, 100, weight=3.0), CategoricalColumn("sex", ("F", "M")))
    )
    rows = [{"age": 50, "sex": "F"}, {"age": 60, "sex": "M"}]

    distances, _ = FederatedNeighbors(schema).fit(rows).kneighbors([{"age": 60, "sex": "F"}], 2)

    assert distances[0].tolist() == [3 * abs(0.5 - 0.6) / 4, 1 / 4]


def test_sets_come_from_lists_text_json_and_data_frames():
    schema = Schema((SetColumn("codes", missing="keep"),))
    cells = ["I10 E11.9", '["E11.9", "I10"]', ["I10", "E11.9", "I10"], {"I10", "E11.9"}]

    read = TabularMetric(schema).read([{"codes": cell} for cell in cells])
    frame = TabularMetric(schema).read(pd.DataFrame({"codes": pd.Series(cells, dtype=object)}))

    assert {row.sets for row in [*read, *frame]} == {(frozenset({"I10", "E11.9"}),)}
    assert TabularMetric(schema).read([{"codes": [4, "5"]}])[0].sets == (frozenset("45"),)
    empty, missing = TabularMetric(schema).read([{"codes": "[]"}, {"codes": " "}])
    assert (empty.cells[0], empty.sets) == (0.0, (frozenset(),))
    assert np.isnan(missing.cells[0])


def test_columns_of_lists_become_sets_without_a_schema():
    rows = [{"age": 1, "codes": ["a", "b"]}, {"age": 2, "codes": ["b"]}, {"age": 3, "codes": None}]

    distances, _ = FederatedNeighbors("tabular").fit(rows).kneighbors([{"codes": ["b"]}], 3)

    assert distances[0].tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("cell", [3, {"a": 1}, [None], [["a"]], "[1", [1.5]])
def test_cells_that_are_no_sets_are_refused(cell):
    with pytest.raises(DataError, match=r"column 'codes': expected .*codes"):
        TabularMetric(Schema((SetColumn("codes"),))).read([{"codes": cell}])


def test_a_schema_with_sets_survives_its_file(tmp_path):
    schema = make_schema((1.0, 2.0, 0.5, 1.0))
    path = tmp_path / "patients.toml"
    path.write_text(schema.to_toml(), encoding="utf-8")

    assert Schema.load(path) == schema
    assert Schema.load(path).digest == schema.digest != make_schema().digest


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("kind = 'set'\nweight = -1", "expected a weight from 0"),
        ("kind = 'set'\nmissing = 'x'", "expected missing as 'drop' or 'keep'"),
        ("kind = 'set'\nontology = 3", "expected ontology as the name of a file"),
        ("kind = 'set'\nlow = 0", "unknown key 'low'"),
        ("kind = 'list'", "expected kind 'number', 'category' or 'set'"),
    ],
)
def test_wrong_declarations_of_sets_are_refused(rule, words):
    with pytest.raises(DataError, match=words):
        Schema.from_toml(f"[columns.codes]\n{rule}")


def test_weights_of_0_alone_are_refused():
    with pytest.raises(ValueError, match="a column whose weight is not 0"):
        TabularMetric(Schema((SetColumn("codes", weight=0.0),)))


def test_methods_without_sets_refuse_them():
    schema = Schema((NumericColumn("age", 0, 100), SetColumn("codes")))

    with pytest.raises(DataError, match="column 'codes' has sets, which only a search"):
        schema.encode_all({"age": [1], "codes": [["a"]]})


@pytest.mark.parametrize(
    "row",
    [
        RowQuery(np.zeros(4), (1, 1), ("a",)),
        RowQuery(np.zeros(4), (-1, 1), ()),
        RowQuery(np.zeros(4), (2, -1), ("a",)),
    ],
)
def test_a_frame_with_wrong_sizes_is_refused(row):
    with pytest.raises(WireError, match="differ from the number"):
        decode_query(encode(row))


@given(ROWS)
def test_frames_of_rows_with_sets_keep_them(row):
    found = decode_query(encode_query(row))

    assert np.array_equal(found.cells, row.cells, equal_nan=True)
    assert found.sets == row.sets


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (np.zeros(4), "expected a coded row with 2 sets"),
        (SetRow(np.zeros(4), (frozenset(),)), "expected a coded row with 2 sets"),
        (SetRow(np.zeros(3), (frozenset(),) * 2), "expected 4 coded cells"),
        (SetRow(np.array([0, 0, 0.5, 0]), (frozenset(),) * 2), "expected 0 as the cell of a set"),
    ],
)
def test_a_query_that_is_no_row_is_refused(query, words):
    index = TabularMetric(make_schema()).index([code(0.5, 1.0, None, None)], ranks=np.zeros(1, int))

    with pytest.raises(ValueError, match=words):
        index.open(query)


def test_saved_models_keep_sets(tmp_path):
    rows, labels = draw_rows(40, 0), ["a", "b"] * 20
    model = FederatedNeighborsClassifier(3, metric=make_schema()).fit(rows, labels)
    model.save(tmp_path / "model.fnn")

    loaded = FederatedNeighborsClassifier.load(tmp_path / "model.fnn")

    queries = draw_rows(9, 1)
    assert loaded.predict(queries).tolist() == model.predict(queries).tolist()
