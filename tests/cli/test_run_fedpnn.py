"""``fedneighbors run fedpnn`` on a file as users have it: missing cells, words, owners."""

import csv

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors import FedPNNClassifier
from fedneighbors.cli.main import app
from fedneighbors.datasets import TableEncoder
from fedneighbors.records import read_record


@pytest.fixture
def loans(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "loans.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["income", "age", "home", "bank", "default"])
        for _ in range(300):
            bad = rng.random() < 0.3
            income = "" if bad and rng.random() < 0.5 else f"{rng.normal(30 - 8 * bad, 5):.2f}"
            home = rng.choice(["rent", "own", "family"])
            bank = rng.choice(["north", "south"])
            writer.writerow([income, int(rng.integers(20, 70)), home, bank, "yes" if bad else "no"])
    return path


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_table_of_banks_leaves_model_record_report_and_encoder(loans, tmp_path):
    out = tmp_path / "out"

    result = call(
        "run", "fedpnn", "--data", loans, "--label", "default", "--party-column", "bank",
        "--out", out,
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert "FedPNN, federated" in result.output
    record = read_record(out / "record.jsonl")
    assert set(record.rounds[0].upload_bytes) == {"north", "south"}
    assert [r.request for r in record.rounds][-2:] == ["CentersRequest", "ModelRelease"]
    model = FedPNNClassifier.load(out / "model.fnp")
    assert model.feature_names_in_.tolist() == [
        "income",
        "age",
        "home=family",
        "home=own",
        "home=rent",
    ]
    assert model.model_.frame.indicators.tolist() == [0]
    rules = TableEncoder.from_json((out / "encoder.json").read_text("utf-8"))
    assert rules.columns[0].median is None
    assert "<html" in (out / "report.html").read_text("utf-8")


def test_one_column_cannot_be_label_and_owner(loans):
    result = call("run", "fedpnn", "--data", loans, "--label", "bank", "--party-column", "bank")

    assert result.exit_code == 2
    assert "both name 'bank'" in result.output
