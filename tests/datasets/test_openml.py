"""The door to OpenML, with scikit-learn's function of that name replaced at the boundary."""

import sys
from types import SimpleNamespace
from urllib.error import HTTPError, URLError

import pandas as pd
import pytest

from fedneighbors.datasets import fetch_openml
from fedneighbors.errors import DataError, MissingDataError, MissingExtraError


@pytest.fixture
def openml(monkeypatch):
    """Replaces the download; `calls` records what was asked, `answer` is what comes back."""
    door = SimpleNamespace(calls=[], answer=None)

    def download(**asked):
        door.calls.append(asked)
        if isinstance(door.answer, Exception):
            raise door.answer
        return door.answer

    monkeypatch.setattr("sklearn.datasets.fetch_openml", download)
    return door


def content(target):
    frame = pd.DataFrame(
        {
            "age": [1.0, None, 5.0],
            "count": pd.array([1, 2, None], dtype="Int64"),
            "site": pd.Categorical(["b", None, "a"]),
        }
    )
    return SimpleNamespace(data=frame, target=target, details={"id": "31", "name": "credit-g"})


@pytest.mark.parametrize(
    "target",
    [pd.Series(pd.Categorical(["1", "2", "1"])), pd.Series([1, 2, 1]), pd.Series(["1", "2", "1"])],
)
def test_a_set_becomes_numbers_and_labels(openml, target):
    openml.answer = content(target)

    data = fetch_openml("credit-g")

    assert data.name == "credit-g"
    assert data.feature_names == ("age", "count", "site=a", "site=b", "site=missing")
    assert data.x.tolist() == [[1, 1, 0, 1, 0], [3, 2, 0, 0, 1], [5, 1.5, 1, 0, 0]]
    assert data.y.tolist() == [1, 2, 1]
    assert "31" in data.source


def test_text_asks_by_name_and_a_number_by_id(openml):
    openml.answer = content(pd.Series(["x", "y", "x"]))

    fetch_openml("credit-g")
    fetch_openml(31)

    assert openml.calls == [
        {"name": "credit-g", "as_frame": True, "parser": "auto"},
        {"data_id": 31, "as_frame": True, "parser": "auto"},
    ]


@pytest.mark.parametrize(
    "failure",
    [
        URLError("no route to host"),
        HTTPError("https://example.invalid", 412, "Precondition Failed", None, None),
        TimeoutError("timed out"),
        ValueError("No active dataset nothing found."),
    ],
)
def test_a_set_that_cannot_be_reached_says_what_to_do(openml, failure):
    openml.answer = failure

    with pytest.raises(MissingDataError, match="check the name and the network, or download"):
        fetch_openml("nothing")


@pytest.mark.parametrize("target", [None, pd.DataFrame({"a": [1, 2, 3], "b": [1, 2, 3]})])
def test_a_set_without_one_target_is_refused(openml, target):
    openml.answer = content(target)

    with pytest.raises(DataError, match="no single default target"):
        fetch_openml(31)


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'fedneighbors\[data\]'"):
        fetch_openml(31)
