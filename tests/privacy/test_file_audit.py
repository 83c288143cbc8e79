"""Replies of a node to the same requests, for two files that differ by one row.

The node reads each file by the schema. The noise is seeded, so that the difference of two noisy
replies is that of their exact values.
"""

import dataclasses
import gzip
import io
import json
import logging
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from fedneighbors.datasets import CategoricalColumn, NumericColumn, Schema, read_rows
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._messages import encode
from fedneighbors.methods.fedpnn import flower_app as fedpnn_app
from fedneighbors.methods.fedpnn.private import _release as fedpnn_release
from fedneighbors.methods.fedpnn.private import protocol as fedpnn
from fedneighbors.methods.flynn import flower_app as flynn_app
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.private import _release as flynn_release
from fedneighbors.methods.flynn.private import protocol as flynn
from fedneighbors.methods.knnper._settings import RoundSettings
from fedneighbors.methods.knnper.private import protocol as knnper
from fedneighbors.methods.knnper.private._party import ROW_COUNTS, PrivateKNNPerParty
from fedneighbors.neural import _dp_sgd
from fedneighbors.neural._blueprint import perceptron
from fedneighbors.neural._schedule import Regime
from fedneighbors.privacy._policy import privacy_from
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.tabular._app_config import party_table
from tests.datasets.hostile_rows import LABELS, NUMBERS, WORDS, delimited_rows

SCHEMA = Schema(
    (
        NumericColumn("age", 0.0, 110.0, 40.0),
        CategoricalColumn("sex", ("f", "m", "x"), "x"),
        NumericColumn("dose", -1.0, 1.0),
    ),
    "died",
    ("no", "yes"),
)
HEADER = b"age,sex,dose,died"
ROWS = [
    f"{20 + 3 * i},{'fm'[i % 2]},{(i - 9) / 10},{'yes' if i % 3 else 'no'}".encode()
    for i in range(18)
]
SMALL = FlyNNSettings(n_units=30, n_inputs=2, n_active=4)
TERMS = {
    "laplace": {},
    "gaussian": {"delta": "1e-6"},
    "replace": {"neighbors": "replace_one"},
    "paper": {"mechanism": "paper"},
    "central": {"delta": "1e-6", "mechanism": "central"},
}
NETWORK = perceptron(len(SCHEMA.feature_names), 2, hidden=(4,), seed=1)


def encode_file(rows, ending):
    """Return the content of a file of rows; all formats but CSV have the first four cells."""
    if ending.startswith("csv"):
        content = b"\n".join([HEADER, *rows]) + b"\n"
        return gzip.compress(content, mtime=0) if ending == "csv.gz" else content
    cells = [(row.split(b",") + [b""] * 4)[:4] for row in rows]
    names = HEADER.decode().split(",")
    if ending == "jsonl.gz":
        texts = [[cell.decode("utf-8", "replace") for cell in row] for row in cells]
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in texts]
        return gzip.compress("\n".join(lines).encode(), mtime=0)
    columns = [pyarrow.array(column, pyarrow.binary()) for column in zip(*cells, strict=True)]
    table = pyarrow.table([column.view(pyarrow.string()) for column in columns], names)
    stream = io.BytesIO()
    parquet.write_table(table, stream, compression="zstd")
    return stream.getvalue()


class Recorder:
    """A party that records its requests, and the masked sums that they are part of."""

    def __init__(self, party):
        self.name, self.accepts, self._party, self.requests = party.name, party.accepts, party, []

    def answer(self, request):
        self.requests.append((request, None))
        return self._party.answer(request)

    def contribute(self, request, masked):
        self.requests.append((request, masked))
        return self._party.contribute(request, masked)

    def close(self):
        self._party._gate.ledger.close()


@contextmanager
def fixed_training_noise():
    """Seed the noise of private steps and the key of held-out rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_dp_sgd, "fresh_generator", lambda: torch.Generator().manual_seed(3))
        patch.setattr("secrets.token_bytes", lambda n: bytes(range(n)))
        yield


UNBOUNDED = object()
"""Sensitivity of a reply whose difference has no bound: selected cells, and trained weights.

