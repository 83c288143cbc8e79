"""Results of a run are printed unchanged and written to a folder."""

import importlib.util
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fedneighbors.cli._console import print_error, progress_bar
from fedneighbors.cli._main import app
from fedneighbors.cli._results import print_tables, write_results
from fedneighbors.records import (
    Figure,
    ResultTable,
    RunRecord,
    encode_pixels,
    read_record,
    write_record,
)

COMPARISON = ResultTable(
    "results", "Ours and the paper's", ("data set", "paper", "ours"), (("a", 0.9, 0.91),)
)
RECORD = RunRecord(
    "flynn.paper",
    {},
    tables=(COMPARISON,),
    figures=(Figure("ours", "scatter", "Ours", "results", "paper", "ours", diagonal=True),),
    notes=("As in the paper.",),
)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_report_is_written_from_several_records(tmp_path):
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


def test_strings_of_a_record_are_printed_unchanged(capsys):
    table = ResultTable(
        "t", "[bold]T[/bold]", ("[red]a",), (("[link=x]b[/link]",), ("\x1b[31mred\x07",))
    )

    print_tables(RunRecord("run", {}, tables=(table,), notes=("[blink]n[/blink]",)))

    output = capsys.readouterr().out
    for text in ("[bold]T[/bold]", "[red]a", "[link=x]b[/link]", "[blink]n[/blink]", " [31mred "):
        assert text in output
    assert "\x1b" not in output


def test_tables_of_images_are_not_printed(capsys):
    table = ResultTable("images", "Images", ("text", "pixels"), (("a", encode_pixels([[0]])),))
    figure = Figure("images", "images", "", "images", "text", "pixels")

    print_tables(RunRecord("run", {}, tables=(table,), figures=(figure,)))

    assert capsys.readouterr().out == ""


def test_a_long_table_is_truncated_with_a_note(capsys):
    table = ResultTable("t", "Long", ("a",), tuple((value,) for value in range(30)))

    print_tables(RunRecord("run", {}, tables=(table,)))

    assert "6 more rows are in the record." in capsys.readouterr().out


def test_a_record_is_written_even_without_matplotlib(tmp_path, capsys, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "fedneighbors.reports._html.find_spec",
        lambda name: None if name == "matplotlib" else find_spec(name),
    )

    write_results(RECORD, tmp_path, name="run", figures=True)

    assert read_record(tmp_path / "run.jsonl") == RECORD
    assert "pip install 'fedneighbors[report]'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run.jsonl"]


def test_progress_is_silent_without_a_terminal(capsys):
    with progress_bar() as progress:
        progress(1, 2, "half way")

    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("terminal", "log", "n_notes"),
    [("1", "None", 1), ("", "None", 0), ("", "logging.getLogger('x')", 1)],
)
def test_the_first_compilation_is_noted_on_a_terminal_and_in_a_log(terminal, log, n_notes):
    program = f"""
import logging, numba
from fedneighbors.cli._console import note_compilation
with note_compilation({log}):
    assert numba.njit(lambda x: x + 1)(1) == 2
    assert numba.njit(lambda x: x + 2)(1) == 3
assert numba.njit(lambda x: x + 3)(1) == 4
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FORCE_COLOR": terminal, "TTY_COMPATIBLE": "", "NUMBA_DISABLE_JIT": "0"},
        capture_output=True,
        text=True,
    )

    assert result.returncode == 0, result.stderr
    assert result.stderr.count("compiling kernels") == n_notes


def test_an_error_with_line_breaks_is_one_line(capsys):
    print_error("first\nsecond [bold]third[/bold]")

    assert capsys.readouterr().err == "first second [bold]third[/bold]\n"


def make_wide_table():
    columns = tuple(f"a long name of column {number}" for number in range(12))
    return ResultTable("wide", "wide", columns, (tuple(range(12)),))


def test_tables_in_a_file_are_not_truncated(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)

    print_tables(RunRecord("run", {}, tables=(make_wide_table(),)))

    lines = capsys.readouterr().out.splitlines()
    assert any(all(name in line for name in make_wide_table().columns) for line in lines)


def test_tables_on_a_terminal_fit_its_width(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")

    print_tables(RunRecord("run", {}, tables=(make_wide_table(),)))

    assert max(map(len, capsys.readouterr().out.splitlines())) <= 90
