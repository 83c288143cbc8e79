"""What is written comes back exactly."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.records import (
    FIGURE_KINDS,
    Figure,
    Round,
    RunRecord,
    Table,
    read_record,
    write_record,
)

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
    return Table(name, draw(text), columns, tuple(rows), draw(text))


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
def test_every_record_comes_back_exactly(record, tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "run.jsonl"

    write_record(record, path)

    # repr tells 1 from 1.0 and True, 0.0 from -0.0, and equates NaN with NaN
    assert repr(read_record(path)) == repr(record)


def test_nan_and_infinity_are_spelled_out_as_valid_json(tmp_path):
    table = Table("t", "", ("a",), ((math.nan,), (math.inf,), (-math.inf,)))

    write_record(RunRecord("run", {}, tables=(table,)), tmp_path / "run.jsonl")

    line = (tmp_path / "run.jsonl").read_text().splitlines()[1]
    assert '[[{"float":"nan"}],[{"float":"inf"}],[{"float":"-inf"}]]' in line


def test_numpy_values_are_written_as_the_python_values_they_stand_for(tmp_path):
    row = (np.int64(3), np.float64(0.5), np.float32(0.25), np.bool_(True), np.str_("a"))
    table = Table("t", "", ("i", "d", "f", "b", "s"), (row,))
    parameters = {"grid": np.array([1, 2]), "alpha": np.float64(math.nan)}

    write_record(RunRecord("run", parameters, tables=(table,)), tmp_path / "run.jsonl")

    found = read_record(tmp_path / "run.jsonl")
    assert repr(found.tables[0].rows) == repr(((3, 0.5, 0.25, True, "a"),))
    assert repr(found.parameters) == "{'grid': [1, 2], 'alpha': nan}"


def test_a_value_that_no_record_may_hold_is_a_type_error(tmp_path):
    record = RunRecord("run", {"model": object()})

    with pytest.raises(TypeError, match="holds strings, numbers, booleans and None, got object"):
        write_record(record, tmp_path / "run.jsonl")

    assert list(tmp_path.iterdir()) == []


BASE = RunRecord("run", {}, tables=(Table("t", "", ("a", "b"), ((1, 2),)),))
FIGURE = Figure("f", "line", "", table="t", x="a", y="b")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"figures": (dataclasses.replace(FIGURE, table="u"),)}, "expected a table 'u'"),
        ({"figures": (dataclasses.replace(FIGURE, hue="c"),)}, "expected a column 'c'"),
        ({"figures": (dataclasses.replace(FIGURE, kind="pie"),)}, "found 'pie'"),
        ({"figures": (dataclasses.replace(FIGURE, name="../f"),)}, "expected a name of letters"),
        ({"figures": (FIGURE, FIGURE)}, "expected one of this name, found 2"),
        ({"tables": (Table("t", "", ("a",), ((1, 2),)),)}, "expected 1 cells, found 2"),
        ({"tables": (Table("t", "", ("a", "a"), ()),)}, "columns of different names"),
        ({"parameters": {"grid": [[1]]}}, "field 'parameters' of a header line"),
    ],
)
def test_a_record_whose_parts_do_not_fit_is_not_written(change, complaint, tmp_path):
    record = dataclasses.replace(BASE, **change)

    with pytest.raises(ValueError, match=complaint):
        write_record(record, tmp_path / "run.jsonl")

    assert list(tmp_path.iterdir()) == []


def test_totals_are_the_bytes_of_all_parties_over_all_rounds(tmp_path):
    first = Round(0, "A", "sum", {"p": 10, "q": 20}, {"p": 1, "q": 2}, 0.5)
    second = Round(1, "B", "gather", {"p": 5}, {}, 0.5, missing={"q": "timed out"})
    write_record(RunRecord("run", {}, rounds=(first, second)), tmp_path / "run.jsonl")

    record = read_record(tmp_path / "run.jsonl")

    assert (record.upload_bytes, record.download_bytes) == (35, 3)
