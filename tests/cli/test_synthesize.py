"""``fedneighbors synthesize`` on a table of numbers, text and missing cells."""

import csv
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors import TabularSynthesizer
from fedneighbors.cli._main import app

LABEL_LAST = ["income", "age", "home", "default"]


@pytest.fixture
def loans(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "loans.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["default", "income", "age", "home"])
        for row in range(120):
            income = "" if row % 7 == 0 else f"{rng.gamma(2.0, 900.0):.2f}"
            home = "?" if row % 11 == 0 else rng.choice(["rent", "own"])
            writer.writerow(["yes" if row % 3 == 0 else "no", income, rng.integers(20, 70), home])
    return path


def synthesize(*arguments):
    return CliRunner().invoke(app, ["synthesize", *map(str, arguments)])


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_training_writes_rows_report_and_model(loans, tmp_path):
    out, report, model = (tmp_path / "new" / name for name in ("rows.csv", "q.html", "m.syn"))

    result = synthesize(
        "--data", loans, "--label", "default", "--epochs", 2, "--rows", 150,
        "--out", out, "--report", report, "--model", model,
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    header, *rows = read_csv(out)
    assert header == LABEL_LAST
    assert len(rows) == 150
    assert sorted({row[3] for row in rows}) == ["no", "yes"]
    assert sum(row[3] == "yes" for row in rows) == 50
    assert {row[2] for row in rows} <= {"rent", "own", ""}
    assert all(row[1].isdecimal() for row in rows)
    page = report.read_text("utf-8")
    assert "train synthetic, test real" in page
    assert "KS complement, mean" in result.stdout
    assert "This report is not differentially private" in result.stdout
    assert TabularSynthesizer.load(model).classes_.tolist() == ["no", "yes"]


def test_only_equal_seeds_give_equal_rows(loans, tmp_path):
    options = ["--data", loans, "--label", "default", "--epochs", 1]

    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        result = synthesize(*options, "--seed", seed, "--out", tmp_path / name)
        assert result.exit_code == 0, result.output

    first, repeated, other = (read_csv(tmp_path / name) for name in "abc")
    assert first == repeated
    assert first != other
    assert len(first) == 1 + 120


def test_a_saved_model_repeats_the_rows_of_its_training(loans, tmp_path):
    model, options = tmp_path / "loans.syn", ["--label", "default", "--seed", 5]
    synthesize("--data", loans, *options, "--epochs", 1, "--model", model, "--rows", 40,
         "--out", tmp_path / "first.csv")  # fmt: skip

    repeated = synthesize("--model", model, *options, "--rows", 40, "--out", tmp_path / "again.csv")
    default = synthesize("--model", model, *options, "--out", tmp_path / "more.csv")

    assert (repeated.exit_code, default.exit_code) == (0, 0), repeated.output + default.output
    assert read_csv(tmp_path / "again.csv") == read_csv(tmp_path / "first.csv")
    assert len(read_csv(tmp_path / "more.csv")) == 1 + 90  # a quarter was held out from training


def test_predict_names_the_command_for_synthesizers(loans, tmp_path):
    model = tmp_path / "loans.syn"
    synthesize("--data", loans, "--epochs", 1, "--model", model, "--out", tmp_path / "rows.csv")

    result = CliRunner().invoke(app, ["predict", "--model", str(model), "--data", str(loans)])

    assert result.exit_code == 1
    assert "use it with fedneighbors synthesize --model" in result.stderr


@pytest.mark.parametrize("noise", ["normal", "concat"])
def test_one_generator_can_learn_all_classes(loans, tmp_path, noise):
    model = tmp_path / "loans.syn"

    result = synthesize(
        "--data", loans, "--label", "default", "--epochs", 1, "--together", "--noise", noise,
        "--out", tmp_path / "rows.csv", "--model", model,
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    loaded = TabularSynthesizer.load(model)
    assert (loaded.noise, loaded.per_class) == (noise, False)


def test_without_a_label_all_columns_keep_their_order(loans, tmp_path):
    result = synthesize("--data", loans, "--epochs", 1, "--out", tmp_path / "rows.csv")

    assert result.exit_code == 0, result.output
    assert read_csv(tmp_path / "rows.csv")[0] == ["default", "income", "age", "home"]
    assert "train synthetic, test real" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give real rows with --data, or a saved model with --model"),
        (["--model", "m", "--report", "r.html"], "--report compares with real rows"),
        (["--model", "m", "--epochs", "3"], "a saved --model is already trained"),
        (["--model", "m", "--noise", "normal"], "a saved --model is already trained"),
        (["--model", "m", "--min-count", "3"], "a saved --model is already trained"),
        (["--model", "m", "--together"], "a saved --model is already trained"),
        (["--data", "x.csv", "--noise", "loud"], "'loud' is not one of"),
        (["--data", "x.csv", "--rows", "0"], "0 is not in the range"),
    ],
)
def test_an_invalid_command_line_exits_with_2(arguments, message):
    result = synthesize(*arguments)

    assert result.exit_code == 2
    output = " ".join(result.output.replace("│", " ").split())
    assert message in output


def test_a_missing_column_is_named(loans, tmp_path):
    result = synthesize("--data", loans, "--label", "paid", "--out", tmp_path / "rows.csv")

    assert result.exit_code == 1
    assert "has no column 'paid'" in result.stderr
    assert not (tmp_path / "rows.csv").exists()


def test_a_row_without_a_label_is_reported(loans, tmp_path):
    loans.write_text(loans.read_text() + ",1.0,30,own\n")

    result = synthesize("--data", loans, "--label", "default", "--out", tmp_path / "rows.csv")

    assert result.exit_code == 1
    assert "column 'default' of" in result.stderr
    assert "is missing in 1 rows" in result.stderr


def test_the_label_column_needs_an_unused_name(loans, tmp_path):
    model = tmp_path / "loans.syn"
    synthesize("--data", loans, "--label", "default", "--epochs", 1, "--model", model,
         "--out", tmp_path / "rows.csv")  # fmt: skip

    result = synthesize("--model", model, "--label", "age", "--out", tmp_path / "more.csv")

    assert result.exit_code == 1
    assert "give the labels another name" in result.stderr


def test_without_torch_the_extra_is_named_in_one_line(loans, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("_training", "_networks"):
        module = f"fedneighbors.methods.fedpnn.synthesis.{name}"
        monkeypatch.delitem(sys.modules, module, raising=False)

    result = synthesize("--data", loans, "--label", "default", "--out", tmp_path / "rows.csv")

    assert result.exit_code == 1
    assert "pip install 'fedneighbors[torch]'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_files_are_read_as_by_other_commands(tmp_path):
    rows = [
        f"p{n};{n % 9},5;{'Ärzte' if n % 2 else 'OP'};{'no' if n % 3 else 'yes'}" for n in range(60)
    ]
    table, out = tmp_path / "stays.csv", tmp_path / "rows.csv"
    table.write_bytes("\n".join(["patient;dose;ward;ill", *rows, "q;-;OP;no"]).encode("latin-1"))
    command = [
        "--data",
        table,
        "--label",
        "ill",
        "--epochs",
        1,
        "--encoding",
        "latin-1",
        "--out",
        out,
    ]

    refused = synthesize(*command, "--id", "patient")
    result = synthesize(*command, "--id", "patient", "--missing", "-")

    assert refused.exit_code == 1
    assert "the cell in data row 61 is '-'; list it as missing (--missing -)" in refused.stderr
    assert result.exit_code == 0, result.output
    header, *made = read_csv(out)
    assert header == ["dose", "ward", "ill"]
    assert {row[1] for row in made} <= {"Ärzte", "OP"}
    assert all(0.5 <= float(row[0]) <= 8.5 for row in made if row[0])
