"""Free cross-validation: one hash pass per wiring scores a whole grid of settings, federated.

Hashes depend on neither labels, folds nor decay; the ranked winners hold every smaller number of
active units; counts of a fold are subtracted from the total. So a party hashes its rows once per
wiring and adds up, per fold, counts and then hits. Only these sums leave it, never rows.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors.federation.messages import Message, decode, message
from fedneighbors.federation.roles import Refuse
from fedneighbors.kernels.bloomgrid import grid_hits
from fedneighbors.kernels.flyhash import winners
from fedneighbors.methods.flynn.algorithm import (
    HashPlan,
    class_sizes,
    count_rows,
    decay_table,
)
from fedneighbors.methods.flynn.features import blocks
from fedneighbors.methods.flynn.messages import CountRequest
from fedneighbors.methods.flynn.protocol import FlyNNParty

__all__ = ["FoldCountRequest", "FoldHitRequest", "SearchParty", "hits_by_fold"]

LEAVE_ONE_OUT = 0
"""Number of folds that stands for leaving out one row at a time."""


@message
class FoldCounts:
    """Activations per value of rho and per fold, shape (n_rhos * n_folds, n_units, n_classes)."""

    counts: npt.NDArray[np.unsignedinteger]


@message
class FoldCountRequest:
    """Ask for the counts of each fold; ``plan`` is the frame of a count request."""

    reply: ClassVar[type] = FoldCounts
    plan: bytes
    n_active: tuple[int, ...]
    n_folds: int


@message
class FoldHits:
    """Rows predicted right, and rows, per rho, fold, setting and class."""

    hits: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]


@message
class FoldHitRequest:
    """Send the counts of all parties; ask for hits under each pair of decay and normalization."""

    reply: ClassVar[type] = FoldHits
    counts: npt.NDArray[np.unsignedinteger]
    decays: tuple[tuple[float, ...], ...]
    normalized: tuple[bool, ...]


class SearchParty(FlyNNParty):
    """A party that also answers a search.

    Parameters
    ----------
    folds : int array of shape (n_rows,)
        Fold of each row; ignored when one row at a time is left out.
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
        wanted = decode(request.plan, (CountRequest,))
        plan = wanted.plan()
        self._asked = request
        self._classes = self._labels(wanted.classes)
        self._ranked = _ranked_hashes(self._x, plan, n_threads=self._n_threads)
        n_folds = max(1, request.n_folds)
        counts = np.zeros(
            (len(request.n_active) * n_folds, plan.n_units, len(wanted.classes)),
            f"u{wanted.n_bits // 8}",
        )
        for position, (active, fold, rows) in enumerate(self._cells(request)):
            part = count_rows(
                active[rows],
                self._classes[rows],
                n_units=plan.n_units,
                n_classes=len(wanted.classes),
            )
            counts[position] = part
            assert fold == position % n_folds
        return FoldCounts(counts)

    def _cells(self, request: FoldCountRequest) -> Any:
        """Yield hashes, fold number and rows for every rho and fold, rho outermost."""
        for n_active in request.n_active:
            active = np.sort(self._ranked[:, :n_active], axis=1)
            if request.n_folds == LEAVE_ONE_OUT:
                yield active, 0, np.arange(len(active))
            else:
                for fold in range(request.n_folds):
                    yield active, fold, np.flatnonzero(self._folds == fold)

    def _fold_hits(self, request: FoldHitRequest) -> FoldHits:
        asked = self._asked
        if asked is None:
            raise Refuse("hits were asked for before counts")
        n_folds = max(1, asked.n_folds)
        hits, rows_seen = [], []
        n_classes = request.counts.shape[2]
        for position, (active, fold, rows) in enumerate(self._cells(asked)):
            k = position // n_folds
            of_rho = request.counts[k * n_folds : (k + 1) * n_folds]
            settings = list(zip(request.decays[k], request.normalized, strict=True))
            hits.append(
                hits_by_fold(
                    active[rows],
                    self._classes[rows],
                    of_rho,
                    fold,
                    settings,
                    leave_one_out=asked.n_folds == LEAVE_ONE_OUT,
                )
            )
            rows_seen.append(np.bincount(self._classes[rows], minlength=n_classes))
        return FoldHits(np.stack(hits), np.stack(rows_seen).astype(np.int64))


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


def hits_by_fold(
    active: npt.NDArray[np.int32],
    labels: npt.NDArray[np.int64],
    counts: npt.NDArray[Any],
    fold: int,
    settings: Sequence[tuple[float, bool]],
    *,
    leave_one_out: bool,
) -> npt.NDArray[np.int64]:
    """Return the hits of a fold's rows under filters that have not seen the fold.

    Parameters
    ----------
    active : int32 array of shape (n, n_active)
        Hashes of the rows of the fold, or of all rows.
    labels : int64 array of shape (n,)
        Their classes.
    counts : integer array of shape (n_folds, n_units, n_classes)
        Counts of each fold, over all parties.
    fold : int
        The fold to leave out.
    settings : sequence of (decay, class_normalized)
        What to score.
    leave_one_out : bool
        Leave out each row by itself instead.

    Returns
    -------
    int64 array of shape (n_settings, n_classes)
    """
    learned = counts.sum(axis=0, dtype=np.int32)
    n_active = active.shape[1]
    if not leave_one_out:
        learned -= counts[fold].astype(np.int32)
        weights, offsets = _grid_tables(learned, class_sizes(learned, n_active), settings)
        return grid_hits(active, labels, learned, weights, offsets)
    hits = np.zeros((len(settings), learned.shape[1]), np.int64)
    for label in np.unique(labels):
        sizes = class_sizes(learned, n_active)
        sizes[label] -= 1
        weights, offsets = _grid_tables(learned, sizes, settings)
        own = labels == label
        hits += grid_hits(active[own], labels[own], learned, weights, offsets, leave_one_out=True)
    return hits


def _grid_tables(
    counts: npt.NDArray[np.int32],
    sizes: npt.NDArray[np.int64],
    settings: Sequence[tuple[float, bool]],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return weights for every setting; a class without rows cannot be predicted."""
    present = sizes > 0
    largest = counts.max(axis=0).astype(np.int64)
    offsets = np.full(len(sizes), -1, np.int64)
    columns = []
    for decay, normalized in settings:
        table = decay_table(
            largest[present], sizes[present], decay=decay, class_normalized=normalized
        )
        columns.append(table.weights)
        offsets[present] = table.offsets
    return np.ascontiguousarray(np.stack(columns, axis=1)), offsets
