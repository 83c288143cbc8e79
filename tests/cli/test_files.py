"""Commands read one file for each party, in the forms of spreadsheets; interruptions are clean."""

import csv
import signal
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris
from typer.testing import CliRunner

from fedneighbors.baselines import FederatedDiscriminantClassifier
from fedneighbors.cli._console import delay_interrupt
from fedneighbors.cli._main import app
from fedneighbors.datasets import read_party_files
from fedneighbors.partition import Manifest
from fedneighbors.records import read_record

IRIS = load_iris()
ROWS = [
    [f"p{n:03}", *map(float, row), str(IRIS.target_names[label])]
    for n, (row, label) in enumerate(zip(IRIS.data, IRIS.target, strict=True))
]
HEADER = ["patient", "a", "b", "c", "d", "kind"]


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def call_wrong(*arguments):
    """Return the message of an invalid command line."""
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split())


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def write(path, rows, *, header=HEADER, separator=",", comma=False, encoding="utf-8"):
    lines = [separator.join(map(str, row)) for row in [header, *rows]]
    text = "\n".join(line.replace(".", ",") if comma else line for line in lines)
    path.write_bytes(text.encode(encoding))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the files of three hospitals, of different forms."""
    folder = tmp_path_factory.mktemp("hospitals")
    write(folder / "north.csv", ROWS[0::3])
    write(folder / "south.csv", ROWS[1::3], separator=";", comma=True, encoding="utf-8-sig")
    order = [5, 1, 3, 2, 4, 0]
    west = [[row[column] for column in order] for row in ROWS[2::3]]
    write(folder / "w.csv", west, header=[HEADER[column] for column in order], separator="\t")
    return folder


@pytest.fixture(scope="module")
def files(folder):
    names = [folder / "north.csv", folder / "south.csv", f"west={folder / 'w.csv'}"]
    return [text for name in names for text in ("--data", name)]


@pytest.fixture(scope="module")
def model(folder, files):
    """Return a model that was trained on the three files."""
    out = folder / "run"
    options = ("--label", "kind", "--id", "patient", "--n-units", 200, "--out", out)
    result = call("run", "flynn", *files, *options)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return out / "model.fnn"


def read_parties(out):
    return Manifest.from_json((out / "manifest.json").read_text("utf-8")).parties


def test_each_file_is_a_party(model):
    record = read_record(model.with_name("record.jsonl"))

    assert sorted(read_parties(model.parent)) == ["north", "south", "west"]
    assert set(record.rounds[0].upload_bytes) == {"north", "south", "west"}
    assert record.parameters["data"] == "north.csv, south.csv, w.csv"
    assert record.parameters["parties by"] == "file"


@pytest.mark.parametrize(("method", "options"), [("fedpnn", []), ("knnper", ["--rounds", 1])])
def test_other_methods_read_a_file_for_each_party(method, options, files, tmp_path):
    columns = ["--label", "kind", "--drop", "patient", "--drop", "b"]

    result = call("run", method, *files, *columns, *options, "--out", tmp_path / "out")

    assert result.exit_code == 0, result.stderr
    assert sorted(read_parties(tmp_path / "out")) == ["north", "south", "west"]


def test_a_search_asks_the_party_of_each_file(files, tmp_path):
    search = [*files, "--metric", "euclidean", "--query", "row:west:2", "-k", 3]

    result = call("run", "fedknn", *search, "--out", tmp_path / "out")
    explained = call("explain", *search)

    assert result.exit_code == 0, result.stderr
    header, *neighbors = read_csv(tmp_path / "out" / "neighbors.csv")
    assert header == ["query", "rank", "object", "row", "distance", "party"]
    assert neighbors[0][1:] == ["1", "west row 2", "2", "0.0", "west"]
    distances = np.sqrt(((IRIS.data - IRIS.data[5]) ** 2).sum(axis=1))
    order = np.argsort(distances, kind="stable")[:3]
    assert [float(row[4]) for row in neighbors] == pytest.approx(distances[order])
    assert {row[5] for row in neighbors} <= {"north", "south", "west"}
    assert explained.exit_code == 0, explained.stderr


def test_strings_of_several_files_keep_their_party(tmp_path):
    (tmp_path / "a.txt").write_bytes("Zürich\nBern\n".encode("latin-1"))
    (tmp_path / "b.txt").write_text("Basel\n")
    search = ["--data", tmp_path / "a.txt", "--data", tmp_path / "b.txt", "--metric", "edit"]

    result = call(
        *("run", "fedknn", *search, "--query", "Zürich", "-k", 3, "--encoding", "latin-1"),
        *("--limit", 1, "--out", tmp_path / "out"),
    )

    assert result.exit_code == 0, result.stderr
    rows = read_csv(tmp_path / "out" / "neighbors.csv")[1:]
    assert [(row[2], row[3], row[5]) for row in rows] == [("Zürich", "1", "a"), ("Basel", "1", "b")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--party-column", "kind"], "--party-column and several --data exclude each other"),
        (["--partition", "iid"], "--partition and several --data exclude each other"),
        (["--parties", 3], "--parties and several --data exclude each other"),
        (["--delimiter", ";;"], "expected delimiter as one character"),
        (["--encoding", "latin-77"], "there is no encoding 'latin-77'"),
        (["--data", "iris"], "'iris' is not a file; several --data are one file for each party"),
        (["--data", "other/north.csv"], "two files are of party 'north'"),
        (["--data", "=x.csv"], "expected NAME=FILE, got '=x.csv'"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_options_that_would_be_ignored_are_refused(options, message, files, tmp_path):
    out = tmp_path / "out"

    assert message in call_wrong("run", "flynn", *files, *options, "--out", out)
    assert not out.exists()


@pytest.mark.parametrize("option", [["--parties", 3], ["--partition", "iid"], ["--alpha", 2]])
def test_a_split_next_to_a_column_of_parties_is_refused(option, tmp_path):
    table = write(
        tmp_path / "t.csv", [[*row, row[0][-1]] for row in ROWS], header=[*HEADER, "site"]
    )
    command = ["run", "flynn", "--data", table, "--label", "kind", "--party-column", "site"]

    message = call_wrong(*command, *option, "--out", tmp_path / "out")

    assert f"{option[0]} and --party-column exclude each other" in message
    assert not (tmp_path / "out").exists()


def test_a_label_that_the_schema_replaces_is_refused(tmp_path):
    table = write(tmp_path / "t.csv", ROWS)
    (tmp_path / "s.toml").write_text('label = "kind"\n[columns.a]\nkind = "number"\n')
    command = ["run", "flynn", "--data", table, "--schema", tmp_path / "s.toml"]

    message = call_wrong(*command, "--label", "d", "--out", tmp_path / "out")

    assert "--label is 'd', but the label of" in message
    assert not (tmp_path / "out").exists()


def test_a_split_into_too_many_parties_names_the_option(tmp_path):
    table = write(tmp_path / "t.csv", ROWS[:3] + ROWS[-3:])
    command = ["run", "flynn", "--data", table, "--label", "kind", "--id", "patient"]

    result = call(*command, "--parties", 9, "--out", tmp_path / "out")

    assert result.exit_code == 1
    assert "there are only 6 rows" in result.stderr
    assert "(--parties, --alpha, --partition; or one --data for each party)" in result.stderr


def test_all_files_that_are_wrong_are_named(files, tmp_path):
    broken = tmp_path / "broken.csv"
    broken.write_text("age,kind\n1\n", encoding="utf-8")
    data = ("--data", broken, *files, "--data", tmp_path / "absent.csv")
    refused = call("run", "flynn", *data, "--label", "kind", "--out", tmp_path / "out")

    first, second = refused.stderr.splitlines()
    assert f"the row that ends at line 2 of {broken} has 1 cells" in first
    assert f"there is no file {tmp_path / 'absent.csv'}" in second
    assert not (tmp_path / "out").exists()


def test_a_search_of_several_files_names_the_row_and_no_split(files, tmp_path):
    search = ["run", "fedknn", *files, "--metric", "euclidean", "--out", tmp_path / "out"]

    assert "name the party: row:NAME:3" in call_wrong(*search, "--query", "row:3")
    assert "--partition and several" in call_wrong(
        *search, "--query", "row:west:3", "--partition", "uniform"
    )
    assert "expected a row from 1 to 50" in call_wrong(*search, "--query", "row:east:3")


def test_the_name_of_a_single_file_is_refused(folder):
    data = f"north={folder / 'north.csv'}"

    assert "names the party of a single file" in call_wrong("run", "flynn", "--data", data)


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "--model", "m.fnn"],
        ["synthesize"],
        ["schema", "draft"],
        ["schema", "check"],
        ["preflight"],
    ],
    ids=" ".join,
)
def test_commands_of_one_file_refuse_a_second(command):
    message = call_wrong(*command, "--data", "a.csv", "--data", "b.csv")

    assert "--data is given twice and takes one value" in message


def test_a_file_whose_name_has_an_equals_sign_is_read(tmp_path):
    path = write(tmp_path / "year=2020.csv", ROWS[::3])

    result = call("data", "describe", path, "--label", "kind", "--id", "patient")

    assert result.exit_code == 0, result.stderr
    assert "50 rows, 4 features" in result.stdout


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("patient,a,b,c,d\np1,1,2,3,4\n", [], "has no column 'kind'"),
        ("patient,a,b,c,kinds\np1,1,2,3,setosa\n", [], "did you mean 'kinds'?"),
        ("patient,a,b,c,kind\np1,1,2,3,setosa\n", [], "has no column 'd'"),
        ("patient,a,b,c,d,kind\np1,1,2,3,x,setosa\n", [], "the cell in data row 1 is no number"),
        ("patient,a,b,c,d,kind\np1,1,2,3,-9,setosa\n", ["--drop", "e"], "has no column 'e'"),
        ("patient,a,b,c,d,kind\np1,1,2,3,2020-01-01,no\n", [], "column 'd' of"),
        ("patient,a,b,c,d,kind\np1,1,2,3,4,\xe9\n", [], "(line 2, byte 12 of the line)"),
    ],
)
def test_a_bad_file_is_named_before_anything_is_written(text, options, message, folder, tmp_path):
    (tmp_path / "bad.csv").write_bytes(text.encode("latin-1"))
    files = ["--data", folder / "north.csv", "--data", tmp_path / "bad.csv"]
    columns = ["--label", "kind", "--id", "patient", *options]

    result = call("run", "flynn", *files, *columns, "--out", tmp_path / "out")

    assert result.exit_code == 1
    assert message in result.stderr
    assert "bad.csv" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_without_the_default_label_asks_for_the_label(folder):
    result = call("run", "flynn", "--data", folder / "north.csv", "--id", "patient")

    assert result.exit_code == 1
    assert "has no column 'target'" in result.stderr
    assert "name the label column with --label" in result.stderr


def test_outputs_never_replace_inputs(folder, tmp_path):
    table = write(tmp_path / "t.csv", ROWS)
    rows = tmp_path / "r.jsonl"
    rows.write_text('{"a": 1, "b": 2, "c": 3, "d": 4, "kind": "setosa"}\n')
    options = ["--label", "kind", "--id", "patient"]
    model = ["--model", tmp_path / "run"]
    trained = call("run", "flynn", "--data", table, *options, "--out", tmp_path / "run")
    before = {path: path.read_bytes() for path in (table, rows, tmp_path / "run" / "model.fnn")}

    messages = [
        call_wrong("predict", *model, "--data", table, "--out", table),
        call_wrong("predict", *model, "--data", rows, "--label", "kind", "--out", tmp_path / "r"),
        call_wrong(
            "predict", "--model", tmp_path / "run" / "model.fnn", "--data", table,
            "--out", tmp_path / "run" / ".." / "run" / "model.fnn",
        ),
        call_wrong("data", "partition", table, *options, "--out", table),
        call_wrong("synthesize", "--data", table, "--label", "kind", "--out", table),
        call_wrong("synthesize", "--data", table, "--label", "kind", "--report", table),
        call_wrong("synthesize", "--data", table, "--label", "kind", "--model", table),
    ]  # fmt: skip

    assert trained.exit_code == 0, trained.output
    assert all("would replace it with its output" in text for text in messages), messages
    assert {path: path.read_bytes() for path in before} == before
    assert f"fedneighbors predict --model {tmp_path / 'run' / 'model.fnn'}" in trained.output


def test_a_run_never_replaces_the_owners_schema(folder, tmp_path):
    schema, options = tmp_path / "schema.toml", ["--label", "kind", "--id", "patient"]
    table = write(tmp_path / "t.csv", ROWS)
    drafted = call("schema", "draft", "--data", table, *options, "--out", schema)
    assert drafted.exit_code == 0, drafted.output
    text = "# checked by the owner\n" + schema.read_text("utf-8")
    schema.write_text(text, encoding="utf-8")
    run = ["run", "flynn", "--data", table, "--schema", schema]

    message = call_wrong(*run, "--out", tmp_path)
    first, second = (call(*run, "--out", tmp_path / "run") for _ in range(2))

    assert "would be replaced; give another --out" in message
    assert schema.read_text("utf-8") == text
    assert [first.exit_code, second.exit_code] == [0, 0], first.output + second.output


def test_a_folder_needs_a_single_model(folder, tmp_path):
    message = call_wrong("predict", "--model", tmp_path, "--data", folder / "north.csv")

    assert "expected one model file in the folder" in message
    assert "found none" in message


@pytest.mark.parametrize("words", [["run", "flyn"], ["ledgerr"]])
def test_a_similar_command_is_suggested_once(words):
    message = call_wrong(*words)

    assert message.count("Did you mean") == 1


def test_missing_cells_and_separators_are_options(tmp_path):
    rows = [[*row[:4], "unknown" if n % 9 == 0 else row[4], row[5]] for n, row in enumerate(ROWS)]
    write(tmp_path / "t.csv", rows, separator=":", comma=True, encoding="latin-1")
    options = ["--label", "kind", "--id", "patient", "--missing", "unknown", "--delimiter", ":"]

    result = call(
        *("run", "fedpnn", "--data", tmp_path / "t.csv", *options, "--decimal", ","),
        *("--encoding", "latin-1", "--out", tmp_path / "out"),
    )

    assert result.exit_code == 0, result.stderr
    assert 'missing = "keep"' in (tmp_path / "out" / "schema.toml").read_text("utf-8")


def test_notes_tell_of_classes_constants_and_identifiers(folder, tmp_path):
    rows = [[*row[:5], "setosa"] for row in ROWS[:50]]
    write(tmp_path / "one.csv", rows)

    result = call(
        *("run", "flynn", "--data", folder / "north.csv", "--data", tmp_path / "one.csv"),
        *("--label", "kind", "--n-units", 50, "--out", tmp_path / "out"),
    )

    assert result.exit_code == 0, result.stderr
    assert "note: column 'patient' is different in every row" in result.stderr
    assert "note: all rows of party 'one' are of class 'setosa'" in result.stderr
    assert "patient" not in (tmp_path / "out" / "record.jsonl").read_text("utf-8").split('"notes"')


def test_a_label_that_is_a_measurement_is_refused(folder, tmp_path):
    result = call(
        *("run", "flynn", "--data", folder / "north.csv", "--label", "c", "--id", "patient"),
        *("--out", tmp_path / "out"),
    )

    assert result.exit_code == 1
    assert "which look like a measurement: a classifier needs classes" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_schema_and_a_budget_cover_every_file(files, tmp_path):
    columns = [f'[columns.{name}]\nkind = "number"\nlow = 0\nhigh = 8\n' for name in "abcd"]
    classes = ", ".join(f'"{name}"' for name in IRIS.target_names)
    schema = f'label = "kind"\nclasses = [{classes}]\n' + "".join(columns)
    (tmp_path / "s.toml").write_text(schema)
    options = ["--schema", tmp_path / "s.toml", "--epsilon", 5, "--n-units", 100]

    result = call("run", "flynn", *files, *options, "--out", tmp_path / "out")

    assert result.exit_code == 0, result.stderr
    record = read_record(tmp_path / "out" / "record.jsonl")
    assert record.privacy["epsilon"] == 5
    assert set(record.rounds[0].upload_bytes) == {"north", "south", "west"}
    assert "clipped" not in result.stderr  # decimal commas were read
    message = call_wrong("run", "flynn", *files, *options, "--drop", "a")
    assert "name columns that" in message


@pytest.mark.parametrize(("method", "model"), [("flynn", "model.fnn"), ("fedpnn", "model.fnp")])
def test_a_budget_covers_categories_of_files(tmp_path, method, model):
    rows = [[row[0], row[1], "low" if row[2] < 3 else "high", row[5]] for row in ROWS]
    header = ["patient", "a", "b", "kind"]
    write(tmp_path / "north.csv", rows[0::2], header=header)
    write(tmp_path / "south.csv", rows[1::2], header=header)
    (tmp_path / "s.toml").write_text(
        'label = "kind"\nclasses = ["setosa", "versicolor", "virginica"]\n[columns.a]\n'
        'kind = "number"\nlow = 0\nhigh = 8\n[columns.b]\nkind = "category"\n'
        'categories = ["low", "middle", "high"]\nmissing = "keep"\n'
    )
    schema = ("--schema", tmp_path / "s.toml")
    files = [text for name in ("north", "south") for text in ("--data", tmp_path / f"{name}.csv")]
    out = tmp_path / "out"

    result = call("run", method, *files, *schema, "--epsilon", 5, "--out", out)
    predicted = call(
        *("predict", "--model", out / model, "--data", tmp_path / "south.csv", *schema),
        *("--out", tmp_path / "p.csv"),
    )

    assert result.exit_code == 0, result.stderr
    assert read_record(out / "record.jsonl").privacy["epsilon"] == 5
    assert predicted.exit_code == 0, predicted.stderr
    assert len(read_csv(tmp_path / "p.csv")) == 76


def test_a_schema_reads_rows_for_a_model_without_names(tmp_path):
    rows = [[row[1], "low" if row[2] < 3 else "high", row[5]] for row in ROWS]
    path = write(tmp_path / "all.csv", rows, header=["a", "b", "kind"])
    data = read_party_files({"all": path}, "kind")
    model = FederatedDiscriminantClassifier().fit(data.x, data.y)
    model.save(tmp_path / "model.fnd")
    (tmp_path / "schema.toml").write_text(data.schema.to_toml())

    result = call(
        *("predict", "--model", tmp_path / "model.fnd", "--data", path),
        *("--out", tmp_path / "p.csv"),
    )

    assert result.exit_code == 0, result.stderr
    predictions = [row[0] for row in read_csv(tmp_path / "p.csv")[1:]]
    assert predictions == model.predict(data.x).tolist()


def test_predict_names_a_file_without_rows(model, tmp_path):
    path = write(tmp_path / "empty.csv", [])

    result = call("predict", "--model", model, "--data", path, "--out", tmp_path / "p.csv")

    assert result.exit_code == 1
    assert "empty.csv has no rows; expected a header and data below it" in result.stderr


def test_predictions_have_ids_and_scores(model, folder, tmp_path):
    out = tmp_path / "p.csv"

    result = call(
        *("predict", "--model", model, "--data", folder / "south.csv", "--id", "patient"),
        *("--label", "kind", "--proba", "--out", out),
    )

    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    header, *rows = read_csv(out)
    assert header[:3] == ["patient", "prediction", "probability of setosa"]
    assert [row[0] for row in rows] == [row[0] for row in ROWS[1::3]]
    correct = np.mean([row[1] == truth[-1] for row, truth in zip(rows, ROWS[1::3], strict=True)])
    scores = dict(read_record(tmp_path / "p.jsonl").tables[0].rows)
    assert scores["accuracy"] == correct > 0.8
    assert {"rows": 50, "rows with a known label": 50}.items() <= scores.items()
    assert {"balanced accuracy", "log loss"} <= scores.keys()
    assert "balanced accuracy" in result.stdout


def test_rows_without_a_known_label_are_not_scored(model, tmp_path):
    rows = [[*row[:5], label] for row, label in zip(ROWS, ["setosa", "NA", "rose"], strict=False)]
    data = write(tmp_path / "new.csv", rows)
    command = ["predict", "--model", model, "--data", data, "--out", tmp_path / "p.csv"]

    result = call(*command, "--label", "kind")

    assert result.exit_code == 0, result.stderr
    assert read_csv(tmp_path / "p.csv")[0] == ["prediction"]
    scores = dict(read_record(tmp_path / "p.jsonl").tables[0].rows)
    assert (scores["rows"], scores["rows with a known label"]) == (3, 1)
    assert call(*command, "--label", "patient").exit_code == 1


def test_predict_refuses_columns_with_two_roles(model, tmp_path):
    data = write(tmp_path / "new.csv", ROWS, header=["prediction", *HEADER[1:]])
    command = ["predict", "--model", model, "--data", data, "--out", tmp_path / "p.csv"]

    assert "must be different columns" in call_wrong(*command, "--id", "a", "--label", "a")
    assert "'prediction' is a column" in call_wrong(*command, "--id", "prediction")
    assert not (tmp_path / "p.csv").exists()


def test_images_are_read_from_arrays(tmp_path):
    digits = load_digits()
    for party, rows in (("a", slice(0, 150)), ("b", slice(150, 300))):
        np.savez_compressed(tmp_path / f"{party}.npz", x=digits.images[rows], y=digits.target[rows])
    files = ["--data", tmp_path / "a.npz", "--data", tmp_path / "b.npz"]

    trained = call("run", "flynn", *files, "--n-units", 300, "--out", tmp_path / "out")
    predicted = call(
        *("predict", "--model", tmp_path / "out" / "model.fnn", "--data", tmp_path / "a.npz"),
        *("--out", tmp_path / "p.csv"),
    )
    found = call(
        *("run", "fedknn", *files, "--metric", "euclidean", "--query", "row:b:1", "-k", 1),
        *("--out", tmp_path / "search"),
    )

    assert trained.exit_code == 0, trained.stderr
    assert predicted.exit_code == 0, predicted.stderr
    labels = [int(row[0]) for row in read_csv(tmp_path / "p.csv")[1:]]
    assert np.mean(labels == digits.target[:150]) > 0.8
    assert found.exit_code == 0, found.stderr
    assert read_csv(tmp_path / "search" / "neighbors.csv")[1][2:] == ["b row 1", "1", "0.0", "b"]


@pytest.mark.parametrize("option", ["--label", "--party-column", "--id"])
def test_arrays_have_no_columns_to_name(option, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.eye(4), y=[0, 1, 0, 1])

    message = call_wrong("run", "flynn", "--data", tmp_path / "a.npz", option, "kind")

    assert "arrays in .npz files have no named columns" in message


INTERRUPTED = """
import signal, sys
from fedneighbors.runs import _flynn
_flynn.run = lambda *_, **__: signal.raise_signal(signal.SIGINT)
from fedneighbors.cli._main import main
main()
"""


def test_ctrl_c_ends_a_run_with_130_and_no_files(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, "run", "flynn", "--data", "digits"]

    process = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )

    assert process.returncode == 130
    assert process.stderr == "interrupted\n"
    assert process.stdout == ""
    assert list(tmp_path.iterdir()) == []


def write_two_files(written, *, n_interrupts):
    with delay_interrupt():
        for _ in range(n_interrupts):
            signal.raise_signal(signal.SIGINT)
        written += ["record", "model"]


@pytest.mark.parametrize(("n_interrupts", "complete"), [(1, ["record", "model"]), (2, [])])
def test_only_a_second_ctrl_c_stops_the_writing_of_files(n_interrupts, complete):
    written = []

    with pytest.raises(KeyboardInterrupt):
        write_two_files(written, n_interrupts=n_interrupts)

    assert written == complete
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
