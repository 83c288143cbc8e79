"""The estimators: scikit-learn's checks, quality, settings, files, refusals."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedneighbors.baselines import FederatedBoostingClassifier, FederatedBoostingRegressor
from fedneighbors.baselines.boosting._model import BoostingModel
from fedneighbors.datasets import load
from fedneighbors.errors import DataError, ModelFileError, PartyRefused

X, Y = load_wine(return_X_y=True)
OWNERS = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")


@parametrize_with_checks(
    [FederatedBoostingClassifier(max_iter=3), FederatedBoostingRegressor(0.3, max_iter=5)]
)
def test_estimators_pass_the_scikit_learn_checks(estimator, check):
    check(estimator)


def test_tumors_are_ranked_as_by_scikit_learn():
    x, y = load_breast_cancer(return_X_y=True)
    train = np.arange(len(y)) % 2 == 0

    ours, theirs = (
        roc_auc_score(y[~train], model.fit(x[train], y[train]).predict_proba(x[~train])[:, 1])
        for model in (FederatedBoostingClassifier(), HistGradientBoostingClassifier())
    )

    assert ours > theirs - 0.005


def test_numbers_are_predicted_as_by_scikit_learn():
    x, y = load_diabetes(return_X_y=True)
    train = np.arange(len(y)) % 2 == 0

    ours, theirs = (
        model.fit(x[train], y[train]).score(x[~train], y[~train])
        for model in (FederatedBoostingRegressor(), HistGradientBoostingRegressor())
    )

    assert ours > theirs - 0.02


@pytest.mark.usefixtures("data_folder")
def test_training_with_rare_classes_does_not_diverge():
    data = load("shuttle")
    rows = np.random.default_rng(4).permutation(data.n_rows)[:2000]  # two of one class, nine of one

    model = FederatedBoostingClassifier(max_iter=60).fit(data.x[rows], data.y[rows])

    assert model.score(data.x[rows], data.y[rows]) > 0.99


@pytest.mark.parametrize(
    "labels", [np.array(["a", "b", "c"]), np.array([-1, 5, 9]), np.array([0.0, 3.0, 4.0])]
)
def test_labels_of_any_kind_are_predicted(labels, tmp_path):
    model = FederatedBoostingClassifier(max_iter=10).fit(X, labels[Y], parties=OWNERS)
    model.save(tmp_path / "model")

    loaded = FederatedBoostingClassifier.load(tmp_path / "model")

    assert model.classes_.tolist() == labels.tolist()
    assert (loaded.predict_proba(X) == model.predict_proba(X)).all()
    assert loaded.predict(X).dtype.kind == labels.dtype.kind
    assert model.score(X, labels[Y]) > 0.95


def test_a_regressor_is_loaded_from_its_file(tmp_path):
    model = FederatedBoostingRegressor(max_iter=5).fit(X, X[:, 0])
    model.save(tmp_path / "model")

    loaded = FederatedBoostingRegressor.load(tmp_path / "model")

    assert loaded.predict(X).tobytes() == model.predict(X).tobytes()
    with pytest.raises(ModelFileError, match="not a model for classification"):
        FederatedBoostingClassifier.load(tmp_path / "model")


def test_damaged_model_file_is_rejected(tmp_path):
    model = FederatedBoostingClassifier(max_iter=2).fit(X, Y)
    raw = bytearray(model.model_.to_bytes())
    raw[len(raw) // 2] ^= 1

    with pytest.raises(ModelFileError, match="truncated or altered"):
        BoostingModel.from_bytes(bytes(raw))


def test_values_and_missing_cells_are_split_apart():
    x = np.where(np.arange(200) % 2, np.nan, 1.0)[:, None]
    y = np.arange(200) % 2

    model = FederatedBoostingClassifier(max_iter=20).fit(x, y, parties=np.arange(200) % 3)

    assert model.score(x, y) == 1


def test_columns_of_a_data_frame_are_checked():
    frame = pd.DataFrame(X, columns=[f"column {j}" for j in range(X.shape[1])])

    model = FederatedBoostingClassifier(max_iter=2).fit(frame, Y, parties=OWNERS)

    assert model.model_.feature_names == tuple(frame.columns)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[frame.columns[::-1]])


def test_weights_move_the_decision_to_the_rare_class():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2_000, 3)), rng.random(2_000) < 0.1
    x[y] += 0.7

    plain, balanced, by_label = (
        FederatedBoostingClassifier(max_iter=20, class_weight=weight).fit(x, y)
        for weight in (None, "balanced", {True: 9.0, False: 1.0})
    )

    assert plain.predict(x)[y].mean() < 0.5 < balanced.predict(x)[y].mean()
    assert by_label.predict(x)[y].mean() > 0.5


def test_scale_of_weights_does_not_matter():
    light, heavy = (
        FederatedBoostingClassifier(max_iter=3, class_weight=dict.fromkeys(range(3), weight))
        for weight in (2.0**-40, 2.0**40)
    )

    # the minimum Hessian of a leaf is absolute, and forbids all splits of light rows
    assert heavy.fit(X, Y).score(X, Y) > 0.9
    assert set(light.fit(X, Y).model_.trees.features.tolist()) == {-1}


def test_training_stops_when_the_loss_does_not_fall():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(600, 2)), rng.integers(0, 2, 600)  # nothing to learn
    options = {"early_stopping": True, "n_iter_no_change": 3}

    for model, target in [
        (FederatedBoostingClassifier(**options), y),
        (FederatedBoostingRegressor(**options), y * 1e6),
    ]:
        assert model.fit(x, target).n_iter_ < 20


def test_few_rows_are_not_held_out_by_default():
    default, without = (
        FederatedBoostingClassifier(max_iter=3, early_stopping=stopping).fit(X, Y)
        for stopping in ("auto", False)
    )

    assert default.model_.to_bytes() == without.model_.to_bytes()


def test_shapes_of_trees_keep_the_limits():
    model = FederatedBoostingClassifier(max_iter=5, max_leaf_nodes=4, max_depth=2).fit(X, Y)

    trees = model.model_.trees
    sizes = np.diff([*trees.roots, len(trees.features)])
    assert sizes.max() == 7  # four leaves, three inner nodes
    assert len(trees.roots) == 5 * 3


def test_huge_and_tiny_numbers_are_predicted():
    for scale in (1e-50, 1e50):
        model = FederatedBoostingRegressor(max_iter=50).fit(X[:, 1:], X[:, 0] * scale)

        assert model.score(X[:, 1:], X[:, 0] * scale) > 0.8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rate": 0.0}, "learning_rate above 0"),
        ({"learning_rate": np.nan}, "learning_rate as a number"),
        ({"max_iter": 0}, "max_iter as an integer of 1 or more"),
        ({"max_leaf_nodes": 1}, "max_leaf_nodes as an integer of 2"),
        ({"max_depth": 1.5}, "max_depth as an integer"),
        ({"min_samples_leaf": True}, "min_samples_leaf as an integer"),
        ({"l2_regularization": -1.0}, "l2_regularization as a number"),
        ({"max_bins": 256}, "max_bins as an integer of 2 to 255"),
        ({"class_weight": "even"}, "class_weight 'balanced'"),
        ({"class_weight": {0: 0.0}}, "class_weight of numbers above 0"),
        ({"class_weight": {7: 1.0}}, "class_weight has '7'"),
        ({"early_stopping": "late"}, "early_stopping True, False or 'auto'"),
        ({"validation_fraction": 1.0}, "validation_fraction in"),
        ({"random_state": -1}, "random_state in"),
    ],
)
def test_parameter_out_of_range_is_an_error(change, words):
    with pytest.raises(ValueError, match=words):
        FederatedBoostingClassifier(**change).fit(X, Y)


def test_one_class_is_an_error():
    with pytest.raises(DataError, match="at least two classes"):
        FederatedBoostingClassifier().fit(X, np.zeros(len(Y)))


@pytest.mark.parametrize("owners", [None, OWNERS])
def test_numbers_too_large_to_sum_are_refused(owners):
    with pytest.raises(PartyRefused, match=r"2\*\*200 or more in magnitude"):
        FederatedBoostingRegressor().fit(X, X[:, 0] * 1e100, parties=owners)
