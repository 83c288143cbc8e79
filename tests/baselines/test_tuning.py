"""Parameters of baselines are chosen on held-out rows, and on nothing else."""

import numpy as np
import pytest

from fedneighbors import baselines
from fedneighbors.baselines._tuning import average_starts, tuned
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.personal._client_state import held_out_mask
from tests.baselines.clients import NAMES, QUICK, X, Y
from tests.methods.knnper.federations import OWNER

ALL = [getattr(baselines, name) for name in baselines.TITLES.values()]


def held_out():
    held = np.zeros(len(Y), bool)
    for name in NAMES:
        rows = np.flatnonzero(name == OWNER)
        held[rows] = held_out_mask(len(rows), MemorySettings(), name)
    return held


@pytest.mark.parametrize("method", ALL)
def test_every_baseline_has_four_candidates(method):
    names = set(method().get_params())

    assert len(method.grid) == 4
    assert all(set(each) <= names for each in method.grid)


def test_the_best_candidate_on_held_out_rows_is_refitted_on_all():
    held, grid = held_out(), ({"proximal": 0.01}, {"proximal": 10.0})
    by_hand = []
    for each in grid:
        alone = baselines.DittoClassifier(**QUICK, **each)
        alone.fit(X[~held], Y[~held], parties=OWNER[~held])
        by_hand.append(alone.score(X[held], Y[held], parties=OWNER[held]))

    found = tuned(baselines.DittoClassifier(**QUICK), X, Y, OWNER, grid=grid)

    assert found.scores == tuple(by_hand)
    assert found.parameters == grid[int(np.argmax(by_hand))]
    whole = baselines.DittoClassifier(**QUICK, **found.parameters).fit(X, Y, parties=OWNER)
    shares = found.estimator.predict_proba(X, OWNER)
    assert shares.tobytes() == whole.predict_proba(X, OWNER).tobytes()


def test_baselines_with_one_start_share_it_in_both_stages():
    asked = baselines.FedAvgPlusClassifier(**QUICK)
    starts = average_starts(asked, X, Y, OWNER)

    found = tuned(asked, X, Y, OWNER, starts=starts)
    alone = tuned(asked, X, Y, OWNER)

    assert found.estimator.start is starts.final
    assert found.estimator.weights_.tobytes() == starts.final.weights_.tobytes()
    assert found.scores == alone.scores
    shares = found.estimator.predict_proba(X, OWNER)
    assert shares.tobytes() == alone.estimator.predict_proba(X, OWNER).tobytes()


def test_the_candidates_common_network_saw_no_held_out_row():
    held, asked = held_out(), baselines.FedAvgClassifier(**QUICK)
    altered = np.where(held, (Y + 1) % 10, Y)

    plain = average_starts(asked, X, Y, OWNER)
    other = average_starts(asked, X, altered, OWNER)

    assert other.without_held_out.weights_.tobytes() == plain.without_held_out.weights_.tobytes()
    assert other.final.weights_.tobytes() != plain.final.weights_.tobytes()


def test_training_rates_are_not_tuned_on_a_given_network():
    asked = baselines.FedAvgClassifier(**QUICK)
    grid = ({"learning_rate": 0.001}, {"learning_rate": 0.1})

    found = tuned(asked, X, Y, OWNER, grid=grid, starts=average_starts(asked, X, Y, OWNER))

    again = baselines.FedAvgClassifier(**QUICK | found.parameters).fit(X, Y, parties=OWNER)
    assert found.estimator.weights_.tobytes() == again.weights_.tobytes()
    assert found.estimator.start is None


def test_a_diverged_candidate_is_not_chosen():
    grid = ({"learning_rate": 1e6}, {"learning_rate": 0.1})

    found = tuned(baselines.LocalClassifier(**QUICK), X, Y, OWNER, grid=grid)

    assert found.parameters == grid[1]
    assert found.scores[0] == 0 < found.scores[1]


def test_a_single_candidate_is_fitted_without_held_out_rows():
    found = tuned(baselines.LocalClassifier(**QUICK), X, Y, OWNER, grid=({},))

    assert found.scores == ()
    plain = baselines.LocalClassifier(**QUICK).fit(X, Y, parties=OWNER)
    assert found.estimator.clients_[NAMES[0]].tobytes() == plain.clients_[NAMES[0]].tobytes()


def test_tuning_does_not_change_the_estimator():
    asked = baselines.PriorCorrectedClassifier(**QUICK | {"classes": None})

    found = tuned(asked, X, Y, OWNER)

    assert not hasattr(asked, "weights_")
    assert asked.start is None
    assert asked.classes is None
    assert found.parameters["strength"] in (0.25, 0.5, 0.75, 1.0)


def test_too_many_candidates_are_refused():
    with pytest.raises(ValueError, match="expected 1 to 4 candidates, got 5"):
        tuned(baselines.LocalClassifier(), X, Y, OWNER, grid=({},) * 5)
    with pytest.raises(ValueError, match="expected 1 to 4 candidates, got 0"):
        tuned(baselines.LocalClassifier(), X, Y, OWNER, grid=())
