"""Rows are grouped by party for every usual type of party column."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from fedneighbors import (
    FederatedNeighbors,
    FederatedNeighborsClassifier,
    FederatedNeighborsRegressor,
    FedPNNClassifier,
    FlyNNClassifier,
    KNNPerClassifier,
    KNNPerRegressor,
    compare,
)
from fedneighbors.baselines import (
    FederatedBoostingClassifier,
    FederatedBoostingRegressor,
    FederatedDiscriminantClassifier,
    FederatedNaiveBayes,
)
from fedneighbors.tabular._ownership import party_name, rows_by_party


@pytest.mark.parametrize(
    "parties",
    [
        ["a", "b"] * 15,
        np.array(["a", "b"] * 15),
        pd.Series(["a", "b"] * 15, index=range(100, 130)),
        pd.Categorical(["a", "b"] * 15),
        pd.array(["a", "b"] * 15, dtype="string"),
        tuple("ab" * 15),
    ],
    ids=lambda parties: type(parties).__name__,
)
def test_a_party_column_may_be_of_any_usual_type(parties):
    owned = rows_by_party(parties, 30)

    assert {name: rows.tolist() for name, rows in owned.items()} == {
        "a": list(range(0, 30, 2)),
        "b": list(range(1, 30, 2)),
    }


def test_without_a_party_column_there_is_one_party():
    assert rows_by_party(None, 30) == {"all": slice(None)}
    assert list(rows_by_party([1, 10, 2], 3)) == ["1", "10", "2"]


@pytest.mark.parametrize("missing", [None, np.nan, "", pd.NA, pd.NaT])
def test_a_party_without_a_name_is_refused(missing):
    with pytest.raises(ValueError, match="found 1 rows without one; fill them in"):
        rows_by_party(["a", missing, "b"], 3)
    with pytest.raises(ValueError, match="expected the name of one party"):
        party_name(missing)


@pytest.mark.parametrize("name", ["north", 5, np.int64(5), 5.0, True, np.str_("a")])
def test_a_single_name_converts_like_a_column(name):
    assert [party_name(name)] == list(rows_by_party([name], 1))


@pytest.mark.parametrize("names", [("a", "b"), ["a"], np.array(["a"])])
def test_a_list_is_not_a_party_name(names):
    with pytest.raises(ValueError, match="expected the name of one party"):
        party_name(names)


@pytest.mark.parametrize(
    "kind",
    [
        FlyNNClassifier,
        FedPNNClassifier,
        FederatedNeighborsClassifier,
        FederatedBoostingClassifier,
        FederatedNaiveBayes,
    ],
)
def test_labels_with_gaps_or_of_two_types_are_refused(kind):
    x, labels = np.arange(8.0).reshape(4, 2), np.array(["a", "b", "a", "b"], dtype=object)
    gap, mixed = labels.copy(), labels.copy()
    gap[2], mixed[3] = None, 1

    with pytest.raises(ValueError, match="found 1 rows without one, first at position 2"):
        kind().fit(x, gap)
    with pytest.raises(ValueError, match="text and other values; first of the other: position 3"):
        kind().fit(x, mixed)


CLASSIFIERS = [
    FlyNNClassifier(n_units=50),
    FedPNNClassifier(),
    KNNPerClassifier(),
    FederatedNeighborsClassifier(),
    FederatedBoostingClassifier(max_iter=3),
    FederatedDiscriminantClassifier(),
    FederatedNaiveBayes(),
]


def make_nullable(n_rows=60):
    """Return a frame of nullable columns with gaps, labels 3 and 4, and parties."""
    rng = np.random.default_rng(0)
    labels = 3 + np.arange(n_rows) % 2
    frame = pd.DataFrame(
        {
            "age": pd.array(rng.integers(20, 60, n_rows) + 10 * labels, dtype="Int64"),
            "smoker": pd.array(rng.random(n_rows) < 0.5, dtype="boolean"),
        }
    )
    return frame, labels, np.array(["north", "south", "west"])[np.arange(n_rows) // 2 % 3]


@pytest.mark.parametrize("model", CLASSIFIERS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize(
    ("dtype", "convert"),
    [("Int64", int), ("boolean", lambda label: label == 4), ("object", int)],
    ids=["Int64", "boolean", "object"],
)
def test_labels_of_nullable_types_come_back_unchanged(model, dtype, convert):
    frame, labels, parties = make_nullable()
    expected = np.array(list(map(convert, labels)))
    y = pd.Series(expected.astype(object), dtype=dtype)

    fitted = clone(model).fit(frame, y, parties=parties)
    plain = clone(model).fit(frame.astype(float), expected, parties=parties)

    assert fitted.classes_.dtype == expected.dtype
    assert fitted.classes_.tolist() == sorted(set(expected.tolist()))
    owners = [parties] if isinstance(model, KNNPerClassifier) else []
    predicted = fitted.predict(frame, *owners)
    assert predicted.dtype == expected.dtype
    np.testing.assert_array_equal(predicted, plain.predict(frame.astype(float), *owners))


@pytest.mark.parametrize("model", CLASSIFIERS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("dtype", ["Int64", "boolean", "string", "category", "object", "float64"])
def test_a_missing_label_is_refused_with_row_and_party(model, dtype):
    frame, labels, parties = make_nullable()
    values = {"boolean": labels == 4, "string": labels.astype(str)}.get(dtype, labels)
    y = pd.Series(values).astype(dtype)
    y[2] = np.nan if dtype == "float64" else pd.NA

    with pytest.raises(ValueError, match="1 rows without one, first at position 2 of party south"):
        clone(model).fit(frame, y, parties=parties)


@pytest.mark.parametrize(
    "model",
    [FederatedBoostingRegressor(), FederatedNeighborsRegressor(), KNNPerRegressor()],
    ids=lambda model: type(model).__name__,
)
def test_a_missing_number_to_predict_is_refused_with_its_row(model):
    frame, labels, parties = make_nullable()
    y = pd.Series(labels, dtype="Int64")
    y[3] = pd.NA

    with pytest.raises(ValueError, match="first at position 3 of party south"):
        model.fit(frame, y, parties=parties)


@pytest.mark.parametrize("make", [FedPNNClassifier, FederatedBoostingClassifier])
def test_gaps_of_nullable_columns_are_missing_cells(make):
    frame, labels, parties = make_nullable()
    frame.iloc[3, 0] = frame.iloc[5, 1] = pd.NA
    numbers = frame.astype("Float64").to_numpy(float, na_value=np.nan)

    fitted = make().fit(frame, labels, parties=parties)
    plain = make().fit(numbers, labels, parties=parties)

    np.testing.assert_array_equal(fitted.predict_proba(frame), plain.predict_proba(numbers))


@pytest.mark.parametrize(
    "make",
    [
        FlyNNClassifier,
        FedPNNClassifier,
        KNNPerClassifier,
        KNNPerRegressor,
        FederatedNeighborsClassifier,
        FederatedBoostingClassifier,
        FederatedDiscriminantClassifier,
        FederatedNaiveBayes,
    ],
)
def test_columns_without_numbers_are_named(make):
    dates, texts = pd.date_range("2020-01-01", periods=8), pd.Series(["1", "2"] * 4)
    frame = pd.DataFrame({"city": ["a", "b"] * 4, "n": range(8), "texts": texts, "day": dates})

    with pytest.raises(ValueError, match="cells other than numbers: 'city', 'day'; drop"):
        make().fit(frame, [0, 1] * 4, parties=["p"] * 4 + ["q"] * 4)


def test_a_table_for_each_party_is_refused_without_its_cells():
    with pytest.raises(TypeError, match="expected the rows of all parties in one table, got a map"):
        FlyNNClassifier().fit({"north": pd.DataFrame({"age": [41, 67]})}, [0, 1])


def test_missing_cells_bring_a_note_on_methods_that_accept_them():
    with pytest.raises(ValueError, match="contains NaN") as caught:
        FlyNNClassifier().fit([[1.0], [np.nan]], [0, 1])
    assert caught.value.__notes__ == [
        "FedPNNClassifier and federated boosting accept missing cells."
    ]


def test_a_search_and_a_comparison_name_columns_without_numbers():
    frame = pd.DataFrame({"city": ["a", "b"] * 4, "n": range(8)})

    with pytest.raises(ValueError, match=r"numbers: 'city'; .*; metric='tabular' compares rows"):
        FederatedNeighbors().fit(frame)
    with pytest.raises(ValueError, match="cells other than numbers: 'city'; drop them"):
        compare(frame, [0, 1] * 4, parties=["p"] * 4 + ["q"] * 4)


@pytest.mark.parametrize("make", [FlyNNClassifier, FedPNNClassifier, KNNPerClassifier])
def test_a_number_in_place_of_a_privacy_budget_is_refused(make):
    x, y = np.arange(8.0).reshape(4, 2), [0, 1, 0, 1]

    with pytest.raises(TypeError, match=r"expected privacy=fedneighbors.Privacy\(.*, got 1.0"):
        make(privacy=1.0).fit(x, y, parties=["a", "a", "b", "b"])


def test_a_mapping_or_text_in_place_of_a_column_is_refused():
    x = np.arange(8.0).reshape(4, 2)

    with pytest.raises(TypeError, match="got a mapping"):
        FedPNNClassifier().fit(x, [0, 1, 0, 1], parties=dict.fromkeys(range(4), "north"))
    with pytest.raises(ValueError, match="expected numbers to predict, got values of type <U1"):
        FederatedNeighborsRegressor(1).fit(x, np.array(["a", "b", "a", "b"]))
