"""Federated cross-validation that scores a grid of settings with one hash pass per wiring.

Hashes are independent of labels, folds and decay; the ranked winners contain the active units for
every smaller rho; the counts of a fold can be subtracted from the total. A party therefore hashes
its rows once per wiring and sums counts, then hits, per fold. Only these sums leave the party.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import ProtocolError
from fedneighbors.federation._loop import Coordinator, gather, total
from fedneighbors.federation._messages import Message, message
from fedneighbors.federation._roles import Refused
from fedneighbors.kernels.flyhash._bloom import grid_hits
from fedneighbors.kernels.flyhash._hash import winners
from fedneighbors.methods.flynn._candidates import Candidate, ScoringGrid
from fedneighbors.methods.flynn._features import FeatureMap, standardizer
from fedneighbors.methods.flynn.algorithm import (
    HashPlan,
    count_rows,
    decay_table,
)
from fedneighbors.methods.flynn.protocol import (
    FlyNNParty,
    MomentsRequest,
    SchemaRequest,
    checked_moments,
)
from fedneighbors.tabular._schema import Agreed, Label, MomentsReply, agree, blocks

LEAVE_ONE_OUT = 0
"""Value of ``n_folds`` that selects leave-one-out."""


@message
class FoldCounts:
    """Counts of each rho and fold, and rows of each fold and class.

    ``counts`` is an unsigned array of shape (n_rhos * n_folds, n_units, n_classes), rho outermost;
    ``rows`` an int64 array of shape (n_folds, n_classes).
    """

    counts: npt.NDArray[np.unsignedinteger]
    rows: npt.NDArray[np.int64]


@message
class FoldCountRequest:
    """Request for the counts of each fold, as unsigned integers of ``n_bits``."""

    reply: ClassVar[type] = FoldCounts
    plan: HashPlan
    classes: tuple[Label, ...]
    n_bits: int
    n_active: tuple[int, ...]
    n_folds: int


@message
class FoldHits:
    """Correct predictions, int64 of shape (n_rhos * n_folds, n_settings, n_classes)."""

    hits: npt.NDArray[np.int64]


@message
class FoldHitRequest:
    """Sums over all parties, and a request for hits per pair of decay and normalization.

    ``decays`` holds one row of settings for each rho.
    """

    reply: ClassVar[type] = FoldHits
    counts: npt.NDArray[np.unsignedinteger]
    rows: npt.NDArray[np.int64]
    decays: tuple[tuple[float, ...], ...]
    normalized: tuple[bool, ...]


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

    def __init__(
        self, name: str, x: Any, y: npt.NDArray[Any], *, folds: npt.NDArray[Any], **options: Any
    ) -> None:
        super().__init__(name, x, y, **options)
        self._folds = np.asarray(folds, np.int64)
        self._ranked = np.zeros((0, 0), np.int32)
        self._classes = np.zeros(0, np.int64)
        self._asked: FoldCountRequest | None = None

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
        self._asked = request
        self._classes = self._positions(request.classes)
        self._ranked = _ranked_hashes(self._x, plan, n_threads=self._n_threads)
        groups = self._groups()
        shape = (len(request.n_active) * len(groups), plan.n_units, n_classes)
        counts = np.empty(shape, f"u{request.n_bits // 8}")
        for k, active in enumerate(self._hashes()):
            for fold, rows in enumerate(groups):
                counts[k * len(groups) + fold] = count_rows(
                    active[rows], self._classes[rows], n_units=plan.n_units, n_classes=n_classes
                )
        held = [np.bincount(self._classes[rows], minlength=n_classes) for rows in groups]
        return FoldCounts(counts, np.stack(held).astype(np.int64))

    def _groups(self) -> list[npt.NDArray[np.int64]]:
        """Return the rows of each fold, or all rows for leave-one-out."""
        n_folds = self._asked.n_folds if self._asked is not None else LEAVE_ONE_OUT
        if n_folds == LEAVE_ONE_OUT:
            return [np.arange(len(self._classes))]
        return [np.flatnonzero(self._folds == fold) for fold in range(n_folds)]

    def _hashes(self) -> Iterator[npt.NDArray[np.int32]]:
        """Yield the hashes for each rho, taken from the ranked winners."""
        for n_active in self._asked.n_active if self._asked is not None else ():
            yield np.sort(self._ranked[:, :n_active], axis=1)

    def _fold_hits(self, request: FoldHitRequest) -> FoldHits:
        if self._asked is None:
            raise Refused("hits were asked for before counts")
        groups = self._groups()
        alone = self._asked.n_folds == LEAVE_ONE_OUT
        hits = []
        for k, active in enumerate(self._hashes()):
            counts = request.counts[k * len(groups) : (k + 1) * len(groups)]
            settings = tuple(zip(request.decays[k], request.normalized, strict=True))
            grid = GridScorer(counts, request.rows, settings)
            for fold, rows in enumerate(groups):
                score = grid.leave_one_out if alone else grid.leave_fold_out
                hits.append(score(active[rows], self._classes[rows], fold))
        return FoldHits(np.stack(hits))


def _ranked_hashes(x: Any, plan: HashPlan, *, n_threads: int) -> npt.NDArray[np.int32]:
    parts = [
        winners(
            plan.features.apply(block),
            plan.wiring,
            plan.n_active,
            n_threads=n_threads,
            ranked=True,
        )
        for block in blocks(x)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, plan.n_active), np.int32)


class GridScorer:
    """Scores held-out rows for a grid of settings.

    Parameters
    ----------
    counts : integer array of shape (n_folds, n_units, n_classes)
        Counts of each fold, over all parties.
    rows : int64 array of shape (n_folds, n_classes)
        Rows of each fold and class, over all parties.
    settings : sequence of (decay, class_normalized)
        Settings to score.
    """

    def __init__(
        self,
        counts: npt.NDArray[Any],
        rows: npt.NDArray[np.int64],
        settings: Sequence[tuple[float, bool]],
    ) -> None:
        self._folds = counts
        self._rows = rows
        self._settings = settings
        self._all = counts.sum(axis=0, dtype=np.int32)
        self._largest = self._all.max(axis=0).astype(np.int64)
        self._plain: dict[tuple[float, bytes], npt.NDArray[np.float64]] = {}

    def leave_fold_out(
        self, active: npt.NDArray[np.int32], labels: npt.NDArray[np.int64], fold: int
    ) -> npt.NDArray[np.int64]:
        """Count the hits of a held-out fold, shape (n_settings, n_classes)."""
        weights, offsets = self._tables(self._rows.sum(axis=0) - self._rows[fold])
        return grid_hits(active, labels, self._all, self._folds[fold], weights, offsets)

    def leave_one_out(
        self, active: npt.NDArray[np.int32], labels: npt.NDArray[np.int64], _fold: int
    ) -> npt.NDArray[np.int64]:
        """Count the hits of rows, each scored without its own contribution."""
        nothing = np.zeros_like(self._all)
        hits = np.zeros((len(self._settings), len(self._largest)), np.int64)
        for label in np.unique(labels):
            sizes = self._rows.sum(axis=0)
            sizes[label] -= 1
            weights, offsets = self._tables(sizes)
            own = labels == label
            hits += grid_hits(
                active[own], labels[own], self._all, nothing, weights, offsets, leave_one_out=True
            )
        return hits

    def _tables(
        self, sizes: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return weights and offsets; a class without rows has offset -1."""
        present = sizes > 0
        columns = [self._column(decay, normalized, sizes) for decay, normalized in self._settings]
        largest = np.where(present, self._largest + 1, 0)
        offsets = np.where(present, np.cumsum(largest) - largest, -1)
        return np.stack(columns, axis=1), offsets

    def _column(
        self, decay: float, normalized: bool, sizes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return the weights of one setting, cached across folds if unnormalized."""
        present = sizes > 0
        key = (decay, present.tobytes())
        if not normalized and key in self._plain:
            return self._plain[key]
        weights = decay_table(
            self._largest[present], sizes[present], decay=decay, class_normalized=normalized
        ).weights
        if not normalized:
            self._plain[key] = weights
        return weights


@dataclass(frozen=True)
class Scored:
    """Scores of one candidate of a search.

    Parameters
    ----------
    candidate : Candidate
        The wiring.
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
    hits: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]


