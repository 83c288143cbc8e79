"""Metrics of labels and probabilities."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, mean_squared_error

from fedneighbors.metrics import (
    accuracy,
    agreement,
    balanced_accuracy,
    brier_score,
    confusion,
    normalized_accuracy,
    reliability,
)

pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=50)


def test_accuracy_is_the_fraction_of_correct_rows():
    assert accuracy(["a", "b", "b"], ["a", "b", "a"]) == 2 / 3


@given(pairs)
def test_agreement_is_symmetric_and_equals_accuracy(rows):
    first, second = zip(*rows, strict=True)

    results = agreement(first, second), agreement(second, first)

    assert results == (accuracy(first, second), accuracy(first, second))


def test_balanced_accuracy_weights_true_classes_equally():
    # class 0: 3 of 4 right; class 1: 1 of 2; label 2 is predicted once but never true
    assert balanced_accuracy([0, 0, 0, 0, 1, 1], [0, 0, 0, 2, 1, 0]) == (3 / 4 + 1 / 2) / 2


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.filterwarnings("ignore:A single label was found")
@given(pairs)
@settings(deadline=None)
def test_balanced_accuracy_equals_scikit_learn(rows):
    true, predicted = zip(*rows, strict=True)

    score = balanced_accuracy(true, predicted)

    np.testing.assert_allclose(score, balanced_accuracy_score(true, predicted), rtol=1e-12)


def test_confusion_follows_the_given_class_order():
    counts = confusion(["a", "a", "b"], ["b", "a", "b"], classes=["b", "a", "c"])

    assert counts.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]


def test_confusion_refuses_an_unknown_label():
    with pytest.raises(ValueError, match="1 labels are not among the classes"):
        confusion([0, 1], [0, 2], classes=[0, 1])


def test_normalized_accuracy_sign():
    assert normalized_accuracy(0.8, 0.8) == 0
    assert normalized_accuracy(0.4, 0.8) == 0.5
    assert normalized_accuracy(1.0, 0.8) == -0.25


@pytest.mark.parametrize(
    ("a", "a_knn"), [(-0.1, 0.5), (1.1, 0.5), (0.5, 0.0), (0.5, 1.1), (float("nan"), 0.5)]
)
def test_normalized_accuracy_refuses_invalid_accuracies(a, a_knn):
    with pytest.raises(ValueError, match="must be an accuracy in"):
        normalized_accuracy(a, a_knn)


@pytest.mark.parametrize("metric", [accuracy, agreement, balanced_accuracy])
def test_incomparable_lists_are_refused(metric):
    with pytest.raises(ValueError, match="must be a non-empty list"):
        metric([], [])
    with pytest.raises(ValueError, match=r"has 2 labels and .* 1; they must belong to the same"):
        metric([0, 1], [0])
    with pytest.raises(ValueError, match="both must be text or both numbers"):
        metric([0, 1], ["0", "1"])
    with pytest.raises(ValueError, match=r"got shape \(1, 2\)"):
        metric([[0, 1]], [[0, 1]])


def test_text_in_object_arrays_compares_with_text():
    assert accuracy(np.array(["a", "b"], dtype=object), np.array(["a", "a"])) == 0.5


def test_brier_score_sums_the_squares_of_all_classes():
    # like (0.2**2 + 0.5**2 + 0.3**2 + 2 * 1**2) / 2, but with exact binary fractions
    score = brier_score([[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]], ["b", "c"], ["a", "b", "c"])

    assert score == (0.0625 + 0.25 + 0.0625 + 2.0) / 2


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
@settings(deadline=None)
def test_brier_score_of_two_classes_is_twice_single_column(rows):
    positive, y = zip(*rows, strict=True)
    proba = np.column_stack([1 - np.array(positive), positive])

    score = brier_score(proba, np.array(y, dtype=int), [0, 1])

    one_column = mean_squared_error(np.array(y, dtype=int), positive)
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
def test_every_row_is_in_one_bin_and_the_error_is_bounded(confidence, n_bins):
    proba = np.column_stack([confidence, 1 - np.array(confidence)])

    curve = reliability(proba, np.zeros(len(confidence), dtype=int), [0, 1], n_bins=n_bins)

    assert curve.counts.sum() == len(confidence)
    assert 0 <= curve.expected_calibration_error <= 1


def test_perfect_forecast_scores_zero():
    proba = np.eye(3)

    assert brier_score(proba, [0, 1, 2], [0, 1, 2]) == 0
    assert reliability(proba, [0, 1, 2], [0, 1, 2]).expected_calibration_error == 0


@pytest.mark.parametrize("metric", [brier_score, reliability])
@pytest.mark.parametrize(
    ("proba", "y", "classes", "message"),
    [
        ([[1.0, 0.0]], [0, 1], [0, 1], "one row for each of the 2 labels"),
        ([[1.0, 0.0]], [0], [0, 1, 2], "one column for each of the 3 classes"),
        (np.empty((0, 2)), [], [0, 1], "one row for each of the 0 labels"),
        ([[0.5, 0.4]], [0], [0, 1], "sum to 1"),
        ([[1.5, -0.5]], [0], [0, 1], "non-negative numbers"),
        ([[float("nan"), 1.0]], [0], [0, 1], "non-negative numbers"),
        ([[0.5, 0.5]], [0], [0, 0], "classes must be distinct"),
        ([[0.5, 0.5]], [2], [0, 1], "1 labels of y are not among the classes"),
    ],
)
def test_mismatched_forecasts_are_refused(metric, proba, y, classes, message):
    with pytest.raises(ValueError, match=message):
        metric(proba, y, classes)


def test_zero_bins_are_refused():
    with pytest.raises(ValueError, match="n_bins must be at least 1, got 0"):
        reliability([[1.0, 0.0]], [0], [0, 1], n_bins=0)
