"""Parameters of baselines are chosen on held-out rows, and on nothing else."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

from fedneighbors import (
    FederatedNeighborsClassifier,
    FederatedNeighborsRegressor,
    FlyNNClassifier,
    baselines,
)
from fedneighbors.baselines._tuning import train_start_networks, tune
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.personal._client_state import held_out_mask
from tests.baselines.clients import NAMES, QUICK, X, Y
from tests.methods.knnper.federations import OWNER

ALL = [getattr(baselines, name) for name in baselines.TITLES.values()]


def mark_held_out_rows():
    mask = np.zeros(len(Y), bool)
    for name in NAMES:
        rows = np.flatnonzero(name == OWNER)
        mask[rows] = held_out_mask(len(rows), MemorySettings(), name)
    return mask


@pytest.mark.parametrize("method", ALL)
def test_every_baseline_has_four_candidates(method):
    names = set(method().get_params())

    assert len(method.grid) == 4
    assert all(set(parameters) <= names for parameters in method.grid)


def test_the_best_candidate_on_held_out_rows_is_refitted_on_all():
    mask, grid = mark_held_out_rows(), ({"proximal": 0.01}, {"proximal": 10.0})
    scores = []
    for parameters in grid:
        candidate = baselines.DittoClassifier(**QUICK, **parameters)
        candidate.fit(X[~mask], Y[~mask], parties=OWNER[~mask])
        scores.append(candidate.score(X[mask], Y[mask], parties=OWNER[mask]))

    result = tune(baselines.DittoClassifier(**QUICK), X, Y, OWNER, grid=grid)

    assert result.scores == tuple(scores)
    assert result.parameters == grid[int(np.argmax(scores))]
    refitted = baselines.DittoClassifier(**QUICK, **result.parameters).fit(X, Y, parties=OWNER)
    probabilities = result.estimator.predict_proba(X, OWNER)
    assert probabilities.tobytes() == refitted.predict_proba(X, OWNER).tobytes()


def test_a_given_start_is_used_in_both_stages():
    estimator = baselines.FedAvgPlusClassifier(**QUICK)
    starts = train_start_networks(estimator, X, Y, OWNER)

    shared = tune(estimator, X, Y, OWNER, starts=starts)
    separate = tune(estimator, X, Y, OWNER)

    assert shared.estimator.start is starts.final
    assert shared.estimator.weights_.tobytes() == starts.final.weights_.tobytes()
    assert shared.scores == separate.scores
    probabilities = shared.estimator.predict_proba(X, OWNER)
    assert probabilities.tobytes() == separate.estimator.predict_proba(X, OWNER).tobytes()


def test_the_shared_start_is_trained_without_held_out_rows():
    mask, estimator = mark_held_out_rows(), baselines.FedAvgClassifier(**QUICK)
    altered = np.where(mask, (Y + 1) % 10, Y)

    plain = train_start_networks(estimator, X, Y, OWNER)
    other = train_start_networks(estimator, X, altered, OWNER)

    assert other.without_held_out.weights_.tobytes() == plain.without_held_out.weights_.tobytes()
    assert other.final.weights_.tobytes() != plain.final.weights_.tobytes()


def test_training_rates_are_not_tuned_on_a_given_network():
    estimator = baselines.FedAvgClassifier(**QUICK)
    grid = ({"learning_rate": 0.001}, {"learning_rate": 0.1})

    result = tune(
        estimator, X, Y, OWNER, grid=grid, starts=train_start_networks(estimator, X, Y, OWNER)
    )

    refitted = baselines.FedAvgClassifier(**QUICK | result.parameters).fit(X, Y, parties=OWNER)
    assert result.estimator.weights_.tobytes() == refitted.weights_.tobytes()
    assert result.estimator.start is None


def test_a_diverged_candidate_is_not_chosen():
    grid = ({"learning_rate": 1e6}, {"learning_rate": 0.1})

    result = tune(baselines.LocalClassifier(**QUICK), X, Y, OWNER, grid=grid)

    assert result.parameters == grid[1]
    assert result.scores[0] == 0 < result.scores[1]


def test_a_single_candidate_is_fitted_without_held_out_rows():
    result = tune(baselines.LocalClassifier(**QUICK), X, Y, OWNER, grid=({},))

    assert result.scores == ()
    plain = baselines.LocalClassifier(**QUICK).fit(X, Y, parties=OWNER)
    assert result.estimator.clients_[NAMES[0]].tobytes() == plain.clients_[NAMES[0]].tobytes()


def test_tuning_does_not_change_the_estimator():
    estimator = baselines.PriorCorrectedClassifier(**QUICK | {"classes": None})

    result = tune(estimator, X, Y, OWNER)

    assert not hasattr(estimator, "weights_")
    assert estimator.start is None
    assert estimator.classes is None
    assert result.parameters["strength"] in (0.25, 0.5, 0.75, 1.0)


def test_tuning_without_candidates_is_refused():
    with pytest.raises(ValueError, match="expected candidates for LocalClassifier, got none"):
        tune(baselines.LocalClassifier(), X, Y, OWNER, grid=())
    with pytest.raises(ValueError, match="expected candidates for FlyNNClassifier, got none"):
        tune(FlyNNClassifier(), X, Y, OWNER)


@pytest.mark.parametrize(
    ("estimator", "grid"),
    [
        (FlyNNClassifier(), {"n_units": [50, 400], "n_active": [4, 8, 16]}),
        (FederatedNeighborsClassifier(metric="manhattan"), {"n_neighbors": [1, 2, 3, 5, 8, 13]}),
        (baselines.FederatedDiscriminantClassifier(), {"shrinkage": [0.01, 0.1, 0.2, 0.5, 0.9]}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_estimator_is_tuned_over_any_number_of_candidates(estimator, grid):
    mask, candidates = mark_held_out_rows(), list(ParameterGrid(grid))
    x = X.reshape(len(X), -1)
    trials = [clone(estimator).set_params(**each) for each in candidates]
    scores = [
        trial.fit(x[~mask], Y[~mask], parties=OWNER[~mask]).score(x[mask], Y[mask])
        for trial in trials
    ]

    result = tune(estimator, x, Y, OWNER, grid=candidates)

    assert len(candidates) > 4
    assert result.scores == tuple(scores)
    assert result.parameters == candidates[int(np.argmax(scores))]
    assert result.estimator.score(x, Y) == clone(estimator).set_params(**result.parameters).fit(
        x, Y, parties=OWNER
    ).score(x, Y)


def test_regressors_are_tuned_by_r2():
    x, y = X.reshape(len(X), -1), Y.astype(float)

    result = tune(
        FederatedNeighborsRegressor(), x, y, OWNER, grid=[{"n_neighbors": k} for k in (1, 400)]
    )

    assert result.parameters == {"n_neighbors": 1}
    assert result.scores[0] > result.scores[1]
