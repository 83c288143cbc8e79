"""The dense baseline: hash, counts, novelty, and scikit-learn's rules for estimators."""

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedneighbors import SimHashBloomClassifier
from fedneighbors.baselines._simhash import count_bits, derive_decay, hash_signs


@parametrize_with_checks([SimHashBloomClassifier()])
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


def make_rows_and_labels(n_classes=3):
    return make_classification(
        300, 12, n_informative=8, n_classes=n_classes, class_sep=2.0, random_state=5
    )


def test_about_half_of_the_bits_are_on_for_every_row():
    x, _ = make_rows_and_labels()

    fractions = hash_signs(x, 4000, seed=1).mean(axis=1)

    # 4000 independent fair bits: six standard deviations are 0.047; false alarm below 1e-6
    assert np.abs(fractions - 0.5).max() < 0.047


def test_the_first_bits_do_not_depend_on_their_number():
    x, _ = make_rows_and_labels()

    assert (hash_signs(x, 64, seed=3)[:, :16] == hash_signs(x, 16, seed=3)).all()


def test_scaling_a_row_changes_none_of_its_bits():
    x, _ = make_rows_and_labels()

    assert (hash_signs(x, 200, seed=0) == hash_signs(x * 8.0, 200, seed=0)).all()


def test_novelty_is_the_sum_over_bits_that_are_on():
    x, y = make_rows_and_labels()
    model = SimHashBloomClassifier(n_bits=20, decay=0.9, random_state=7).fit(x, y)
    bits = hash_signs(x, 20, seed=7)

    novelty = -model.decision_function(x[:5])

    for row in range(5):
        for label in range(3):
            counts = [sum(bits[y == label, unit]) for unit in range(20) if bits[row, unit]]
            expected = sum(0.9 ** int(count) for count in counts)
            assert novelty[row, label] == pytest.approx(expected, rel=1e-12)


def test_counts_of_two_halves_add_up_to_all_counts():
    x, y = make_rows_and_labels()
    bits = hash_signs(x, 50, seed=0)

    halves = count_bits(bits[:100], y[:100], 3) + count_bits(bits[100:], y[100:], 3)

    assert (halves == count_bits(bits, y, 3)).all()


def test_binary_scores_have_the_sign_of_the_prediction():
    x, y = make_rows_and_labels(n_classes=2)
    model = SimHashBloomClassifier(n_bits=100).fit(x, y)

    scores = model.decision_function(x)

    assert scores.shape == (300,)
    assert (model.predict(x) == (scores > 0)).all()


def test_decay_0_predicts_almost_only_the_first_class():
    x, y = make_rows_and_labels()

    saturated = SimHashBloomClassifier(n_bits=500, decay=0.0).fit(x, y)
    matched = SimHashBloomClassifier(n_bits=500).fit(x, y)

    assert (saturated.predict(x) == 0).mean() > 0.9
    assert matched.score(x, y) > 0.6


def test_matched_decay_weights_the_mean_count_by_one_over_e():
    assert derive_decay(600, 3) ** 100 == pytest.approx(np.exp(-1))


@pytest.mark.parametrize("parameters", [{"n_bits": 0}, {"decay": 1.5}, {"decay": -0.1}])
def test_parameters_out_of_range_are_refused(parameters):
    x, y = make_rows_and_labels()

    with pytest.raises(ValueError, match="expected"):
        SimHashBloomClassifier(**parameters).fit(x, y)
