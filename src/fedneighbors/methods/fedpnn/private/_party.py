"""A FedPNN party with a privacy budget: whatever it says about its rows was declared or is paid."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._messages import Message
from fedneighbors.federation._release_gate import ReleaseGate, refuse_few_shares
from fedneighbors.federation._roles import MaskedRound, Refuse
from fedneighbors.methods.fedpnn.private._model import PrivateFedPNNModel
from fedneighbors.methods.fedpnn.private._release import (
    Release,
    cell_counts,
    cells,
    class_sums,
    class_sums_of,
    directions,
    in_cube,
    origin,
    origin_sums,
    public_bounds,
)
from fedneighbors.methods.fedpnn.private.protocol import (
    CellsRequest,
    ClassSumsRequest,
    MaskedCellsRequest,
    MaskedClassSumsRequest,
    MaskedOriginRequest,
    NoisyReply,
    OriginRequest,
    PrivateModelRelease,
    Stored,
)
from fedneighbors.privacy._policy import Privacy, terms
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.noise._calibration import noising
from fedneighbors.tabular._schema import PublicSchemaRequest, Schema, describe, label_positions

_FARTHEST = 2.0**1000
_Paid = OriginRequest | ClassSumsRequest | CellsRequest


class PrivateFedPNNParty:
    """One organisation's table behind a ledger.

    Its answers are noised, charged to the ledger before the noise is drawn, and kept there: asked
    again in the same run, it says the same again. It answers no request of the exact protocol.

    Nothing that it does fails because of a row. Each row is judged, and cut, by itself: a missing
    cell counts as the middle of its bounds, a far one as the nearer bound, and a row whose label is
    not among the agreed ones is no record. What can be wrong with a request is found before the
    charge. A failure behind the charge stays charged, and tells nothing but that there was one.

    Parameters
    ----------
    name : str
        Its name in the federation.
    x : float64 array of shape (n_rows, n_features)
        Missing cells are NaN.
    y : array of shape (n_rows,)
        Labels: strings, integers, floats or booleans.
    privacy : Privacy
        What this party agreed to, bounds of the columns included; a request on other terms is
        refused.
    ledger : Ledger
        Keeps the budget of the data set.
    dataset, user : str
        What is charged in the ledger, and for whom.
    bits : callable
        Source of the noise; anything but the operating system's is for tests.
    feature_names : sequence of str, optional
        Column names.
    label_name : str
        Name of the label, for error messages.
    n_threads : int
        Not used; parties of every method take it.
    model_path : path, optional
        Where the finished model is written.

    Attributes
    ----------
    model : PrivateFedPNNModel or None
        The finished model, once training is over.

    Raises
    ------
    ValueError
        If bounds or classes are neither given nor declared public.
    """

    accepts: tuple[type[Any], ...] = (
        PublicSchemaRequest,
        OriginRequest,
        MaskedOriginRequest,
        ClassSumsRequest,
        MaskedClassSumsRequest,
        CellsRequest,
        MaskedCellsRequest,
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
        feature_names: tuple[str, ...] | None = None,
        label_name: str = "target",
        n_threads: int = 1,  # noqa: ARG002
        model_path: str | Path | None = None,
    ) -> None:
        if len(y) != x.shape[0]:
            raise ValueError(f"expected one label for each of {x.shape[0]} rows, got {len(y)}")
        privacy.require_classes()
        self.name = name
        self.model: PrivateFedPNNModel | None = None
        self._bounds = public_bounds(privacy, x.shape[1])
        self._x, self._y = _records(np.asarray(x, np.float64), np.asarray(y), privacy.classes)
        self._privacy = privacy
        self._gate = ReleaseGate("FedPNN", name, ledger, dataset, user)
        self._bits = bits
        self._feature_names = feature_names
        self._label_name = label_name
        self._path = None if model_path is None else Path(model_path)

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts`` that are not masked only."""
        match request:
            case PublicSchemaRequest():
                return self._schema(with_labels=request.with_labels)
            case PrivateModelRelease():
                return self._keep(PrivateFedPNNModel.from_bytes(request.model))
            case OriginRequest() | ClassSumsRequest() | CellsRequest():
                return self._paid_for(request, attempt="", n_shares=None)
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
        return describe(self._x, labels, self._feature_names, self._label_name, allow_missing=True)

    def _keep(self, model: PrivateFedPNNModel) -> Stored:
        if self._path is not None:
            model.save(self._path)
        self.model = model
        return Stored()

    def _paid_for(self, request: _Paid, *, attempt: str, n_shares: int | None) -> Message:
        """Charge for a reply, draw it, keep it in the ledger, and return it."""
        if dict(request.privacy) != terms(self._privacy):
            raise Refuse("the privacy asked for is not the one that was agreed")
        agreed = self._privacy.classes or np.unique(self._y).tolist()  # these are public
        if len(request.classes) < 2 or not set(agreed) <= set(request.classes):
            raise Refuse("a class that was agreed or is public is missing")
        planned, exact = self._offer(request)
        cost, noised = noising(
            planned.allowed,
            planned.moved,
            n_shares=n_shares,
            n_cells=planned.n_cells,
            bits=self._bits,
        )
        return self._gate.release(
            request, attempt=attempt, cost=cost, draw=lambda: NoisyReply(noised(exact()))
        )

    def _offer(self, request: _Paid) -> tuple[Release, Callable[[], Integers]]:
        """Return what is released, and how its exact vector is made once that is paid."""
        n_features, n_classes = self._x.shape[1], len(request.classes)
        if isinstance(request, OriginRequest):
            planned = origin(self._privacy, n_features, n_classes)
            return planned, lambda: origin_sums(self._cube(), planned.levels)
        if request.origin.shape != (n_features,):
            raise Refuse("the number of columns is not the announced one")
        if isinstance(request, ClassSumsRequest):
            planned = class_sums_of(self._privacy, n_features, n_classes)
            return planned, lambda: class_sums(
                *self._seen_from(request.origin, request.classes), n_classes, planned.levels
            )
        if n_classes != 2:
            raise Refuse("cells are asked for of two classes alone")
        if (request.axis**2).sum() > 1 + 1e-9:
            raise Refuse("the axis is longer than 1")
        return cells(self._privacy), lambda: cell_counts(
            *self._seen_from(request.origin, request.classes), request.axis
        )

    def _cube(self) -> Floats:
        return in_cube(self._x, self._bounds)

    def _seen_from(self, place: Floats, classes: tuple[Any, ...]) -> tuple[Floats, Integers]:
        labels = label_positions(self._y, classes, name=self._label_name)
        return directions(self._cube(), place), labels


def _records(
    x: Floats, y: npt.NDArray[Any], classes: tuple[Any, ...] | None
) -> tuple[Floats, npt.NDArray[Any]]:
    """Return rows whose label is among ``classes`` (None: all), infinite values cut to far ones."""
    kept = np.ones(len(y), bool)
    if classes is not None:
        kept = np.array([label in classes for label in y.tolist()], bool)
    return np.clip(x[kept], -_FARTHEST, _FARTHEST), y[kept]
