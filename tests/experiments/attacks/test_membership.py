"""Membership scores: exact on small examples, correct for known distributions."""

import numpy as np
import pytest
from scipy.stats import norm

from experiments.attacks.membership import (
    likelihood_scores,
    log_odds,
    loss_scores,
    true_positive_rate,
)
from experiments.attacks.scores import auc

PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])


def test_loss_and_odds_use_the_label_of_the_row():
    labels = np.array([1, 1, 0])

    assert np.exp(loss_scores(PROBABILITIES, labels)).tolist() == pytest.approx([0.2, 1.0, 1e-12])
    assert log_odds(PROBABILITIES, labels)[0] == pytest.approx(np.log(0.2 / 0.8))
    assert np.isfinite(log_odds(PROBABILITIES, labels)).all()
    assert log_odds(PROBABILITIES, labels)[1] == pytest.approx(
        -log_odds(PROBABILITIES, labels)[2], rel=1e-4
    )


def naive_true_positive_rate(members, outsiders, false_positive_rate):
    best = 0.0
    for threshold in [-np.inf, *outsiders, *members]:
        if np.mean([o > threshold for o in outsiders]) <= false_positive_rate:
            best = max(best, float(np.mean([m > threshold for m in members])))
    return best


@pytest.mark.parametrize("false_positive_rate", [0.0, 0.01, 0.2, 0.5, 1.0])
def test_the_true_positive_rate_is_that_of_the_best_threshold(false_positive_rate):
    rng = np.random.default_rng(0)
    for _ in range(60):
        members = rng.integers(0, 7, rng.integers(1, 12)).astype(float)
        outsiders = rng.integers(-2, 5, rng.integers(1, 12)).astype(float)

        result = true_positive_rate(members, outsiders, false_positive_rate)

        if false_positive_rate < 1:
            assert result == naive_true_positive_rate(members, outsiders, false_positive_rate)
        else:
            assert result == 1.0


@pytest.mark.parametrize("members", [[], [np.nan]])
def test_invalid_scores_are_refused(members):
    with pytest.raises(ValueError, match="at least one member and one outsider, and no NaN"):
        true_positive_rate(np.array(members, np.float64), np.array([1.0]))


def test_models_without_a_row_give_its_outsider_scores():
    odds = np.array([3.0, 3.0, 3.0])
    others = np.array([[1.0, 9.0, 7.0], [3.0, 1.0, 7.0], [9.0, 3.0, 7.0]])
    absent = np.array([[True, False, False], [True, True, False], [False, True, False]])

    result = likelihood_scores(odds, others, absent)

    deviation = np.sqrt(((1 - 2) ** 2 + (3 - 2) ** 2 + (1 - 2) ** 2 + (3 - 2) ** 2) / 2)
    np.testing.assert_allclose(result, [1 / deviation, 1 / deviation, 0.0])


def test_equal_models_leave_the_difference_unscaled():
    result = likelihood_scores(np.array([2.5]), np.ones((2, 1)), np.ones((2, 1), bool))

    assert result.tolist() == [1.5]


def test_reference_models_correct_for_the_level_of_a_row():
    """Members are two standard deviations above the level of their row; levels vary by twenty.

    With 2,000 rows of each kind, an AUC of normal distributions errs by more than .05 with a
    probability below 1e-6.
    """
    rng = np.random.default_rng(1)
    levels = rng.normal(0, 20, 4000)
    member = np.arange(4000) < 2000
    odds = levels + rng.normal(size=4000) + 2 * member
    others = levels + rng.normal(size=(32, 4000))

    absolute = auc(odds[member], odds[~member])
    relative = likelihood_scores(odds, others, np.ones((32, 4000), bool))

    assert absolute == pytest.approx(
        0.5 + 2 / (20 * 2**0.5) / (2 * np.pi) ** 0.5 / 2**0.5, abs=0.05
    )
    assert auc(relative[member], relative[~member]) == pytest.approx(
        norm.cdf(2 / (2 * (1 + 1 / 32)) ** 0.5), abs=0.05
    )
