"""Membership scores: exact on hand-made outputs, correct for known distributions."""

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

SHARES = np.array([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])


def test_loss_and_odds_are_those_of_the_rows_own_label():
    labels = np.array([1, 1, 0])

    assert np.exp(loss_scores(SHARES, labels)).tolist() == pytest.approx([0.2, 1.0, 1e-12])
    assert log_odds(SHARES, labels)[0] == pytest.approx(np.log(0.2 / 0.8))
    assert np.isfinite(log_odds(SHARES, labels)).all()
    assert log_odds(SHARES, labels)[1] == pytest.approx(-log_odds(SHARES, labels)[2], rel=1e-4)


def naive_hit_rate(members, outsiders, false_alarms):
    best = 0.0
    for threshold in [-np.inf, *outsiders, *members]:
        if np.mean([o > threshold for o in outsiders]) <= false_alarms:
            best = max(best, float(np.mean([m > threshold for m in members])))
    return best


@pytest.mark.parametrize("false_alarms", [0.0, 0.01, 0.2, 0.5, 1.0])
def test_the_hit_rate_is_that_of_the_best_threshold_of_all(false_alarms):
    rng = np.random.default_rng(0)
    for _ in range(60):
        members = rng.integers(0, 7, rng.integers(1, 12)).astype(float)
        outsiders = rng.integers(-2, 5, rng.integers(1, 12)).astype(float)

        found = true_positive_rate(members, outsiders, false_alarms)

        if false_alarms < 1:
            assert found == naive_hit_rate(members, outsiders, false_alarms)
        else:
            assert found == 1.0


@pytest.mark.parametrize("members", [[], [np.nan]])
def test_invalid_scores_are_refused(members):
    with pytest.raises(ValueError, match="at least one member and one outsider, and no NaN"):
        true_positive_rate(np.array(members, np.float64), np.array([1.0]))


def test_models_without_a_row_show_its_outsider_scores():
    odds = np.array([3.0, 3.0, 3.0])
    others = np.array([[1.0, 9.0, 7.0], [3.0, 1.0, 7.0], [9.0, 3.0, 7.0]])
    absent = np.array([[True, False, False], [True, True, False], [False, True, False]])

    found = likelihood_scores(odds, others, absent)

    deviation = np.sqrt(((1 - 2) ** 2 + (3 - 2) ** 2 + (1 - 2) ** 2 + (3 - 2) ** 2) / 2)
    np.testing.assert_allclose(found, [1 / deviation, 1 / deviation, 0.0])


def test_equal_models_do_not_change_the_gap():
    found = likelihood_scores(np.array([2.5]), np.ones((2, 1)), np.ones((2, 1), bool))

    assert found.tolist() == [1.5]


def test_rows_of_unequal_hardness_need_other_models_scores():
    """Members stand two deviations above their own level; levels differ by twenty.

    Of 2,000 rows each, the AUCs of normal distributions are within .05 except with a chance below
    1e-6.
    """
    rng = np.random.default_rng(1)
    level = rng.normal(0, 20, 4000)
    member = np.arange(4000) < 2000
    odds = level + rng.normal(size=4000) + 2 * member
    others = level + rng.normal(size=(32, 4000))

    plain = auc(odds[member], odds[~member])
    beside = likelihood_scores(odds, others, np.ones((32, 4000), bool))

    assert plain == pytest.approx(0.5 + 2 / (20 * 2**0.5) / (2 * np.pi) ** 0.5 / 2**0.5, abs=0.05)
    assert auc(beside[member], beside[~member]) == pytest.approx(
        norm.cdf(2 / (2 * (1 + 1 / 32)) ** 0.5), abs=0.05
    )
