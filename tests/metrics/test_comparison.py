"""Comparison of methods and of clients."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedneighbors.metrics import average_accuracy, bottom_decile, compare_paired

METHOD = [0.875, 0.5, 0.75, 0.625, 0.5]
BASELINE = [0.75, 0.5, 0.25, 0.6875, 0.25]

scores = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=2, max_size=6).map(
    lambda rows: [[value / 8 for value in column] for column in zip(*rows, strict=True)]
)


def test_wins_ties_losses_and_median_are_counted():
    result = compare_paired(METHOD, BASELINE)

    assert (result.n_pairs, result.wins, result.ties, result.losses) == (5, 3, 1, 1)
    assert result.median_improvement == 0.125


def test_t_test_is_paired():
    result = compare_paired(METHOD, BASELINE)

    expected = stats.ttest_rel(METHOD, BASELINE).pvalue
    assert result.t_test_p == pytest.approx(expected, rel=1e-12)


def test_wilcoxon_of_five_wins_is_one_in_sixteen():
    # Exact: 2 of the 2**5 sign patterns are as extreme as five wins.
    result = compare_paired([1.0, 2.0, 3.0, 4.0, 5.0], [0.5, 1.0, 1.5, 2.0, 2.5])

    assert result.wilcoxon_p == 2 / 32


@given(scores)
@settings(deadline=None, max_examples=30)
def test_swapping_sides_turns_wins_into_losses(columns):
    method, baseline = columns

    result = compare_paired(method, baseline)

    swapped = compare_paired(baseline, method)
    lower_is_better = compare_paired(method, baseline, higher_is_better=False)
    assert swapped == lower_is_better
    assert (swapped.wins, swapped.ties, swapped.losses) == (
        result.losses,
        result.ties,
        result.wins,
    )
    assert swapped.median_improvement == -result.median_improvement


def test_constant_difference_has_t_test_p_value_zero():
    result = compare_paired([0.5, 0.75, 1.0], [0.25, 0.5, 0.75])

    assert result.t_test_p == 0.0
    assert result.wilcoxon_p == 2 / 2**3


def test_equal_scores_have_p_values_of_one():
    result = compare_paired([0.5, 0.75], [0.5, 0.75])

    assert (result.t_test_p, result.wilcoxon_p, result.ties) == (1.0, 1.0, 2)


@pytest.mark.parametrize(
    ("method", "baseline", "message"),
    [
        ([0.5, 0.5], [0.5], "one score of each per data set"),
        ([[0.5, 0.5]], [[0.5, 0.5]], "one score of each per data set"),
        ([0.5], [0.5], "at least two data sets, got 1"),
        ([], [], "at least two data sets, got 0"),
        ([0.5, float("nan")], [0.5, 0.5], "must be finite"),
    ],
)
def test_incomparable_scores_are_refused(method, baseline, message):
    with pytest.raises(ValueError, match=message):
        compare_paired(method, baseline)


def test_average_accuracy_weights_clients_by_rows():
    correct = {"a": (1, 1), "b": (0, 3)}

    assert average_accuracy(correct, ["a", "b"]) == 0.25


def test_bottom_decile_of_a_hundred_is_the_tenth_worst():
    correct = {str(number): (number, 100) for number in range(100)}

    assert bottom_decile(correct, list(correct)) == 0.09
    assert bottom_decile({"a": (1, 2), "b": (2, 2)}, ["a", "b"]) == 0.5


def test_clients_without_rows_have_no_score():
    assert math.isnan(average_accuracy({"a": (0, 0)}, ["a"]))
    assert math.isnan(bottom_decile({"a": (0, 0)}, ["a"]))
    assert bottom_decile({"a": (0, 0), "b": (1, 2)}, ["a", "b"]) == 0.5
