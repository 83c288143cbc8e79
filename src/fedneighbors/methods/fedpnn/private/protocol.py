"""FedPNN under a privacy budget: messages and coordinator of the noised sums.

Everything that the coordinator learns is noised or was declared public. The finished model is a
function of the releases, so that distributing it costs nothing (post-processing).
"""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import ProtocolError
from fedneighbors.federation._loop import Coordinator, gather, total
from fedneighbors.federation._messages import Message, message
from fedneighbors.methods.fedpnn.private._model import (
    Neurons,
    PrivateFedPNNModel,
    axis_between,
    cell_neurons,
    estimate_means,
    estimate_origin,
    mean_neurons,
)
from fedneighbors.methods.fedpnn.private._release import (
    Release,
    cells_release,
    class_sums_release,
    origin_release,
    public_bounds,
)
from fedneighbors.privacy._policy import Privacy
from fedneighbors.tabular._private import PaidRequest, PrivateTraining
from fedneighbors.tabular._schema import Receipt


@message
class NoisyReply:
    """A released vector with noise, int64 of one dimension."""

    values: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.values.ndim != 1:
            raise ValueError("noised values are not a vector")


@message
class OriginRequest(PaidRequest):
    """Request for the noised number and sum of rows."""

    reply: ClassVar[type] = NoisyReply
    classes: tuple[str | int | float | bool, ...]


@message
class MaskedOriginRequest(OriginRequest):
    """Request for the origin in a masked sum; each party adds a share of the noise."""

    masked_only: ClassVar[bool] = True
    noised: ClassVar[bool] = True


@message
class ClassSumsRequest(PaidRequest):
    """Request for noised row counts and direction sums by class, from ``origin``."""

    reply: ClassVar[type] = NoisyReply
    classes: tuple[str | int | float | bool, ...]
    origin: Floats

    def __post_init__(self) -> None:
        _check_point(self.origin)


@message
class MaskedClassSumsRequest(ClassSumsRequest):
    """Request for class sums in a masked sum; each party adds a share of the noise."""

    masked_only: ClassVar[bool] = True
    noised: ClassVar[bool] = True


@message
class CellsRequest(PaidRequest):
    """Request for noised cell counts of two classes along ``axis`` from ``origin``."""

    reply: ClassVar[type] = NoisyReply
    classes: tuple[str | int | float | bool, ...]
    origin: Floats
    axis: Floats

    def __post_init__(self) -> None:
        _check_point(self.origin)
        _check_point(self.axis)
        if self.axis.shape != self.origin.shape:
            raise ValueError("origin and axis differ in their number of columns")


@message
class MaskedCellsRequest(CellsRequest):
    """Request for cell counts in a masked sum; each party adds a share of the noise."""

    masked_only: ClassVar[bool] = True
    noised: ClassVar[bool] = True


def _check_point(place: Floats) -> None:
    if place.ndim != 1 or not np.isfinite(place).all() or (np.abs(place) > 1).any():
        raise ValueError("origin and axis must be finite vectors within [-1, 1]")


@message
class PrivateFedPNNRelease:
    """Message with the finished model."""

    reply: ClassVar[type] = Receipt
    model: PrivateFedPNNModel


_UNUSED = ("n_picks", "accounting", "constants_share")
"""Privacy settings that only other methods use."""


def coordinate_private(
    privacy: Privacy, *, run: str | None = None
) -> Coordinator[PrivateFedPNNModel]:
    """Train one model over all parties within a privacy budget.

    Parameters
    ----------
    privacy : Privacy
        Budget, mechanism, bounds of the columns, and public information. Every party must have
        agreed to the same terms.
    run : str, optional
        Name of this training. A new name is a new release, which every party charges; with a
        previous name, parties repeat their stored replies. Drawn at random if None.

    Yields
    ------
    Ask
        Schema, noised origin, noised class sums, with two classes noised cells, the model.

    Returns
    -------
    PrivateFedPNNModel
        The model with its privacy guarantee.

    Raises
    ------
    ValueError
        If bounds or classes were not declared, or this method does not have the mechanism.
    SchemaMismatch, PartyMissing, PartyRefused, ProtocolError
        As without privacy. Under ``"central"`` parties may drop out of the masked sums.
    """
    check_privacy(privacy)
    training = yield from _FedPNNTraining.begin(privacy, run)
    schema = training.schema
    low, high = public_bounds(privacy, schema.n_features)
    place = yield from training.request_origin()
    neurons = yield from training.request_neurons(place)
    model = PrivateFedPNNModel(
        classes=schema.classes,
        low=low,
        high=high,
        origin=place,
        neurons=neurons,
        guarantee=training.guarantee,
        feature_names=schema.feature_names,
    )
    replies = yield gather(PrivateFedPNNRelease(model))
    replies.complete("the model")
    return model


def check_privacy(privacy: Privacy) -> None:
    """Check that FedPNN supports the privacy settings and none are missing.

    Raises
    ------
    ValueError
        If the mechanism is not supported, settings of other methods are set, or bounds or classes
        were not declared.
    """
    if privacy.mechanism == "paper":
        raise ValueError(
            "the FedPNN paper has no private mechanism; use mechanism='local' or 'central'"
        )
    privacy.check_fields("FedPNN", _UNUSED)
    if privacy.bounds is None:
        public_bounds(privacy, 1)
    privacy.check_classes()


class _FedPNNTraining(PrivateTraining):
    """State of one training; its generators are the coordinator's rounds."""

    def request_origin(self) -> Coordinator[Floats]:
        """Request the noised mean of all rows."""
        planned = origin_release(self.privacy, self.schema.n_features, len(self.schema.classes))
        kind = MaskedOriginRequest if self.masked else OriginRequest
        values, spread = yield from self._sum(
            kind(*self.frame, self.schema.classes), planned, "the origin"
        )
        return estimate_origin(
            values, n_features=self.schema.n_features, levels=planned.levels, variance=spread
        )

    def request_neurons(self, place: Floats) -> Coordinator[Neurons]:
        """Request noised class means and, for two classes, cells between them."""
        n_classes = len(self.schema.classes)
        planned = class_sums_release(self.privacy, self.schema.n_features, n_classes)
        kind = MaskedClassSumsRequest if self.masked else ClassSumsRequest
        request = kind(*self.frame, self.schema.classes, place)
        values, spread = yield from self._sum(request, planned, "the class sums")
        found = estimate_means(values, n_classes=n_classes, levels=planned.levels, variance=spread)
        if n_classes > 2:
            return mean_neurons(found.means)
        axis = axis_between(found.means)
        cells_kind = MaskedCellsRequest if self.masked else CellsRequest
        asked = cells_kind(*self.frame, self.schema.classes, place, axis)
        values, spread = yield from self._sum(asked, cells_release(self.privacy), "the cells")
        return cell_neurons(values, axis, found, variance=spread)

    def _sum(
        self, request: Message, planned: Release, during: str
    ) -> Coordinator[tuple[Integers, float]]:
        """Return the sum of the replies and the variance of its noise.

        Parties may drop out of masked sums.
        """
        replies = self.survivors((yield total(request)), during)
        reply = replies.total
        if reply is None or reply.values.shape != (planned.n_cells,):
            raise ProtocolError(
                f"expected {planned.n_cells} noised values for {during}, got another number; a "
                "party sent a wrong reply"
            )
        spread = self.variance(
            planned.budget,
            planned.sensitivity,
            n_cells=planned.n_cells,
            n_summed=self.n_parties - len(replies.missing),
        )
        return reply.values, spread
