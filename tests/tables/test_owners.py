"""Rows go to the parties that own them, in whatever form the column of parties comes."""

import numpy as np
import pandas as pd
import pytest

from fedneighbors.tables.owners import rows_by_party


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
def test_a_party_column_may_come_in_any_usual_form(parties):
    owned = rows_by_party(parties, 30)

    assert {name: rows.tolist() for name, rows in owned.items()} == {
        "a": list(range(0, 30, 2)),
        "b": list(range(1, 30, 2)),
    }


def test_no_party_column_is_one_party():
    assert rows_by_party(None, 30) == {"all": slice(None)}
    assert list(rows_by_party([1, 10, 2], 3)) == ["1", "10", "2"]