def coordinate_search(
    candidates: Sequence[Candidate],
    grid: ScoringGrid,
    *,
    n_folds: int,
    seed: int,
    reserved: tuple[Label, ...] = (),
) -> Coordinator[list[Scored]]:
    """Score every candidate on the rows of all parties.

    Parameters
    ----------
    candidates, grid
        Wirings and settings to try.
    n_folds : int
        Number of folds, or 0 for leave-one-out.
    seed : int
        Public seed of the hash.
    reserved : tuple of labels
        Labels in addition to those that the parties announce.

    Yields
    ------
    Ask
        Requests for schema and moments, then for each candidate fold counts and fold hits.

    Returns
    -------
    list of Scored
        In the order of the candidates.

    Raises
    ------
    SchemaMismatch, PartyMissing, DataError, ProtocolError
        As for :func:`~.protocol.coordinate`.
    """
    replies = yield gather(SchemaRequest())
    schema = agree(replies.complete("the schema").each, reserved)
    with_columns = any(c.standardize for c in candidates)
    replies = yield total(MomentsRequest(with_columns))
    reply = replies.summed("the column moments")
    moments = checked_moments(reply, schema.n_features if with_columns else 0)
    scored = []
    for candidate in candidates:
        plans = _plans(candidate, grid, moments, schema, seed)
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
        found = replies.summed("the hits of the folds")
        shape = (len(rhos), len(folds.rows), len(normalized), len(schema.classes))
        if found.hits.size != math.prod(shape):
            raise ProtocolError(f"expected hits for {shape}, got {found.hits.shape}")
        scored.append(Scored(candidate, rhos, settings, found.hits.reshape(shape), folds.rows))
    return scored


def _plans(
    candidate: Candidate, grid: ScoringGrid, moments: MomentsReply, schema: Agreed, seed: int
) -> list[HashPlan]:
    """Return one plan per rho that fits the number of units."""
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
        found = folds.counts[k * n_folds : (k + 1) * n_folds].sum(axis=1, dtype=np.int64)
        if folds.rows.sum() != n_rows or (found != folds.rows * plan.n_active).any():
            raise ProtocolError(
                f"counts do not add up to {n_rows} rows x {plan.n_active} active units; "
                "a party counted other rows than it announced"
            )
