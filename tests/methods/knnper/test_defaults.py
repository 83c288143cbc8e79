"""Defaults of kNN-Per's estimators, and their accuracy on real data."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from fedneighbors.datasets import load
from fedneighbors.methods.knnper import KNNPerClassifier, KNNPerRegressor
from fedneighbors.methods.knnper._settings import choose_defaults
from fedneighbors.partition import dirichlet, row_roles


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (KNNPerClassifier(), ("discriminants", "pool")),
        (KNNPerClassifier(n_neighbors=5, sums="masked"), ("discriminants", "pool")),
        (KNNPerClassifier(combine="paper"), ("discriminants", "paper")),
        (KNNPerClassifier(representation="discriminants"), ("discriminants", "pool")),
        (KNNPerClassifier(representation="rows"), ("rows", "paper")),
        (KNNPerClassifier(representation=np.sinh), (np.sinh, "paper")),
        (KNNPerClassifier(n_rounds=10), ("network", "paper")),
        (KNNPerClassifier(n_rounds=10, combine="pool"), ("network", "pool")),
        (KNNPerClassifier("cnn"), ("network", "paper")),
        (KNNPerClassifier(privacy=object()), ("network", "paper")),
        (KNNPerRegressor(), ("network", "paper")),
    ],
)
def test_a_network_is_trained_if_a_parameter_asks_for_one(estimator, expected):
    assert choose_defaults(estimator) == expected


def split_table(name, n_rows=2000):
    """Return rows, labels, owners and test rows of a table over eight skewed clients."""
    table = load(name)
    rows = np.sort(np.random.default_rng(0).permutation(len(table.y))[:n_rows])
    x, y = table.x[rows], table.y[rows]
    owners = dirichlet(y, 8, alpha=0.3, min_rows=20, seed=0)
    return x, y, owners, row_roles(owners, test=0.3, seed=0).test


def score(model, x, y, owners, test):
    model.fit(x[~test], y[~test], parties=owners[~test])
    return model.score(x[test], y[test], parties=owners[test])


@pytest.mark.usefixtures("data_folder")
def test_after_ten_rounds_a_mixture_is_no_worse_than_its_memory():
    x, y, owners, test = split_table("optdigits")
    model = KNNPerClassifier(n_rounds=10, hidden=(64, 32))

    mixture = score(model, x, y, owners, test)

    features, scores = model._features_and_scores(x[test])
    hits = 0
    for name, state in model.clients_.items():
        rows = owners[test] == name
        votes = state.predict_from_memory(features[rows], scores[rows])
        hits += int((model.classes_[votes.argmax(axis=1)] == y[test][rows]).sum())
    assert mixture >= hits / test.sum() - 0.01


@pytest.mark.usefixtures("data_folder")
def test_the_default_is_as_accurate_as_boosting_on_pooled_rows():
    x, y, owners, test = split_table("satimage")

    accuracy = score(KNNPerClassifier(), x, y, owners, test)

    pooled = HistGradientBoostingClassifier(random_state=0).fit(x[~test], y[~test])
    assert accuracy >= pooled.score(x[test], y[test]) - 0.02
