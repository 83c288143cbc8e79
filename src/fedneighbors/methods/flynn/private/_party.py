"""A FlyNN party with a privacy budget: whatever it says about its rows was declared or is paid."""

import logging
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers
from fedneighbors.federation._messages import Message, decode
from fedneighbors.federation._release_gate import ReleaseGate, refuse_few_shares
from fedneighbors.federation._roles import MaskedRound, Refuse
from fedneighbors.methods.flynn._model import FlyNNModel
from fedneighbors.methods.flynn.algorithm import HashPlan, count_rows
from fedneighbors.methods.flynn.private._release import (
    constants_levels,
    constants_sensitivity,
    count_sensitivity,
    part,
    picks,
    quantized_moments,
)
from fedneighbors.methods.flynn.private.protocol import (
    ConstantsReply,
    ConstantsRequest,
    MaskedConstantsRequest,
    MaskedNoisyCountRequest,
    NoisyCountReply,
    NoisyCountRequest,
    PicksReply,
    PicksRequest,
    PrivateModelRelease,
    PublicMomentsRequest,
)
from fedneighbors.methods.flynn.protocol import CountRequest, FlyNNParty
from fedneighbors.privacy._guarantees import Guarantee, Sensitivity
from fedneighbors.privacy._policy import Privacy, terms
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.noise._calibration import noising
from fedneighbors.tabular._schema import (
    MomentsReply,
    PublicSchemaRequest,
    Receipt,
    Schema,
    blocks,
    describe,
)

log = logging.getLogger(__name__)

FARTHEST = 2.0**40
"""Values are cut here, so that no sum or expansion of them leaves the range of its type."""


def records_of(
    x: Any, y: npt.NDArray[Any], classes: tuple[Any, ...] | None
) -> tuple[Any, npt.NDArray[Any]]:
    """Return a table without what is no record, far values cut.

    Left out are rows with a value that is not finite or a label that is not among ``classes``. A
    row more or less in the table is at most a row more or less in the result.

    Parameters
    ----------
    x : array or sparse matrix of shape (n_rows, n_features)
        Numbers.
    y : array of shape (n_rows,)
        Labels.
    classes : tuple of labels or None
        Those that were agreed; None where they are public.

    Returns
    -------
    x, y : array or CSR matrix, array
        Copies.
    """
    rows = x.tocsr() if hasattr(x, "tocsr") else np.asarray(x)
    kept = np.ones(len(y), bool)
    if classes is not None:
        kept &= np.array([label in classes for label in y.tolist()], bool)
    if rows.dtype.kind == "f":
        kept &= _finite_rows(rows)
    if not kept.all():
        log.warning("rows with a value that is not finite or a label not agreed are left out")
    return _cut(rows[kept]), y[kept]


def _finite_rows(rows: Any) -> npt.NDArray[np.bool_]:
    if not hasattr(rows, "tocsr"):
        return np.asarray(np.isfinite(rows).all(axis=1), bool)
    bad = rows.copy()
    bad.data = (~np.isfinite(bad.data)).astype(np.int64)
    return np.asarray(np.asarray(bad.sum(axis=1)).ravel() == 0, bool)


def _cut(rows: Any) -> Any:
    """Return the rows with values cut at :data:`FARTHEST`; types that cannot reach it stay."""
    sparse = hasattr(rows, "tocsr")
    cells = rows.data if sparse else rows
    if cells.dtype.kind == "f" and np.finfo(cells.dtype).max > FARTHEST:
        cells = np.clip(cells, -FARTHEST, FARTHEST)
    elif cells.dtype.kind in "iu" and np.iinfo(cells.dtype).max > FARTHEST:
        cells = np.clip(cells, -int(FARTHEST) if cells.dtype.kind == "i" else 0, int(FARTHEST))
    if not sparse:
        return cells
    result = rows.copy()
    result.data = cells
    return result


_LARGEST = np.iinfo(np.int32).max
_MOST_CELLS = 1 << 23  # of a reply: 32 MiB, within what a ledger keeps

_Paid = ConstantsRequest | NoisyCountRequest | PicksRequest


