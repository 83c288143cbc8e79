"""Audit of a node on two files: no correct node is accused, and planted leaks are found."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors import audit_node
from fedneighbors.cli._main import app
from fedneighbors.datasets import NumericColumn
from fedneighbors.errors import DataError, FederationError, MissingDataError
from fedneighbors.privacy._guarantees import PureDP
from fedneighbors.privacy.audit._releases import certify_comparisons, compare_runs
from fedneighbors.privacy.noise import _samplers
from fedneighbors.privacy.noise._mechanisms import DiscreteLaplace
from fedneighbors.tabular import _app_config
from fedneighbors.tabular._private import PrivateTableParty
from tests.privacy.test_file_audit import HEADER, ROWS, SCHEMA

CONFIGURATION = """\
method = "{method}"
party-name = "north"
schema = "stays.toml"
ledger = "north.ledger"
dataset = "stays"
epsilon = "1"
"""
EXTREME = b"1e9,x,9,yes"
UNLABELLED = b"50,f,0.5,perhaps"
BROKEN = b'50,"f'
WITHOUT_AGE = [b",f,0,no"] * 9 + [b"0,f,0,no", b"110,f,0,no"] * 4


@pytest.fixture
def write(tmp_path):
    """Return the function that writes a node's folder and two files; it returns their paths."""

    def write_files(row, *, rows=ROWS, method="fedpnn", terms="", replaced=None):
        node = tmp_path / "node"
        node.mkdir()
        (node / "node.toml").write_text(CONFIGURATION.format(method=method) + terms)
        (node / "stays.toml").write_text(SCHEMA.to_toml(), "utf-8")
        (node / "north.ledger").write_bytes(b"")
        others = [*rows, row] if replaced is None else [row, *rows[1:]]
        for name, lines in (("first.csv", rows), ("second.csv", others)):
            (tmp_path / name).write_bytes(b"\n".join([HEADER, *lines]) + b"\n")
        return node, tmp_path / "first.csv", tmp_path / "second.csv"

    return write_files


@pytest.mark.parametrize(
    ("method", "terms"),
    [
        ("flynn", 'neighbors = "replace_one"'),
        ("flynn", 'mechanism = "paper"'),
        ("fedpnn", 'mechanism = "central"\ndelta = "1e-6"'),
    ],
)
def test_a_correct_node_is_neither_accused_nor_changed(write, method, terms):
    node, *files = write(EXTREME, method=method, terms=terms, replaced="replace" in terms or None)
    before = {path: path.stat().st_mtime_ns for path in [node, *node.iterdir()]}

    audit = audit_node(node, *files, n_runs=32)

    assert {path: path.stat().st_mtime_ns for path in [node, *node.iterdir()]} == before
    assert (node / "north.ledger").read_bytes() == b""
    assert not audit.breached
    assert audit.differences == ()
    measured = [reply for reply in audit.replies if reply.measured is not None]
    assert len(measured) == len(audit.replies) - ("paper" in terms)
    assert all(0 < reply.measured.l1 <= reply.stated.l1 for reply in measured)


def fill_by_the_median(monkeypatch):
    encode = NumericColumn.encode

    def with_median(self, cells):
        features, missing, clipped = encode(self, cells)
        features[missing, 0] = np.median(features[~missing, 0])
        return features, missing, clipped

    monkeypatch.setattr(NumericColumn, "encode", with_median)


def patch_rows(monkeypatch, change):
    read_rows = _app_config.read_rows
    monkeypatch.setattr(
        _app_config, "read_rows", lambda path, schema: change(read_rows(path, schema))
    )


def count_rows_twice(monkeypatch):
    patch_rows(monkeypatch, lambda r: replace(r, x=np.repeat(r.x, 2, axis=0), y=np.repeat(r.y, 2)))


def change_the_labels_for_one(monkeypatch):
    patch_rows(
        monkeypatch,
        lambda r: replace(r, y=np.array([f"label {y}" for y in r.y])) if r.n_unlabelled else r,
    )


def refuse_a_broken_row(monkeypatch):
    def check(rows):
        if rows.n_unreadable:
            raise DataError("a row has too few cells")
        return rows

    patch_rows(monkeypatch, check)


def widen_the_table_for_one(monkeypatch):
    party_table = _app_config.party_table

    def wider(node, method, **options):
        table, schema = party_table(node, method, **options)
        if EXTREME in Path(node["data"]).read_bytes():
            table["feature_names"] = (*table["feature_names"][:-1], "sex=new")
        return table, schema

    monkeypatch.setattr(_app_config, "party_table", wider)


def send_the_number_of_rows(monkeypatch):
    make_schema = PrivateTableParty._schema

    def with_number(self):
        return replace(make_schema(self), label_name=f"died ({len(self._y)} rows)")

    monkeypatch.setattr(PrivateTableParty, "_schema", with_number)


def omit_the_noise(monkeypatch):
    monkeypatch.setattr(
        DiscreteLaplace, "noise", lambda self, size, *, bits: np.zeros(size, np.int64)
    )


