"""Confidence intervals of accuracies and differences."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import bootstrap
from experiments.bootstrap import (
    accuracy_interval,
    clustered_interval,
    mean_interval,
    paired_difference,
)

COUNTS = st.integers(1, 50).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
CLIENTS = st.dictionaries(st.text(max_size=3), COUNTS, min_size=1, max_size=6)
FEW = 40


def naive(each, n_draws, seed=0):
    """Draw clients one by one, and return mean and interval of the accuracy."""
    rng, draws = np.random.default_rng(seed), [Fraction(0)] * n_draws
    for right in each:
        names = sorted(right)
        picks = rng.integers(len(names), size=(n_draws, len(names))).tolist()
        for draw, places in enumerate(picks):
            drawn = [right[names[place]] for place in places]
            draws[draw] += Fraction(sum(n for n, _ in drawn), sum(n for _, n in drawn))
    means = sorted(float(draw / len(each)) for draw in draws)
    whole = [
        sum(n for n, _ in right.values()) / sum(n for _, n in right.values()) for right in each
    ]
    return sum(whole) / len(each), *np.quantile(means, [0.025, 0.975])


@given(st.lists(CLIENTS, min_size=1, max_size=3))
@settings(max_examples=25)
def test_an_accuracy_is_that_of_clients_drawn_one_by_one(each):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "N_DRAWS", FEW)
        found = accuracy_interval(each)

    assert found == pytest.approx(naive(each, FEW), abs=1e-12)


@given(st.lists(CLIENTS, min_size=1, max_size=3))
def test_accuracy_equals_the_gain_over_an_always_wrong_method(each):
    nothing = [{name: (0, n) for name, (_, n) in right.items()} for right in each]

    found = paired_difference(list(zip(each, nothing, strict=True)))

    assert found == accuracy_interval(each)


@given(COUNTS)
def test_a_single_client_has_one_bootstrap_sample(count):
    right, rows = count

    assert accuracy_interval([{"a": count}]) == (right / rows,) * 3


@pytest.mark.parametrize("right", [{}, {"a": (0, 0)}])
def test_without_a_row_there_is_no_accuracy(right):
    assert all(math.isnan(value) for value in accuracy_interval([right]))
    assert all(math.isnan(value) for value in paired_difference([(right, right)]))


def test_a_client_without_rows_changes_nothing():
    some = {"a": (3, 5), "b": (1, 4)}

    assert accuracy_interval([some | {"c": (0, 0)}]) == accuracy_interval([some])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"a": (5, 100)}, "same number of rows of each client"),
        ({"b": (5, 10)}, r"same clients, got \['a'"),
    ],
)
def test_methods_that_were_scored_on_other_rows_are_not_compared(other, words):
    with pytest.raises(ValueError, match=words):
        paired_difference([({"a": (5, 10)}, other)])


def test_small_sample_intervals_cover_as_often_as_stated():
    """With 400 intervals of 95 % over 8 values, fewer than 365 hits have a chance of 1 in 1,000."""
    values = np.random.default_rng(3).normal(size=(400, 8))

    held = sum(low <= 0 <= high for _, low, high in map(mean_interval, values.tolist()))

    assert 365 <= held <= 396
    assert mean_interval([0.5]) == (0.5, 0.5, 0.5)


def test_values_of_one_client_come_and_go_together():
    mean, low, high = clustered_interval({"a": [0.0] * 50, "b": [1.0] * 50})

    assert (mean, low, high) == (0.5, 0.0, 1.0)


def test_methods_that_do_the_same_do_not_differ():
    one = {"a": (3, 5), "b": (1, 4)}

    assert paired_difference([(one, one)]) == (0.0, 0.0, 0.0)


def test_a_difference_weighs_clients_by_their_rows():
    better, worse = {"a": (9, 10), "b": (1, 2)}, {"a": (4, 10), "b": (1, 2)}

    mean, low, high = paired_difference([(better, worse)])

    assert mean == 5 / 12
    assert low == 0  # a draw may have the second client only
    assert high == 0.5  # or the first


def test_intervals_cover_a_difference_with_their_confidence():
    """With 200 intervals of 95 %, fewer than 180 hits have a chance of 1 in 1,000."""
    rng, truth = np.random.default_rng(7), 0.1
    held = 0
    for _ in range(200):
        names = [f"client {n}" for n in range(60)]
        worse = rng.binomial(20, 0.6, size=60)
        better = rng.binomial(20, 0.7, size=60)
        pair = tuple(
            {name: (int(n), 20) for name, n in zip(names, right, strict=True)}
            for right in (better, worse)
        )
        _, low, high = paired_difference([pair])
        held += low <= truth <= high

    assert held >= 180
