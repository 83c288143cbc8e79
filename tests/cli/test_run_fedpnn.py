"""``fedneighbors run fedpnn`` on a file with missing cells, a nominal column and owners."""

import csv

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors import FedPNNClassifier
from fedneighbors.cli._main import app
from fedneighbors.datasets import Schema
from fedneighbors.records import read_record


@pytest.fixture
def loans(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "loans.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["income", "age", "home", "bank", "default"])
        for _ in range(300):
            is_default = rng.random() < 0.3
            is_missing = is_default and rng.random() < 0.5
            income = "" if is_missing else f"{rng.normal(30 - 8 * is_default, 5):.2f}"
            home = rng.choice(["rent", "own", "family"])
            bank = rng.choice(["north", "south"])
            age = int(rng.integers(20, 70))
            writer.writerow([income, age, home, bank, "yes" if is_default else "no"])
    return path


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_run_writes_model_record_report_and_schema(loans, tmp_path):
    out = tmp_path / "out"

    result = call(
        "run", "fedpnn", "--data", loans, "--label", "default", "--party-column", "bank",
        "--out", out,
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert "FedPNN, federated" in result.output
    record = read_record(out / "record.jsonl")
    assert set(record.rounds[0].upload_bytes) == {"north", "south"}
    assert [entry.request for entry in record.rounds][-2:] == [
        "CentersRequest",
        "FedPNNModelRelease",
    ]
    model = FedPNNClassifier.load(out / "model.fnp")
    assert model.feature_names_in_.tolist() == [
        "income",
        "age",
        "home=family",
        "home=own",
        "home=rent",
    ]
    assert model.model_.scaling.indicators.tolist() == [0]
    assert Schema.load(out / "schema.toml").columns[0].missing == "keep"
    assert "<html" in (out / "report.html").read_text("utf-8")


def test_one_column_cannot_be_label_and_owner(loans):
    result = call("run", "fedpnn", "--data", loans, "--label", "bank", "--party-column", "bank")

    assert result.exit_code == 2
    assert "both name 'bank'" in result.output


def test_predict_keeps_missing_cells(loans, tmp_path):
    out = tmp_path / "out"
    call("run", "fedpnn", "--data", loans, "--label", "default", "--party-column", "bank",
         "--out", out)  # fmt: skip
    data, predictions = tmp_path / "new.csv", tmp_path / "predictions.csv"
    data.write_text("home,age,income\nown,40,\nrent,30,31.5\n")

    result = call(
        "predict", "--model", out / "model.fnp", "--data", data, "--out", predictions, "--proba"
    )

    assert result.exit_code == 0, result.output
    model = FedPNNClassifier.load(out / "model.fnp")
    with pytest.warns(UserWarning, match="feature names"):
        expected = model.predict_proba([[np.nan, 40, 0, 1, 0], [31.5, 30, 0, 0, 1]])
    with predictions.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header[1:] == ["probability of no", "probability of yes"]
    assert [[float(cell) for cell in row[1:]] for row in rows] == expected.tolist()


def test_predict_reads_models_without_a_schema(tmp_path):
    rng = np.random.default_rng(1)
    y = np.arange(80) % 2
    model = FedPNNClassifier().fit(rng.normal(size=(80, 2)) + y[:, None], y)
    model.name_features(["a", "b"]).save(tmp_path / "fedpnn.model")
    (tmp_path / "new.csv").write_text("b,a\n?,1.5\n-1.0,-2.0\n")

    result = call(
        "predict", "--model", tmp_path / "fedpnn.model", "--data", tmp_path / "new.csv",
        "--out", tmp_path / "predictions.csv",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert (tmp_path / "predictions.csv").read_text().split() == ["prediction", "1", "0"]


def test_each_warning_about_a_threshold_is_one_line(loans, tmp_path):
    result = call(
        "run", "fedpnn", "--data", loans, "--label", "default", "--parties", 2,
        "--client-threshold", 1000, "--out", tmp_path / "out",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    warnings = result.stderr.splitlines()
    assert warnings
    assert all(line.startswith("note: ") and "client_threshold=1000" in line for line in warnings)


def test_the_summary_states_the_effect_of_one_rare_row(loans, tmp_path):
    call("run", "fedpnn", "--data", loans, "--label", "default", "--parties", 2,
         "--out", tmp_path / "out")  # fmt: skip

    summary = read_record(tmp_path / "out" / "record.jsonl").tables[0]
    n_defaulted = sum(",yes" in line for line in loans.read_text().splitlines())
    held_out = round(n_defaulted / 4)
    assert summary.caption.startswith(
        f"76 rows are held out, {held_out} of them of the rarest class: one of these changes "
        f"balanced accuracy by {1 / (2 * held_out):.2g}."
    )


def test_more_columns_than_the_table_has_are_refused(loans, tmp_path):
    result = call(
        "run", "fedpnn", "--data", loans, "--label", "default", "--party-column", "bank",
        "--n-features-to-select", 6, "--out", tmp_path / "out",
    )  # fmt: skip

    assert result.exit_code == 1
    assert "n_features_to_select of at most 5, the number of columns" in result.stderr


def test_selected_columns_are_shown(loans, tmp_path):
    out = tmp_path / "out"

    result = call(
        "run", "fedpnn", "--data", loans, "--label", "default", "--party-column", "bank",
        "--n-features-to-select", 2, "--out", out,
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert "Selected columns" in result.output
    model = FedPNNClassifier.load(out / "model.fnp")
    assert model.support_.sum() == 2
    assert model.support_[0]
    assert "Selected columns" in (out / "report.html").read_text("utf-8")
