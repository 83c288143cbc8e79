"""Commands that train, predict, and list, describe and split data sets."""

import csv
import json

import numpy as np
import pytest
import typer
from sklearn.datasets import load_breast_cancer, load_iris
from typer.testing import CliRunner

from fedneighbors.cli._files import Files
from fedneighbors.cli._main import app
from fedneighbors.cli._splits import read_data
from fedneighbors.datasets import Schema, Table, load, read_rows
from fedneighbors.methods.flynn import FlyNNClassifier
from fedneighbors.partition import Manifest, describe, dirichlet
from fedneighbors.records import read_record
from fedneighbors.records._storage import lock_folder

IRIS = load_iris()
SPECIES = [str(IRIS.target_names[label]) for label in IRIS.target]
COLUMNS = ["sepal length", "sepal width", "petal length", "petal width"]


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write_csv(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    """Return a file of the iris data with a nominal and a party column."""
    rows = [
        [*values, ["sun", "shade"][row % 2], f"garden-{row % 3}", species]
        for row, (values, species) in enumerate(zip(IRIS.data.tolist(), SPECIES, strict=True))
    ]
    header = [*COLUMNS, "light", "garden", "species"]
    return write_csv(tmp_path_factory.mktemp("flowers") / "flowers.csv", header, rows)


@pytest.fixture(scope="module")
def trained_run(flowers):
    """Return the output folder and the result of ``run flynn``."""
    out = flowers.parent / "run"
    arguments = ["--data", flowers, "--label", "species", "--party-column", "garden"]
    result = call("run", "flynn", *arguments, "--n-units", 200, "--out", out)
    assert result.exit_code == 0, result.stderr
    return out, result


def test_demo_prints_a_summary_and_writes_record_and_report(tmp_path):
    result = call("demo", "--out", tmp_path / "demo", "--parties", 3)

    assert result.exit_code == 0, result.stderr
    assert "FlyNN, federated" in result.stdout
    assert result.stderr == ""
    record = read_record(tmp_path / "demo" / "demo.jsonl")
    assert record.parameters["parties"] == 3
    assert record.figures
    html = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert html.count("<img") == len(record.figures)


def test_run_trains_over_the_parties_in_a_column(trained_run):
    out, result = trained_run

    record = read_record(out / "record.jsonl")

    assert "FlyNN, federated" in result.stdout
    assert set(record.rounds[0].upload_bytes) == {"garden-0", "garden-1", "garden-2"}
    assert record.parameters["n_units_"] == 200
    names = ["manifest.json", "model.fnn", "record.jsonl", "report.html", "schema.toml"]
    assert sorted(path.name for path in out.iterdir()) == names


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_predict_writes_the_predictions_of_the_model(trained_run, flowers, tmp_path):
    model = FlyNNClassifier.load(trained_run[0] / "model.fnn")
    rows = read_rows(flowers, Schema.load(trained_run[0] / "schema.toml")).x

    result = call(
        *("predict", "--model", trained_run[0] / "model.fnn", "--data", flowers, "--proba"),
        *("--out", tmp_path / "predictions.csv"),
    )

    assert result.exit_code == 0, result.stderr
    header, *lines = read_csv(tmp_path / "predictions.csv")
    assert header == ["prediction", *(f"probability of {label}" for label in model.classes_)]
    assert [line[0] for line in lines] == model.predict(rows).tolist()
    assert np.array_equal(
        np.array([line[1:] for line in lines], dtype=np.float64), model.predict_proba(rows)
    )
    assert np.mean([line[0] == species for line, species in zip(lines, SPECIES, strict=True)]) > 0.8


def test_predict_names_a_missing_column_and_writes_nothing(trained_run, tmp_path):
    data = write_csv(tmp_path / "new.csv", [*COLUMNS[:3], "light"], [[1, 2, 3, "sun"]])

    result = call(
        *("predict", "--model", trained_run[0] / "model.fnn", "--data", data),
        *("--out", tmp_path / "predictions.csv"),
    )

    assert result.exit_code == 1
    assert "petal width" in result.stderr
    assert not (tmp_path / "predictions.csv").exists()


def test_predict_uses_column_order_if_the_model_has_no_names(tmp_path):
    model = FlyNNClassifier(n_units=100, random_state=0).fit(IRIS.data, IRIS.target)
    model.save(tmp_path / "model.fnn")
    data = write_csv(tmp_path / "new.csv", COLUMNS, IRIS.data.tolist())
    wide = write_csv(tmp_path / "wide.csv", [*COLUMNS, "more"], [[1, 2, 3, 4, 5]])
    out = tmp_path / "predictions.csv"

    result = call("predict", "--model", tmp_path / "model.fnn", "--data", data, "--out", out)
    refused = call("predict", "--model", tmp_path / "model.fnn", "--data", wide, "--out", out)

    assert result.exit_code == 0, result.stderr
    assert [int(line[0]) for line in read_csv(out)[1:]] == model.predict(IRIS.data).tolist()
    assert refused.exit_code == 1
    assert "trained on 4 columns without names" in refused.stderr


def test_a_truncated_model_file_is_refused_in_one_line(trained_run, flowers, tmp_path):
    content = (trained_run[0] / "model.fnn").read_bytes()
    (tmp_path / "model.fnn").write_bytes(content[:-10])

    result = call("predict", "--model", tmp_path / "model.fnn", "--data", flowers)

    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "none.csv"], "none.csv"),
        (["--data", "atlantis"], "atlantis"),
        (["--data", "iris", "--partition", "natural"], "--party-column"),
        (["--data", "iris", "--parties", "400", "--partition", "iid"], "parties"),
        (["--data", "iris", "--partition", "iid", "--decay", "2"], "decay"),
    ],
    ids=["no file", "no data set", "no party column", "too many parties", "invalid decay"],
)
def test_run_reports_an_error_in_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.delenv("FEDNEIGHBORS_DATA", raising=False)

    result = call("run", "flynn", *arguments, "--out", tmp_path / "out")

    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command", [("demo",), ("run", "flynn", "--data", "iris", "--partition", "iid")]
)
def test_a_run_into_the_folder_of_another_run_is_refused(command, tmp_path):
    with lock_folder(tmp_path):
        result = call(*command, "--out", tmp_path)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: another run writes to {tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_data_sets_are_listed_with_their_size():
    result = call("data", "list")

    assert result.exit_code == 0
    assert ["digits", "1797", "64", "10"] in [
        line.split()[:4] for line in result.stdout.splitlines()
    ]


def test_a_data_set_is_described_by_its_size():
    result = call("data", "describe", "iris")

    assert result.exit_code == 0
    assert "iris: 150 rows, 4 features" in result.stdout


def test_the_manifest_of_a_split_is_written(tmp_path):
    y = load("digits").y
    parties = dirichlet(y, 4, alpha=0.5, seed=1)

    result = call(
        *("data", "partition", "digits", "--parties", 4, "--alpha", 0.5, "--seed", 1),
        *("--out", tmp_path / "manifest.json"),
    )

    assert result.exit_code == 0, result.stderr
    text = (tmp_path / "manifest.json").read_text("utf-8")
    expected = describe(parties, y, kind="dirichlet", seed=1, parameters={"alpha": 0.5})
    assert Manifest.from_json(text) == expected
    assert json.loads(text)["digest"] == expected.digest


@pytest.mark.parametrize("kind", ["iid", "pathological", "pathological_v2", "quantity"])
def test_every_kind_of_split_can_be_chosen(kind, tmp_path):
    out = tmp_path / "manifest.json"

    result = call("data", "partition", "digits", "--kind", kind, "--out", out)

    assert result.exit_code == 0, result.stderr
    assert Manifest.from_json(out.read_text("utf-8")).kind.startswith(kind)


@pytest.mark.parametrize("option", ["--label", "--party-column"])
@pytest.mark.parametrize(
    "command",
    [
        ["run", "flynn", "--data", "wine"],
        ["run", "fedpnn", "--data", "wine"],
        ["run", "knnper", "--data", "wine"],
        ["run", "knnper", "--data", "openml:61"],
        ["data", "describe", "wine"],
        ["data", "partition", "wine"],
    ],
    ids=" ".join,
)
def test_a_column_option_without_a_file_is_a_usage_error(command, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    result = call(*command, option, "nope")

    output = " ".join(result.stderr.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split())
    assert result.exit_code == 2
    assert f"{option} 'nope' is for files" in output
    assert list(tmp_path.iterdir()) == []


def test_runs_write_the_manifest_of_their_split(tmp_path):
    split = ["--parties", 3, "--alpha", 5, "--seed", 2]
    call("data", "partition", "wine", *split, "--out", tmp_path / "manifest.json")

    for method, options in (("flynn", ["--n-units", 50]), ("fedpnn", [])):
        command = ["run", method, "--data", "wine", *split, *options, "--out", tmp_path / method]
        assert call(*command).exit_code == 0

    expected = (tmp_path / "manifest.json").read_text("utf-8")
    for method in ("flynn", "fedpnn"):
        assert (tmp_path / method / "manifest.json").read_text("utf-8") == expected


def test_warmup_reports_compiled_kernels():
    result = call("warmup")

    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("all kernels are compiled: ")


def test_openml_is_used_only_with_its_prefix(monkeypatch):
    requests = []
    monkeypatch.setattr(
        "fedneighbors.datasets._catalog.fetch_openml", lambda key, **_: requests.append(key)
    )

    for name in ("openml:61", "openml:blood-transfusion", "iris"):
        read_data(Files({"": name}), label="target", party_column=None)

    assert requests == [61, "blood-transfusion"]


def test_label_that_is_also_the_party_column_is_a_usage_error(tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text("age,outcome\n" + "".join(f"{20 + k},{k % 2}\n" for k in range(20)))

    result = CliRunner().invoke(
        app,
        ["run", "flynn", "--data", str(path), "--label", "outcome", "--party-column", "outcome"],
    )

    assert result.exit_code == 2
    assert "both name" in result.output


@pytest.fixture(scope="module")
def private_command(tmp_path_factory):
    """Return a command without privacy options, and its schema option."""
    folder = tmp_path_factory.mktemp("private")
    cells = load_breast_cancer(as_frame=True).frame
    cells.to_csv(folder / "cells.csv", index=False)
    schema = Schema.draft(Table.from_frame(cells), "target")
    (folder / "cells.toml").write_text(schema.to_toml(), "utf-8")
    command = ["run", "flynn", "--data", folder / "cells.csv", "--parties", 3, "--n-units", 300]
    return command, ["--schema", folder / "cells.toml"]


def test_all_outputs_of_a_private_run_state_its_guarantee(private_command, tmp_path):
    command, schema = private_command
    terms = ["--epsilon", "2", "--delta", "1e-6", "--mechanism", "central"]

    result = call(*command, *terms, *schema, "--out", tmp_path)

    assert result.exit_code == 0, result.stderr
    record = read_record(tmp_path / "record.jsonl")
    assert (record.privacy["epsilon"], record.privacy["delta"]) == (2.0, 1e-6)
    assert any(entry.reduce == "masked" for entry in record.rounds)
    assert "This report is not private" in record.notes[0]
    assert "This report is not private" in " ".join(result.output.split())
    guarantee = FlyNNClassifier.load(tmp_path / "model.fnn").model_.guarantee
    assert guarantee == "epsilon=2, delta=1e-06; add_remove of one row; central"
    assert "privacy spent" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not (tmp_path / "manifest.json").exists()


def test_a_run_without_a_budget_can_use_a_schema(private_command, tmp_path):
    command, schema = private_command

    result = call(*command, *schema, "--out", tmp_path)

    assert result.exit_code == 0, result.stderr
    assert Schema.load(tmp_path / "schema.toml") == Schema.load(schema[1])
    assert read_record(tmp_path / "record.jsonl").notes == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "0"], "expected epsilon above 0"),
        (["--epsilon", "much"], "expected epsilon as a number"),
        (["--epsilon", "1", "--delta", "1e-6"], "does not use a delta"),
        (["--epsilon", "1", "--mechanism", "magic"], "expected mechanism as one of"),
        (["--epsilon", "1", "--search"], "would void --epsilon"),
        (["--delta", "1e-6"], "needs --epsilon"),
    ],
)
def test_private_run_with_invalid_terms_is_a_usage_error(
    private_command, options, message, tmp_path
):
    command, schema = private_command

    result = call(*command, *options, *schema, "--out", tmp_path / "run")

    output = " ".join(result.stderr.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split())
    assert result.exit_code == 2
    assert message in output
    assert not (tmp_path / "run").exists()


def test_a_budget_without_a_schema_is_refused(private_command, tmp_path):
    command, _ = private_command

    result = call(*command, "--epsilon", 1, "--out", tmp_path / "run")

    assert result.exit_code == 2
    output = " ".join(result.stderr.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split())
    assert "epsilon needs a schema: under a privacy budget, rows must not decide" in output


def test_a_schema_for_a_named_data_set_is_refused(private_command, tmp_path):
    _, schema = private_command

    result = call("run", "flynn", "--data", "iris", *schema, "--out", tmp_path / "run")

    assert result.exit_code == 2
    words = result.stderr.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split()
    assert "is for files" in " ".join(words)


def list_commands(command, names=()):
    """Yield the words and parameters of every command."""
    for name, child in getattr(command, "commands", {}).items():
        yield from list_commands(child, (*names, name))
    if not hasattr(command, "commands"):
        yield names, command.params


@pytest.mark.parametrize(("words", "params"), list_commands(typer.main.get_command(app)))
def test_help_describes_every_argument(words, params):
    printed = "".join(call(*words, "--help").stdout.replace("│", "").split())

    for param in params:
        assert param.help, param.name
        if param.param_type_name == "argument":
            assert param.help.replace(" ", "")[:20] in printed
