"""Rows are grouped by party for every usual type of party column."""

import numpy as np
import pandas as pd
import pytest

from fedneighbors import (
    FederatedNeighborsClassifier,
    FederatedNeighborsRegressor,
    FedPNNClassifier,
    FlyNNClassifier,
)
from fedneighbors.baselines import FederatedBoostingClassifier, FederatedNaiveBayes
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


def test_a_mapping_or_text_in_place_of_a_column_is_refused():
    x = np.arange(8.0).reshape(4, 2)

    with pytest.raises(TypeError, match="got a mapping"):
        FedPNNClassifier().fit(x, [0, 1, 0, 1], parties=dict.fromkeys(range(4), "north"))
    with pytest.raises(ValueError, match="expected numbers to predict, got values of type <U1"):
        FederatedNeighborsRegressor(1).fit(x, np.array(["a", "b", "a", "b"]))
