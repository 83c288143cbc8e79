"""``fedneighbors run boosting | discriminants | neighbors``, and predictions of their models."""

import csv

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors import FederatedNeighborsClassifier, FederatedNeighborsRegressor
from fedneighbors.baselines import (
    FederatedBoostingClassifier,
    FederatedBoostingRegressor,
    FederatedDiscriminantClassifier,
)
from fedneighbors.cli._main import app
from fedneighbors.datasets import Schema, read_rows
from fedneighbors.records import read_record
from fedneighbors.runs._figures import split_rows_by_party

COMMANDS = {
    "boosting": ("model.fnb", FederatedBoostingClassifier),
    "discriminants": ("model.fnd", FederatedDiscriminantClassifier),
    "neighbors": ("model.fns", FederatedNeighborsClassifier),
}


@pytest.fixture
def loans(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "loans.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["income", "age", "home", "bank", "default", "amount"])
        for _ in range(240):
            is_default = rng.random() < 0.4
            income = "" if rng.random() < 0.1 else f"{rng.normal(30 - 12 * is_default, 4):.2f}"
            home, bank = rng.choice(["rent", "own"]), rng.choice(["north", "south"])
            age, amount = int(rng.integers(20, 70)), f"{rng.normal(5 + 9 * is_default):.3f}"
            writer.writerow([income, age, home, bank, "yes" if is_default else "no", amount])
    return path


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run(method, loans, *options, label="default", drop="amount"):
    out = loans.parent / "out"
    files = ("--data", loans, "--label", label, "--party-column", "bank", "--drop", drop)
    return call("run", method, *files, "--out", out, *options), out


@pytest.mark.parametrize("method", COMMANDS)
def test_a_run_writes_model_record_report_schema_and_manifest(method, loans):
    result, out = run(method, loans)

    assert result.exit_code == 0, result.output
    file, kind = COMMANDS[method]
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["manifest.json", file, "record.jsonl", "report.html", "schema.toml"]
    )
    record = read_record(out / "record.jsonl")
    assert [table.name for table in record.tables] == [
        "summary",
        "joining",
        "holdings",
        "traffic",
        "reliability",
    ]
    accuracy = dict(row[:2] for row in record.tables[0].rows)
    assert max(accuracy, key=accuracy.get) != "most frequent class"
    names = ["income", "age", "home=rent"]
    assert kind.load(out / file).feature_names_in_.tolist() == names
    assert list(Schema.load(out / "schema.toml").feature_names) == names
    assert "<html" in (out / "report.html").read_text("utf-8")


@pytest.mark.parametrize("method", COMMANDS)
def test_predict_reads_columns_by_name_with_gaps_and_scores_them(method, loans):
    _, out = run(method, loans)
    file, kind = COMMANDS[method]
    data, predictions = loans.parent / "new.csv", loans.parent / "p.csv"
    data.write_text("home,id,default,age,income\nown,a,yes,40,\nrent,b,no,30,31.5\nden,c,no,50,9\n")

    result = call(
        "predict", "--model", out / file, "--data", data, "--out", predictions,
        "--proba", "--id", "id", "--label", "default",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    x = read_rows(data, Schema.load(out / "schema.toml"), labelled=False).x
    with pytest.warns(UserWarning, match="valid feature names"):
        expected = kind.load(out / file).predict_proba(x)
    with predictions.open(newline="") as stream:
        header, *rows = csv.reader(stream)
    assert header == ["id", "prediction", "probability of no", "probability of yes"]
    assert [row[0] for row in rows] == ["a", "b", "c"]
    assert [[float(cell) for cell in row[2:]] for row in rows] == expected.tolist()
    assert read_record(predictions.with_suffix(".jsonl")).tables[0].rows[1][1] == 3


@pytest.mark.parametrize("method", ["discriminants", "neighbors", "flynn", "knnper"])
def test_gaps_are_filled_with_medians_of_the_training_rows(method, loans):
    rows = list(csv.DictReader(loans.read_text().splitlines()))
    labels, banks = (np.array([row[name] for row in rows]) for name in ("default", "bank"))
    training, _ = split_rows_by_party(labels, banks, 0.25, 0)
    incomes = np.array([float(row["income"] or "nan") for row in rows])

    result, out = run(method, loans)

    filled = Schema.load(out / "schema.toml").columns[0].missing
    assert filled == np.nanmedian(incomes[training]) != np.nanmedian(incomes)
    assert "medians of the training rows" in " ".join(result.output.split())


def test_boosting_keeps_gaps(loans):
    result, out = run("boosting", loans, "--max-iter", 3)

    assert Schema.load(out / "schema.toml").columns[0].missing == "keep"
    assert "medians" not in result.output


@pytest.mark.parametrize(
    ("method", "options", "settings"),
    [
        ("boosting", ("--max-iter", 7), {"max_iter": 7}),
        ("discriminants", ("--linear",), {"quadratic": False}),
        ("discriminants", ("--quadratic",), {"quadratic": True}),
        ("neighbors", ("-k", 9), {"n_neighbors": 9}),
    ],
)
def test_given_settings_are_not_chosen(method, options, settings, loans):
    result, out = run(method, loans, *options)

    assert result.exit_code == 0, result.output
    record = read_record(out / "record.jsonl")
    assert settings.items() <= record.parameters.items()
    assert "held-out training rows" not in " ".join(record.notes)


@pytest.mark.parametrize(
    ("method", "file", "kind"),
    [
        ("boosting", "model.fnb", FederatedBoostingRegressor),
        ("neighbors", "model.fns", FederatedNeighborsRegressor),
    ],
)
def test_numbers_are_predicted_too(method, file, kind, loans):
    result, out = run(method, loans, "--task", "regression", label="amount", drop="home")
    predicted = call(
        "predict", "--model", out / file, "--data", loans, "--label", "amount",
        "--out", loans.parent / "p.csv",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert predicted.exit_code == 0, predicted.output
    kind.load(out / file)
    assert "R2" in predicted.output


def test_a_measurement_is_no_class(loans):
    result, _ = run("boosting", loans, label="amount", drop="home")

    assert result.exit_code == 1
    assert "look like a measurement" in result.stderr


def test_text_is_no_number_to_predict(loans):
    result, _ = run("neighbors", loans, "--task", "regression")

    assert result.exit_code == 1
    assert "error: regression needs numbers to predict, got text" in result.stderr


@pytest.mark.parametrize("method", COMMANDS)
def test_a_single_party_is_trained_too(method, loans):
    out = loans.parent / "one"

    result = call(
        *("run", method, "--data", loans, "--label", "default", "--drop", "amount"),
        *("--parties", 1, "--out", out),
    )

    assert result.exit_code == 0, result.output
    assert [row[0] for row in read_record(out / "record.jsonl").tables[1].rows] == ["party-0"]
