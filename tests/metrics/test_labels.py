"""Measures of labels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from fedneighbors.metrics import (
    accuracy,
    agreement,
    balanced_accuracy,
    confusion,
    normalized_accuracy,
)

pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=50)


def test_accuracy_is_the_share_of_right_rows():
    assert accuracy(["a", "b", "b"], ["a", "b", "a"]) == 2 / 3


@given(pairs)
def test_agreement_is_the_same_both_ways_and_equals_accuracy(rows):
    first, second = zip(*rows, strict=True)

    both_ways = agreement(first, second), agreement(second, first)

    assert both_ways == (accuracy(first, second), accuracy(first, second))


def test_balanced_accuracy_weighs_each_true_class_alike():
    # class 0: 3 of 4 right; class 1: 1 of 2; label 2 is predicted once but never true
    assert balanced_accuracy([0, 0, 0, 0, 1, 1], [0, 0, 0, 2, 1, 0]) == (3 / 4 + 1 / 2) / 2


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.filterwarnings("ignore:A single label was found")
@given(pairs)
@settings(deadline=None)
def test_balanced_accuracy_is_that_of_scikit_learn(rows):
    true, predicted = zip(*rows, strict=True)

    ours = balanced_accuracy(true, predicted)

    np.testing.assert_allclose(ours, balanced_accuracy_score(true, predicted), rtol=1e-12)


def test_confusion_counts_true_rows_by_predicted_columns_in_the_given_order():
    counts = confusion(["a", "a", "b"], ["b", "a", "b"], classes=["b", "a", "c"])

    assert counts.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]


def test_confusion_refuses_a_label_that_is_no_class():
    with pytest.raises(ValueError, match="1 labels are not among the classes"):
        confusion([0, 1], [0, 2], classes=[0, 1])


def test_normalized_accuracy_is_zero_for_equal_and_negative_for_better():
    assert normalized_accuracy(0.8, 0.8) == 0
    assert normalized_accuracy(0.4, 0.8) == 0.5
    assert normalized_accuracy(1.0, 0.8) == -0.25


@pytest.mark.parametrize(
    ("a", "a_knn"), [(-0.1, 0.5), (1.1, 0.5), (0.5, 0.0), (0.5, 1.1), (float("nan"), 0.5)]
)
def test_normalized_accuracy_refuses_what_is_no_accuracy(a, a_knn):
    with pytest.raises(ValueError, match="must be an accuracy in"):
        normalized_accuracy(a, a_knn)


@pytest.mark.parametrize("measure", [accuracy, agreement, balanced_accuracy])
def test_lists_that_cannot_be_compared_are_refused(measure):
    with pytest.raises(ValueError, match="must hold at least one label"):
        measure([], [])
    with pytest.raises(ValueError, match=r"has 2 labels and .* 1; they must belong to the same"):
        measure([0, 1], [0])
    with pytest.raises(ValueError, match="both must be text or both numbers"):
        measure([0, 1], ["0", "1"])
    with pytest.raises(ValueError, match=r"got shape \(1, 2\)"):
        measure([[0, 1]], [[0, 1]])


def test_text_in_object_arrays_compares_with_text():
    assert accuracy(np.array(["a", "b"], dtype=object), np.array(["a", "a"])) == 0.5
