"""Audit of a node on two neighboring files, from their bytes to the frames of its replies.

The node's party is built from each file many times, each time with a new ledger in memory, and
answers the same recorded requests. Charges, and replies that are not charged, must be equal in all
runs on both files; a charged reply may differ within its cost.
"""

import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, issparse, vstack

from fedneighbors._typing import Integers, Progress, silent
from fedneighbors.errors import FederationError
from fedneighbors.federation._messages import decode
from fedneighbors.federation._roles import Refusal
from fedneighbors.privacy._accounting import spent_after
from fedneighbors.privacy._guarantees import Guarantee, PureDP, Sensitivity
from fedneighbors.privacy.audit._certificates import Certificate, check_confidence, largest_loss
from fedneighbors.privacy.audit._events import Known
from fedneighbors.privacy.audit._releases import RUN_ORDER, certify_comparisons, compare_runs
from fedneighbors.runs._audited_node import (
    CHANGES,
    AuditedNode,
    Measurement,
    NodeReply,
    check_neighbors,
    measure_replies,
    order_cells,
)

_N_COMPARISONS = 2  # per reply: outputs, and differences of outputs

_Runs = tuple[list[NodeReply], list[NodeReply]]  # replies to one request, on either file


@dataclass(frozen=True)
class ReplyAudit:
    """Audit of one charged reply.

    Parameters
    ----------
    request : str
        Class of the request.
    cost : Guarantee
        Cost that the node charged.
    stated : Sensitivity
        Sensitivity from which the node calibrates the noise.
    measured : Sensitivity or None
        Difference between the exact replies to the two files; None if it is unknown.
    reason : str
        Reason why the difference is unknown, else empty.
    certificate : Certificate
        Bound certified by the replies.
    """

    request: str
    cost: Guarantee
    stated: Sensitivity
    measured: Sensitivity | None
    reason: str
    certificate: Certificate

    @property
    def violations(self) -> tuple[str, ...]:
        """Return descriptions of the disproved parts: sensitivity, cost, additive noise."""
        found = []
        if self.measured is not None:
            norms = ("l1", "l2_squared", "linf")
            pairs = [
                (name, getattr(self.measured, name), getattr(self.stated, name)) for name in norms
            ]
            found += [
                f"the difference between the files has {name} {measured}, stated {stated}"
                for name, measured, stated in pairs
                if measured > stated
            ]
        if self.reason == CHANGES:
            found.append("the difference between the files changes with the noise")
        if self.certificate.refutes(self.cost):
            loss = self.certificate.loss(self.cost)
            found.append(f"certified loss {loss:.3f}, charged {self.cost}")
        return tuple(found)


@dataclass(frozen=True)
class NodeAudit:
    """Result of :func:`audit_node`.

    Parameters
    ----------
    stated : Guarantee
        Budget of one training, from the node's configuration.
    n_runs : int
        Runs on each file.
    replies : tuple of ReplyAudit
        The charged replies.
    certificate : Certificate or None
        Bound certified by all charged replies together; None if no reply is charged.
    max_loss : float
        Largest loss, in the terms of ``stated``, that this number of runs can certify.
    differences : tuple of str
        Descriptions of charges and uncharged replies that are not equal in all runs on both files.
    omissions : tuple of str
        Descriptions of requests and replies that could not be compared.
    """

    stated: Guarantee
    n_runs: int
    replies: tuple[ReplyAudit, ...]
    certificate: Certificate | None
    max_loss: float
    differences: tuple[str, ...]
    omissions: tuple[str, ...]

    @property
    def breached(self) -> bool:
        """Return whether the node's guarantee is disproved."""
        return (
            bool(self.differences)
            or any(reply.violations for reply in self.replies)
            or (self.certificate is not None and self.certificate.refutes(self.stated))
        )

    @property
    def inconclusive(self) -> bool:
        """Return whether no breach was found, but something could not be compared."""
        return bool(self.omissions) and not self.breached


