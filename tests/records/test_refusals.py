"""A file that is not a whole record is refused, with file, line and what was expected."""

import json

import pytest

from fedneighbors.errors import RecordError
from fedneighbors.records import Figure, Round, RunRecord, Table, read_record, write_record

RECORD = RunRecord(
    "run",
    {"seed": 0},
    rounds=(Round(0, "CountRequest", "sum", {"p": 3}, {"p": 4}, 0.25),),
    tables=(Table("t", "Title", ("x", "y"), ((1, 2.0),)),),
    figures=(Figure("f", "line", "Figure", table="t", x="x", y="y"),),
    notes=("A finding.",),
)


@pytest.fixture
def path(tmp_path):
    write_record(RECORD, tmp_path / "run.jsonl")
    return tmp_path / "run.jsonl"


def change(path, number, **fields):
    """Overwrite fields of one line, counted from 1."""
    lines = path.read_text().splitlines()
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | fields)
    path.write_text("\n".join(lines) + "\n")


def test_every_cut_of_the_file_is_refused_with_its_name_and_line(path):
    whole = path.read_bytes()

    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(RecordError, match=r"run\.jsonl, line \d"):
            read_record(path)


def test_a_cut_after_a_whole_line_is_called_truncated(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))

    with pytest.raises(RecordError, match="line 4: truncated; expected an end line"):
        read_record(path)


def test_a_line_lost_from_the_middle_is_noticed(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4] + lines[5:]))

    with pytest.raises(RecordError, match="lines are missing or were added; expected 6, found 5"):
        read_record(path)


@pytest.mark.parametrize(
    "content",
    [b"\n", b"hello\n", b"[1]\n", b'{"schema": "other"}\n', b"\xff\xfe\n", b"PK\x03\x04\n"],
)
def test_a_foreign_file_is_no_run_record(tmp_path, content):
    (tmp_path / "other").write_bytes(content)

    with pytest.raises(RecordError, match="other, line 1: no run record; expected"):
        read_record(tmp_path / "other")


def test_another_version_is_refused_and_named(path):
    change(path, 1, version=2)

    with pytest.raises(RecordError, match="line 1: expected version 1, found 2"):
        read_record(path)


@pytest.mark.parametrize(
    ("number", "fields", "complaint"),
    [
        (1, {"name": 5}, "line 1: expected a string in field 'name'"),
        (1, {"parameters": {"a": {"float": "one"}}}, "line 1: expected a string, number"),
        (1, {"environment": ["numpy"]}, "line 1: expected an object in field 'environment'"),
        (2, {"index": True}, "line 2: malformed; expected an integer in field 'index'"),
        (2, {"seconds": "1"}, "line 2: malformed; expected a number in field 'seconds'"),
        (2, {"host": "a"}, "line 2: malformed; expected no field 'host'"),
        (2, {"line": "rounds"}, 'line 2: malformed; expected "line" to be one of'),
        (2, {"line": ["round"]}, 'line 2: malformed; expected "line" to be one of'),
        (2, {"line": "note"}, "line 2: malformed; expected no field"),
        (3, {"rows": [1]}, "line 3: malformed; expected a list in field 'rows'"),
        (3, {"rows": [[1]]}, "table 't', row 0: expected 2 cells, found 1"),
        (4, {"log_x": 1}, "line 4: malformed; expected true or false in field 'log_x'"),
        (4, {"name": "../../etc/cron.d/job"}, "expected a name of letters"),
        (4, {"y": "z"}, "figure 'f': expected a column 'z' in table 't'"),
        (6, {"lines": 7}, "line 6: lines are missing"),
    ],
)
def test_a_malformed_line_is_refused_with_what_was_expected(path, number, fields, complaint):
    change(path, number, **fields)

    with pytest.raises(RecordError) as refusal:
        read_record(path)

    assert str(path) in str(refusal.value)
    assert complaint in str(refusal.value)


def test_a_missing_field_is_named(path):
    lines = path.read_text().splitlines()
    lines[4] = '{"line": "note"}'
    path.write_text("\n".join(lines) + "\n")

    with pytest.raises(RecordError, match="line 5: malformed; expected a field 'text'"):
        read_record(path)


@pytest.mark.parametrize("extra", ['{"line": "header"}', '{"line": "end"}'])
def test_a_second_header_or_end_is_refused(path, extra):
    lines = path.read_text().splitlines()
    kind = json.loads(extra)["line"]
    lines.insert(2, lines[0] if kind == "header" else lines[-1])
    path.write_text("\n".join(lines) + "\n")

    with pytest.raises(RecordError, match=f"line 3: expected no second {kind} line"):
        read_record(path)


@pytest.mark.parametrize("line", ["NaN", "[NaN]", '{"line": "note", "text": Infinity}'])
def test_bare_nan_and_infinity_are_refused(path, line):
    lines = path.read_text().splitlines()
    lines[4] = line
    path.write_text("\n".join(lines) + "\n")

    with pytest.raises(RecordError, match="line 5: malformed; expected no bare"):
        read_record(path)


def test_a_line_nested_too_deep_is_refused_without_a_crash(path):
    lines = path.read_text().splitlines()
    lines[4] = "[" * 200_000
    path.write_text("\n".join(lines) + "\n")

    with pytest.raises(RecordError, match="line 5: malformed"):
        read_record(path)


def test_a_file_that_is_not_there_is_a_record_error(tmp_path):
    with pytest.raises(RecordError, match=r"none\.jsonl: cannot be read: No such file"):
        read_record(tmp_path / "none.jsonl")
