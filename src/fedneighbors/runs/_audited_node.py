"""Party of a node with scratch files in place of its ledger and models, for audits."""

import importlib
import os
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Integers
from fedneighbors.datasets._files import CheckedGzip, explain_errors
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
from fedneighbors.methods.flynn.private import protocol as flynn
from fedneighbors.methods.flynn.protocol import FlyNNSettings
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
    """A reply, split into the part that is covered by a charge and the part that is not."""

    costs: tuple[Guarantee, ...]
    outside: bytes  # the frame, or the length of the frame of a charged reply
    values: Integers | None  # None if the reply is not charged


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
        try:
            privacy = privacy_from(config)
        except DataError:
            raise
        except (ValueError, TypeError) as error:
            raise DataError(f"{folder / CONFIGURATION}: {error}") from error
        if privacy is None:
            raise DataError(f"{folder / CONFIGURATION} sets no epsilon: there is nothing to audit")
        schema = scratch / "schema.toml"  # where a node would copy it for every party
        schema.write_bytes(Path(config["schema"]).read_bytes())
        self._config = config | {"schema": str(schema), "model-folder": str(scratch)}
        self.privacy = privacy
        self._method = self._config.get("method")
        if self._method not in METHODS:
            raise DataError(
                f"{folder / CONFIGURATION}: expected method as one of {METHODS}, got "
                f"{self._method!r}"
            )
        app = importlib.import_module(f"fedneighbors.methods.{self._method}.flower_app")
        self._build_party = app.build_party
        self.requests: list[Any] = [PublicSchemaRequest()]
        self._frames = [encode(request) for request in self.requests]
        self._recorder: _Recorder | None = None

    def record_requests(self, path: Path) -> None:
        """Record the requests of one training, up to the first refusal."""
        with self._open_ledger() as ledger:
            try:
                self._recorder = _Recorder(self._party(path, ledger, os.urandom))
            except Refused:  # compared like every other reply
                return
            with suppress(PartyRefused):  # compared like every other reply
                run(self._coordinator(), [self._recorder])
            self.requests = self._recorder.requests
            self._frames = [encode(request) for request in self.requests]

    def sensitivity(self, request: Any) -> Sensitivity:
        """Return the stated sensitivity of a charged reply."""
        assert self._recorder is not None  # otherwise no request is charged
        sensitivity: Sensitivity = self._recorder.party.sensitivity(request)
        return sensitivity

    def replies(self, path: Path, bits: BitSource = os.urandom) -> list[NodeReply]:
        """Return the replies of a new party with a new ledger."""
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
        self, path: Path, ledger: Ledger, bits: BitSource
    ) -> Callable[[bytes], bytes]:
        """Return the function from request to reply frames, as on a node."""
        try:
            return partial(serve_safely, self._party(path, ledger, bits))
        except Refused as refused:
            refusal = make_refusal(refused)
        except Exception as error:
            refusal = report_failure(error)
        return lambda _: encode(refusal)

    def _party(self, path: Path, ledger: Ledger, bits: BitSource) -> Any:
        account = {"ledger": ledger, "dataset": _DATASET, "bits": bits}
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
    """Raise ValueError unless two files differ by one row."""
    a, b = _rows(first), _rows(second)
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


def _rows(path: Path) -> Sequence[Any]:
    """Return the rows of a file as they are, with its header."""
    with explain_errors(path):
        if path.suffix in {".parquet", ".pq"}:
            table = optional_module("pyarrow.parquet", "data").read_table(path)
            return [repr(row) for row in table.to_pylist()]
        content = b"".join(CheckedGzip(path)) if path.suffix == ".gz" else path.read_bytes()
    return content.removesuffix(b"\n").split(b"\n")


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


def measure_replies(
    node: AuditedNode, paths: Sequence[Path]
) -> dict[int, tuple[Integers, Integers]]:
    """Return the exact values of charged replies to both files, by request.

    Noise from zero bits is zero. Replies to which noise is not merely added are left out: their
    difference between the files depends on the bits.
    """
    quiet, loud = (
        [node.replies(path, bits()) for path in paths]
        for bits in (lambda: bytes, lambda: np.random.default_rng(_SEED).bytes)
    )
    exact = {}
    for number, request in enumerate(node.requests):
        values = [x for side in (*quiet, *loud) if (x := side[number].values) is not None]
        if isinstance(request, flynn.PicksRequest) or len({x.shape for x in values}) != 1:
            continue
        if len(values) == 4 and np.array_equal(values[0] - values[1], values[2] - values[3]):
            exact[number] = (values[0], values[1])
    return exact
