"""KNNPerRegressor in scikit-learn's manner, and over the life of its clients."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedneighbors.methods.knnper import KNNPerRegressor

# Checks that cannot hold, each with its reason.
CANNOT_HOLD = {}


@parametrize_with_checks(
    [KNNPerRegressor(hidden=(32,), n_rounds=20, learning_rate=0.1)],
    expected_failed_checks=lambda _: CANNOT_HOLD,
)
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)
