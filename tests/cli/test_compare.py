"""``fedneighbors compare`` on one file for each party."""

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.records import read_record

FAST = ["--candidate", "alone", "--candidate", "averaged linear models"]


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    for party, n_rows in (("north", 60), ("south", 45)):
        x = rng.normal(size=(n_rows, 2))
        lines = [f"{a},{b},{'ill' if a > b else 'well'},{a - b + 0.001}" for a, b in x]
        lines[3] = ",1.0,ill,0.5"  # a gap
        (tmp_path / f"{party}.csv").write_text("\n".join(["a,b,state,score", *lines]) + "\n")
    return ["--data", tmp_path / "north.csv", "--data", tmp_path / "south.csv"]


def call(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_compare_ends_with_a_recommendation(files, tmp_path):
    out = tmp_path / "out"

    result = call(
        *files, *FAST, "--label", "state", "--drop", "score", "--minutes", 3, "--out", out
    )

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].startswith("Recommended: averaged linear models, ROC-AUC")
    record = read_record(out / "comparison.jsonl")
    assert [table.name for table in record.tables] == ["scores", "parties", "disclosures"]
    assert [row[0] for row in record.tables[1].rows] == ["north", "south"]
    assert "Recommended" in (out / "report.html").read_text(encoding="utf-8")


def test_numbers_are_compared_as_a_regression(files, tmp_path):
    options = ["--label", "score", "--drop", "state", "--minutes", 3, "--out", tmp_path / "out"]

    refused = call(*files, *FAST, *options)
    result = call(*files, *FAST, *options, "--task", "regression")

    assert refused.exit_code == 1
    assert "look like a measurement" in refused.stderr
    assert result.exit_code == 0, result.output
    assert "R\N{SUPERSCRIPT TWO} 0.9" in result.stdout.splitlines()[-1]


def test_an_unknown_candidate_is_named(files, tmp_path):
    result = call(*files, "--candidate", "oracle", "--label", "state", "--out", tmp_path / "out")

    assert result.exit_code == 1
    assert "got oracle" in result.stderr
    assert not (tmp_path / "out").exists()
