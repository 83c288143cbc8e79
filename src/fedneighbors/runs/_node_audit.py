"""Audit of a node on two neighboring files, from their bytes to the frames of its replies.

The node's party is built from each file many times, each time with a new ledger in memory, and
answers the same recorded requests. A reply that is not charged must have the same distribution for
both files; a charged reply may differ within its cost.
"""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from fedneighbors._typing import Integers, Progress, silent
from fedneighbors.errors import FederationError
from fedneighbors.federation._messages import decode
from fedneighbors.federation._roles import Refusal
from fedneighbors.privacy._guarantees import Guarantee, Neighbors, PureDP, Sensitivity
from fedneighbors.privacy.audit._certificates import Certificate, certified_loss
from fedneighbors.privacy.audit._releases import RUN_ORDER, certify_comparisons, compare_runs
from fedneighbors.runs._audited_node import (
    AuditedNode,
    NodeReply,
    check_neighbors,
    measure_replies,
)

_MAX_CELLS = 128  # that are compared; the cells that one row moves come first

_Runs = tuple[list[list[NodeReply]], list[list[NodeReply]]]  # on the first and the second file


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
        Difference between the exact replies of the two files; None if the mechanism does not add
        noise to exact values.
    certificate : Certificate
        Bound certified by the replies.
    """

    request: str
    cost: Guarantee
    stated: Sensitivity
    measured: Sensitivity | None
    certificate: Certificate

    @property
    def breached(self) -> bool:
        """Return whether the cost or the sensitivity is disproved."""
        measured, stated = self.measured, self.stated
        exceeded = measured is not None and (
            measured.l1 > stated.l1
            or measured.l2_squared > stated.l2_squared
            or measured.linf > stated.linf
        )
        return exceeded or self.certificate.refutes(self.cost)


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
    differences : tuple of str
        Descriptions of everything outside the noised replies that differs between the files.
    leak : Certificate
        Bound certified by everything outside the noised replies; the stated loss is 0.
    """

    stated: Guarantee
    n_runs: int
    replies: tuple[ReplyAudit, ...]
    certificate: Certificate | None
    differences: tuple[str, ...]
    leak: Certificate

    @property
    def breached(self) -> bool:
        """Return whether the node's guarantee is disproved."""
        return (
            any(reply.breached for reply in self.replies)
            or (self.certificate is not None and self.certificate.refutes(self.stated))
            or self.leak.refutes(PureDP(Fraction(0)))
        )


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
    guarantee of a correct node is disproved with probability at most ``1 - confidence``.

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
        Runs on each file. With 1000 runs, losses up to about 4 can be certified.
    confidence : float
        Confidence of the audit as a whole.
    on_run : callable
        Called with runs done, total runs and a description.

    Returns
    -------
    NodeAudit

    Raises
    ------
    DataError
        If the configuration is incomplete, or a file is missing.
    ValueError
        If the files are not neighbors, or ``n_runs`` is below 32.
    FederationError
        If the node refuses both files.
    MissingExtraError
        If the extra ``flower`` or ``privacy`` is not installed.
    """
    if n_runs < 32:
        raise ValueError(f"expected n_runs of at least 32, got {n_runs}")
    paths = (Path(first), Path(second))
    with tempfile.TemporaryDirectory() as scratch:
        node = AuditedNode(Path(folder), Path(scratch))
        check_neighbors(*paths, node.privacy.neighbors)
        node.record_requests(paths[0])
        _check_answers(node, paths)
        exact = measure_replies(node, paths)
        runs: _Runs = ([], [])
        n_total = 2 * (n_runs - n_runs % 4)
        for number in range(n_total):
            side = RUN_ORDER[number % len(RUN_ORDER)]
            runs[side].append(node.replies(paths[side]))
            on_run(number + 1, n_total, "runs of the node")
    return _compare(node, runs, exact, confidence=confidence)


def _check_answers(node: AuditedNode, paths: tuple[Path, Path]) -> None:
    """Raise FederationError if both files are refused for the same reason."""
    for request, *replies in zip(node.requests, *map(node.replies, paths), strict=True):
        messages = [_outside_message(request, reply) for reply in replies]
        if isinstance(messages[0], Refusal) and messages[0] == messages[1]:
            raise FederationError(
                f"the node refuses {type(request).__name__} with both files "
                f"({messages[0].code} {messages[0].detail}): correct its configuration"
            )


def _compare(
    node: AuditedNode,
    runs: _Runs,
    exact: dict[int, tuple[Integers, Integers]],
    *,
    confidence: float,
) -> NodeAudit:
    """Certify bounds on all differences; together they have the stated confidence."""
    sides = [list(zip(*side, strict=True)) for side in runs]  # by request, then by run
    shapes = [
        {None if reply.values is None else reply.values.shape for reply in first + second}
        for first, second in zip(*sides, strict=True)
    ]
    charged = [
        number for number, found in enumerate(shapes) if len(found) == 1 and None not in found
    ]
    each = 1 - (1 - confidence) / (len(charged) + 2)
    values = {
        number: [np.array([reply.values for reply in side[number]]) for side in sides]
        for number in charged
    }
    replies = []
    for number in charged:
        request, (cost,) = node.requests[number], sides[0][number][0].costs
        certificate = _certify(values[number], exact.get(number), cost, each)
        moved = _movement(exact.get(number), node.privacy.neighbors)
        stated = node.sensitivity(request)
        replies.append(ReplyAudit(type(request).__name__, cost, stated, moved, certificate))
    total = None
    if charged:
        joint = [np.hstack([values[number][side] for number in charged]) for side in (0, 1)]
        known = None
        if set(charged) <= set(exact):
            known = tuple(np.hstack([exact[number][side] for number in charged]) for side in (0, 1))
        total = _certify(joint, known, node.privacy.total, each)
    first, second = _categories(runs)
    return NodeAudit(
        stated=node.privacy.total,
        n_runs=len(runs[0]),
        replies=tuple(replies),
        certificate=total,
        differences=tuple(_differences(node, sides)),
        leak=certified_loss(first, second, PureDP(Fraction(0)), confidence=each),
    )


def _certify(sides: list[Integers], exact: Any, claim: Guarantee, confidence: float) -> Certificate:
    """Certify a bound on charged values, from the cells that differ most."""
    if exact is None:
        half = len(sides[0]) // 2  # the other half certifies
        gap = np.abs(sides[0][:half].mean(axis=0) - sides[1][:half].mean(axis=0))
    else:
        gap = np.abs(exact[0] - exact[1])
    cells = np.argsort(-gap, kind="stable")[:_MAX_CELLS]
    first, second = (side[:, cells] for side in sides)
    known = None if exact is None else (exact[0][cells], exact[1][cells])
    comparisons = compare_runs(first, second, known)
    return certify_comparisons(comparisons, claim, confidence=confidence)


def _movement(exact: tuple[Integers, Integers] | None, neighbors: Neighbors) -> Sensitivity | None:
    """Return the three norms of the difference of exact values."""
    if exact is None:
        return None
    move = np.abs(exact[0] - exact[1]).tolist()
    return Sensitivity(
        "row",
        neighbors,
        l1=sum(move),
        l2_squared=sum(step**2 for step in move),
        linf=max(move),
    )


def _categories(runs: _Runs) -> list[Integers]:
    """Map the parts of runs that no charge covers to numbers."""
    numbers: dict[Any, int] = {}
    sides = [[tuple(reply[:2] for reply in replies) for replies in side] for side in runs]
    return [np.array([numbers.setdefault(x, len(numbers)) for x in side]) for side in sides]


def _differences(node: AuditedNode, sides: list[list[tuple[NodeReply, ...]]]) -> Iterator[str]:
    """Yield descriptions of the replies that differ outside their charged values."""
    for number, request in enumerate(node.requests):
        first, second = ({reply[:2] for reply in side[number]} for side in sides)
        if first != second:
            texts = [_outside_text(request, side[number][0]) for side in sides]
            yield f"{type(request).__name__}: {texts[0]}; other file: {texts[1]}"


def _outside_text(request: Any, reply: NodeReply) -> str:
    charges = ", ".join(map(str, reply.costs)) or "nothing"
    if reply.values is not None:
        return f"a charged reply of {reply.outside.decode()} bytes, charged {charges}"
    message = _outside_message(request, reply)
    kind = f"refusal {message.code!r}" if isinstance(message, Refusal) else "a reply"
    return f"{kind} of {len(reply.outside)} bytes, charged {charges}"


def _outside_message(request: Any, reply: NodeReply) -> Any:
    """Return the reply that no charge covers, None if it is covered."""
    if reply.values is not None:
        return None
    return decode(reply.outside, (type(request).reply, Refusal))
