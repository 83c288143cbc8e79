"""Round trip and validation of run records."""

import dataclasses
import json
import math
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.errors import FolderInUse, RecordError
from fedneighbors.records import (
    FIGURE_KINDS,
    Figure,
    ResultTable,
    Round,
    RunRecord,
    read_record,
    replace_file,
    write_record,
)
from fedneighbors.records._storage import MIN_PART_AGE_S, lock_folder, sweep_parts, write_part

text = st.text(max_size=12)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | text
texts = st.dictionaries(text, text, max_size=3)
byte_counts = st.dictionaries(text, st.integers(min_value=0), max_size=3)

rounds = st.builds(
    Round,
    index=st.integers(min_value=0),
    request=text,
    reduce=st.sampled_from(["gather", "sum"]),
    upload_bytes=byte_counts,
    download_bytes=byte_counts,
    seconds=st.floats(),
    missing=texts,
    busy_s=st.dictionaries(text, st.floats(), max_size=3),
)


@st.composite
def tables(draw, name):
    columns = tuple(draw(st.lists(text, min_size=1, max_size=3, unique=True)))
    rows = draw(st.lists(st.tuples(*[scalars for _ in columns]), max_size=4))
    return ResultTable(name, draw(text), columns, tuple(rows), draw(text))


@st.composite
def figures(draw, name, table):
    column = st.sampled_from(table.columns)
    optional = st.just("") | column
    return Figure(
        name=name,
        kind=draw(st.sampled_from(FIGURE_KINDS)),
        title=draw(text),
        table=table.name,
        x=draw(column),
        y=draw(column),
        hue=draw(optional),
        facet=draw(optional),
        error=draw(optional),
        log_x=draw(st.booleans()),
        log_y=draw(st.booleans()),
        diagonal=draw(st.booleans()),
        caption=draw(text),
    )


@st.composite
def records(draw):
    table_names = draw(st.lists(names, max_size=3, unique=True))
    drawn_tables = tuple(draw(tables(name)) for name in table_names)
    figure_names = draw(st.lists(names, max_size=2, unique=True)) if drawn_tables else []
    return RunRecord(
        name=draw(text),
        parameters=draw(st.dictionaries(text, scalars | st.lists(scalars, max_size=3), max_size=3)),
        rounds=tuple(draw(st.lists(rounds, max_size=3))),
        tables=drawn_tables,
        figures=tuple(
            draw(figures(name, draw(st.sampled_from(drawn_tables)))) for name in figure_names
        ),
        notes=tuple(draw(st.lists(text, max_size=3))),
        started=draw(text),
        seconds=draw(st.floats()),
        environment=draw(texts),
        privacy=draw(st.dictionaries(text, scalars, max_size=3)),
    )


@given(record=records())
def test_every_record_round_trips(record, tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "run.jsonl"

    write_record(record, path)

    # repr tells 1 from 1.0 and True, 0.0 from -0.0, and equates NaN with NaN
    assert repr(read_record(path)) == repr(record)


def test_nan_and_infinity_are_valid_json(tmp_path):
    table = ResultTable("t", "", ("a",), ((math.nan,), (math.inf,), (-math.inf,)))

    write_record(RunRecord("run", {}, tables=(table,)), tmp_path / "run.jsonl")

    line = (tmp_path / "run.jsonl").read_text().splitlines()[1]
    assert '[[{"float":"nan"}],[{"float":"inf"}],[{"float":"-inf"}]]' in line


def test_numpy_values_are_written_as_python_values(tmp_path):
    row = (np.int64(3), np.float64(0.5), np.float32(0.25), np.bool_(True), np.str_("a"))
    table = ResultTable("t", "", ("i", "d", "f", "b", "s"), (row,))
    parameters = {"grid": np.array([1, 2]), "alpha": np.float64(math.nan)}

    write_record(RunRecord("run", parameters, tables=(table,)), tmp_path / "run.jsonl")

    record = read_record(tmp_path / "run.jsonl")
    assert repr(record.tables[0].rows) == repr(((3, 0.5, 0.25, True, "a"),))
    assert repr(record.parameters) == "{'grid': [1, 2], 'alpha': nan}"


def test_unsupported_value_is_a_type_error(tmp_path):
    record = RunRecord("run", {"model": object()})

    with pytest.raises(TypeError, match="holds strings, numbers, booleans and None, got object"):
        write_record(record, tmp_path / "run.jsonl")

    assert list(tmp_path.iterdir()) == []


BASE = RunRecord("run", {}, tables=(ResultTable("t", "", ("a", "b"), ((1, 2),)),))
FIGURE = Figure("f", "line", "", table="t", x="a", y="b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"figures": (dataclasses.replace(FIGURE, table="u"),)}, "expected a table 'u'"),
        ({"figures": (dataclasses.replace(FIGURE, hue="c"),)}, "expected a column 'c'"),
        ({"figures": (dataclasses.replace(FIGURE, kind="pie"),)}, "found 'pie'"),
        ({"figures": (dataclasses.replace(FIGURE, name="../f"),)}, "expected a name of letters"),
        ({"figures": (FIGURE, FIGURE)}, "expected a unique name, found it 2 times"),
        ({"tables": (ResultTable("t", "", ("a",), ((1, 2),)),)}, "expected 1 cells, found 2"),
        ({"tables": (ResultTable("t", "", ("a", "a"), ()),)}, "distinct column names"),
        ({"parameters": {"grid": [[1]]}}, "field 'parameters' of a header line"),
    ],
)
def test_inconsistent_record_is_not_written(change, message, tmp_path):
    record = dataclasses.replace(BASE, **change)

    with pytest.raises(ValueError, match=message):
        write_record(record, tmp_path / "run.jsonl")

    assert list(tmp_path.iterdir()) == []


