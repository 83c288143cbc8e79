"""Party of a node with scratch files in place of its ledger and models, for audits."""

import importlib
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Floats, Integers
from fedneighbors.datasets._cells import iterate_lines
from fedneighbors.datasets._files import explain_errors
from fedneighbors.datasets._text_tables import is_arff
from fedneighbors.errors import DataError, PartyRefused
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import Coordinator
from fedneighbors.federation._messages import Message, decode, encode
from fedneighbors.federation._roles import (
    Refusal,
    Refused,
    make_refusal,
    report_failure,
    serve_safely,
)
from fedneighbors.methods.fedpnn.private import protocol as fedpnn
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.private import protocol as flynn
from fedneighbors.privacy._guarantees import Guarantee, Neighbors, Sensitivity
from fedneighbors.privacy._policy import privacy_from
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.noise._samplers import BitSource
from fedneighbors.tabular._schema import PublicSchemaRequest

CONFIGURATION = "node.toml"
"""File in the folder of a node: the keys of its ``--node-config``, and ``method``."""

METHODS = ("flynn", "fedpnn")

_DATASET = "audit"
_SEED = 7  # any seed serves: the noise cancels in differences


class NodeReply(NamedTuple):
    """A reply and its charges; a charged reply is split into its form and its values."""

    costs: tuple[Guarantee, ...]
    form: bytes  # the frame; for charged values only the frame's length
    values: Integers | None  # None if the reply is not charged, or a refusal


class _Recorder:
    """A party that keeps its requests."""

    def __init__(self, party: Any) -> None:
        self.name, self.accepts = party.name, party.accepts
        self.party = party
        self.requests: list[Any] = []

    def answer(self, request: Message) -> Message:
        self.requests.append(request)
        reply: Message = self.party.answer(request)
        return reply