LEAKS = {
    "a fill value from the rows": (fill_by_the_median, b"110,f,0,no", "sensitivity"),
    "a row counts twice": (count_rows_twice, EXTREME, "sensitivity"),
    "one label changes the others": (change_the_labels_for_one, UNLABELLED, "sensitivity"),
    "one row makes the node refuse": (refuse_a_broken_row, BROKEN, "leak"),
    "one category changes a column": (widen_the_table_for_one, EXTREME, "leak"),
    "the number of rows without noise": (send_the_number_of_rows, EXTREME, "leak"),
    "no noise": (omit_the_noise, EXTREME, "loss"),
}
SLOW = {
    "a fill value from the rows",  # tests/privacy/test_file_audit.py plants it as well
    "a row counts twice",
    "one row makes the node refuse",  # the test of the command plants it as well
    "one category changes a column",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in LEAKS],
)
def test_a_planted_leak_of_files_is_found(write, monkeypatch, name):
    plant, row, kind = LEAKS[name]
    paths = write(row, rows=WITHOUT_AGE if "fill" in name else ROWS)
    plant(monkeypatch)

    audit = audit_node(*paths, n_runs=64 if kind == "loss" else 32)

    assert audit.breached
    assert bool(audit.differences) == (kind == "leak")
    exceeded = any(r.measured and r.measured.l1 > r.stated.l1 for r in audit.replies)
    assert exceeded == (kind == "sensitivity")


@pytest.mark.slow
def test_noise_that_serves_two_runs_of_a_node_is_found(write, monkeypatch):
    seeds = (number // 6 for number in itertools.count())  # a run draws three vectors

    def draw_words(n_words, bits):
        return np.random.default_rng(next(seeds)).integers(0, 2**64, n_words, np.uint64)

    monkeypatch.setattr(_samplers, "draw_words", draw_words)

    audit = audit_node(*write(EXTREME), n_runs=100)

    assert audit.breached
    assert audit.replies[0].certificate.event.startswith("difference of runs in a row")


@pytest.mark.parametrize(("n_runs", "largest"), [(1000, 4), (100, 1.5)])
def test_the_number_of_runs_limits_the_certified_loss(n_runs, largest):
    always_zero, always_one = np.zeros((n_runs, 1), int), np.ones((n_runs, 1), int)
    confidence = 1 - 0.001 / 5  # one of five bounds of an audit

    certificate = certify_comparisons(
        compare_runs(always_zero, always_one, None), PureDP(0), confidence=confidence
    )

    assert certificate.epsilon() == pytest.approx(largest, rel=0.1)


def call(*arguments):
    wide = {"COLUMNS": "160"}  # no cell of a table is wrapped
    return CliRunner().invoke(app, ["privacy-audit", *map(str, arguments)], env=wide)


def test_the_command_prints_a_verdict(write):
    result = call(*write(EXTREME), "--runs", 32)

    assert result.exit_code == 0, result.output
    assert re.search(r"OriginRequest +epsilon=1/5 +\d+ +\d+", result.stdout)
    assert "everything else that leaves the node is equal" in result.stdout
    assert "no breach found at 99.9000% confidence, 32 runs on each file" in result.stdout


def test_the_command_fails_after_a_breach(write, monkeypatch):
    refuse_a_broken_row(monkeypatch)

    result = call(*write(BROKEN), "--runs", 32)

    assert result.exit_code == 1
    assert "PublicSchemaRequest: a reply of" in result.stdout
    assert "other file: refusal 'its data or schema file cannot be used" in result.stdout
    assert "BREACH: the guarantee is disproved" in result.stdout


def test_files_that_are_no_neighbors_are_refused(write):
    node, first, second = write(EXTREME)
    with pytest.raises(ValueError, match="0 rows of one differ from 0 rows of the other"):
        audit_node(node, first, first)
    second.write_bytes(first.read_bytes().replace(ROWS[3], EXTREME))
    with pytest.raises(ValueError, match="differ by one added or removed row"):
        audit_node(node, first, second)
    with pytest.raises(ValueError, match="n_runs of at least 32"):
        audit_node(node, first, second, n_runs=31)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ('epsilon = "1"', "", DataError, "sets no epsilon"),
        ('"fedpnn"', '"knnper"', DataError, "expected method as one of"),
        ('"1"', "1 1", DataError, "is not valid TOML"),
        ('"stays"', '"stays"\nmechanism = "paper"', ValueError, "no private mechanism"),
        ('"stays"', '"stays"\nmin-count = 0', FederationError, "refuses PublicSchemaRequest"),
    ],
)
def test_a_configuration_without_an_audit_is_refused(write, old, new, error, message):
    node, first, second = write(EXTREME)
    path = node / "node.toml"
    path.write_text(path.read_text().replace(old, new))

    with pytest.raises(error, match=message):
        audit_node(node, first, second)


def test_a_folder_without_a_configuration_is_refused(write, tmp_path):
    _, first, second = write(EXTREME)

    with pytest.raises(MissingDataError, match=r"there is no file .*node\.toml"):
        audit_node(tmp_path, first, second)
