import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedneighbors import FlyNNClassifier, FlyNNSearchCV
from fedneighbors.methods.flynn._scoring import Candidate

# Checks that are expected to fail, with the reason, by estimator; none at present.
EXPECTED_FAILED_CHECKS: dict[str, dict[str, str]] = {}


@parametrize_with_checks(
    [FlyNNClassifier(), FlyNNSearchCV(2, candidates=[Candidate("feature", "mirror", 99, 2)])],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS.get(
        type(estimator).__name__, {}
    ),
)
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def wine():
    return load_wine(return_X_y=True, as_frame=True)


def small_classifier(**options):
    return FlyNNClassifier(n_units=400, n_active=16, **options)


def test_column_names_are_learned_and_checked(wine):
    x, y = wine

    classifier = small_classifier().fit(x, y)

    assert classifier.feature_names_in_.tolist() == x.columns.tolist()
    assert classifier.model_.feature_names == tuple(x.columns)
    with pytest.raises(ValueError, match="feature names should match"):
        classifier.predict(x[x.columns[::-1]])


def test_frames_arrays_and_sparse_matrices_train_alike(wine):
    x, y = wine
    tables = [x, x.to_numpy(), scipy.sparse.csr_array(x.to_numpy()), scipy.sparse.csc_matrix(x)]

    counts = [small_classifier().fit(table, y).counts_.tobytes() for table in tables]

    assert len(set(counts)) == 1


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["gamay", "pinot", "barbera"]),
        np.array(["gamay", "pinot", "barbera"], dtype=object),
        np.array([10, 20, -3], np.int8),
        np.array([True, False, True]),
        np.array([2.0, 1.0, 7.0]),
        pd.array(["gamay", "pinot", "barbera"], dtype="string"),
        pd.Categorical(["gamay", "pinot", "barbera"]),
    ],
    ids=["text", "objects", "integers", "booleans", "floats", "pandas text", "categories"],
)
def test_labels_keep_their_type(wine, labels):
    x, y = wine

    classifier = small_classifier().fit(x, labels[y])

    assert classifier.classes_.tolist() == sorted(set(labels.tolist()))
    assert set(classifier.predict(x).tolist()) == set(labels.tolist())
    assert np.mean(classifier.predict(x) == np.asarray(labels[y])) > 0.9


def test_clones_have_equal_parameters_and_models(wine):
    x, y = wine
    classifier = small_classifier(
        decay=0.5, expand="population", standardize="feature", random_state=3
    )

    copy = clone(classifier)

    assert copy.get_params() == classifier.get_params()
    assert copy.fit(x, y).model_.to_bytes() == classifier.fit(x, y).model_.to_bytes()


def test_a_pickled_classifier_predicts_the_same(wine):
    x, y = wine
    classifier = small_classifier().fit(x, y)

    copy = pickle.loads(pickle.dumps(classifier))  # noqa: S301 - pickled in this line

    assert (copy.predict_proba(x) == classifier.predict_proba(x)).all()


def test_grid_search_and_pipelines_accept_the_classifier(wine):
    x, y = wine
    grid = GridSearchCV(small_classifier(), {"decay": [0, 0.9, 1]}, cv=3).fit(x, y)

    score = cross_val_score(
        make_pipeline(StandardScaler(), small_classifier(standardize=False)), x, y, cv=3
    )

    assert grid.best_params_["decay"] in (0, 0.9)
    assert score.min() > 0.8


def test_parameters_are_not_changed(wine):
    x, y = wine
    options = {"n_units": np.int64(300), "decay": 0, "standardize": "global", "expand": None}

    classifier = FlyNNClassifier(**options).fit(x, y)

    assert {name: classifier.get_params()[name] for name in options} == options
    assert isinstance(classifier.n_units, np.int64)
    assert classifier.decay_ == 0.0


def test_a_random_state_of_none_draws_a_new_wiring(wine):
    x, y = wine

    seeds = {small_classifier(random_state=None).fit(x, y).model_.plan.seed for _ in range(4)}

    assert len(seeds) == 4  # two of four 31-bit seeds are equal with probability 3e-9


def test_equal_random_states_give_equal_models(wine):
    x, y = wine

    models = [
        small_classifier(random_state=np.random.RandomState(5)).fit(x, y).model_.to_bytes()
        for _ in range(2)
    ]

    assert models[0] == models[1]


def test_the_run_record_has_the_rounds(wine):
    x, y = wine

    record = small_classifier().fit(x, y, parties=np.where(y == 0, "a", "b")).run_record_

    assert [r.request for r in record.rounds] == [
        "SchemaRequest",
        "MomentsRequest",
        "CountRequest",
        "HitRequest",
        "ModelRelease",
        "Finish",
    ]
    assert all(set(r.upload_bytes) == {"a", "b"} for r in record.rounds)
    assert [r.reduce for r in record.rounds] == ["gather", "sum", "sum", "sum", "sum", "gather"]


def test_fit_discards_earlier_training(wine):
    x, y = wine
    fresh = small_classifier().fit(x, y).model_.to_bytes()
    classifier = small_classifier().fit(x.iloc[:, :4], y == 1)

    again = classifier.fit(x, y)

    assert again.model_.to_bytes() == fresh
    assert again.n_features_in_ == 13
    assert again.classes_.tolist() == [0, 1, 2]
