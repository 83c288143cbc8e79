"""A threshold that leaves one center or all rows says so, and which would not."""

import re
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_wine

from fedneighbors import FedPNNClassifier
from fedneighbors.methods.fedpnn._thresholds import advice_on, chosen_threshold
from fedneighbors.methods.fedpnn.algorithm import evolve_rows

X, Y = load_wine(return_X_y=True)
OWNER = np.arange(len(Y)) % 2


def n_centers(rows, threshold):
    labels = np.zeros(len(rows), np.int64)
    return len(evolve_rows(rows, labels, 1, threshold=threshold, factor=2.0).centers)


@pytest.mark.parametrize("n", [3, 10, 60, 300])
@pytest.mark.parametrize("extreme", ["one", "all"])
def test_thresholds_between_those_named_leave_other_numbers_of_centers(n, extreme):
    rows = np.random.default_rng(n).normal(size=(n, 3))
    given, left = (1e9, 1) if extreme == "one" else (1e-9, n)

    advice = advice_on([(rows, left)], threshold=given, factor=2.0)

    low, high = map(float, re.findall(r"(?:about|and) ([\d.e-]+) \(", advice))
    assert advice.startswith(f"={given:g} leaves ")
    assert 1 < n_centers(rows, low * 1.01) < n
    assert 1 < n_centers(rows, (low + high) / 2) < n


def test_two_rows_have_one_threshold_between_one_center_and_two():
    rows = np.array([[0.0], [1.0]])

    advice = advice_on([(rows, 2)], threshold=1e-3, factor=2.0)

    edge = float(re.search(r"from about ([\d.e-]+) on", advice)[1])
    assert n_centers(rows, edge * 1.01) == 1
    assert n_centers(rows, edge * 0.99) == 2


@pytest.mark.parametrize("groups", [[], [(np.ones((9, 2)), 1)], [(np.ones((9, 2)), 1)] * 2])
def test_rows_that_are_all_the_same_are_no_matter_of_a_threshold(groups):
    assert advice_on(groups, threshold=0.1, factor=2.0) == ""


def test_numbers_of_centers_between_one_and_all_are_left_alone():
    rows = np.arange(30.0)[:, None]

    assert advice_on([(rows, 2)], threshold=0.1, factor=2.0) == ""
    assert advice_on([(rows, 29)], threshold=0.1, factor=2.0) == ""
    assert advice_on([(rows, 1), (rows, 3)], threshold=0.1, factor=2.0) == ""


def test_repeated_rows_count_once():
    rows = np.repeat(np.arange(20.0), [2] * 5 + [1] * 15)[:, None]

    assert "every distinct row" in advice_on([(rows, 20)], threshold=1e-3, factor=2.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"client_threshold": 50.0}, "'0': client_threshold=50 leaves a single center of each"),
        ({"client_threshold": 1e-9}, "'1': client_threshold=1e-09 leaves every distinct row as"),
        ({"client_threshold": 50.0, "classwise": False}, "leaves a single center; between about"),
        ({"server_threshold": 1e3}, "server_threshold=1000 leaves a single center of each"),
        ({"server_threshold": 1e-9}, "server_threshold=1e-09 leaves every distinct row"),
        ({"client_threshold": 1e-320}, "client_threshold=.* leaves every distinct row"),
        ({"client_threshold": 1e300}, "leaves a single center"),
    ],
)
def test_extreme_thresholds_warn_and_still_make_a_model(settings, words):
    with pytest.warns(UserWarning, match=words):
        found = FedPNNClassifier(**settings).fit(X, Y, parties=OWNER)

    assert np.isfinite(found.predict_proba(X)).all()


def test_usual_thresholds_and_those_left_open_say_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        FedPNNClassifier().fit(X, Y, parties=OWNER)
        FedPNNClassifier(0.6, 0.3).fit(X, Y, parties=OWNER)
        FedPNNClassifier.paper(0.2, 0.2).fit(X, Y)


@pytest.mark.parametrize("name", ["client_threshold", "server_threshold"])
@pytest.mark.parametrize("value", [1.7e308, np.inf, np.nan, 0.0, -1.0, "wide", True])
def test_thresholds_that_are_none_are_refused_at_fit(name, value):
    with pytest.raises(ValueError, match=name):
        FedPNNClassifier(**{name: value}).fit(X, Y)


def test_a_chosen_threshold_does_not_depend_on_threads():
    rows = np.random.default_rng(0).normal(size=(3000, 4))

    assert chosen_threshold(rows, factor=2.0, n_threads=3) == chosen_threshold(rows, factor=2.0)