Their size and cost must be equal, and all bytes if the node reads the same rows. The exact numbers
from which they are drawn are measured in their place: counts, and sums of clipped gradients.
"""


class Node:
    """Node with its file, schema and ledger, and the requests of one training.

    Parameters
    ----------
    folder : Path
        Empty folder.
    method : {"FlyNN", "FedPNN", "kNN-Per"}
        Method of the training.
    terms : str
        Key of ``TERMS``.
    epsilon : str
        Privacy budget.
    ending : str
        Ending of the file's name, which states its format.
    """

    bits = staticmethod(lambda: np.random.default_rng(7).bytes)
    training_noise = staticmethod(fixed_training_noise)

    def __init__(self, folder, method, terms, *, epsilon="1", ending="csv"):
        self.folder, self.method, self.terms = folder, method, terms
        (folder / "schema.toml").write_text(SCHEMA.to_toml(), "utf-8")
        self.config = {
            "party-name": "north",
            "data": str(folder / f"rows.{ending}"),
            "schema": str(folder / "schema.toml"),
            "model-folder": str(folder),
            **TERMS[terms],
            "epsilon": epsilon,
        }
        self.privacy = privacy_from(self.config)
        members = [Recorder(self._party(ROWS, name)) for name in ("north", "south", "west")]
        sums = "masked" if terms == "central" else "plain"
        run(self._coordinator(), members, sums=sums)
        self.requests, self.of_rows = members[0].requests, None
        for member in members:
            member.close()
        self.of_rows = self.replies(ROWS)

    def replies(self, rows):
        """Return the node's replies, its cost, the rows it read and exact numbers, for a file."""
        if rows is ROWS and self.of_rows is not None:
            return self.of_rows
        party = self._party(rows)
        with self.training_noise():
            replies = [
                party.answer(request) if masked is None else party.contribute(request, masked)
                for request, masked in self.requests
            ]
        used = read_rows(self.config["data"], SCHEMA)
        with party._gate.ledger as ledger:
            exact = [exact_numbers(party, request) for request, _ in self.requests]
            return replies, ledger.spent("stays"), (used.x.tobytes(), used.y.tolist()), exact

    def sensitivity(self, request):
        """Return the stated sensitivity of the reply to a request, None without a release."""
        neighbors = self.privacy.neighbors
        n_features, n_classes = len(SCHEMA.feature_names), len(SCHEMA.classes)
        match request:
            case flynn.ConstantsRequest():
                levels = flynn_release.constants_levels(self.privacy, len(request.low))
                return flynn_release.constants_sensitivity(len(request.low), levels, neighbors)
            case flynn.NoisyCountRequest():
                return flynn_release.count_sensitivity(request.plan.n_active, neighbors)
            case fedpnn.OriginRequest():
                return fedpnn_release.origin_release(
                    self.privacy, n_features, n_classes
                ).sensitivity
            case fedpnn.ClassSumsRequest():
                return fedpnn_release.class_sums_release(
                    self.privacy, n_features, n_classes
                ).sensitivity
            case fedpnn.CellsRequest():
                return fedpnn_release.cells_release(self.privacy).sensitivity
            case knnper.NoisedCountsRequest():
                return ROW_COUNTS
            case flynn.PicksRequest() | knnper.PrivateTrainRequest():
                return UNBOUNDED
        return None

    def _coordinator(self):
        if self.method == "FlyNN":
            return flynn.coordinate_private(SMALL, self.privacy, run="audit")
        if self.method == "kNN-Per":
            rounds = RoundSettings(n_rounds=1, regime=Regime(batch_size=18))
            private_rounds = knnper.PrivateRounds(rounds, 1.0, self.privacy)
            return knnper.coordinate_private(private_rounds, NETWORK, run="audit")
        return fedpnn.coordinate_private(self.privacy, run="audit")

    def _party(self, rows, name="north"):
        path = Path(self.config["data"])
        path.write_bytes(encode_file(rows, path.name.partition(".")[2]))
        ledger = Ledger(":memory:", party=name)
        ledger.set_budget("stays", self.privacy.total)
        account = {"ledger": ledger, "dataset": "stays", "bits": self.bits()}
        table = {**party_table(self.config, self.method.lower())[0], "name": name}
        if self.method == "kNN-Per":
            x, y = table.pop("x"), table.pop("y")
            return PrivateKNNPerParty(
                table.pop("name"), x, y, NETWORK, privacy=self.privacy, **account, **table
            )
        app = flynn_app if self.method == "FlyNN" else fedpnn_app
        make_party = app._private_party if self.method == "FlyNN" else app._make_private_party
        return make_party({**table, "privacy": self.privacy, **account}, self.config)


