"""``fedneighbors run knnper`` on a file, and on a set by name."""

import csv

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors.cli.main import app
from fedneighbors.records import read_record


@pytest.fixture
def visits(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "visits.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["fever", "age", "ward", "hospital", "diagnosis"])
        for _ in range(160):
            ill = rng.random() < 0.4
            hospital = rng.choice(["north", "south"])
            writer.writerow(
                [
                    f"{rng.normal(37 + 2 * ill, 0.5):.1f}",
                    int(rng.integers(20, 90)),
                    rng.choice(["A", "B"]),
                    hospital,
                    "flu" if ill else "none",
                ]
            )
    return path


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("combine", ["paper", "pool"])
def test_a_table_of_hospitals_leaves_record_and_report(visits, tmp_path, combine):
    out = tmp_path / "out"

    result = call(
        "run", "knnper", "--data", visits, "--label", "diagnosis", "--party-column", "hospital",
        "--rounds", 3, "--combine", combine, "--out", out,
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert "shared network (FedAvg)" in result.output
    record = read_record(out / "record.jsonl")
    tables = {table.name: table for table in record.tables}
    assert [row[0] for row in tables["clients"].rows] == ["north", "south"]
    assert sum(row[1] + row[3] for row in tables["clients"].rows) == 160
    assert (tables["clients"].rows[0][2] is None) == (combine == "pool")
    assert "<html" in (out / "report.html").read_text("utf-8")


def test_the_label_cannot_name_the_hospitals(visits):
    result = call("run", "knnper", "--data", visits, "--label", "ward", "--party-column", "ward")

    assert result.exit_code == 2
    assert "both name 'ward'" in result.output
