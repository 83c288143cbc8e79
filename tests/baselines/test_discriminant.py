"""Discriminant analysis from sums: the pooled model, and that of scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.datasets import load_wine
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import StandardScaler

from fedneighbors.baselines import FederatedDiscriminantClassifier
from fedneighbors.errors import AggregationError, DataError

X, Y = load_wine(return_X_y=True)
NAMES = np.array(["north", "south", "west"])[Y]
OWNER = np.arange(len(Y)) % 4
SCIKIT = {
    False: lambda s: LinearDiscriminantAnalysis(solver="lsqr", shrinkage=s),
    True: lambda s: QuadraticDiscriminantAnalysis(solver="eigen", shrinkage=s),
}


@pytest.mark.parametrize("shrinkage", [0.0, 0.2])
@pytest.mark.parametrize("quadratic", [False, True], ids=["linear", "quadratic"])
def test_probabilities_equal_those_of_scikit_learn(quadratic, shrinkage):
    model = FederatedDiscriminantClassifier(quadratic=quadratic, shrinkage=shrinkage)

    model.fit(X, NAMES, parties=OWNER)

    scaled = StandardScaler().fit_transform(X)
    expected = SCIKIT[quadratic](shrinkage or None).fit(scaled, NAMES)
    # coordinates are rounded to 2**-16 in the sums
    np.testing.assert_allclose(model.predict_proba(X), expected.predict_proba(scaled), atol=1e-4)
    assert (model.predict(X) == expected.predict(scaled)).all()
    assert model.classes_.tolist() == ["north", "south", "west"]
    np.testing.assert_allclose(model.priors_, expected.priors_)


def test_classes_can_be_equally_frequent_and_columns_unscaled():
    rows = X[:, [0, 2, 7]] / 8  # within the limit of 8
    keep = np.r_[0:59, 71:90, 130:140]

    model = FederatedDiscriminantClassifier(shrinkage=0.1, standardize=False, priors="equal").fit(
        rows[keep], Y[keep], parties=OWNER[keep]
    )

    means = np.stack([rows[keep][Y[keep] == c].mean(axis=0) for c in range(3)])
    residuals = rows[keep] - means[Y[keep]]
    covariance = residuals.T @ residuals / len(keep)
    shrunk = 0.9 * covariance + 0.1 * np.trace(covariance) / 3 * np.eye(3)
    coefficients = np.linalg.solve(shrunk, means.T)
    scores = rows @ coefficients - (means.T * coefficients).sum(axis=0) / 2
    np.testing.assert_allclose(model.priors_, 1 / 3)
    np.testing.assert_allclose(model.predict_proba(rows), softmax(scores, axis=1), atol=1e-3)


@settings(max_examples=10)
@given(owner=st.lists(st.integers(0, 3), min_size=len(Y), max_size=len(Y)), linear=st.booleans())
def test_the_split_into_parties_does_not_change_a_bit(owner, linear):
    options = {"quadratic": not linear, "n_features": 20 if linear else None}

    split = FederatedDiscriminantClassifier(**options).fit(X, Y, parties=owner)
    pooled = FederatedDiscriminantClassifier(**options).fit(X, Y)

    assert split.predict_proba(X).tobytes() == pooled.predict_proba(X).tobytes()


def test_masked_sums_give_the_bits_of_plain_ones():
    plain = FederatedDiscriminantClassifier().fit(X, Y, parties=OWNER)
    masked = FederatedDiscriminantClassifier(sums="masked").fit(X, Y, parties=OWNER)

    assert masked.predict_proba(X).tobytes() == plain.predict_proba(X).tobytes()
    with pytest.raises(AggregationError):
        FederatedDiscriminantClassifier(sums="masked").fit(X, Y, parties=OWNER % 2)


def test_class_statistics_take_one_exchange():
    model = FederatedDiscriminantClassifier(quadratic=True).fit(X, Y, parties=OWNER)

    assert [record.request for record in model.run_record_.rounds] == [
        "ClientSchemaRequest",
        "ClientMomentsRequest",
        "CountsRequest",
        "ClassMomentsRequest",
    ]


def test_random_features_separate_rings():
    random = np.random.default_rng(0)
    ring, angle = random.integers(2, size=400), random.uniform(0, 2 * np.pi, 400)
    x = np.c_[np.cos(angle), np.sin(angle)] * (1 + 2 * ring + random.random(400))[:, None]
    train = np.arange(400) < 200

    scores = []
    for n_features in (None, 100):
        model = FederatedDiscriminantClassifier(n_features=n_features)
        model.fit(x[train], ring[train], parties=np.arange(200) % 3)
        scores.append(model.score(x[~train], ring[~train]))

    assert scores[1] > 0.9 > scores[0] + 0.2


@pytest.mark.parametrize(
    ("options", "rows", "error", "words"),
    [
        ({"shrinkage": 1.5}, slice(None), ValueError, "expected shrinkage from 0 to 1"),
        ({"n_features": 2000}, slice(None), ValueError, "at most 1024 random features"),
        ({"priors": "mine"}, slice(None), ValueError, "expected priors 'observed' or 'equal'"),
        ({"n_features": 0}, slice(None), ValueError, "expected 1 feature or more"),
        ({}, slice(20), DataError, "at least two classes"),
        ({"quadratic": True}, slice(60), DataError, "a class has a single row"),
        ({"shrinkage": 0}, slice(55, 64), DataError, "use shrinkage"),
    ],
)
def test_unsupported_settings_are_refused(options, rows, error, words):
    with pytest.raises(error, match=words):
        FederatedDiscriminantClassifier(**options).fit(X[rows], Y[rows])


def test_prediction_needs_a_fitted_model():
    with pytest.raises(NotFittedError):
        FederatedDiscriminantClassifier().predict(X)
