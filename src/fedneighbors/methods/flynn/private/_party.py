"""FlyNN party whose replies are charged to a privacy budget or derived from public facts."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from fedneighbors._typing import Array, Booleans, Integers
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.flynn.algorithm import HashPlan
from fedneighbors.methods.flynn.private._release import (
    constants_levels,
    constants_sensitivity,
    count_sensitivity,
    picks_mechanism,
    quantized_moments,
    release_budget,
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
)
from fedneighbors.methods.flynn.protocol import FlyNNParty
from fedneighbors.privacy._guarantees import Guarantee, Sensitivity
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.noise._calibration import calibrate_noise
from fedneighbors.tabular._private import ChargedReplies, PrivateTableParty, flush_subnormal
from fedneighbors.tabular._schema import Label, PublicSchemaRequest, Receipt, blocks

log = logging.getLogger(__name__)

MAX_VALUE = 2.0**40
"""Values are clipped to this magnitude so that sums and expansions cannot overflow their type."""


def _finite_rows(rows: Any) -> Booleans:
    """Return a mask of the rows whose values are all finite."""
    if not hasattr(rows, "tocsr"):
        return np.asarray(np.isfinite(rows).all(axis=1), bool)
    non_finite = rows.copy()
    non_finite.data = (~np.isfinite(non_finite.data)).astype(np.int64)
    return np.asarray(np.asarray(non_finite.sum(axis=1)).ravel() == 0, bool)


def _clip_values(rows: Any) -> Any:
    """Clip values to +/- :data:`MAX_VALUE`, unless the dtype cannot exceed it.

    Subnormal values become 0.
    """
    sparse = hasattr(rows, "tocsr")
    cells = rows.data if sparse else rows
    if cells.dtype.kind == "f" and np.finfo(cells.dtype).max > MAX_VALUE:
        cells = np.clip(cells, -MAX_VALUE, MAX_VALUE)
    elif cells.dtype.kind in "iu" and np.iinfo(cells.dtype).max > MAX_VALUE:
        cells = np.clip(cells, -int(MAX_VALUE) if cells.dtype.kind == "i" else 0, int(MAX_VALUE))
    cells = flush_subnormal(cells)
    if not sparse:
        return cells
    result = rows.copy()
    result.data = cells
    return result


_MAX_COUNT = np.iinfo(np.int32).max  # the dtype of counts in a reply
_MAX_CELLS = 1 << 23  # in a reply; it then has 32 MiB and fits into a ledger


class PrivateFlyNNParty(ChargedReplies, PrivateTableParty, FlyNNParty):
    """FlyNN party that charges its noised replies to a ledger.

    It answers no request of the exact protocol except for moments that were declared public. Rows
    with a non-finite value or a label outside the agreed classes are dropped at construction.
    """

    method = "FlyNN"
    _same_work = True
    accepts: tuple[type[Any], ...] = (
        PublicSchemaRequest,
        ConstantsRequest,
        MaskedConstantsRequest,
        NoisyCountRequest,
        MaskedNoisyCountRequest,
        PicksRequest,
        PrivateModelRelease,
    )

    def __init__(self, name: str, x: Any, y: Array, *, privacy: Privacy, **table: Any) -> None:
        privacy.check_delta()
        super().__init__(name, x, y, privacy=privacy, **table)
        if (privacy.mechanism, privacy.accounting, privacy.n_parties) == ("paper", "paper", None):
            raise ValueError("accounting='paper' divides epsilon by the parties: give n_parties")

    @staticmethod
    def _clean_rows(x: Any, y: Array, _privacy: Privacy) -> tuple[Any, Array]:
        """Drop invalid rows and clip large values.

        Rows with a non-finite value or a label outside the agreed classes are dropped. Adding or
        removing one row of the table adds or removes at most one row of the result.
        """
        rows = x.tocsr() if hasattr(x, "tocsr") else np.asarray(x)
        if rows.dtype.kind == "f":
            finite = _finite_rows(rows)
            rows, y = rows[finite], y[finite]
        return _clip_values(rows), y

    def answer(self, request: Message) -> Message:
        """Answer a request in ``accepts`` that is not masked-only."""
        match request:
            case PublicSchemaRequest():
                return self._schema()
            case PrivateModelRelease():
                self._keep(request.model)
                self._hashed = {}
                return Receipt()
            case ConstantsRequest() | NoisyCountRequest() | PicksRequest():
                return self._charge_and_draw(request)
        raise Refused("unknown request")

    def sensitivity(self, request: Any) -> Sensitivity:
        """Return the stated sensitivity of a charged reply to one row."""
        neighbors = self._privacy.neighbors
        if isinstance(request, ConstantsRequest):
            n_columns = len(request.low)
            levels = constants_levels(self._privacy, n_columns)
            return constants_sensitivity(n_columns, levels, neighbors)
        return count_sensitivity(request.plan.n_active, neighbors)

    def _offer(self, request: Any, n_shares: int | None) -> tuple[Guarantee, Callable[[], Message]]:
        match request:
            case ConstantsRequest():
                return self._offer_constants(request, n_shares)
            case PicksRequest():
                return self._offer_picks(request)
        return self._offer_counts(request, n_shares)

    def _offer_constants(
        self, request: ConstantsRequest, n_shares: int | None
    ) -> tuple[Guarantee, Callable[[], Message]]:
        n_columns = len(request.low)
        if n_columns not in (0, self._x.shape[1]):
            raise Refused("the number of columns is not the announced one")
        levels = constants_levels(self._privacy, n_columns)
        sensitivity = self.sensitivity(request)
        budget = release_budget(self._privacy, of="constants", constants_paid=True)
        cost, add_noise = calibrate_noise(
            budget, sensitivity, n_shares=n_shares, n_cells=2 * n_columns + 1, bits=self._bits
        )
        return cost, lambda: ConstantsReply(add_noise(self._quantized_moments(request, levels)))

    def _quantized_moments(self, request: ConstantsRequest, levels: int) -> Integers:
        bounds = (request.low, request.high)
        if not len(request.low):
            return quantized_moments(np.zeros((self._x.shape[0], 0)), bounds, levels)
        result = np.zeros(2 * len(request.low) + 1, np.int64)
        for block in blocks(self._x):
            result += quantized_moments(np.asarray(block, np.float64), bounds, levels)
        return result

    def _offer_counts(
        self, request: NoisyCountRequest, n_shares: int | None
    ) -> tuple[Guarantee, Callable[[], Message]]:
        plan, classes = request.plan, request.classes
        self._check_plan(plan, classes)
        sensitivity = self.sensitivity(request)
        budget = release_budget(self._privacy, of="counts", constants_paid=request.constants_paid)
        n_cells = plan.n_units * len(classes)
        cost, add_noise = calibrate_noise(
            budget, sensitivity, n_shares=n_shares, n_cells=n_cells, bits=self._bits
        )

        def draw() -> Message:
            values = add_noise(self._exact_counts(plan, classes).ravel())
            values = np.clip(values, -_MAX_COUNT, _MAX_COUNT)  # post-processing of noised values
            return NoisyCountReply(values.astype(np.int32).reshape(plan.n_units, -1))

        return cost, draw

    def _check_plan(self, plan: HashPlan, classes: tuple[Label, ...]) -> None:
        """Check that a plan fits the columns, classes and reply size.

        The check reads no values of rows, so refusing reveals nothing about them.
        """
        self._check_hash(plan)
        self._check_classes(classes)
        if plan.n_units * len(classes) > _MAX_CELLS:
            raise Refused("the counts would be too many for a reply")

    def _offer_picks(self, request: PicksRequest) -> tuple[Guarantee, Callable[[], Message]]:
        if self._privacy.mechanism != "paper":
            raise Refused("the privacy terms differ from the agreed ones")
        plan, classes = request.plan, request.classes
        self._check_plan(plan, classes)
        if not 1 <= request.n_picks <= plan.n_units * len(classes):
            raise Refused("the number of cells to pick is out of range")
        sensitivity = self.sensitivity(request)
        try:
            mechanism = picks_mechanism(
                self._privacy,
                constants_paid=request.constants_paid,
                n_picks=request.n_picks,
                share=request.share,
            )
        except ValueError:  # too much noise
            raise Refused("the share of epsilon is too small for so many picks") from None

        def draw() -> Message:
            by_class = self._exact_counts(plan, classes).T.ravel()  # line 15: class by class
            released = mechanism.release(by_class, sensitivity, bits=self._bits)
            cells = np.flatnonzero(released)
            return PicksReply(cells.astype(np.int64), released[cells])

        return mechanism.guarantee(sensitivity), draw

    def _exact_counts(self, plan: HashPlan, classes: tuple[Label, ...]) -> Integers:
        return self._count_activations(plan, classes).astype(np.int64)
