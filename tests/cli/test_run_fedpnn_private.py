"""``fedneighbors run fedpnn --epsilon``: noised sums, charged to ledgers, replace centers."""

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors import FedPNNClassifier
from fedneighbors.cli._main import app
from fedneighbors.datasets import NumericColumn, Schema
from fedneighbors.records import read_record

SCHEMA = Schema(
    (NumericColumn("a", 0.0, 10.0), NumericColumn("b", -5.0, 5.0)), "target", (0, 1), "sums"
)


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(240) % 2
    rows = np.column_stack([rng.uniform(0, 5, 240) + 5 * y, rng.uniform(-5, 5, 240), y])
    np.savetxt(tmp_path / "t.csv", rows, "%g", ",", header="a,b,target", comments="")
    (tmp_path / "t.toml").write_text(SCHEMA.to_toml(), "utf-8")
    return tmp_path / "t.csv"


def privacy_options(table):
    return ["--epsilon", "2", "--schema", table.with_suffix(".toml")]


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("options", "guarantee", "reduce"),
    [
        ([], "epsilon=2; add_remove of one row; local", "sum"),
        (
            ["--delta", "1e-6", "--mechanism", "central"],
            "epsilon=2, delta=1e-06; add_remove of one row; central",
            "masked",
        ),
    ],
    ids=["local", "central"],
)
def test_all_outputs_of_a_private_run_state_its_guarantee(
    table, tmp_path, options, guarantee, reduce
):
    out = tmp_path / "out"

    result = call(
        "run", "fedpnn", "--data", table, "--parties", 3, *privacy_options(table), *options,
        "--out", out,
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    record = read_record(out / "record.jsonl")
    assert record.privacy["epsilon"] == 2.0
    assert [entry.request for entry in record.rounds if entry.reduce == reduce]
    assert [row[0] for row in record.tables[0].rows][:2] == [
        "FedPNN, federated",
        "FedPNN, without privacy",
    ]
    assert "exposure" not in {table.name for table in record.tables}
    assert any("This report is not private" in note for note in record.notes)
    assert FedPNNClassifier.load(out / "model.fnp").model_.guarantee == guarantee
    assert "privacy spent" in (out / "report.html").read_text("utf-8")


def test_predict_reads_the_private_model(table, tmp_path):
    out, predictions = tmp_path / "out", tmp_path / "predictions.csv"
    call("run", "fedpnn", "--data", table, "--parties", 1, *privacy_options(table), "--out", out)

    result = call("predict", "--model", out / "model.fnp", "--data", table, "--out", predictions)

    assert result.exit_code == 0, result.output
    assert len(predictions.read_text().split()) == 1 + 240


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "1"], "epsilon needs a schema"),
        (["--epsilon", "1", "--schema", "none.toml"], "there is no file none.toml"),
        (["--delta", "1e-6"], "needs --epsilon"),
        (["--epsilon", "0", "--schema", "none.toml"], "there is no file none.toml"),
    ],
)
def test_invalid_terms_are_a_usage_error(options, message, table, tmp_path):
    result = call("run", "fedpnn", "--data", table, *options, "--out", tmp_path / "out")

    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-count", 7], "private training takes no min_count"),
        (["--mechanism", "paper"], "has no private mechanism"),
    ],
)
def test_options_that_a_budget_excludes_fail_in_one_line(options, message, table, tmp_path):
    result = call(
        "run", "fedpnn", "--data", table, *privacy_options(table), *options,
        "--out", tmp_path / "out",
    )  # fmt: skip

    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_budget_forbids_to_compare_rows_of_two_parties(table, tmp_path):
    arguments = ["run", "fedpnn", "--data", f"a={table}", "--data", f"b={table}"]

    private = call(*arguments, *privacy_options(table), "--out", tmp_path / "private")
    plain = call(*arguments, "--out", tmp_path / "plain")

    assert private.exit_code == plain.exit_code == 0
    assert "equal rows" not in private.output
    assert "note: parties 'a' and 'b' have 240 equal rows: if they are" in plain.stderr
