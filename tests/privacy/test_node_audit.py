"""Audit of a node on two files: no correct node is accused, and planted leaks are found."""

import gzip
import itertools
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedneighbors import audit_node
from fedneighbors.cli._main import app
from fedneighbors.datasets import NumericColumn
from fedneighbors.errors import DataError, FederationError, MissingDataError, PrivacyError
from fedneighbors.federation._messages import encode
from fedneighbors.federation._release_gate import ReleaseGate
from fedneighbors.federation._roles import Refusal, Refused
from fedneighbors.methods.fedpnn.private.protocol import OriginRequest
from fedneighbors.privacy._guarantees import PureDP, Sensitivity
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.audit._releases import certify_comparisons, compare_runs
from fedneighbors.privacy.noise import _samplers
from fedneighbors.privacy.noise._mechanisms import DiscreteLaplace
from fedneighbors.runs import _node_audit
from fedneighbors.runs._audited_node import NodeReply, check_neighbors
from fedneighbors.tabular import _app_config
from fedneighbors.tabular._private import PrivateTableParty
from fedneighbors.tabular._schema import PublicSchemaRequest
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


def vary_the_schema(monkeypatch):
    patch_label(monkeypatch, lambda number, _: f"died {number % 2}")


def send_the_number_of_rows_rarely(monkeypatch):
    patch_label(monkeypatch, lambda number, n_rows: f"died {n_rows if number % 50 == 49 else ''}")


def patch_label(monkeypatch, label_of):
    """Replace the label name of schemas by a function of their number and that of rows."""
    make_schema, numbers = PrivateTableParty._schema, itertools.count()
    monkeypatch.setattr(
        PrivateTableParty,
        "_schema",
        lambda self: replace(make_schema(self), label_name=label_of(next(numbers), len(self._y))),
    )


def seed_the_noise_by_default(monkeypatch):
    defaults = PrivateTableParty.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "bits", lambda n: np.random.default_rng(0).bytes(n))


def choose_the_width_by_the_rows(monkeypatch):
    def release(self, values, sensitivity, *, bits):
        return values + (1 + int(values.sum()) % 2) * self.noise(len(values), bits=bits)

    monkeypatch.setattr(DiscreteLaplace, "release", release)


