"""Federated cross-validation that scores a grid of settings with one pass per candidate hash.

Hashes are independent of labels, folds and decay; the ranked winners contain the active units for
every smaller rho; the counts of a fold can be subtracted from the total. A party therefore hashes
its rows once per candidate. Per fold, it then sums counts and, in the next round, correct
predictions (hits). Only these sums leave the party.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Integers
from fedneighbors.errors import ProtocolError
from fedneighbors.federation._loop import Coordinator, gather, total
from fedneighbors.federation._messages import Message, message
from fedneighbors.federation._roles import Refused
from fedneighbors.kernels.flyhash._hash import winners
from fedneighbors.methods.flynn._features import FeatureMap, standardizer
from fedneighbors.methods.flynn._scoring import Candidate, HitCounter, ScoringGrid
from fedneighbors.methods.flynn.algorithm import HashPlan, count_activations
from fedneighbors.methods.flynn.protocol import (
    FlyNNParty,
    MomentsRequest,
    SchemaRequest,
    check_counts,
    check_moments,
)
from fedneighbors.tabular._schema import (
    JointSchema,
    Label,
    MomentsReply,
    agree,
    blocks,
    check_cells,
)

LEAVE_ONE_OUT = 0
"""Value of ``n_folds`` that selects leave-one-out."""


@message
class FoldCounts:
    """Counts for each rho and fold, and the number of rows of each fold and class.

    ``counts`` is an unsigned array of shape (n_rhos * n_folds, n_units, n_classes), rho outermost;
    ``rows`` an int64 array of shape (n_folds, n_classes).
    """

    counts: npt.NDArray[np.unsignedinteger]
    rows: Integers


@message
class FoldCountRequest:
    """Request for the counts for each rho and fold, as unsigned integers of ``n_bits``."""

    reply: ClassVar[type] = FoldCounts
    plan: HashPlan
    classes: tuple[Label, ...]
    n_bits: int
    n_active: tuple[int, ...]
    n_folds: int

    def __post_init__(self) -> None:
        check_counts([self.plan], self.classes, self.n_bits)
        if self.n_folds < 0 or not all(0 < n <= self.plan.n_active for n in self.n_active):
            raise ValueError("n_folds or n_active is out of range")
        n_counts = max(1, len(self.n_active)) * max(1, self.n_folds)
        check_cells("counts", n_counts, self.plan.n_units, len(self.classes))


@message
class FoldHits:
    """Correct predictions, int64 of shape (n_rhos * n_folds, n_settings, n_classes)."""

    hits: Integers


@message
class FoldHitRequest:
    """Sums over all parties, and a request for hits per pair of decay and normalization.

    ``decays`` has one tuple for each rho, in which position k belongs to ``normalized[k]``.
    """

    reply: ClassVar[type] = FoldHits
    counts: npt.NDArray[np.unsignedinteger]
    rows: Integers
    decays: tuple[tuple[float, ...], ...]
    normalized: tuple[bool, ...]

    def __post_init__(self) -> None:
        if any(len(decays) != len(self.normalized) for decays in self.decays):
            raise ValueError("decays and normalized differ in number")
        if self.counts.ndim != 3 or self.rows.ndim != 2 or (self.rows < 0).any():
            raise ValueError("counts or rows of folds have the wrong shape or sign")
        largest = int(self.counts.max(initial=0)) * len(self.counts)
        if largest > np.iinfo(np.int32).max:
            raise ValueError("summed counts do not fit into 32 bits")
        check_cells("weights", largest + 1, self.counts.shape[2], max(1, len(self.normalized)))


class SearchParty(FlyNNParty):
    """FlyNN party that also answers the requests of a search.

    Parameters
    ----------
    folds : int array of shape (n_rows,)
        Fold of each row; ignored for leave-one-out.
    **options
        As for :class:`~.protocol.FlyNNParty`.
    """

    accepts: tuple[type[Any], ...] = (
        *FlyNNParty.accepts,
        FoldCountRequest,
        FoldHitRequest,
    )

    def __init__(self, name: str, x: Any, y: Array, *, folds: Array, **options: Any) -> None:
        super().__init__(name, x, y, **options)
        self._folds = np.asarray(folds, np.int64)
        self._ranked = np.zeros((0, 0), np.int32)
        self._classes = np.zeros(0, np.int64)
        self._count_request: FoldCountRequest | None = None

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts``."""
        match request:
            case FoldCountRequest():
                return self._fold_counts(request)
            case FoldHitRequest():
                return self._fold_hits(request)
        return super().answer(request)

    def _fold_counts(self, request: FoldCountRequest) -> FoldCounts:
        plan, n_classes = request.plan, len(request.classes)
        self._check_hash(plan)
        self._count_request = request
        self._classes = self._positions(request.classes)
        self._ranked = _rank_hashes(self._x, plan, n_threads=self._n_threads)
        fold_rows = self._fold_rows()
        shape = (len(request.n_active) * len(fold_rows), plan.n_units, n_classes)
        counts = np.empty(shape, f"u{request.n_bits // 8}")
        for k, active in enumerate(self._hashes_by_rho()):
            for fold, rows in enumerate(fold_rows):
                counts[k * len(fold_rows) + fold] = count_activations(
                    active[rows], self._classes[rows], n_units=plan.n_units, n_classes=n_classes
                )
        sizes = [np.bincount(self._classes[rows], minlength=n_classes) for rows in fold_rows]
        return FoldCounts(counts, np.stack(sizes).astype(np.int64))

    def _fold_rows(self) -> list[Integers]:
        """Return the rows of each fold, or all rows for leave-one-out."""
        n_folds = self._count_request.n_folds if self._count_request is not None else LEAVE_ONE_OUT
        if n_folds == LEAVE_ONE_OUT:
            return [np.arange(len(self._classes))]
        return [np.flatnonzero(self._folds == fold) for fold in range(n_folds)]

    def _hashes_by_rho(self) -> Iterator[npt.NDArray[np.int32]]:
        """Yield the hashes for each rho, taken from the ranked winners."""
        for n_active in self._count_request.n_active if self._count_request is not None else ():
            yield np.sort(self._ranked[:, :n_active], axis=1)

    def _fold_hits(self, request: FoldHitRequest) -> FoldHits:
        if self._count_request is None:
            raise Refused("hits were requested before counts")
        fold_rows = self._fold_rows()
        plan, n_rhos = self._count_request.plan, len(self._count_request.n_active)
        n_classes = len(self._count_request.classes)
        shape = (n_rhos * len(fold_rows), plan.n_units, n_classes)
        if request.counts.shape != shape or request.rows.shape != (len(fold_rows), n_classes):
            raise Refused("the summed counts differ in shape from the requested ones")
        if len(request.decays) != n_rhos:
            raise Refused("the decays are not those of the requested counts")
        by_row = self._count_request.n_folds == LEAVE_ONE_OUT
        hits = []
        for k, active in enumerate(self._hashes_by_rho()):
            counts = request.counts[k * len(fold_rows) : (k + 1) * len(fold_rows)]
            settings = tuple(zip(request.decays[k], request.normalized, strict=True))
            grid = HitCounter(counts, request.rows, settings)
            for fold, rows in enumerate(fold_rows):
                count_hits = grid.leave_one_out if by_row else grid.leave_fold_out
                hits.append(count_hits(active[rows], self._classes[rows], fold))
        return FoldHits(np.stack(hits))


