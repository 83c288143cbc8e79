"""scikit-learn's cross-validation splits the owners of rows if they are routed to ``fit``."""

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.model_selection import KFold, cross_val_score

from fedneighbors import (
    FederatedNeighborsClassifier,
    FederatedNeighborsRegressor,
    FedPNNClassifier,
    FlyNNClassifier,
    FlyNNSearchCV,
    KNNPerClassifier,
    KNNPerRegressor,
    baselines,
)

X, Y = load_wine(return_X_y=True)
OWNERS = np.where(np.arange(len(Y)) % 3, "north", "south")
FOLDS = KFold(2, shuffle=True, random_state=0)


@pytest.mark.parametrize(
    "estimator",
    [
        FlyNNClassifier(n_units=50, n_active=4),
        FederatedNeighborsClassifier(),
        FederatedNeighborsRegressor(),
        baselines.FederatedDiscriminantClassifier(),
        baselines.FederatedBoostingClassifier(max_iter=1),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_owners_are_routed_to_fit(estimator):
    expected = [
        clone(estimator).fit(X[train], Y[train], parties=OWNERS[train]).score(X[test], Y[test])
        for train, test in FOLDS.split(X)
    ]

    with sklearn.config_context(enable_metadata_routing=True):
        routed = estimator.set_fit_request(parties=True)
        scores = cross_val_score(routed, X, Y, cv=FOLDS, params={"parties": OWNERS})

    assert scores.tolist() == expected


@pytest.mark.parametrize("kind", [KNNPerClassifier, KNNPerRegressor])
def test_owners_are_routed_to_fit_and_score_of_personalized_models(kind):
    estimator = kind(representation="rows", sigma="auto")
    expected = [
        clone(estimator)
        .fit(X[train], Y[train], parties=OWNERS[train])
        .score(X[test], Y[test], parties=OWNERS[test])
        for train, test in FOLDS.split(X)
    ]

    with sklearn.config_context(enable_metadata_routing=True):
        routed = estimator.set_fit_request(parties=True).set_score_request(parties=True)
        scores = cross_val_score(routed, X, Y, cv=FOLDS, params={"parties": OWNERS})

    assert scores.tolist() == expected


@pytest.mark.parametrize(
    "kind",
    [
        *(FedPNNClassifier, FlyNNSearchCV, baselines.FederatedBoostingRegressor),
        *(getattr(baselines, name) for name in baselines.TITLES.values()),
    ],
)
def test_every_estimator_can_request_owners(kind):
    with sklearn.config_context(enable_metadata_routing=True):
        request = kind().set_fit_request(parties=True).get_metadata_routing()

    assert request.fit.requests["parties"] is True