class AuditedNode:
    """A node with scratch files in place of its ledger and models, and recorded requests."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        config = _read_configuration(folder)
        self._method = config.get("method")
        if self._method not in METHODS:
            raise DataError(
                f"{folder / CONFIGURATION}: expected method as one of {METHODS}, got "
                f"{self._method!r}; nodes of other methods have no privacy budget to audit"
            )
        try:
            privacy = privacy_from(config)
        except DataError:
            raise
        except (ValueError, TypeError) as error:
            raise DataError(f"{folder / CONFIGURATION}: {error}") from error
        if privacy is None:
            raise DataError(f"{folder / CONFIGURATION} sets no epsilon: there is nothing to audit")
        self._config = config | {"model-folder": str(scratch)}
        self.privacy = privacy
        app = importlib.import_module(f"fedneighbors.methods.{self._method}.flower_app")
        self._build_party = app.build_party
        self.requests: list[Any] = [PublicSchemaRequest()]
        self._frames = [encode(request) for request in self.requests]
        self._recorder: _Recorder | None = None
        self.is_complete = False  # the requests are those of a whole training

    def record_requests(self, path: Path) -> None:
        """Record the requests of one training, up to the first refusal."""
        with self._open_ledger() as ledger:
            try:
                self._recorder = _Recorder(self._party(path, ledger))
            except Refused:  # compared like every other reply
                return
            try:
                run(self._coordinator(), [self._recorder])
                self.is_complete = True
            except PartyRefused:  # compared like every other reply
                pass
            self.requests = self._recorder.requests
            self._frames = [encode(request) for request in self.requests]

    def sensitivity(self, request: Any) -> Sensitivity:
        """Return the stated sensitivity of a charged reply."""
        assert self._recorder is not None  # otherwise no request is charged
        sensitivity: Sensitivity = self._recorder.party.sensitivity(request)
        return sensitivity

    def replies(self, path: Path, bits: BitSource | None = None) -> list[NodeReply]:
        """Return the replies of a new party with a new ledger.

        Without ``bits`` the party has its own source of randomness.
        """
        replies = []
        with self._open_ledger() as ledger:
            answer = self._answer_function(path, ledger, bits)
            n_entries = 1  # the budget
            for request, frame in zip(self.requests, self._frames, strict=True):
                reply = answer(frame)
                entries = ledger.entries()
                costs = tuple(e.guarantee for e in entries[n_entries:] if e.kind == "reserved")
                replies.append(_split_reply(request, reply, costs))
                n_entries = len(entries)
        return replies

    def _answer_function(
        self, path: Path, ledger: Ledger, bits: BitSource | None
    ) -> Callable[[bytes], bytes]:
        """Return the function from request to reply frames, as on a node."""
        try:
            return partial(serve_safely, self._party(path, ledger, bits))
        except Refused as refused:
            refusal = make_refusal(refused)
        except Exception as error:
            refusal = report_failure(error)
        return lambda _: encode(refusal)

    def _party(self, path: Path, ledger: Ledger, bits: BitSource | None = None) -> Any:
        account = {"ledger": ledger, "dataset": _DATASET} | ({} if bits is None else {"bits": bits})
        return self._build_party(self._config | {"data": str(path)}, lambda _: account)

    def _open_ledger(self) -> Ledger:
        ledger = Ledger(":memory:", party="audited")
        ledger.set_budget(_DATASET, self.privacy.total)
        return ledger

    def _coordinator(self) -> Coordinator[Any]:
        if self._method == "flynn":
            return flynn.coordinate_private(FlyNNSettings(), self.privacy, run="audit")
        return fedpnn.coordinate_private(self.privacy, run="audit")


def _read_configuration(folder: Path) -> dict[str, Any]:
    """Read the configuration of a node; resolve the path of its schema."""
    path = folder / CONFIGURATION
    with explain_errors(path):
        text = path.read_text(encoding="utf-8")
    try:
        config = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid TOML: {error}") from error
    if config.get("schema"):
        config["schema"] = str(folder / str(config["schema"]))
    return config


def check_neighbors(first: Path, second: Path, neighbors: Neighbors) -> None:
    """Raise ValueError unless two files differ by one row only."""
    (header, a), (other_header, b) = _read_rows(first), _read_rows(second)
    if header != other_header:
        raise ValueError(
            f"expected files that differ by one row only, but the headers of {first} and {second} "
            "differ; give both the same columns"
        )
    n_shared = min(len(a), len(b))
    n_start = next((i for i in range(n_shared) if a[i] != b[i]), n_shared)
    n_end = next((i for i in range(n_shared - n_start) if a[-1 - i] != b[-1 - i]), None)
    n_end = n_shared - n_start if n_end is None else n_end
    moved = sorted((len(a) - n_start - n_end, len(b) - n_start - n_end))
    if moved != ([0, 1] if neighbors == "add_remove" else [1, 1]):
        relation = "added or removed" if neighbors == "add_remove" else "replaced"
        raise ValueError(
            f"expected files that differ by one {relation} row, since the node's neighbors are "
            f"{neighbors!r}; {moved[0]} rows of one differ from {moved[1]} rows of the other"
        )


def _read_rows(path: Path) -> tuple[list[Any], list[Any]]:
    """Return header and rows of a file, as a node reads them."""
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    with explain_errors(path):
        if kind in ("parquet", "pq"):
            table = optional_module("pyarrow.parquet", "data").read_table(path)
            return [str(table.schema.remove_metadata())], [repr(row) for row in table.to_pylist()]
        n_header = 0 if kind in ("jsonl", "ndjson") else 1
        lines = list(iterate_lines(path, has_header=n_header > 0))
    if is_arff(path):
        starts = [str(line).strip().lower().startswith("@data") for line in lines]
        n_header = starts.index(True) + 1 if True in starts else len(lines)
    return lines[:n_header], lines[n_header:]


def _split_reply(request: Any, frame: bytes, costs: tuple[Guarantee, ...]) -> NodeReply:
    reply: Any = decode(frame, (type(request).reply, Refusal))
    if not costs or isinstance(reply, Refusal):
        return NodeReply(costs, frame, None)
    if isinstance(reply, flynn.PicksReply):  # its length depends on the noise
        values = np.zeros(request.plan.n_units * len(request.classes), np.int64)
        values[reply.cells] = reply.counts
        return NodeReply(costs, b"", values)
    parts = [np.ravel(getattr(reply, field.name)) for field in fields(reply)]
    return NodeReply(costs, str(len(frame)).encode(), np.concatenate(parts).astype(np.int64))


SELECTED = "selected cells"
CHANGES = "changes with the noise"
REFUSED = "refuses seeded noise"
"""Reasons for an unknown difference: the noise selects cells; it depends on the noise, although the
noise is added; the reply is refused if the audit replaces the source of randomness."""

_MAX_CELLS = 128  # that are compared in each reply


class Measurement(NamedTuple):
    """Difference between the exact replies to both files, and the cells to compare."""

    reason: str = REFUSED  # why the difference is unknown, else empty
    difference: Sensitivity | None = None
    cells: Integers | None = None  # None if they must be chosen from the runs
    known: tuple[Integers, Integers] | None = None  # exact values of these cells


def measure_replies(node: AuditedNode, paths: Sequence[Path]) -> dict[int, Measurement]:
    """Measure the charged replies to both files, by request.

    Noise from zero bits is zero. With noise from other bits, the same for both files, the
    difference between the files must be the same.
    """
    usual, quiet, loud = (
        [node.replies(path, bits()) for path in paths]
        for bits in (lambda: None, lambda: bytes, lambda: np.random.default_rng(_SEED).bytes)
    )
    measurements = {}
    for number, request in enumerate(node.requests):
        if any(side[number].costs for side in usual):
            pairs = [[side[number].values for side in each] for each in (usual, quiet, loud)]
            measurements[number] = _measure(request, pairs, node.privacy.neighbors)
    return measurements


def _measure(
    request: Any, pairs: Sequence[Sequence[Integers | None]], neighbors: Neighbors
) -> Measurement:
    if isinstance(request, flynn.PicksRequest):
        return Measurement(SELECTED)
    sampled, exact, noisy = (_subtract(*pair) for pair in pairs)
    first, second = pairs[1]
    if first is None or second is None or exact is None or _differ(exact, noisy):
        is_refused = any(values is None for pair in pairs[1:] for values in pair)
        cells = None if sampled is None else order_cells(sampled)
        return Measurement(REFUSED if is_refused else CHANGES, cells=cells)
    cells = order_cells(exact)
    return Measurement("", _norms(exact, neighbors), cells, (first[cells], second[cells]))


def _subtract(first: Integers | None, second: Integers | None) -> Integers | None:
    if first is None or second is None or first.shape != second.shape:
        return None
    return first - second


def _differ(first: Integers, second: Integers | None) -> bool:
    return second is None or not np.array_equal(first, second)


def order_cells(difference: Integers | Floats) -> Integers:
    """Return the cells to compare, those with the largest differences first."""
    return np.argsort(-np.abs(difference), kind="stable")[:_MAX_CELLS]


def _norms(difference: Integers, neighbors: Neighbors) -> Sensitivity:
    move = np.abs(difference).tolist()
    l2_squared = sum(step**2 for step in move)
    return Sensitivity("row", neighbors, l1=sum(move), l2_squared=l2_squared, linf=max(move))