def _rank_hashes(x: Any, plan: HashPlan, *, n_threads: int) -> npt.NDArray[np.int32]:
    parts = [
        winners(
            plan.features.apply(block), plan.wiring, plan.n_active, n_threads=n_threads, ranked=True
        )
        for block in blocks(x)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, plan.n_active), np.int32)


@dataclass(frozen=True)
class CandidateScores:
    """Scores of one candidate of a search.

    Parameters
    ----------
    candidate : Candidate
        The hash.
    n_active : tuple of int
        Scored values of rho.
    settings : tuple, one entry for each rho, of (decay, class_normalized) pairs
        Scored settings.
    hits : int64 array of shape (n_rhos, n_folds, n_settings, n_classes)
        Correct predictions.
    rows : int64 array of shape (n_folds, n_classes)
        Rows of each fold and class.
    """

    candidate: Candidate
    n_active: tuple[int, ...]
    settings: tuple[tuple[tuple[float, bool], ...], ...]
    hits: Integers
    rows: Integers


def coordinate_search(
    candidates: Sequence[Candidate], grid: ScoringGrid, *, n_folds: int, seed: int
) -> Coordinator[list[CandidateScores]]:
    """Score every candidate on the rows of all parties.

    Parameters
    ----------
    candidates, grid
        Hashes and settings to try.
    n_folds : int
        Number of folds, or 0 for leave-one-out.
    seed : int
        Public seed of the hash.

    Yields
    ------
    Ask
        Requests for schema and moments, then for each candidate fold counts and fold hits.

    Returns
    -------
    list of CandidateScores
        In the order of the candidates.

    Raises
    ------
    SchemaMismatch, PartyMissing, DataError, ProtocolError
        As for :func:`~.protocol.coordinate`.
    """
    replies = yield gather(SchemaRequest())
    schema = agree(replies.complete("the schema").each)
    with_columns = any(c.standardize for c in candidates)
    replies = yield total(MomentsRequest(with_columns))
    reply = replies.summed("the column moments")
    moments = check_moments(reply, schema.n_features if with_columns else 0)
    scored = []
    for candidate in candidates:
        plans = _make_plans(candidate, grid, moments, schema, seed)
        n_bits = 16 if moments.n_rows < 1 << 16 else 32
        rhos = tuple(plan.n_active for plan in plans)
        replies = yield total(FoldCountRequest(plans[-1], schema.classes, n_bits, rhos, n_folds))
        folds = replies.summed("the counts of the folds")
        _check_folds(folds, plans, (max(n_folds, 1), len(schema.classes)), moments.n_rows)
        settings = tuple(
            grid.settings(plan, n_rows=moments.n_rows, n_classes=len(schema.classes))
            for plan in plans
        )
        decays = tuple(tuple(decay for decay, _ in row) for row in settings)
        normalized = tuple(flag for _, flag in settings[0])
        replies = yield total(FoldHitRequest(folds.counts, folds.rows, decays, normalized))
        hits = replies.summed("the hits of the folds").hits
        shape = (len(rhos), len(folds.rows), len(normalized), len(schema.classes))
        if hits.size != math.prod(shape):
            raise ProtocolError(f"expected hits for {shape}, got {hits.shape}")
        scored.append(CandidateScores(candidate, rhos, settings, hits.reshape(shape), folds.rows))
    return scored