def exact_numbers(party, request):
    """Return the exact numbers from which a reply without a bounded difference is drawn."""
    if isinstance(request, flynn.PicksRequest):
        return party._exact_counts(request.plan, request.classes).ravel()
    if not isinstance(request, knnper.PrivateTrainRequest):
        return None
    network = party.trained_network
    plan = dataclasses.replace(
        party.plan, sample_rate=1.0, batch_size=1, n_steps=1, noise_multiplier=0.0
    )
    state, _ = _dp_sgd.train_private(
        network,
        network.state(request.weights),
        party.x,
        party.targets,
        plan=plan,
        regime=Regime(learning_rate=1.0, momentum=0.0, weight_decay=0.0),
        bound=party._begin_request.bound,
    )
    return network.vector(state).astype(np.float64)  # the start minus the sum of the gradients


def exact_sensitivity(node, request):
    """Return bounds in L1 and squared L2 norm of a difference of exact numbers."""
    if isinstance(request, flynn.PicksRequest):
        stated = flynn_release.count_sensitivity(request.plan.n_active, node.privacy.neighbors)
        return stated.l1, stated.l2_squared
    return np.inf, 1.0 + 1e-4  # the bound of one row's gradient is 1; float32 is rounded


def numbers_of(reply):
    """Return all integers of a reply as one vector."""
    arrays = [np.ravel(getattr(reply, field.name)) for field in dataclasses.fields(reply)]
    return np.concatenate(arrays).astype(object)


def check_neighbors(node, rows, others):
    """Check a node's replies for two files that differ by one row.

    Return whether the node reads the same rows from both, as for a row that the schema ignores.
    """
    (replies, cost, table, exact), (other_replies, other_cost, other_table, other_exact) = map(
        node.replies, (rows, others)
    )
    is_same_table = table == other_table
    assert cost == other_cost
    for number, (request, _) in enumerate(node.requests):
        reply, other = replies[number], other_replies[number]
        assert len(encode(reply)) == len(encode(other))
        sensitivity = node.sensitivity(request)
        if sensitivity is None or is_same_table:
            assert encode(reply) == encode(other)
            continue
        if sensitivity is UNBOUNDED:
            l1, l2_squared = exact_sensitivity(node, request)
            moved = exact[number] - other_exact[number]
            assert abs(moved).sum() <= l1
            assert (moved**2).sum() <= l2_squared
            continue
        difference = numbers_of(reply) - numbers_of(other)
        assert abs(difference).sum() <= sensitivity.l1
        assert (difference**2).sum() <= sensitivity.l2_squared
        assert abs(difference).max() <= sensitivity.linf
    return is_same_table


NODES = [
    ("FlyNN", "laplace"),
    ("FlyNN", "replace"),
    ("FedPNN", "laplace"),
    ("FedPNN", "gaussian"),
    ("FedPNN", "replace"),
    ("FlyNN", "paper"),
    ("FlyNN", "central"),
    ("FedPNN", "central"),
    ("kNN-Per", "gaussian"),
]


@pytest.fixture(scope="module", params=NODES, ids=" ".join)
def node(request, tmp_path_factory):
    return Node(tmp_path_factory.mktemp("node"), *request.param)


