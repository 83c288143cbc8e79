"""Party of FedPNN with a privacy budget.

Everything that it sends about its rows is either declared public or charged to its ledger.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedpnn.private._release import (
    Release,
    cell_counts,
    cells_release,
    class_sums,
    class_sums_release,
    directions,
    origin_release,
    origin_sums,
    public_bounds,
    scale_to_cube,
)
from fedneighbors.methods.fedpnn.private.protocol import (
    CellsRequest,
    ClassSumsRequest,
    MaskedCellsRequest,
    MaskedClassSumsRequest,
    MaskedOriginRequest,
    NoisyReply,
    OriginRequest,
    PrivateFedPNNRelease,
)
from fedneighbors.privacy._guarantees import Guarantee, Sensitivity
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.noise._calibration import calibrate_noise
from fedneighbors.tabular._private import ChargedReplies, PrivateTableParty, flush_subnormal
from fedneighbors.tabular._schema import PublicSchemaRequest, Receipt

_MAX_FINITE = 2.0**1000  # infinite values are clipped to this
_ChargedRequest = OriginRequest | ClassSumsRequest | CellsRequest


class PrivateFedPNNParty(ChargedReplies, PrivateTableParty):
    """One organization's table, whose releases are charged to a ledger.

    The party refuses all requests of the training without privacy. Rows are clipped independently
    of each other: a missing cell counts as the middle of its bounds, a value out of bounds as the
    nearer bound. Rows with a label outside the agreed classes are dropped.

    Parameters
    ----------
    name, x, y, **table
        As for :class:`~fedneighbors.tabular._private.PrivateTableParty`; missing cells are NaN.
    privacy : Privacy
        Terms that this party agreed to, including the bounds of the columns.

    Attributes
    ----------
    model : PrivateFedPNNModel or None
        The finished model, after training.

    Raises
    ------
    ValueError
        If bounds or classes are neither given nor declared public.
    """

    method = "FedPNN"
    allows_missing = True
    accepts: tuple[type[Any], ...] = (
        PublicSchemaRequest,
        OriginRequest,
        MaskedOriginRequest,
        ClassSumsRequest,
        MaskedClassSumsRequest,
        CellsRequest,
        MaskedCellsRequest,
        PrivateFedPNNRelease,
    )

    def __init__(self, name: str, x: Any, y: Array, *, privacy: Privacy, **table: Any) -> None:
        super().__init__(name, x, y, privacy=privacy, **table)
        self._bounds = public_bounds(privacy, x.shape[1])

    @staticmethod
    def _clean_rows(x: Any, y: Array, _privacy: Privacy) -> tuple[Any, Array]:
        """Return the rows; infinite values become finite, subnormal ones 0."""
        cells = np.clip(np.asarray(x, np.float64), -_MAX_FINITE, _MAX_FINITE)
        return flush_subnormal(cells), y

    def answer(self, request: Message) -> Message:
        """Return the reply to a request outside of masked sums."""
        match request:
            case PublicSchemaRequest():
                return self._schema()
            case PrivateFedPNNRelease():
                self._keep(request.model)
                return Receipt()
            case OriginRequest() | ClassSumsRequest() | CellsRequest():
                return self._charge_and_draw(request)
        raise Refused("unknown request")

    def sensitivity(self, request: Any) -> Sensitivity:
        """Return the stated sensitivity of a charged reply to one row."""
        return self._plan_release(request)[0].sensitivity

    def _offer(self, request: Any, n_shares: int | None) -> tuple[Guarantee, Callable[[], Message]]:
        self._check_classes(request.classes, minimum=2)
        release, compute_exact = self._plan_release(request)
        cost, add_noise = calibrate_noise(
            release.budget,
            release.sensitivity,
            n_shares=n_shares,
            n_cells=release.n_cells,
            bits=self._bits,
        )
        return cost, lambda: NoisyReply(add_noise(compute_exact()))

    def _plan_release(self, request: _ChargedRequest) -> tuple[Release, Callable[[], Integers]]:
        """Return the release and a function that computes its exact vector.

        The function must not be called before the release is charged.
        """
        n_features, n_classes = self._x.shape[1], len(request.classes)
        if isinstance(request, OriginRequest):
            release = origin_release(self._privacy, n_features, n_classes)
            return release, lambda: origin_sums(self._scale_rows(), release.levels)
        if request.origin.shape != (n_features,):
            raise Refused("the number of columns differs from the schema")
        if isinstance(request, ClassSumsRequest):
            release = class_sums_release(self._privacy, n_features, n_classes)
            return release, lambda: class_sums(
                *self._directions_from(request.origin, request.classes), n_classes, release.levels
            )
        if n_classes != 2:
            raise Refused("cells are defined for exactly two classes")
        if (request.axis**2).sum() > 1 + 1e-9:
            raise Refused("the axis is longer than 1")
        return cells_release(self._privacy), lambda: cell_counts(
            *self._directions_from(request.origin, request.classes), request.axis
        )

    def _scale_rows(self) -> Floats:
        return scale_to_cube(self._x, self._bounds)

    def _directions_from(self, origin: Floats, classes: tuple[Any, ...]) -> tuple[Floats, Integers]:
        return directions(self._scale_rows(), origin), self._positions(classes)
