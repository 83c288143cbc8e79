"""``fedneighbors predict`` with a regressor."""

import csv

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.datasets import read_columns
from fedneighbors.methods.knnper import KNNPerRegressor
from fedneighbors.records import read_record

X, Y = load_diabetes(return_X_y=True)
X, Y = X[:90], Y[:90]
CLINIC = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")
NAMES = [f"c{j}" for j in range(10)]


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    path = tmp_path_factory.mktemp("patients") / "patients.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*NAMES, "clinic"])
        writer.writerows(
            [*map(repr, row), clinic] for row, clinic in zip(X.tolist(), CLINIC, strict=True)
        )
    return path


def train_and_save(folder, y):
    model = KNNPerRegressor(hidden=(16,), n_rounds=2).fit(X, y, parties=CLINIC)
    model.name_features(NAMES).save(folder / "model.fnk")
    return model


def predict(folder, patients, *options):
    files = ("--model", folder / "model.fnk", "--data", patients, "--out", folder / "p.csv")
    return CliRunner().invoke(app, ["predict", *map(str, files), *options])


def test_each_row_gets_its_clinics_prediction(patients, tmp_path):
    model = train_and_save(tmp_path, Y)

    result = predict(tmp_path, patients, "--party-column", "clinic")

    assert result.exit_code == 0, result.output
    columns = read_columns(tmp_path / "p.csv").columns
    with pytest.warns(UserWarning, match="valid feature names"):
        expected = model.predict(X, CLINIC)
    assert list(columns) == ["prediction"]
    assert columns["prediction"].tolist() == expected.tolist()
    assert f"90 rows: prediction from {expected.min():.6g}" in " ".join(result.output.split())


def test_numbers_have_ids_and_scores(patients, tmp_path):
    model = train_and_save(tmp_path, Y)

    result = predict(tmp_path, patients, "--party", "north", "--id", "clinic", "--label", "c2")

    assert result.exit_code == 0, result.output
    columns = read_columns(tmp_path / "p.csv").columns
    scores = dict(read_record(tmp_path / "p.jsonl").tables[0].rows)
    assert list(columns) == ["clinic", "prediction"]
    assert columns["clinic"].tolist() == CLINIC.tolist()
    with pytest.warns(UserWarning, match="valid feature names"):
        errors = model.predict(X, ["north"] * len(X)) - X[:, 2]
    assert scores["mean absolute error"] == pytest.approx(np.abs(errors).mean())
    assert scores["root mean squared error"] == pytest.approx((errors**2).mean() ** 0.5)


def test_each_output_has_a_column(patients, tmp_path):
    model = train_and_save(tmp_path, np.column_stack([Y, X[:, 0]]))

    result = predict(tmp_path, patients, "--party", "north")

    assert result.exit_code == 0, result.output
    columns = read_columns(tmp_path / "p.csv").columns
    with pytest.warns(UserWarning, match="valid feature names"):
        expected = model.predict(X, ["north"] * len(X))
    assert list(columns) == ["prediction 1", "prediction 2"]
    assert np.column_stack(list(columns.values())).tolist() == expected.tolist()


def test_probabilities_of_a_regressor_are_a_usage_error(patients, tmp_path):
    train_and_save(tmp_path, Y)

    result = predict(tmp_path, patients, "--proba")

    assert result.exit_code == 2
    assert "is for regression, without probabilities" in " ".join(result.output.split())
    assert not (tmp_path / "p.csv").exists()


def test_numbers_with_decimal_commas_are_scored(tmp_path):
    dose = X[:, 0] * 100
    model = KNNPerRegressor(representation="rows", n_neighbors=1)
    model.fit(dose[:, None], Y + 0.5, parties=CLINIC).name_features(["dose"])
    model.save(tmp_path / "model.fnk")
    (tmp_path / "schema.toml").write_text('[columns.dose]\nkind = "number"\n')
    rows = [
        f"{a!r};{b!r};{c}"
        for a, b, c in zip(dose.tolist(), (Y + 0.5).tolist(), CLINIC, strict=True)
    ]
    text = "\n".join(["dose;score;clinic", *rows]) + "\n"
    for name, content in (("points", text), ("commas", text.replace(".", ","))):
        (tmp_path / f"{name}.csv").write_text(content)

    results = [
        predict(tmp_path, tmp_path / f"{name}.csv", "--party-column", "clinic", "--label", "score")
        for name in ("points", "commas")
    ]

    assert [result.exit_code for result in results] == [0, 0], results[1].output
    assert results[0].output == results[1].output
    assert "rows with a known label" in results[0].output