def refuse_after_a_charge(monkeypatch, is_refused):
    """Refuse a charged reply as a function of its number and that of rows."""
    release, numbers = ReleaseGate.release, itertools.count()

    def release_or_refuse(self, request, **options):
        reply = release(self, request, **options)
        if isinstance(request, OriginRequest) and is_refused(next(numbers)):
            raise Refused("a release failed")
        return reply

    monkeypatch.setattr(ReleaseGate, "release", release_or_refuse)


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
    "a schema that varies": (vary_the_schema, EXTREME, "leak"),
    "a slow leak": (send_the_number_of_rows_rarely, EXTREME, "leak"),
    "a default seed": (seed_the_noise_by_default, EXTREME, "loss"),
    "a width from the rows": (choose_the_width_by_the_rows, EXTREME, "width"),
}
SLOW = {
    "a fill value from the rows",  # tests/privacy/test_file_audit.py plants it as well
    "a row counts twice",
    "one row makes the node refuse",  # the test of the command plants it as well
    "one category changes a column",
    "a schema that varies",  # the slow leak varies as well
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
    assert not audit.inconclusive
    assert bool(audit.differences) == (kind == "leak")
    violations = [text for reply in audit.replies for text in reply.violations]
    assert any("has l1" in text for text in violations) == (kind == "sensitivity")
    assert any("changes with the noise" in text for text in violations) == (kind == "width")
    assert any("certified loss" in text for text in violations) == (kind == "loss")


def test_a_reply_refused_after_its_charge_is_inconclusive(write, monkeypatch):
    refuse_after_a_charge(monkeypatch, lambda number: number % 9 == 5)

    audit = audit_node(*write(EXTREME), n_runs=32)

    assert audit.inconclusive
    assert not audit.breached
    assert "OriginRequest: a charged reply of" in audit.omissions[0]
    assert "refusal 'a release failed'" in audit.omissions[0]


def test_requests_after_a_refused_recording_are_inconclusive(write, monkeypatch):
    refuse_after_a_charge(monkeypatch, lambda number: number == 0)

    audit = audit_node(*write(EXTREME), n_runs=32)

    assert [reply.request for reply in audit.replies] == ["OriginRequest"]
    assert audit.inconclusive
    assert audit.omissions == (
        "the recorded training was refused: no request after OriginRequest is audited",
    )


STATED = Sensitivity("row", "add_remove", l1=1, l2_squared=1, linf=1)
NODE = SimpleNamespace(
    is_complete=True,
    requests=[PublicSchemaRequest()],
    privacy=Privacy(1),
    sensitivity=lambda request: STATED,
)
TENTH = (PureDP("0.1"),)
REFUSAL = encode(Refusal("a release failed", ""))


def compare(first, second, *, confidence=0.999):
    return _node_audit._compare(NODE, [(first, second)], {}, confidence=confidence)


@pytest.mark.parametrize("n_forms", [2, 10_000])
def test_random_forms_of_charged_replies_are_not_accused(n_forms):
    random, confidence, n_audits = np.random.default_rng(5), 0.9, 30

    def draw(n_runs=64):
        return [
            NodeReply(TENTH, b"%d" % random.integers(n_forms), random.integers(0, 9, size=3))
            for _ in range(n_runs)
        ]

    audits = [compare(draw(), draw(), confidence=confidence) for _ in range(n_audits)]

    assert sum(audit.breached for audit in audits) <= (1 - confidence) * n_audits
    assert all(audit.omissions for audit in audits)


@pytest.mark.parametrize(("n_runs", "is_breached"), [(32, False), (200, True)])
def test_a_form_that_depends_on_a_row_is_certified(n_runs, is_breached):
    costs = (PureDP("0.25"), PureDP("0.25"))
    answered = [NodeReply(costs, b"9", np.zeros(2, np.int64))] * n_runs
    refused = [NodeReply(costs, REFUSAL, None)] * n_runs

    audit = compare(answered, refused)

    assert audit.replies[0].cost == PureDP("0.5")
    assert (audit.breached, audit.inconclusive) == (is_breached, not is_breached)
    assert audit.max_loss == audit.certificate.epsilon()


def test_a_rare_uncharged_reply_is_described_and_a_breach():
    usual, rare = (NodeReply((), encode(Refusal(code, "")), None) for code in ("usual", "rare"))

    audit = compare([usual] * 64, [usual] * 63 + [rare])

    assert audit.breached
    (text,) = audit.differences
    assert re.search(r"refusal 'usual' .* \(64 of 64 runs\); other file: ", text)
    assert re.search(r"\(63 of 64 runs\), refusal 'rare' .* \(1 of 64 runs\)$", text)


def test_only_compared_cells_of_outputs_are_kept():
    reply = NodeReply(TENTH, b"9", np.arange(100_000))

    assert _node_audit._choose_cells(reply, np.array([7, 3])).values.tolist() == [7, 3]
    picks = np.zeros(100_000, np.int64)
    picks[[5, 70_000]] = 1
    assert _node_audit._choose_cells(reply._replace(values=picks), None).values.nnz == 2


@pytest.mark.parametrize(
    ("name", "write_table"),
    [
        ("a.csv", lambda path, names, rows: path.write_text("\n".join([names, *rows]))),
        (
            "a.csv.gz",
            lambda path, names, rows: path.write_bytes(
                gzip.compress("\n".join([names, *rows]).encode())
            ),
        ),
        (
            "a.arff",
            lambda path, names, rows: path.write_text(
                "\n".join([f"@relation {names}", "@data", *rows])
            ),
        ),
        ("a.parquet", lambda path, names, rows: pd.DataFrame({names: rows}).to_parquet(path)),
    ],
)
def test_neighbors_have_one_header_and_differ_by_one_row(tmp_path, name, write_table):
    first, second, other = (tmp_path / f"{i}{name}" for i in range(3))
    write_table(first, "age", ["1", "2", "3"])
    write_table(second, "age", ["1", "3"])
    write_table(other, "height", ["1", "3"])

    check_neighbors(first, second, "add_remove")

    with pytest.raises(ValueError, match=r"headers of .* differ"):
        check_neighbors(first, other, "add_remove")
    with pytest.raises(ValueError, match="differ by one replaced row"):
        check_neighbors(first, second, "replace_one")


def test_lines_of_json_have_no_header(tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text('{"age": 1}\n{"age": 2}\n')
    second.write_text('{"age": 2}\n')

    check_neighbors(first, second, "add_remove")


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
    assert "stated l2 squared" in result.stdout
    assert re.search(r"largest loss that 32 runs can certify: 0\.\d+", result.stdout)
    assert "everything else that leaves the node is equal in all runs" in result.stdout
    assert "no breach found at 99.9000% confidence, 32 runs on each file" in result.stdout


def test_the_command_fails_after_a_breach(write, monkeypatch):
    refuse_a_broken_row(monkeypatch)

    result = call(*write(BROKEN), "--runs", 32)

    assert result.exit_code == 1
    assert "not equal in all runs: PublicSchemaRequest: a reply of" in result.stdout
    assert "other file: refusal 'its data or schema file cannot be used" in result.stdout
    assert "BREACH: the guarantee is disproved" in result.stdout
    assert "is equal in all runs" not in result.stdout


def test_the_command_fails_if_replies_were_not_compared(write, monkeypatch):
    refuse_after_a_charge(monkeypatch, lambda number: number % 9 == 5)

    result = call(*write(EXTREME), "--runs", 32)

    assert result.exit_code == 1
    assert "not compared: OriginRequest: a charged reply of" in result.stdout
    assert "INCONCLUSIVE: no breach found, but not everything was compared" in result.stdout


def test_files_that_are_no_neighbors_are_refused(write):
    node, first, second = write(EXTREME)
    with pytest.raises(ValueError, match="0 rows of one differ from 0 rows of the other"):
        audit_node(node, first, first)
    second.write_bytes(first.read_bytes().replace(ROWS[3], EXTREME))
    with pytest.raises(ValueError, match="differ by one added or removed row"):
        audit_node(node, first, second)


@pytest.mark.parametrize(("confidence", "least"), [(0.999, 32), (0.999999, 52)])
def test_too_few_runs_for_any_loss_are_refused(write, confidence, least):
    paths = write(EXTREME)

    with pytest.raises(ValueError, match=f"n_runs of at least {least} at confidence"):
        audit_node(*paths, n_runs=least - 1, confidence=confidence)


def test_the_confidence_is_checked_before_any_file_is_read(tmp_path):
    with pytest.raises(ValueError, match="confidence between 0 and 1, got 1"):
        audit_node(tmp_path / "absent", "first.csv", "second.csv", confidence=1)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ('epsilon = "1"', "", DataError, "sets no epsilon"),
        ('"fedpnn"', '"knnper"', DataError, "expected method as one of .* no privacy budget"),
        ('schema = "stays.toml"', "", ValueError, "epsilon needs a schema"),
        ('"1"', '"1e-6"', PrivacyError, "too large"),
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
