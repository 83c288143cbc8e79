"""Saved classifiers and regressors predict the same; invalid files and models are refused."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedneighbors import (
    FederatedNeighborsClassifier,
    FederatedNeighborsRegressor,
    Privacy,
)
from fedneighbors.datasets import CategoricalColumn, NumericColumn, Schema
from fedneighbors.datasets._graphs import Graph
from fedneighbors.errors import ModelFileError
from fedneighbors.methods.fedknn._neighbors_file import NeighborsFile

RNG = np.random.default_rng(3)
X, NEW = RNG.normal(size=(60, 4)), RNG.normal(size=(20, 4))
OWNERS = [f"party {row % 3}" for row in range(60)]


@pytest.mark.parametrize("labels", [["a", "b"], [0, 1], [1.0, 2.0], [True, False]])
def test_a_loaded_classifier_predicts_the_same(tmp_path, labels):
    y = np.array(labels)[np.arange(60) % 2]
    table = pd.DataFrame(X, columns=list("abcd"))
    model = FederatedNeighborsClassifier(3, weights="distance", metric="manhattan")
    model.fit(table, y, parties=OWNERS, ids=[f"row {i}" for i in range(60)])
    new = pd.DataFrame(NEW, columns=list("abcd"))

    model.save(tmp_path / "model.fnn")
    loaded = FederatedNeighborsClassifier.load(tmp_path / "model.fnn")

    assert loaded.get_params() == model.get_params()
    assert loaded.feature_names_in_.tolist() == list("abcd")
    assert loaded.classes_.tolist() == model.classes_.tolist()
    assert loaded.search_.ids_ == model.search_.ids_
    assert np.array_equal(loaded.predict_proba(new), model.predict_proba(new))
    assert np.array_equal(loaded.predict(new), model.predict(new))


@pytest.mark.parametrize("n_outputs", [None, 2])
def test_a_loaded_regressor_predicts_the_same(tmp_path, n_outputs):
    y = RNG.normal(size=60 if n_outputs is None else (60, n_outputs))
    weights = np.arange(60) % 4
    model = FederatedNeighborsRegressor(4).fit(X, y, parties=OWNERS, sample_weight=weights)

    model.save(tmp_path / "model.fnn")
    loaded = FederatedNeighborsRegressor.load(tmp_path / "model.fnn")

    assert np.array_equal(loaded.predict(NEW), model.predict(NEW))


def test_equal_models_have_equal_files(tmp_path):
    for name in ("a", "b"):
        model = FederatedNeighborsClassifier().fit(X, np.arange(60) % 2, parties=OWNERS)
        model.save(tmp_path / name)

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("metric", "objects"),
    [
        ("edit", ["bank", "tank", "Zweig"]),
        ("jaccard", [{1, "a"}, {2}, {"a", "b"}]),
        ("tanimoto", np.eye(3, dtype=np.uint8)),
        ("tanimoto", ["CCO", "CCN", "c1ccccc1"]),
        ("graph_edit", [Graph("CCO", [(0, 1)]), Graph("CC", [(0, 1)]), Graph("N", [])]),
    ],
)
def test_objects_of_other_metrics_are_saved(tmp_path, metric, objects):
    model = FederatedNeighborsClassifier(1, metric=metric).fit(objects, [0, 1, 2], parties="aba")

    model.save(tmp_path / "model.fnn")
    loaded = FederatedNeighborsClassifier.load(tmp_path / "model.fnn")

    assert loaded.predict(objects).tolist() == [0, 1, 2]


PATIENTS = pd.DataFrame(
    {"age": [63, None, 45, 66, 58.7], "sex": ["f", "m", None, "f", "m"], "x": [0.1, 0.7, 3, 9, 4]}
)
COLUMNS = Schema(
    (
        NumericColumn("age", 0, 110, missing="keep"),
        NumericColumn("x", 0, 9.1, missing="keep"),
        CategoricalColumn("sex", ("f", "m"), missing="keep"),
    )
)


@pytest.mark.parametrize("metric", ["tabular", COLUMNS], ids=["ranges of all rows", "schema"])
def test_rows_of_numbers_and_categories_are_saved(tmp_path, metric):
    model = FederatedNeighborsRegressor(2, metric=metric, weights="distance")
    model.fit(PATIENTS, [1.0, 2.0, 3.0, 4.0, 5.0], parties="aabba")
    new = [{"age": 60.3, "sex": "m"}, {"x": 8.0}, {"age": 200, "x": 0.35}]

    model.save(tmp_path / "model.fnn")
    loaded = FederatedNeighborsRegressor.load(tmp_path / "model.fnn")

    assert loaded.get_params() == model.get_params()
    assert loaded.predict(new).tolist() == model.predict(new).tolist()
    distances = [one.search_.kneighbors(new, 5)[0] for one in (model, loaded)]
    assert np.array_equal(*distances)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "[columns.age]\nkind = 'number'\n"},
        {"schema": "age"},
        {"rows": np.zeros((5, 2))},
        {"rows": np.full((5, 3), np.inf)},
        {"rows": None},
    ],
    ids=lambda change: f"{change}"[:30],
)
def test_a_file_with_an_invalid_schema_or_rows_is_refused(tmp_path, change):
    model = FederatedNeighborsRegressor(2, metric=COLUMNS).fit(PATIENTS, np.arange(5.0))
    file = NeighborsFile.of(model)
    for name, value in change.items():
        object.__setattr__(file, name, value)
    file.save(tmp_path / "model.fnn")

    with pytest.raises(ModelFileError, match="no usable model"):
        FederatedNeighborsRegressor.load(tmp_path / "model.fnn")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"privacy": Privacy(epsilon=1, delta=1e-6)}, "would spend its budget twice"),
        ({"metric": lambda a, b: float(abs(a - b).sum())}, "expected a metric by name"),
    ],
)
def test_budgets_and_functions_are_not_saved(tmp_path, settings, words):
    model = FederatedNeighborsClassifier(**settings).fit(X, np.arange(60) % 2)

    with pytest.raises(ValueError, match=words):
        model.save(tmp_path / "model.fnn")


def test_a_file_is_loaded_by_its_own_class_alone(tmp_path):
    FederatedNeighborsClassifier().fit(X, np.arange(60) % 2).save(tmp_path / "model.fnn")

    with pytest.raises(ModelFileError, match="has a model of 'FederatedNeighborsClassifier'"):
        FederatedNeighborsRegressor.load(tmp_path / "model.fnn")


@pytest.mark.parametrize(
    "change",
    [
        {"owners": np.full(60, 7)},
        {"targets": np.full(60, 2)},
        {"targets": np.zeros(59, np.int64)},
        {"rows": np.full((60, 4), np.nan)},
        {"feature_names": ("a",)},
        {"parameters": {"depth": 3}},
        {"parameters": {"n_neighbors": 0}},
        {"targets": np.zeros((60, 1), np.int64)},
        {"weights": np.full(60, -1.0)},
    ],
    ids=lambda change: f"{change}"[:30],
)
def test_a_file_with_invalid_values_is_refused(tmp_path, change):
    model = FederatedNeighborsClassifier().fit(X, np.arange(60) % 2, parties=OWNERS)
    file = NeighborsFile.of(model)
    for name, value in change.items():
        object.__setattr__(file, name, value)
    file.save(tmp_path / "model.fnn")

    with pytest.raises(ModelFileError, match="no usable model"):
        FederatedNeighborsClassifier.load(tmp_path / "model.fnn")


def test_a_loaded_model_standardizes_like_the_saved_one(tmp_path):
    model = FederatedNeighborsClassifier(3, standardize=True)
    model.fit(X * [1, 10, 100, 1000], np.arange(60) % 2, parties=OWNERS).save(tmp_path / "a")
    file = NeighborsFile.load(tmp_path / "a")

    loaded = FederatedNeighborsClassifier.load(tmp_path / "a")

    new = NEW * [1, 10, 100, 1000]
    assert np.array_equal(loaded.predict_proba(new), model.predict_proba(new))
    for scale in (file.scale[:2], -file.scale):
        with pytest.raises(ValueError, match="unit"):
            replace(file, scale=scale)