def _make_plans(
    candidate: Candidate, grid: ScoringGrid, moments: MomentsReply, schema: JointSchema, seed: int
) -> list[HashPlan]:
    """Return one plan for each rho that fits the number of units.

    If none fits, all units are active.
    """
    mean, scale = (None, None)
    if candidate.standardize:
        mean, scale = standardizer(moments, candidate.standardize)
    features = FeatureMap(schema.n_features, candidate.expand or "none", mean, scale, seed)
    n_units = candidate.n_units
    rhos = [rho for rho in grid.n_active if rho <= n_units] or [min(n_units, grid.n_active[0])]
    return [HashPlan(features, n_units, candidate.n_inputs, rho, seed) for rho in rhos]


def _check_folds(
    folds: Message, plans: Sequence[HashPlan], shape: tuple[int, int], n_rows: int
) -> None:
    """Check that fold counts match the announced number of rows."""
    n_folds, n_classes = shape
    expected = (len(plans) * n_folds, plans[0].n_units, n_classes)
    if folds.counts.shape != expected or folds.rows.shape != shape:
        raise ProtocolError(
            f"expected counts and rows of shapes {expected} and {shape}, got {folds.counts.shape} "
            f"and {folds.rows.shape}"
        )
    for k, plan in enumerate(plans):
        sums = folds.counts[k * n_folds : (k + 1) * n_folds].sum(axis=1, dtype=np.int64)
        if folds.rows.sum() != n_rows or (sums != folds.rows * plan.n_active).any():
            raise ProtocolError(
                f"counts do not add up to {n_rows} rows x {plan.n_active} active units; "
                "a party counted other rows than it announced"
            )
