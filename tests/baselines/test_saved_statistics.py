"""Files of discriminants and boosting: ``baselines.load`` and ``fedneighbors predict``."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_wine
from typer.testing import CliRunner

from fedneighbors import (
    FederatedNeighborsClassifier,
    FederatedNeighborsRegressor,
    baselines,
)
from fedneighbors.baselines import (
    FederatedBoostingClassifier,
    FederatedBoostingRegressor,
    FederatedDiscriminantClassifier,
)
from fedneighbors.cli._main import app
from fedneighbors.datasets import read_columns
from fedneighbors.errors import ModelFileError

WINE, KIND = load_wine(return_X_y=True, as_frame=True)
LABELS = np.array(["red", "rose", "white"])[KIND]
BODY, PROGRESS = load_diabetes(return_X_y=True, as_frame=True)
OWNER = [f"party {row % 3}" for row in range(len(BODY))]
FEW = {"max_iter": 3}

CLASSIFIERS = [
    FederatedDiscriminantClassifier(),
    FederatedDiscriminantClassifier(quadratic=True, shrinkage=0.3),
    FederatedDiscriminantClassifier(n_features=20, random_state=7),
    FederatedDiscriminantClassifier(standardize=False, priors="equal"),
    FederatedBoostingClassifier(**FEW),
]


@pytest.mark.parametrize("model", CLASSIFIERS, ids=repr)
def test_a_loaded_classifier_has_the_same_probabilities(model, tmp_path):
    model.fit(WINE, LABELS, parties=OWNER[: len(WINE)]).save(tmp_path / "model")

    loaded = baselines.load(tmp_path / "model")

    assert type(loaded) is type(model)
    assert loaded.classes_.tolist() == ["red", "rose", "white"]
    assert loaded.feature_names_in_.tolist() == list(WINE.columns)
    assert np.array_equal(loaded.predict_proba(WINE), model.predict_proba(WINE))
    if isinstance(model, FederatedDiscriminantClassifier):
        assert loaded.get_params() == model.get_params()
        assert loaded.priors_.tolist() == model.priors_.tolist()


@pytest.mark.parametrize(
    "model", [FederatedNeighborsClassifier(3, weights="distance"), *CLASSIFIERS], ids=repr
)
def test_predict_reads_classifiers(model, tmp_path):
    model.fit(WINE, LABELS, parties=OWNER[: len(WINE)]).save(tmp_path / "model")
    WINE.assign(kind=LABELS).to_csv(tmp_path / "wine.csv", index=False)

    columns = predict(tmp_path, "model", "wine.csv", "--proba", "--label", "kind")

    assert columns["prediction"].tolist() == model.predict(WINE).tolist()
    assert columns["probability of rose"].tolist() == model.predict_proba(WINE)[:, 1].tolist()


@pytest.mark.parametrize(
    "model", [FederatedBoostingRegressor(**FEW), FederatedNeighborsRegressor()], ids=repr
)
def test_predict_reads_regressors(model, tmp_path):
    model.fit(BODY, PROGRESS, parties=OWNER).save(tmp_path / "model")
    BODY.to_csv(tmp_path / "body.csv", index=False)

    columns = predict(tmp_path, "model", "body.csv")

    assert columns["prediction"].tolist() == model.predict(BODY).tolist()


def test_predict_refuses_models_of_strings(tmp_path):
    model = FederatedNeighborsClassifier(1, metric="edit").fit(["a", "b"], [0, 1])
    model.save(tmp_path / "model")
    (tmp_path / "rows.csv").write_text("x\n1\n")

    result = invoke(tmp_path, "model", "rows.csv")

    assert result.exit_code == 2
    assert "compares objects such as strings" in " ".join(result.output.split())


def invoke(folder, model, data, *options):
    arguments = ["predict", "--model", folder / model, "--data", folder / data]
    arguments += ["--out", folder / "p.csv", *options]
    return CliRunner().invoke(app, list(map(str, arguments)))


def predict(folder, model, data, *options):
    """Run ``predict`` and return the columns that it writes."""
    result = invoke(folder, model, data, *options)
    assert result.exit_code == 0, result.output
    nominal = ["prediction"] if "--proba" in options else []
    return read_columns(folder / "p.csv", nominal=nominal).columns


@pytest.mark.parametrize(
    "change",
    [
        {"priors": np.ones(2)},
        {"head": np.full((14, 3), np.nan)},
        {"head": np.zeros((13, 3))},
        {"means": np.zeros((3, 13))},
        {"feature_names": ("a",)},
        {"scale": np.zeros(13)},
        {"classes": ()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_invalid_discriminants_are_refused(change, tmp_path):
    model = FederatedDiscriminantClassifier().fit(WINE, LABELS)

    with pytest.raises(ValueError, match=r"expected|differ|finite|scale|unit"):
        replace(model.model_, **change)


def test_a_truncated_file_is_refused(tmp_path):
    FederatedDiscriminantClassifier().fit(WINE, LABELS).save(tmp_path / "model")
    (tmp_path / "short").write_bytes((tmp_path / "model").read_bytes()[:-1])

    with pytest.raises(ModelFileError, match="truncated or altered"):
        baselines.load(tmp_path / "short")


def test_a_model_of_an_array_has_no_column_names(tmp_path):
    x = WINE.to_numpy()
    FederatedDiscriminantClassifier().fit(x, LABELS).save(tmp_path / "model")

    loaded = baselines.load(tmp_path / "model")

    assert not hasattr(loaded, "feature_names_in_")
    with pytest.warns(UserWarning, match="without feature names"):
        loaded.predict(pd.DataFrame(x, columns=WINE.columns))