def hostile_lines():
    """Return hostile lines with the columns age, sex, dose and died; each is one row."""
    lines = [
        line.replace(b",f,", b",f,0.1,").replace(b",m,", b",m,0.1,") for line in delimited_rows()
    ]
    cells = [b'50,f,"%s",no' % cell.encode() for cell in NUMBERS if '"' not in cell]
    return [line for line in [*lines, *cells] if b"\n" not in line and line.strip()]


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_hostile_rows_change_charged_releases_only(node, caplog, part):
    assert len(set(hostile_lines())) >= 200
    # a third of the lines; the nodes of FlyNN together read all of them, as do those of FedPNN
    lines, n_ignored = hostile_lines()[(part + NODES.index((node.method, node.terms))) % 3 :: 3], 0

    with caplog.at_level(logging.DEBUG):
        for number, line in enumerate(lines):
            place = number % (len(ROWS) + 1)
            if node.privacy.neighbors == "add_remove":
                others = [*ROWS[:place], line, *ROWS[place:]]
            else:
                others = [*ROWS[:place], line, *ROWS[place + 1 :]]
            n_ignored += check_neighbors(node, ROWS, others)

    assert not caplog.records
    assert n_ignored < len(lines)  # some of the rows are used


@pytest.mark.parametrize("ending", ["csv.gz", "jsonl.gz", "parquet"])
def test_hostile_rows_of_other_formats_change_charged_releases_only(tmp_path, ending):
    node = Node(tmp_path, "FlyNN", "laplace", ending=ending)
    long = [b"50,f,0.1,no" + b"x" * n for n in (300_000, 1_000_000, 30_000_000)]

    for number, line in enumerate([*hostile_lines()[::8], *long]):
        place = number % (len(ROWS) + 1)
        check_neighbors(node, ROWS, [*ROWS[:place], line, *ROWS[place:]])


def test_a_file_without_rows_gets_replies_of_the_same_size(node):
    replies, cost, *_ = node.replies(ROWS)
    replies_without_rows, cost_without_rows, *_ = node.replies([])

    assert [len(encode(reply)) for reply in replies] == [
        len(encode(reply)) for reply in replies_without_rows
    ]
    assert cost == cost_without_rows


CELLS = st.one_of(
    st.sampled_from([cell for cell in (*NUMBERS, *WORDS, *LABELS) if len(cell) < 500]),
    st.sampled_from(["f", "m", "x", "no", "yes", "0", "1", "-1", "110", "1e300"]),
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=6),
)
LINES = st.one_of(
    st.lists(CELLS, min_size=4, max_size=4).map(lambda cells: ",".join(cells).encode()),
    st.lists(CELLS, max_size=6).map(lambda cells: ",".join(f'"{c}"' for c in cells).encode()),
    st.binary(max_size=40),
).map(lambda line: line.replace(b"\n", b"") or b"?")


def check_random_neighbors(node, place, line, other):
    if node.privacy.neighbors == "add_remove":
        check_neighbors(node, ROWS, [*ROWS[:place], line, *ROWS[place:]])
    else:
        rows = [*ROWS[:place], line, *ROWS[place + 1 :]]
        check_neighbors(node, rows, [*ROWS[:place], other, *ROWS[place + 1 :]])


@settings(max_examples=25)
@given(place=st.integers(0, len(ROWS) - 1), line=LINES, other=LINES)
def test_random_rows_change_charged_releases_only(node, place, line, other):
    check_random_neighbors(node, place, line, other)


@pytest.mark.slow
@settings(max_examples=4000)
@given(place=st.integers(0, len(ROWS) - 1), line=LINES, other=LINES)
def test_many_random_rows_change_charged_releases_only(node, place, line, other):
    # 9 settings of the fixture, 36,000 pairs of files
    check_random_neighbors(node, place, line, other)


def test_the_audit_finds_a_median_of_private_rows(node, monkeypatch):
    encode_column = NumericColumn.encode

    def with_median(self, cells):
        features, missing, clipped = encode_column(self, cells)
        features[missing, 0] = np.median(features[~missing, 0])
        if self.name == "dose":  # rows without a dose are dropped
            missing |= np.median(features) > 0
        return features, missing, clipped

    monkeypatch.setattr(NumericColumn, "encode", with_median)
    rows = [b",f,0,no"] * 9 + [b"0,f,1,no", b"110,f,1,no"] * 4
    others = [*rows, b"110,f,1,no"]
    if node.privacy.neighbors == "replace_one":
        rows = [*rows, b"0,f,0,no"]

    with pytest.raises(AssertionError):
        check_neighbors(node, rows, others)
