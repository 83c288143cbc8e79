"""Whole-number weights of discriminants and boosting equal repeated rows, bit for bit."""

import numpy as np
import pytest
from sklearn.base import is_classifier
from sklearn.datasets import load_diabetes, load_wine

from fedneighbors.baselines import (
    FederatedBoostingClassifier,
    FederatedBoostingRegressor,
    FederatedDiscriminantClassifier,
)

ESTIMATORS = [
    FederatedDiscriminantClassifier(),
    FederatedDiscriminantClassifier(quadratic=True, shrinkage=0.3),
    FederatedBoostingClassifier(max_iter=3, class_weight="balanced"),
    FederatedBoostingRegressor(max_iter=3, early_stopping=True),
]


def make_table(model):
    """Return rows, targets, owners and weights; one party has weights of 0 alone."""
    x, y = (load_wine if is_classifier(model) else load_diabetes)(return_X_y=True)
    owners, weights = np.arange(len(y)) % 4, np.arange(len(y)) // 4 % 4
    return x, y, owners, np.where(owners == 3, 0, weights)


@pytest.mark.parametrize("model", ESTIMATORS, ids=repr)
def test_whole_weights_equal_repeated_rows_bit_for_bit(model):
    x, y, owners, weights = make_table(model)
    rows = np.repeat(np.arange(len(y)), weights)

    weighted = model.fit(x, y, parties=owners, sample_weight=weights).model_.to_bytes()
    repeated = model.fit(x[rows], y[rows], parties=owners[rows]).model_.to_bytes()
    plain = model.fit(x, y, parties=owners).model_.to_bytes()

    assert weighted == repeated != plain


def test_a_class_of_weight_0_is_left_out():
    x, y = load_wine(return_X_y=True)

    model = FederatedDiscriminantClassifier().fit(x, y, sample_weight=y != 2)

    assert model.classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (lambda n: np.full(n, 0.5), "sample_weight of whole numbers, got 0.5"),
        (lambda n: np.full(n, -1), "whole numbers, got -1"),
        (lambda n: np.ones(n - 1), "sample_weight.shape"),
        (lambda n: np.full(n, 2.0**40), "the limit is"),
    ],
)
@pytest.mark.parametrize("model", ESTIMATORS[1:3], ids=repr)
def test_other_weights_are_refused(model, weights, words):
    x, y, _, _ = make_table(model)

    with pytest.raises(ValueError, match=words):
        model.fit(x, y, sample_weight=weights(len(y)))
