"""What a run leaves is shown as it is and kept in a folder."""

import importlib.util
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fedneighbors.cli.console import complain, progress_bar
from fedneighbors.cli.main import app
from fedneighbors.cli.results import keep, print_tables
from fedneighbors.methods.fedknn import experiment as fedknn
from fedneighbors.methods.fedpnn import experiment as fedpnn
from fedneighbors.methods.flynn import experiment as flynn
from fedneighbors.methods.knnper import experiment as knnper
from fedneighbors.records import Figure, RunRecord, Table, encode_pixels, read_record, write_record

PAPER = Table("results", "Ours and the paper's", ("data set", "paper", "ours"), (("a", 0.9, 0.91),))
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
    asked = []

    def run(**settings):
        settings.pop("progress")(1, 2, "half way")
        asked.append(settings)
        return RECORD

    about = {"title": "Table 1", "description": "Accuracy on a.", "run": run}
    entry = SimpleNamespace(**about, keeps_journal=False)
    kept = SimpleNamespace(**about, keeps_journal=True)
    monkeypatch.setattr(fedknn, "EXPERIMENTS", {"fedknn.k": kept})
    monkeypatch.setattr(fedpnn, "EXPERIMENTS", {"fedpnn.real": entry})
    monkeypatch.setattr(flynn, "EXPERIMENTS", {"flynn.table1": entry})
    monkeypatch.setattr(knnper, "EXPERIMENTS", {"knnper.table2": entry})
    return asked


def test_experiments_are_listed_with_title_and_description(catalogue):
    result = call("experiment", "--list")

    assert result.exit_code == 0
    assert " ".join(result.stdout.split()) == (
        "flynn.table1 Table 1 Accuracy on a. fedknn.k Table 1 Accuracy on a. "
        "fedpnn.real Table 1 Accuracy on a. "
        "knnper.table2 Table 1 Accuracy on a."
    )


def test_an_experiment_prints_its_tables_and_keeps_record_report_and_figures(catalogue, tmp_path):
    result = call(
        "experiment", "flynn.table1", "--quick", "--seed", 3, "--jobs", 2, "--out", tmp_path
    )

    assert result.exit_code == 0
    assert catalogue == [{"quick": True, "seed": 3, "n_jobs": 2, "journal": None}]
    assert "a 0.9 0.91" in " ".join(result.stdout.split())
    assert read_record(tmp_path / "flynn.table1.jsonl") == RECORD
    assert (tmp_path / "report.html").is_file()
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "ours.png",
        "ours.svg",
    ]


def test_a_journal_is_refused_by_an_experiment_that_keeps_none(catalogue, tmp_path):
    result = call("experiment", "flynn.table1", "--journal", tmp_path / "journal.jsonl")

    assert result.exit_code == 2
    assert "flynn.table1 keeps no journal" in result.output


def test_a_journal_goes_to_an_experiment_that_keeps_one(catalogue, tmp_path):
    path = tmp_path / "journal.jsonl"

    result = call("experiment", "fedknn.k", "--journal", path, "--out", tmp_path)

    assert result.exit_code == 0, result.output
    assert catalogue[0]["journal"] == path


def test_an_unknown_experiment_is_answered_with_the_known_ones(catalogue):
    result = call("experiment", "flynn.table2")

    assert result.exit_code == 2
    assert "flynn.table1" in result.stderr
    assert "fedknn.k" not in result.stderr


def test_an_experiment_of_no_method_is_answered_with_those_of_all(catalogue):
    result = call("experiment", "table2")

    assert result.exit_code == 2
    assert "flynn.table1" in result.stderr
    assert "fedknn.k" in result.stderr


def test_an_experiment_without_a_name_is_answered_with_the_way_to_list_them(catalogue):
    result = call("experiment")

    assert result.exit_code == 2
    assert "--list" in result.stderr


def test_a_report_is_drawn_from_several_records(tmp_path):
    for name in ("one", "two"):
        write_record(RECORD, tmp_path / f"{name}.jsonl")

    result = call(
        "report",
        tmp_path / "one.jsonl",
        tmp_path / "two.jsonl",
        "--out",
        tmp_path / "new" / "both.html",
        "--figures",
        tmp_path / "figures",
    )

    assert result.exit_code == 0
    assert (tmp_path / "new" / "both.html").read_text().count("<article") == 2
    assert (tmp_path / "figures" / "two" / "ours.png").is_file()


def test_strings_of_a_record_are_printed_as_they_are(capsys):
    table = Table("t", "[bold]T[/bold]", ("[red]a",), (("[link=x]b[/link]",), ("\x1b[31mred\x07",)))

    print_tables(RunRecord("run", {}, tables=(table,), notes=("[blink]n[/blink]",)))

    shown = capsys.readouterr().out
    for text in ("[bold]T[/bold]", "[red]a", "[link=x]b[/link]", "[blink]n[/blink]", " [31mred "):
        assert text in shown
    assert "\x1b" not in shown


def test_tables_of_images_are_not_printed(capsys):
    table = Table("images", "Images", ("text", "pixels"), (("a", encode_pixels([[0]])),))
    figure = Figure("images", "images", "", "images", "text", "pixels")

    print_tables(RunRecord("run", {}, tables=(table,), figures=(figure,)))

    assert capsys.readouterr().out == ""


def test_a_long_table_is_cut_and_says_so(capsys):
    table = Table("t", "Long", ("a",), tuple((value,) for value in range(30)))

    print_tables(RunRecord("run", {}, tables=(table,)))

    assert "6 more rows are in the record." in capsys.readouterr().out


def test_a_record_is_kept_where_no_report_can_be_drawn(tmp_path, capsys, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "fedneighbors.reports.extras.find_spec",
        lambda name: None if name == "matplotlib" else there(name),
    )

    keep(RECORD, tmp_path, name="run", figures=True)

    assert read_record(tmp_path / "run.jsonl") == RECORD
    assert "pip install 'fedneighbors[report]'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run.jsonl"]


def test_progress_is_quiet_where_nobody_watches(capsys):
    with progress_bar() as progress:
        progress(1, 2, "half way")

    assert capsys.readouterr() == ("", "")


def test_a_complaint_is_one_line_however_the_message_is_broken(capsys):
    complain("first\nsecond [bold]third[/bold]")

    assert capsys.readouterr().err == "first second [bold]third[/bold]\n"


def wide():
    columns = tuple(f"a long name of column {number}" for number in range(12))
    return Table("wide", "wide", columns, (tuple(range(12)),))


def test_tables_in_a_file_have_all_their_words(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_tables(RunRecord("run", {}, tables=(wide(),)))
    lines = capsys.readouterr().out.splitlines()
    assert any(all(name in line for name in wide().columns) for line in lines)


def test_tables_are_as_narrow_as_is_asked(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    print_tables(RunRecord("run", {}, tables=(wide(),)))
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 90
