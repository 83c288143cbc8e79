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
N_FEW_DRAWS = 40


def draw_naively(repetitions, n_draws, seed=0):
    """Draw clients one by one, and return mean and interval of the accuracy."""
    rng, draws = np.random.default_rng(seed), [Fraction(0)] * n_draws
    for hits in repetitions:
        names = sorted(hits)
        picks = rng.integers(len(names), size=(n_draws, len(names))).tolist()
        for draw, positions in enumerate(picks):
            sample = [hits[names[place]] for place in positions]
            draws[draw] += Fraction(sum(n for n, _ in sample), sum(n for _, n in sample))
    means = sorted(float(draw / len(repetitions)) for draw in draws)
    accuracies = [
        sum(n for n, _ in hits.values()) / sum(n for _, n in hits.values()) for hits in repetitions
    ]
    return sum(accuracies) / len(repetitions), *np.quantile(means, [0.025, 0.975])


@given(st.lists(CLIENTS, min_size=1, max_size=3))
@settings(max_examples=25)
def test_accuracy_equals_a_bootstrap_drawn_one_by_one(repetitions):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "N_DRAWS", N_FEW_DRAWS)
        interval = accuracy_interval(repetitions)

    assert interval == pytest.approx(draw_naively(repetitions, N_FEW_DRAWS), abs=1e-12)


@given(st.lists(CLIENTS, min_size=1, max_size=3))
def test_accuracy_equals_the_gain_over_an_always_wrong_method(repetitions):
    misses = [{name: (0, n) for name, (_, n) in hits.items()} for hits in repetitions]

    interval = paired_difference(list(zip(repetitions, misses, strict=True)))

    assert interval == accuracy_interval(repetitions)


@given(COUNTS)
def test_a_single_client_has_one_bootstrap_sample(count):
    hits, rows = count

    assert accuracy_interval([{"a": count}]) == (hits / rows,) * 3


@pytest.mark.parametrize("hits", [{}, {"a": (0, 0)}])
def test_without_a_row_there_is_no_accuracy(hits):
    assert all(math.isnan(value) for value in accuracy_interval([hits]))
    assert all(math.isnan(value) for value in paired_difference([(hits, hits)]))


def test_a_client_without_rows_changes_nothing():
    hits = {"a": (3, 5), "b": (1, 4)}

    assert accuracy_interval([hits | {"c": (0, 0)}]) == accuracy_interval([hits])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"a": (5, 100)}, "same number of rows of each client"),
        ({"b": (5, 10)}, r"same clients, got \['a'"),
    ],
)
def test_methods_with_different_rows_are_not_compared(other, words):
    with pytest.raises(ValueError, match=words):
        paired_difference([({"a": (5, 10)}, other)])


def test_small_sample_intervals_cover_as_often_as_stated():
    """The probability that fewer than 365 of 400 intervals cover the mean is 0.001."""
    values = np.random.default_rng(3).normal(size=(400, 8))

    n_covered = sum(low <= 0 <= high for _, low, high in map(mean_interval, values.tolist()))

    assert 365 <= n_covered <= 396
    assert mean_interval([0.5]) == (0.5, 0.5, 0.5)


def test_values_of_a_client_are_drawn_together():
    mean, low, high = clustered_interval({"a": [0.0] * 50, "b": [1.0] * 50})

    assert (mean, low, high) == (0.5, 0.0, 1.0)


def test_equal_methods_have_difference_zero():
    hits = {"a": (3, 5), "b": (1, 4)}

    assert paired_difference([(hits, hits)]) == (0.0, 0.0, 0.0)


def test_a_difference_weighs_clients_by_their_rows():
    better, worse = {"a": (9, 10), "b": (1, 2)}, {"a": (4, 10), "b": (1, 2)}

    mean, low, high = paired_difference([(better, worse)])

    assert mean == 5 / 12
    assert low == 0  # a sample may contain the second client only
    assert high == 0.5  # or the first only


def test_intervals_cover_a_difference_with_their_confidence():
    """The probability that fewer than 180 of 200 intervals cover the difference is 0.001."""
    rng, truth = np.random.default_rng(7), 0.1
    n_covered = 0
    for _ in range(200):
        names = [f"client {n}" for n in range(60)]
        worse = rng.binomial(20, 0.6, size=60)
        better = rng.binomial(20, 0.7, size=60)
        pair = tuple(
            {name: (int(n), 20) for name, n in zip(names, hits, strict=True)}
            for hits in (better, worse)
        )
        _, low, high = paired_difference([pair])
        n_covered += low <= truth <= high

    assert n_covered >= 180
