from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from experiments.__main__ import app
from fedneighbors.records import Figure, ResultTable, RunRecord, read_record

PAPER = ResultTable(
    "results", "Ours and the paper's", ("data set", "paper", "ours"), (("a", 0.9, 0.91),)
)
RECORD = RunRecord(
    "flynn.paper",
    {},
    tables=(PAPER,),
    figures=(Figure("ours", "scatter", "Ours", "results", "paper", "ours", diagonal=True),),
    notes=("As in the paper.",),
)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def catalogue(monkeypatch):
    calls = []

    def run(**settings):
        settings.pop("progress")(1, 2, "half way")
        calls.append(settings)
        return RECORD

    fields = {"title": "Table 1", "description": "Accuracy on a.", "run": run}
    without_journal = SimpleNamespace(
        **fields, name="flynn.table1", keeps_journal=False, options=("n_seeds",)
    )
    with_journal = SimpleNamespace(**fields, name="fedknn.k", keeps_journal=True, options=())
    studies = {
        "flynn.table1": without_journal,
        "fedknn.k": with_journal,
        "fedpnn.real": without_journal,
        "knnper.table2": without_journal,
        "knnper.claims": SimpleNamespace(
            **fields, name="knnper.claims", keeps_journal=True, options=("data", "model")
        ),
    }
    monkeypatch.setattr("experiments.__main__.EXPERIMENTS", studies)
    monkeypatch.setattr("experiments.__main__.find_study", studies.get)
    return calls


def test_experiments_are_listed_with_title_and_description(catalogue):
    result = call("--list")

    assert result.exit_code == 0
    assert " ".join(result.stdout.split()) == (
        "flynn.table1 Table 1 Accuracy on a. fedknn.k Table 1 Accuracy on a. "
        "fedpnn.real Table 1 Accuracy on a. "
        "knnper.table2 Table 1 Accuracy on a. "
        "knnper.claims Table 1 Accuracy on a."
    )


def test_an_experiment_prints_and_saves_tables_and_figures(catalogue, tmp_path):
    result = call("flynn.table1", "--quick", "--seed", 3, "--jobs", 2, "--out", tmp_path)

    assert result.exit_code == 0
    assert catalogue == [{"quick": True, "seed": 3, "n_jobs": 2, "journal": None}]
    assert "a 0.9 0.91" in " ".join(result.stdout.split())
    assert read_record(tmp_path / "flynn.table1.jsonl") == RECORD
    assert (tmp_path / "report.html").is_file()
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "ours.png",
        "ours.svg",
    ]


def test_an_experiment_without_a_journal_refuses_one(catalogue, tmp_path):
    result = call("flynn.table1", "--journal", tmp_path / "journal.jsonl")

    assert result.exit_code == 2
    assert "flynn.table1 does not support a journal" in result.output


def test_an_experiment_gets_the_options_that_it_has(catalogue, tmp_path):
    result = call("flynn.table1", "--seeds", 2, "--out", tmp_path)

    assert result.exit_code == 0
    assert catalogue == [{"quick": False, "seed": 0, "n_jobs": 1, "journal": None, "n_seeds": 2}]


@pytest.mark.parametrize("option", [("--seeds", 2), ("--data", "mnist"), ("--model", "cnn")])
def test_an_experiment_refuses_options_that_it_lacks(option, catalogue):
    result = call("fedknn.k", *option)

    assert result.exit_code == 2
    assert f"Invalid value for {option[0]}" in result.output
    assert "fedknn.k does not have this option" in result.output
    assert catalogue == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "svhn"), "'svhn' is not one of 'mnist', 'omniglot'"),
        (("--data", "mnist", "--model", "lstm"), "'lstm' is not one of 'cnn', 'mobilenet'"),
        (("--model", "cnn"), "name the images by --data as well"),
    ],
)
def test_unknown_image_sets_and_models_are_refused(options, message, catalogue):
    result = call("knnper.claims", *options)

    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
    assert catalogue == []


def test_an_experiment_with_a_journal_gets_it(catalogue, tmp_path):
    path = tmp_path / "journal.jsonl"

    result = call("fedknn.k", "--journal", path, "--out", tmp_path)

    assert result.exit_code == 0, result.output
    assert catalogue[0]["journal"] == path


def test_an_unknown_experiment_lists_those_of_the_method(catalogue):
    result = call("flynn.table2")

    assert result.exit_code == 2
    assert "flynn.table1" in result.stderr
    assert "fedknn.k" not in result.stderr


def test_an_unknown_method_lists_all_experiments(catalogue):
    result = call("table2")

    assert result.exit_code == 2
    assert "flynn.table1" in result.stderr
    assert "fedknn.k" in result.stderr


def test_a_missing_name_suggests_the_list_option(catalogue):
    result = call()

    assert result.exit_code == 2
    assert "--list" in result.stderr
