"""Baselines on tables equal their pooled or averaged definitions."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from fedneighbors.baselines._tabular import (
    BASELINES,
    AveragedModels,
    FederatedNaiveBayes,
    _BalancedNeighbors,
)

X, Y = load_wine(return_X_y=True)
OWNER = np.arange(len(Y)) % 3


@pytest.mark.parametrize("name", list(BASELINES))
def test_every_baseline_classifies_tumors(name):
    x, y = load_breast_cancer(return_X_y=True)
    train = np.arange(len(y)) % 2 == 0

    with threadpool_limits(1):
        model = BASELINES[name]().fit(x[train], y[train], parties=(np.arange(len(y)) % 3)[train])
        probabilities = model.predict_proba(x[~train])

    assert (model.predict(x[~train]) == y[~train]).mean() > 0.9
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)


def test_summed_moments_give_the_model_of_the_pooled_rows():
    federated = FederatedNaiveBayes().fit(X, Y, parties=OWNER)
    pooled = FederatedNaiveBayes().fit(X, Y)
    pooled.scaling_ = federated.scaling_

    # the scalings of both differ a little; with one scaling, the moments are equal
    points = federated.scaling_.apply(X)
    pooled._train(points, Y, {"all": slice(None)})

    assert np.array_equal(federated.means_, pooled.means_)
    assert np.array_equal(federated.variances_, pooled.variances_)
    assert (federated.predict_proba(X) == pooled.predict_proba(X)).all()


def test_votes_of_neighbours_count_by_inverse_class_frequency():
    x = np.array([[0.0], [1.0], [1.0], [1.0], [1.0], [9.0]])
    y = np.array([1, 0, 0, 0, 0, 1])

    shares = _BalancedNeighbors(3).fit(x, y).predict_proba([[0.4]])

    # one vote of a class of two rows against two votes of a class of four
    np.testing.assert_allclose(shares, [[0.5, 0.5]])


def test_averaged_models_skip_parties_of_one_class():
    model = AveragedModels(lambda: LogisticRegression(max_iter=1000))
    owner = np.where(Y == 2, "one class", np.where(OWNER == 0, "a", "b"))

    model.fit(X, Y, parties=owner)

    points = model.scaling_.apply(X)
    probabilities = [party_model.predict_proba(points) for party_model in model.models_]
    assert [party_model.classes_.tolist() for party_model in model.models_] == [[0, 1], [0, 1]]
    np.testing.assert_allclose(
        model.predict_proba(X)[:, :2], (probabilities[0] + probabilities[1]) / 2
    )
    assert not model.predict_proba(X)[:, 2].any()


def test_parties_of_one_class_each_are_refused():
    with pytest.raises(ValueError, match="a party with rows of at least two classes"):
        AveragedModels(LogisticRegression).fit(X, Y, parties=Y)
