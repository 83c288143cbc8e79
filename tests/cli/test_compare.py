"""``fedneighbors compare`` on one file for each party."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors import comparison
from fedneighbors.cli._main import app
from fedneighbors.errors import DataError
from fedneighbors.records import ResultTable, RunRecord, read_record

FAST = ["--candidate", "alone", "--candidate", "averaged linear models"]


@pytest.fixture(autouse=True)
def _in_tmp_path(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


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
    reason, step = result.stdout.splitlines()[-2:]
    assert reason.startswith("Recommended: averaged linear models, ROC-AUC")
    assert step.startswith("No command trains it. To train it: at each party, scikit-learn's Log")
    record = read_record(out / "comparison.jsonl")
    assert [table.name for table in record.tables] == ["scores", "parties", "disclosures"]
    assert [row[0] for row in record.tables[1].rows] == ["north", "south"]
    assert record.notes[:2] == (reason, step)
    assert "No command trains it" in (out / "report.html").read_text(encoding="utf-8")


def test_numbers_are_compared_as_a_regression(files, tmp_path):
    options = ["--label", "score", "--drop", "state", "--minutes", 3, "--out", tmp_path / "out"]

    refused = call(*files, *FAST, *options)
    result = call(*files, *FAST, *options, "--task", "regression")

    assert refused.exit_code == 1
    assert "look like a measurement" in refused.stderr
    assert result.exit_code == 0, result.output
    assert "R\N{SUPERSCRIPT TWO} 0.9" in result.stdout.splitlines()[-2]


@pytest.fixture
def recommend(monkeypatch):
    """Return a function that replaces the comparison by a recommendation."""

    def replace_comparison(name, private=""):
        record = RunRecord(
            "compare", {}, notes=("Recommended: it.", "To train it: somehow.", "Last.")
        )
        scores = ResultTable("disclosures", "", ("method", "score"), ((private, "0.7 (-0.1)"),))
        record = replace(record, tables=(scores,))
        result = comparison.Comparison(name, "Recommended: it.", record, private)
        monkeypatch.setattr(comparison, "compare", lambda *_, **__: result)

    return replace_comparison


@pytest.mark.parametrize(
    ("name", "options", "step"),
    [
        ("federated boosting", ["--drop", "score"], "boosting {} --label state --drop score"),
        ("discriminant analysis", ["--seed", 3], "discriminants {} --label state --seed 3"),
        ("FlyNN", [], "flynn {} --label state"),
        ("FedPNN", ["--missing", "n a"], "fedpnn {} --label state --missing 'n a'"),
        (
            "kNN-Per, pool",
            [],
            "knnper --representation network --combine pool {} --label state",
        ),
        ("kNN search", ["--task", "regression"], "neighbors {} --label state --task regression"),
    ],
)
def test_the_command_that_trains_has_the_options_of_the_comparison(
    name, options, step, files, recommend
):
    recommend(name)

    result = call(*files, "--label", "state", *options, "--minutes", 5, "--out", "out")

    given = shlex.join(map(str, files))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"Train it: fedneighbors run {step.format(given)}"
    notes = read_record(Path("out", "comparison.jsonl")).notes
    assert notes == ("Recommended: it.", result.stdout.splitlines()[-1], "Last.")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "--partition iid --parties 10"),
        (["--partition", "dirichlet"], "--parties 10 --alpha 0.5"),
        (["--party-column", "state", "--label", "score", "--task", "regression"], None),
    ],
)
def test_a_simulated_split_is_given_in_full(options, expected, files, recommend):
    recommend("FlyNN")

    result = call("--data", files[1], "--label", "state", *options)

    if expected is None:
        assert result.stdout.splitlines()[-1] == "No command trains it. To train it: somehow."
    else:
        command = shlex.join(["--data", str(files[1]), "--label", "state"])
        assert result.stdout.splitlines()[-1].endswith(f"run flynn {command} {expected}")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("alone", "Nothing needs to be joined. To train it: somehow."),
        ("Ditto", "No command trains it. To train it: somehow."),
    ],
)
def test_a_method_without_a_command_is_named(name, step, files, recommend):
    recommend(name)

    result = call(*files, "--label", "state")

    assert result.stdout.splitlines()[-1] == step


def test_the_best_private_method_needs_a_schema(files, recommend):
    recommend("federated boosting", "kNN-Per")

    result = call(*files, "--label", "state")

    step = result.stdout.splitlines()[-1]
    assert step.startswith(
        "Under a privacy budget, kNN-Per has the best score, 0.7 (-0.1). A schema"
    )
    assert "fedneighbors run knnper --representation network --combine paper --data" in step
    assert step.endswith(" --epsilon 1 --schema schema.toml --delta 1e-05")


def test_the_printed_command_gives_the_scores_of_the_comparison(files, tmp_path):
    Path("north.csv").rename("the north.csv")
    options = ["--label", "state", "--drop", "score", "--minutes", 3]
    sources = ["--data", "n=the north.csv", "--data", "south.csv"]

    compared = call(*sources, *options, "--candidate", "discriminant analysis", "--out", "compared")
    command = shlex.split(compared.stdout.splitlines()[-1].removeprefix("Train it: fedneighbors "))
    trained = CliRunner().invoke(app, [*command, "--out", "trained"])

    assert trained.exit_code == 0, trained.output
    results = [
        json.loads(line)
        for line in Path("compared", "results.jsonl").read_text().splitlines()
        if line
    ]
    scores = next(r["result"]["scores"] for r in results if r.get("repeat") == 0)
    summary = read_record(Path("trained", "record.jsonl")).tables[0]
    assert dict(zip(summary.columns[1:], summary.rows[0][1:], strict=True)) == scores


HEADER = "age,dose,state"
ROWS = [f"{age},{age % 7 + 0.5},{'ill' if age % 2 else 'well'}" for age in range(30, 54)]
TABLE = "\n".join([HEADER, *ROWS]) + "\n"


def swap(row, text):
    """Return the table with another text in a data row, counted from 1."""
    return "\n".join([HEADER, *ROWS[: row - 1], text, *ROWS[row:]]) + "\n"


def write_pair(folder, north, south):
    for name, text in (("north.csv", north), ("south.csv", south)):
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return ["--data", "north.csv", "--data", "south.csv", "--label", "state", "--out", "out"]


@pytest.fixture
def received(monkeypatch):
    """Replace the comparison; return the rows that it received."""
    rows = []

    def keep_rows(x, y, *, parties, **_):
        rows.append((x, y, parties))
        raise DataError("no training here")

    monkeypatch.setattr(comparison, "compare", keep_rows)
    return rows


@pytest.mark.parametrize(
    "south",
    [
        b"\xef\xbb\xbf" + TABLE.encode(),
        TABLE.replace(",", ";"),
        TABLE.replace(",", "\t"),
        TABLE.replace(",", ";").replace(".", ","),
        "\n".join(",".join(line.split(",")[::-1]) for line in TABLE.splitlines()),
    ],
    ids=["byte order mark", "semicolon", "tab", "decimal comma", "other order"],
)
def test_forms_of_text_give_equal_rows(south, received, tmp_path):
    result = call(*write_pair(tmp_path, TABLE, south))

    assert "no training here" in result.stderr
    x, y, parties = received[0]
    assert parties.tolist() == ["north"] * 24 + ["south"] * 24
    np.testing.assert_array_equal(x[24:], x[:24])
    np.testing.assert_array_equal(y[24:], y[:24])


@pytest.mark.parametrize(
    ("south", "message"),
    [
        (swap(3, "40,2,kränk").encode("latin-1"), "south.csv is not UTF-8 text (line 4, byte 8"),
        (TABLE.replace("state", "outcome"), "south.csv has no column 'state'"),
        (TABLE.replace("dose", "Dose"), "south.csv has no column 'dose'"),
        (
            swap(5, "old,2,ill"),
            "column 'age' of south.csv: most cells are numbers, but the cell in",
        ),
        (swap(5, "old,2,ill"), "in data row 5 is no number"),
        ("\n".join([HEADER + ",site", *(f"{row},1" for row in ROWS)]), "has no column 'site'"),
        (swap(5, "40,2"), "the row that ends at line 6 of south.csv has 2 cells"),
        (swap(5, "inf,2,ill"), "column 'age' of south.csv is infinite in data row 5"),
        (swap(5, "40,2,"), "column 'state' of south.csv is missing in 1 rows, first in data row 5"),
        (HEADER + "\n", "south.csv has no rows"),
        (b"", "south.csv is empty"),
    ],
)
def test_a_bad_file_is_named_with_its_place(south, message, received, tmp_path):
    result = call(*write_pair(tmp_path, TABLE, south))

    assert result.exit_code == 1
    assert message in result.stderr
    assert not received
    assert not (tmp_path / "out").exists()


def test_dates_are_refused(received, tmp_path):
    dated = TABLE.replace("\n", ",2024-05-01\n").replace("state,2024-05-01", "state,seen")

    result = call(*write_pair(tmp_path, dated, dated))

    assert "column 'seen' of north.csv has dates" in result.stderr
    assert not received


def test_files_without_an_option_are_named(received):
    result = call("--data", "north.csv", "east.csv", "--label", "state")

    assert result.exit_code == 2
    words = " ".join(result.stderr.replace("│", " ").split())
    assert "expected an option, such as --data, before each of ['east.csv']" in words
    assert not received


def test_numbers_in_one_file_and_text_in_another_are_refused(received, tmp_path):
    result = call(*write_pair(tmp_path, TABLE, TABLE.replace(".5,", "mg,")))

    assert "column 'dose' of south.csv: the cell in data row 1 is no number" in result.stderr
    assert "the column has numbers in north.csv" in result.stderr
    assert not received


def test_one_class_in_all_files_is_refused(received, tmp_path):
    healthy = TABLE.replace(",ill", ",well")

    result = call(*write_pair(tmp_path, healthy, healthy))

    assert "all 48 rows of north.csv, south.csv have the label 'state' 'well'" in result.stderr
    assert not received


@pytest.mark.parametrize(
    ("south", "note"),
    [
        (TABLE.replace(",ill", ",well"), "all rows of party 'south' are of class 'well'"),
        (
            TABLE.replace(",ill", ",Ill").replace(",well", ",Well"),
            "party: 'Ill', 'Well'; check their",
        ),
        ("\n".join([HEADER, *ROWS[:4]]), "fewer than 5 rows at 1 of 2 parties, such as 'south'"),
    ],
    ids=["one class", "other labels", "few rows"],
)
def test_an_odd_party_is_noted_before_training(south, note, received, tmp_path):
    result = call(*write_pair(tmp_path, TABLE, south))

    assert note in result.stderr
    assert len(received) == 1


def test_constants_and_identifiers_are_noted(received, tmp_path):
    lines = TABLE.splitlines()
    north, south = (
        "\n".join(["id,site," + HEADER, *(f"{p}{i},7,{row}" for i, row in enumerate(lines[1:]))])
        for p in "ns"
    )

    result = call(*write_pair(tmp_path, north, south))

    assert "column 'site' has the same value in every row" in result.stderr
    assert "column 'id' is different in every row, like an identifier" in result.stderr
    assert len(received) == 1


def test_a_party_of_two_rows_and_one_of_one_class_are_compared(tmp_path):
    south = "\n".join([HEADER, *ROWS[1:5:2]]) + "\n"

    result = call(*write_pair(tmp_path, TABLE, south), *FAST, "--minutes", 3)

    assert result.exit_code == 0, result.output
    assert "Recommended" in result.stdout


def test_one_file_under_two_names_is_noted(received, tmp_path):
    write_pair(tmp_path, TABLE, TABLE)

    result = call("--data", "a=north.csv", "--data", "b=north.csv", "--label", "state")

    assert "note: parties 'a' and 'b' have 24 equal rows: if they are the" in result.stderr
    assert len(received) == 1


def test_an_unknown_candidate_is_named(files, tmp_path):
    result = call(*files, "--candidate", "oracle", "--label", "state", "--out", tmp_path / "out")

    assert result.exit_code == 1
    assert "got 'oracle'" in result.stderr
    assert not (tmp_path / "out").exists()