class PrivateFlyNNParty(FlyNNParty):
    """One organisation's table behind a ledger.

    Its answers are noised, charged to the ledger before the noise is drawn, and kept there: asked
    again in the same run, it says the same again. It answers no request of the exact protocol but
    for the moments that were declared public.

    Nothing that it does fails because of a row: what is no record is left out beforehand, see
    :func:`~.records.records_of`, and what can be wrong with a request is found before the charge.
    A failure behind the charge stays charged, and tells nothing but that there was one.

    Parameters
    ----------
    name, x, y
        As for :class:`~fedneighbors.methods.flynn.protocol.FlyNNParty`.
    privacy : Privacy
        What this party agreed to; a request on other terms is refused.
    ledger : Ledger
        Keeps the budget of the data set.
    dataset, user : str
        What is charged in the ledger, and for whom.
    bits : callable
        Source of the noise; anything but the operating system's is for tests.
    **table
        The other arguments of that class.
    """

    accepts: tuple[type[Any], ...] = (
        PublicSchemaRequest,
        PublicMomentsRequest,
        ConstantsRequest,
        MaskedConstantsRequest,
        NoisyCountRequest,
        MaskedNoisyCountRequest,
        PicksRequest,
        PrivateModelRelease,
    )

    def __init__(
        self,
        name: str,
        x: Any,
        y: npt.NDArray[Any],
        *,
        privacy: Privacy,
        ledger: Ledger,
        dataset: str = "table",
        user: str = "coordinator",
        bits: Callable[[int], bytes] = os.urandom,
        **table: Any,
    ) -> None:
        privacy.require_delta_used()
        privacy.require_classes()
        if (privacy.mechanism, privacy.accounting, privacy.n_parties) == ("paper", "paper", None):
            raise ValueError("accounting='paper' divides epsilon by the parties: give n_parties")
        records, labels = records_of(x, np.asarray(y), privacy.classes)
        super().__init__(name, records, labels, **table)
        self._privacy = privacy
        self._ledger = ledger
        self._gate = ReleaseGate("FlyNN", name, ledger, dataset, user)
        self._bits = bits

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts`` that are not masked only."""
        match request:
            case PublicSchemaRequest():
                return self._schema(with_labels=request.with_labels)
            case PublicMomentsRequest():
                return self._public_moments(with_columns=request.with_columns)
            case PrivateModelRelease():
                return self._keep(FlyNNModel.from_bytes(request.model))
            case ConstantsRequest() | NoisyCountRequest() | PicksRequest():
                return self._paid_for(request, attempt="", n_shares=1)
        raise Refuse("unknown request")

    def contribute(self, request: Message, masked: MaskedRound) -> Message:
        """Return the reply with this party's share of the noise, for a masked sum.

        Every attempt at a sum is a release of its own: two sums over different parties would
        otherwise tell the shares of those that differ.
        """
        refuse_few_shares(masked, n_shares=request.n_shares, colluders=self._privacy.colluders)
        return self._paid_for(request, attempt=masked.id, n_shares=request.n_shares)

    def _schema(self, *, with_labels: bool) -> Schema:
        if with_labels and not self._privacy.knows("classes"):
            raise Refuse("the labels were not declared public")
        labels = self._y if with_labels else self._y[:0]
        return describe(self._x, labels, self._feature_names, self._label_name)

    def _public_moments(self, *, with_columns: bool) -> MomentsReply:
        needed = ("n_rows", "scaling") if with_columns else ("n_rows",)
        for fact in needed:
            if not self._privacy.knows(fact):
                raise Refuse("a fact was not declared public", fact)
        return self._moments(with_columns=with_columns)

    def _keep(self, model: FlyNNModel) -> Receipt:
        if self._path is not None:
            model.save(self._path)
        self.model = model
        self._hashed = None
        return Receipt()

    def _paid_for(self, request: _Paid, *, attempt: str, n_shares: int) -> Message:
        """Charge for a reply, draw it, keep it in the ledger, and return it."""
        if dict(request.privacy) != terms(self._privacy):
            raise Refuse("the privacy asked for is not the one that was agreed")
        cost, draw = self._offer(request, masked=attempt != "", n_shares=n_shares)
        return self._gate.release(request, attempt=attempt, cost=cost, draw=draw)

    def _offer(
        self, request: _Paid, *, masked: bool, n_shares: int
    ) -> tuple[Guarantee, Callable[[], Message]]:
        """Return what a reply costs and how it is drawn once that is paid."""
        match request:
            case ConstantsRequest():
                return self._constants(request, masked=masked, n_shares=n_shares)
            case PicksRequest():
                return self._picks(request)
        return self._counts(request, masked=masked, n_shares=n_shares)

    def _constants(
        self, request: ConstantsRequest, *, masked: bool, n_shares: int
    ) -> tuple[Guarantee, Callable[[], Message]]:
        n_columns = len(request.low)
        if n_columns not in (0, self._x.shape[1]):
            raise Refuse("the number of columns is not the announced one")
        levels = constants_levels(self._privacy, n_columns)
        moved = constants_sensitivity(n_columns, levels, self._privacy.neighbors)
        allowed = part(self._privacy, of="constants", constants_paid=True)
        n_cells = 2 * n_columns + 1
        cost, noised = self._noised(allowed, moved, masked=masked, n_shares=n_shares, size=n_cells)
        return cost, lambda: ConstantsReply(noised(self._quantized(request, levels)))

    def _quantized(self, request: ConstantsRequest, levels: int) -> Integers:
        bounds = (request.low, request.high)
        if not len(request.low):
            return quantized_moments(np.zeros((self._x.shape[0], 0)), bounds, levels)
        result = np.zeros(2 * len(request.low) + 1, np.int64)
        for block in blocks(self._x):
            result += quantized_moments(np.asarray(block, np.float64), bounds, levels)
        return result

    def _counts(
        self, request: NoisyCountRequest, *, masked: bool, n_shares: int
    ) -> tuple[Guarantee, Callable[[], Message]]:
        asked, plan = self._asked(request.plan)
        moved = count_sensitivity(plan.n_active, self._privacy.neighbors)
        allowed = part(self._privacy, of="counts", constants_paid=request.constants_paid)
        n_cells = plan.n_units * len(asked.classes)
        cost, noised = self._noised(allowed, moved, masked=masked, n_shares=n_shares, size=n_cells)

        def draw() -> Message:
            values = noised(self._exact_counts(plan, asked).ravel())
            values = np.clip(values, -_LARGEST, _LARGEST)  # of what is noised already
            return NoisyCountReply(values.astype(np.int32).reshape(plan.n_units, -1))

        return cost, draw

    def _asked(self, frame: bytes) -> tuple[CountRequest, HashPlan]:
        """Return a plan that this party can follow; nothing here depends on its rows."""
        asked: CountRequest = decode(frame, (CountRequest,))
        if self._x.shape[1] != asked.n_features:
            raise Refuse("the number of columns is not the announced one")
        agreed = self._privacy.classes or np.unique(self._y).tolist()  # these are public
        if not set(agreed) <= set(asked.classes):
            raise Refuse("a class that was agreed or is public is missing")
        if asked.n_units * len(asked.classes) > _MOST_CELLS:
            raise Refuse("the counts would be too many for a reply")
        return asked, asked.plan()

    def _picks(self, request: PicksRequest) -> tuple[Guarantee, Callable[[], Message]]:
        if self._privacy.mechanism != "paper":
            raise Refuse("the privacy asked for is not the one that was agreed")
        asked, plan = self._asked(request.plan)
        if not 1 <= request.n_picks <= plan.n_units * len(asked.classes):
            raise Refuse("more cells are to be picked than there are")
        moved = count_sensitivity(plan.n_active, self._privacy.neighbors)
        dp = picks(
            self._privacy,
            constants_paid=request.constants_paid,
            n_picks=request.n_picks,
        )

        def draw() -> Message:
            by_class = self._exact_counts(plan, asked).T.ravel()  # line 15: one class after another
            released = dp.release(by_class, moved, bits=self._bits)
            cells = np.flatnonzero(released)
            return PicksReply(cells.astype(np.int64), released[cells])

        return dp.guarantee(moved), draw

    def _exact_counts(self, plan: HashPlan, asked: CountRequest) -> Integers:
        counts = count_rows(
            self._active(plan),
            self._labels(asked.classes),
            n_units=plan.n_units,
            n_classes=len(asked.classes),
        )
        return counts.astype(np.int64)

    def _noised(
        self, allowed: Any, moved: Sensitivity, *, masked: bool, n_shares: int, size: int
    ) -> tuple[Guarantee, Callable[[Integers], Integers]]:
        """Return the cost of noising so many cells, and the noising."""
        return noising(
            allowed, moved, n_shares=n_shares if masked else None, n_cells=size, bits=self._bits
        )