def test_totals_sum_all_parties_and_rounds(tmp_path):
    first = Round(0, "A", "sum", {"p": 10, "q": 20}, {"p": 1, "q": 2}, 0.5)
    second = Round(1, "B", "gather", {"p": 5}, {}, 0.5, missing={"q": "timed out"})
    write_record(RunRecord("run", {}, rounds=(first, second)), tmp_path / "run.jsonl")

    record = read_record(tmp_path / "run.jsonl")

    assert (record.upload_bytes, record.download_bytes) == (35, 3)


RECORD = RunRecord(
    "run",
    {"seed": 0},
    rounds=(Round(0, "CountRequest", "sum", {"p": 3}, {"p": 4}, 0.25),),
    tables=(ResultTable("t", "Title", ("x", "y"), ((1, 2.0),)),),
    figures=(Figure("f", "line", "Figure", table="t", x="x", y="y"),),
    notes=("A finding.",),
)


@pytest.fixture
def path(tmp_path):
    write_record(RECORD, tmp_path / "run.jsonl")
    return tmp_path / "run.jsonl"


def edit_line(path, number, **fields):
    """Overwrite fields of one line, numbered from 1."""
    lines = path.read_text().splitlines()
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | fields)
    path.write_text("\n".join(lines) + "\n")


def test_truncated_file_is_refused_with_name_and_line(path):
    content = path.read_bytes()

    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(RecordError, match=r"run\.jsonl, line \d"):
            read_record(path)


def test_cut_after_a_complete_line_is_truncated(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))

    with pytest.raises(RecordError, match="line 4: truncated; expected an end line"):
        read_record(path)


def test_line_missing_from_the_middle_is_detected(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4] + lines[5:]))

    with pytest.raises(RecordError, match="lines are missing or were added; expected 6, found 5"):
        read_record(path)


@pytest.mark.parametrize(
    "content",
    [b"\n", b"hello\n", b"[1]\n", b'{"schema": "other"}\n', b"\xff\xfe\n", b"PK\x03\x04\n"],
)
def test_foreign_file_is_not_a_run_record(tmp_path, content):
    (tmp_path / "other").write_bytes(content)

    with pytest.raises(RecordError, match="other, line 1: not a run record; expected"):
        read_record(tmp_path / "other")


def test_another_version_is_refused_and_named(path):
    edit_line(path, 1, version=2)

    with pytest.raises(RecordError, match="line 1: expected version 1, found 2"):
        read_record(path)


@pytest.mark.parametrize(
    ("number", "fields", "message"),
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
def test_malformed_line_error_names_the_expectation(path, number, fields, message):
    edit_line(path, number, **fields)

    with pytest.raises(RecordError) as error:
        read_record(path)

    assert str(path) in str(error.value)
    assert message in str(error.value)


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


def test_deeply_nested_line_is_refused(path):
    lines = path.read_text().splitlines()
    lines[4] = "[" * 200_000
    path.write_text("\n".join(lines) + "\n")

    with pytest.raises(RecordError, match="line 5: malformed"):
        read_record(path)


def test_missing_file_is_a_record_error(tmp_path):
    with pytest.raises(RecordError, match=r"none\.jsonl: cannot be read: No such file"):
        read_record(tmp_path / "none.jsonl")


def test_failed_write_keeps_only_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    write_record(RunRecord("old", {}), path)

    def raise_disk_full(file_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_record(RunRecord("new", {}), path)

    assert read_record(path).name == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_written_file_replaces_the_old_one(tmp_path):
    path = tmp_path / "run.jsonl"
    write_record(RunRecord("old", {}), path)

    write_record(RunRecord("new", {}), path)

    assert read_record(path).name == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "none" / "file", b"")


LOCK = """
import sys
from pathlib import Path
from fedneighbors.errors import FolderInUse
from fedneighbors.records._storage import lock_folder
try:
    with lock_folder(Path(sys.argv[1])):
        print("locked")
except FolderInUse as error:
    print(error)
"""


def try_in_another_process(folder):
    command = [sys.executable, "-c", LOCK, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_two_runs_cannot_share_an_output_folder(tmp_path):
    folder = tmp_path / "out"

    with lock_folder(folder):
        (folder / "record").touch()
        during = try_in_another_process(folder)
    after = try_in_another_process(folder)

    assert during == f"another run writes to {folder}; let it finish, or choose another folder\n"
    assert after == "locked\n"


def test_a_locked_folder_without_files_is_deleted_again(tmp_path):
    with pytest.raises(ValueError, match="bad"), lock_folder(tmp_path / "out"):
        raise ValueError("bad")
    with lock_folder(tmp_path), pytest.raises(FolderInUse), lock_folder(tmp_path):
        pass

    assert list(tmp_path.iterdir()) == []


def make_old(path):
    before = time.time() - MIN_PART_AGE_S - 60
    os.utime(path, (before, before))


def test_only_old_temporary_files_of_dead_writers_are_swept(tmp_path):
    names = [".model.0123456789ab.part", ".model.ba9876543210.part", ".other.0123456789ab.part"]
    for name in names:
        (tmp_path / name).touch()
    make_old(tmp_path / names[0])
    make_old(tmp_path / names[2])

    with write_part(tmp_path / "model", b"live") as live:
        make_old(live)
        replace_file(tmp_path / "model", b"new")
        left = {path.name for path in tmp_path.iterdir()}
    sweep_parts(tmp_path)

    assert left == {"model", names[1], names[2], live.name}
    assert {path.name for path in tmp_path.iterdir()} == {"model", names[1]}
