"""``fedneighbors run knnper`` on a file and on a named data set."""

import csv
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors.baselines import TITLES
from fedneighbors.cli._main import app
from fedneighbors.datasets import read_columns
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper._model import KNNPerModel
from fedneighbors.partition import Manifest, RowRoles, describe
from fedneighbors.records import read_record
from fedneighbors.runs._figures import split_rows_by_party


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("visits") / "visits.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["fever", "age", "ward", "hospital", "diagnosis"])
        for _ in range(160):
            is_ill = rng.random() < 0.4
            hospital = rng.choice(["north", "south"])
            writer.writerow(
                [
                    f"{rng.normal(37 + 2 * is_ill, 0.5):.1f}",
                    int(rng.integers(20, 90)),
                    rng.choice(["A", "B"]),
                    hospital,
                    "flu" if is_ill else "none",
                ]
            )
    return path


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_report_compares_knnper_with_the_baselines(visits, tmp_path):
    out = tmp_path / "out"

    result = call(
        "run", "knnper", "--data", visits, "--label", "diagnosis", "--party-column", "hospital",
        "--rounds", 2, "--baselines", "--out", out,
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    tables = {table.name: table for table in read_record(out / "record.jsonl").tables}
    accuracy = {row[0]: row[1] for row in tables["summary"].rows}
    assert set(TITLES) <= set(accuracy)
    assert accuracy["FedAvg"] == accuracy["shared model"]
    assert "Ditto" in (out / "report.html").read_text()


@pytest.mark.parametrize("combine", ["paper", "pool"])
def test_a_run_writes_record_and_report(visits, tmp_path, combine):
    out = tmp_path / "out"

    result = call(
        "run", "knnper", "--data", visits, "--label", "diagnosis", "--party-column", "hospital",
        "--rounds", 3, "--combine", combine, "--out", out,
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert "shared model" in result.output
    record = read_record(out / "record.jsonl")
    tables = {table.name: table for table in record.tables}
    assert [row[0] for row in tables["clients"].rows] == ["north", "south"]
    assert sum(row[1] + row[3] for row in tables["clients"].rows) == 160
    assert (tables["clients"].rows[0][2] is None) == (combine == "pool")
    report = (out / "report.html").read_text("utf-8")
    assert ("held-out loss without it" in report) == ("pool" in tables) == (combine == "pool")


@pytest.fixture(scope="module")
def run_folder(visits, tmp_path_factory):
    """Return the folder of a run over the hospitals."""
    out = tmp_path_factory.mktemp("run")
    result = call(*knnper_arguments(visits, out))
    assert result.exit_code == 0, result.output
    return out


def knnper_arguments(visits, out, *options):
    return (
        "run", "knnper", "--data", visits, "--label", "diagnosis", "--party-column", "hospital",
        "--rounds", 3, "--combine", "pool", "--out", out, *options,
    )  # fmt: skip


def test_the_manifest_lists_held_out_rows_and_seen_clients(run_folder, visits):
    hospitals = read_columns(visits, nominal=["hospital", "diagnosis"]).columns["hospital"]
    labels = read_columns(visits, nominal=["hospital", "diagnosis"]).columns["diagnosis"]
    _, held_out = split_rows_by_party(labels.astype(str), hospitals.astype(str), 0.25, 0)
    test = np.isin(np.arange(160), held_out)
    roles = RowRoles(~test, np.zeros(160, bool), test)

    manifest = Manifest.from_json((run_folder / "manifest.json").read_text("utf-8"))

    assert manifest.kind == "natural"
    assert manifest.parties == ("north", "south")
    assert manifest.unseen == ()
    expected = describe(hospitals, hospitals, kind="natural", roles=roles)
    assert manifest.role_digest == expected.role_digest
    tables = {table.name: table for table in read_record(run_folder / "record.jsonl").tables}
    clients = [(row[1], 0, row[3]) for row in tables["clients"].rows]
    assert list(manifest.role_counts) == clients


def test_each_client_can_get_exactly_two_classes(tmp_path):
    result = call(
        "run", "knnper", "--data", "wine", "--partition", "pathological_v2", "--parties", 3,
        "--rounds", 2, "--out", tmp_path,
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    manifest = Manifest.from_json((tmp_path / "manifest.json").read_text("utf-8"))
    assert (manifest.kind, manifest.parameters) == ("pathological_v2", {"classes_per_party": 2})
    assert [sum(count > 0 for count in row) for row in manifest.class_counts] == [2, 2, 2]


def predict(tmp_path, *arguments):
    """Run ``predict`` and return its output and the columns it writes."""
    out = tmp_path / "p.csv"
    result = call("predict", "--out", out, *arguments)
    assert result.exit_code == 0, result.output
    return result.output, read_columns(out, nominal=["prediction"]).columns


def test_predict_uses_the_memory_of_each_rows_hospital(run_folder, visits, tmp_path):
    path, model = run_folder / "model.fnk", KNNPerClassifier.load(run_folder / "model.fnk")
    table = read_columns(visits, nominal=["ward", "hospital"]).columns
    x = np.column_stack([table["fever"], table["age"], table["ward"] == "B"]).astype(float)
    assert model.feature_names_in_.tolist() == ["fever", "age", "ward=B"]

    _, columns = predict(
        tmp_path, "--model", path, "--data", visits, "--party-column", "hospital", "--proba"
    )
    _, north = predict(tmp_path, "--model", path, "--data", visits, "--party", "north")
    output, shared = predict(tmp_path, "--model", path, "--data", visits)
    unknown_output, unknown = predict(
        tmp_path, "--model", run_folder, "--data", visits, "--party-column", "ward"
    )

    expected = model.predict_proba(x, table["hospital"])
    probabilities = np.column_stack([columns[f"probability of {name}"] for name in model.classes_])
    assert probabilities.tolist() == expected.tolist()
    assert north["prediction"].tolist() == model.predict(x, ["north"] * len(x)).tolist()
    network_labels = model.classes_[model.embed(x)[1].argmax(axis=1)].tolist()
    assert shared["prediction"].tolist() == unknown["prediction"].tolist() == network_labels
    assert "the model has 2 parties and none is given" in " ".join(output.split())
    assert "parties 'A', 'B' are not in the model" in " ".join(unknown_output.split())


def test_a_party_that_the_model_lacks_is_refused(run_folder, visits):
    result = call("predict", "--model", run_folder, "--data", visits, "--party", "nord")

    assert result.exit_code == 2
    text = " ".join(result.output.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split())
    assert "no party 'nord'; it has 'north', 'south'" in text


def test_party_and_party_column_are_exclusive(run_folder, visits):
    result = call(
        "predict", "--model", run_folder / "model.fnk", "--data", visits,
        "--party", "north", "--party-column", "hospital",
    )  # fmt: skip

    assert result.exit_code == 2
    assert "are mutually exclusive" in " ".join(result.output.split())


KILLED_RUN = """
    import os, signal, sys
    from fedneighbors.cli._main import app
    from fedneighbors.methods.knnper._checkpoint import Checkpoint

    write, stages = Checkpoint.write, []

    def write_then_kill(self, stage):
        write(self, stage)
        stages.append(stage)
        if len(stages) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoint.write = write_then_kill
    app(sys.argv[1:])
"""


def test_an_interrupted_run_resumes_from_its_checkpoint(run_folder, visits, tmp_path):
    options = ("--checkpoint", tmp_path / "c")
    arguments = [str(argument) for argument in knnper_arguments(visits, tmp_path / "b", *options)]
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED_RUN), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
        capture_output=True,
    )
    assert process.returncode == -signal.SIGKILL
    assert (tmp_path / "c").exists()

    result = call(*arguments)

    assert result.exit_code == 0, result.output
    resumed = KNNPerModel.load(tmp_path / "b" / "model.fnk")
    assert resumed.to_bytes() == KNNPerModel.load(run_folder / "model.fnk").to_bytes()
    assert not (tmp_path / "c").exists()


def test_the_label_cannot_be_the_party_column(visits):
    result = call("run", "knnper", "--data", visits, "--label", "ward", "--party-column", "ward")

    assert result.exit_code == 2
    assert "both name 'ward'" in result.output
