"""Measures of probabilities."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss

from fedneighbors.metrics import brier_score, reliability


def test_brier_score_sums_the_squares_of_all_classes():
    # (0.2**2 + 0.5**2 + 0.3**2 + 2 * 1**2) / 2 with exact binary fractions in their place
    score = brier_score([[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]], ["b", "c"], ["a", "b", "c"])

    assert score == (0.0625 + 0.25 + 0.0625 + 2.0) / 2


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
@settings(deadline=None)
def test_brier_score_of_two_classes_is_twice_the_one_column_score(rows):
    share, y = zip(*rows, strict=True)
    proba = np.column_stack([1 - np.array(share), share])

    score = brier_score(proba, np.array(y, dtype=int), [0, 1])

    one_column = brier_score_loss(np.array(y, dtype=int), share, pos_label=1, labels=[0, 1])
    np.testing.assert_allclose(score, 2 * one_column, rtol=1e-12, atol=1e-15)


def test_reliability_counts_confidence_and_accuracy_of_each_bin():
    proba = [[0.5, 0.5], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]

    curve = reliability(proba, [0, 0, 0, 1], [0, 1], n_bins=4)

    assert curve.edges.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert curve.counts.tolist() == [0, 1, 2, 1]  # an edge belongs to the bin below it
    assert curve.confidence[1:].tolist() == [0.5, 0.75, 1.0]
    assert curve.accuracy[1:].tolist() == [1.0, 0.5, 1.0]
    assert np.isnan(curve.confidence[0])
    assert np.isnan(curve.accuracy[0])
    assert curve.expected_calibration_error == (0.5 + 2 * 0.25 + 0.0) / 4


@given(st.lists(st.sampled_from([0.5, 0.6, 0.8, 1.0]), min_size=1, max_size=40), st.integers(1, 12))
@settings(deadline=None)
def test_every_row_is_in_one_bin_and_the_error_is_a_share(confidence, n_bins):
    proba = np.column_stack([confidence, 1 - np.array(confidence)])

    curve = reliability(proba, np.zeros(len(confidence), dtype=int), [0, 1], n_bins=n_bins)

    assert curve.counts.sum() == len(confidence)
    assert 0 <= curve.expected_calibration_error <= 1


def test_a_perfect_forecast_scores_nought():
    proba = np.eye(3)

    assert brier_score(proba, [0, 1, 2], [0, 1, 2]) == 0
    assert reliability(proba, [0, 1, 2], [0, 1, 2]).expected_calibration_error == 0


@pytest.mark.parametrize("measure", [brier_score, reliability])
@pytest.mark.parametrize(
    ("proba", "y", "classes", "message"),
    [
        ([[1.0, 0.0]], [0, 1], [0, 1], "one row for each of the 2 labels"),
        ([[1.0, 0.0]], [0], [0, 1, 2], "one column for each of the 3 classes"),
        (np.empty((0, 2)), [], [0, 1], "one row for each of the 0 labels"),
        ([[0.5, 0.4]], [0], [0, 1], "sum to 1"),
        ([[1.5, -0.5]], [0], [0, 1], "at least 0"),
        ([[float("nan"), 1.0]], [0], [0, 1], "at least 0"),
        ([[0.5, 0.5]], [0], [0, 0], "name each class once"),
        ([[0.5, 0.5]], [2], [0, 1], "1 labels of y are not among the classes"),
    ],
)
def test_forecasts_that_do_not_fit_are_refused(measure, proba, y, classes, message):
    with pytest.raises(ValueError, match=message):
        measure(proba, y, classes)


def test_no_bins_are_refused():
    with pytest.raises(ValueError, match="n_bins must be at least 1, got 0"):
        reliability([[1.0, 0.0]], [0], [0, 1], n_bins=0)