def audit_node(
    folder: str | os.PathLike[str],
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    n_runs: int = 1000,
    confidence: float = 0.999,
    on_run: Progress = silent,
) -> NodeAudit:
    """Audit a node: try to disprove its guarantee on two neighboring files.

    Nothing is written to the folder, and the node's own ledger is neither opened nor charged. The
    training has the default settings of its method.

    The charges and the uncharged replies of a correct node are equal in all runs on both files, and
    its charged replies differ between the files within their cost. The guarantee of such a node is
    disproved with probability at most ``1 - confidence``.

    Parameters
    ----------
    folder : path
        Folder of the node. Its ``node.toml`` contains the keys of the node's configuration, of
        which ``epsilon`` and ``schema`` are required, and ``method``, ``"flynn"`` or ``"fedpnn"``.
        Relative paths are relative to the folder.
    first, second : path
        Two files that differ by one row, in the sense of the node's ``neighbors``. Synthetic rows
        serve as well as real ones.
    n_runs : int
        Runs on each file, rounded down to a multiple of four. The least number is 32 at the default
        confidence. With 1000 runs, losses up to about 4 can be certified.
    confidence : float
        Confidence of the audit as a whole, between 0 and 1.
    on_run : callable
        Called with runs done, total runs and a description.

    Returns
    -------
    NodeAudit

    Raises
    ------
    DataError
        If ``node.toml`` is invalid, or has no ``epsilon`` or no audited method; if the schema is
        invalid, or a file is missing.
    ValueError, TypeError
        If a value in ``node.toml`` is invalid or the key ``schema`` is missing, the confidence is
        out of range, the files are not neighbors, or so few runs can certify no loss.
    PrivacyError
        If no noise has the budget of the configuration.
    FederationError
        If the node refuses both files, or answers contrary to the protocol.
    MissingExtraError
        If the extra ``flower`` or ``privacy`` is not installed.
    """
    check_confidence(confidence)
    paths = (Path(first), Path(second))
    with tempfile.TemporaryDirectory() as scratch:
        node = AuditedNode(Path(folder), Path(scratch))
        check_neighbors(*paths, node.privacy.neighbors)
        node.record_requests(paths[0])
        _check_answers(node, paths)
        measurements = measure_replies(node, paths)
        each = 1 - (1 - confidence) / (len(node.requests) + 1)  # one for all replies together
        _check_n_runs(n_runs, each, confidence)
        runs: list[_Runs] = [([], []) for _ in node.requests]
        n_total = 2 * (n_runs - n_runs % len(RUN_ORDER))
        cells = {number: found.cells for number, found in measurements.items()}
        for number in range(n_total):
            side = RUN_ORDER[number % len(RUN_ORDER)]
            for request, reply in enumerate(node.replies(paths[side])):
                runs[request][side].append(_choose_cells(reply, cells.get(request)))
            on_run(number + 1, n_total, "runs of the node")
    return _compare(node, runs, measurements, confidence=each)


def _check_answers(node: AuditedNode, paths: tuple[Path, Path]) -> None:
    """Raise FederationError if both files are refused for the same reason."""
    for request, *replies in zip(node.requests, *map(node.replies, paths), strict=True):
        if _form(replies[0]) == _form(replies[1]) and replies[0].values is None:
            message = _decode_form(request, replies[0].form)
            if isinstance(message, Refusal):
                raise FederationError(
                    f"the node refuses {type(request).__name__} with both files "
                    f"({message.code} {message.detail}): correct its configuration"
                )


def _check_n_runs(n_runs: int, confidence_of_each: float, confidence: float) -> None:
    """Raise ValueError if so few runs can certify no loss."""
    least = 4 * len(RUN_ORDER)  # a certificate of differences of two runs takes eight of them
    while not _max_loss(least, PureDP(Fraction(0)), confidence_of_each):
        least += len(RUN_ORDER)
    if n_runs < least:
        raise ValueError(
            f"expected n_runs of at least {least} at confidence {confidence}, got {n_runs}"
        )


def _max_loss(n_runs: int, claim: Guarantee, confidence: float) -> float:
    each = 1 - (1 - confidence) / _N_COMPARISONS
    return largest_loss(n_runs, claim, confidence=each)


def _choose_cells(reply: NodeReply, cells: Integers | None) -> NodeReply:
    """Return a reply with the chosen cells only, to save memory.

    If they are not chosen yet, all values are stored as a sparse matrix of one row.
    """
    if reply.values is None:
        return reply
    if cells is None:
        sparse: Any = csr_array(reply.values[None])
        return reply._replace(values=sparse)
    # a reply of fewer cells than the measured ones has another form, and its values do not matter
    return reply._replace(
        values=np.resize(reply.values, max(reply.values.size, cells.max(initial=-1) + 1))[cells]
    )


def _compare(
    node: AuditedNode,
    runs: Sequence[_Runs],
    measurements: Mapping[int, Measurement],
    *,
    confidence: float,
) -> NodeAudit:
    """Compare the runs; certify losses of charged replies, singly and together."""
    differences, omissions, replies, tables = [], [], [], []
    if not node.is_complete:
        last = type(node.requests[-1]).__name__
        omissions.append(f"the recorded training was refused: no request after {last} is audited")
    for number, (request, sides) in enumerate(zip(node.requests, runs, strict=True)):
        if text := _describe_difference(request, sides, _uncharged_part):
            differences.append(text)
            continue
        if not (costs := sides[0][0].costs):
            continue
        measurement = measurements.get(number, Measurement())
        table = _tabulate(sides, measurement)
        if text := _describe_difference(request, sides, _form):
            omissions.append(text)
        cost = costs[0] if len(costs) == 1 else spent_after(costs, node.privacy.total)
        tables.append(table)
        replies.append(
            ReplyAudit(
                request=type(request).__name__,
                cost=cost,
                stated=node.sensitivity(request),
                measured=measurement.difference,
                reason=measurement.reason,
                certificate=_certify(table, cost, confidence),
            )
        )
    total = node.privacy.total
    return NodeAudit(
        stated=total,
        n_runs=len(runs[0][0]),
        replies=tuple(replies),
        certificate=_certify(_join(tables), total, confidence) if tables else None,
        max_loss=_max_loss(len(runs[0][0]), total, confidence),
        differences=tuple(differences),
        omissions=tuple(omissions),
    )


class _Table(NamedTuple):
    """Chosen cells of a charged reply in the runs on both files, and their exact values."""

    first: Integers
    second: Integers
    known: Known | None


def _tabulate(sides: _Runs, measurement: Measurement) -> _Table:
    """Return the values of all runs, one row per run.

    If runs differ in the form of the reply, the last column is a digest of the form, and the values
    of every form but the most frequent one are 0. The half that certifies does not choose it.
    """
    choosing = [reply for side in sides for reply in side[: len(side) // 2]]
    forms = Counter(map(_form, choosing))
    usual = max(
        (reply for reply in choosing if reply.values is not None),
        key=lambda reply: forms[_form(reply)],
        default=None,
    )
    if usual is None:
        first, second = (np.zeros((len(side), 0), np.int64) for side in sides)
    else:
        values: Any = usual.values  # dense or sparse
        zeros, form = values * 0, _form(usual)
        first, second = (
            _stack([reply.values if _form(reply) == form else zeros for reply in side])
            for side in sides
        )
    if issparse(first):
        first, second = _choose_columns(first, second)
    if len({_form(reply) for side in sides for reply in side}) == 1:
        return _Table(first, second, measurement.known)
    digests = [np.array([_digest(reply) for reply in side])[:, None] for side in sides]
    return _Table(np.hstack([first, digests[0]]), np.hstack([second, digests[1]]), None)


def _stack(rows: list[Any]) -> Any:
    return vstack(rows, "csr") if issparse(rows[0]) else np.array(rows)


def _choose_columns(first: Any, second: Any) -> tuple[Integers, Integers]:
    """Choose cells by means of the half that does not certify."""
    means = [np.ravel(side[: side.shape[0] // 2].mean(axis=0)) for side in (first, second)]
    cells = order_cells(means[0] - means[1])
    return first[:, cells].toarray(), second[:, cells].toarray()


def _digest(reply: NodeReply) -> int:
    """Return 48 bits of a digest, which depend on this reply only."""
    return int.from_bytes(hashlib.sha256(repr(_form(reply)).encode()).digest()[:6], "big")


def _join(tables: Sequence[_Table]) -> _Table:
    """Return the columns of several tables with the largest differences."""
    first = np.hstack([table.first for table in tables])
    second = np.hstack([table.second for table in tables])
    known = [table.known for table in tables if table.known is not None]
    if len(known) < len(tables):
        return _Table(*_choose_columns(csr_array(first), csr_array(second)), None)
    exact = [np.concatenate([each[side] for each in known]) for side in (0, 1)]
    cells = order_cells(exact[0] - exact[1])
    return _Table(first[:, cells], second[:, cells], (exact[0][cells], exact[1][cells]))


def _certify(table: _Table, claim: Guarantee, confidence: float) -> Certificate:
    return certify_comparisons(compare_runs(*table), claim, confidence=confidence)


def _form(reply: NodeReply) -> tuple[Any, ...]:
    shape = None if reply.values is None else reply.values.shape
    return (reply.costs, reply.form, shape)


def _uncharged_part(reply: NodeReply) -> tuple[Any, ...]:
    """Return the charges, and the form if there are none."""
    return (reply.costs, b"", ()) if reply.costs else _form(reply)


def _describe_difference(
    request: Any, sides: _Runs, part: Callable[[NodeReply], tuple[Any, ...]]
) -> str:
    """Describe a part of replies that is not equal in all runs."""
    counts = [Counter(map(part, side)) for side in sides]
    if len(counts[0] | counts[1]) == 1:
        return ""
    first, second = (
        ", ".join(
            f"{_describe(request, *key)} ({n} of {len(side)} runs)"
            for key, n in count.most_common(3)
        )
        for side, count in zip(sides, counts, strict=True)
    )
    return f"{type(request).__name__}: {first}; other file: {second}"


def _describe(request: Any, costs: tuple[Guarantee, ...], form: bytes, shape: Any) -> str:
    charges = ", ".join(map(str, costs)) or "nothing"
    if shape is not None:
        size = f" of {form.decode()} bytes" if form else ""
        return f"a charged reply{size}, charged {charges}"
    message = _decode_form(request, form)
    kind = f"refusal {message.code!r}" if isinstance(message, Refusal) else "a reply"
    digest = hashlib.sha256(form).hexdigest()[:8]
    return f"{kind} of {len(form)} bytes with digest {digest}, charged {charges}"


def _decode_form(request: Any, form: bytes) -> Any:
    return decode(form, (type(request).reply, Refusal))
