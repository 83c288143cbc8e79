"""FedPNN under a privacy budget: messages and coordinator of the noised sums.

Everything that the coordinator receives is noised or declared public. The finished model is
computed from these numbers only, so that distributing it uses none of the budget (post-processing).
"""

from typing import ClassVar

import numpy as np

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
from fedneighbors.tabular._schema import Receipt, check_cells, check_n_classes


@message
class NoisyReply:
    """A released vector with noise, int64 of one dimension."""

    values: Integers

    def __post_init__(self) -> None:
        if self.values.ndim != 1:
            raise ValueError("noised values are not a vector")


@message
class OriginRequest(PaidRequest):
    """Request for the noised number of rows and their noised sum."""

    reply: ClassVar[type] = NoisyReply
    classes: tuple[str | int | float | bool, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_n_classes(len(self.classes))


@message
class MaskedOriginRequest(OriginRequest):
    """Like :class:`OriginRequest`, in a masked sum; each party adds a share of the noise."""

    masked_only: ClassVar[bool] = True
    noised: ClassVar[bool] = True


@message
class ClassSumsRequest(PaidRequest):
    """Request for each class's noised number of rows and sum of directions from ``origin``."""

    reply: ClassVar[type] = NoisyReply
    classes: tuple[str | int | float | bool, ...]
    origin: Floats

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_point(self.origin)
        check_cells("class sums", len(self.classes), len(self.origin) + 1)


@message
class MaskedClassSumsRequest(ClassSumsRequest):
    """Like :class:`ClassSumsRequest`, in a masked sum; parties add shares of the noise."""

    masked_only: ClassVar[bool] = True
    noised: ClassVar[bool] = True


@message
class CellsRequest(PaidRequest):
    """Request for noised counts of two classes in cells on the axis through ``origin``."""

    reply: ClassVar[type] = NoisyReply
    classes: tuple[str | int | float | bool, ...]
    origin: Floats
    axis: Floats

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_point(self.origin)
        _check_point(self.axis)
        if self.axis.shape != self.origin.shape:
            raise ValueError("origin and axis differ in their number of columns")


@message
class MaskedCellsRequest(CellsRequest):
    """Like :class:`CellsRequest`, in a masked sum; each party adds a share of the noise."""

    masked_only: ClassVar[bool] = True
    noised: ClassVar[bool] = True


def _check_point(point: Floats) -> None:
    if point.ndim != 1 or not np.isfinite(point).all() or (np.abs(point) > 1).any():
        raise ValueError("origin and axis must be finite vectors within [-1, 1]")


@message
class PrivateFedPNNRelease:
    """Message with the finished model."""

    reply: ClassVar[type] = Receipt
    model: PrivateFedPNNModel


_UNUSED = ("n_picks", "accounting", "constants_share")
"""Settings of Privacy that FedPNN does not use."""


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
        Name of this training; drawn at random if None. Every party charges the requests under a new
        name; to the same requests under a previous name, it repeats its stored replies.

    Yields
    ------
    Ask
        Requests for the schema, the noised origin, the noised class sums and, with two classes, the
        noised cells. Then the model.

    Returns
    -------
    PrivateFedPNNModel
        The model with its privacy guarantee.

    Raises
    ------
    ValueError
        If bounds or classes were not declared, or FedPNN does not support the mechanism.
    SchemaMismatch, PartyMissing, PartyRefused, ProtocolError
        As without privacy. With ``mechanism="central"``, parties may drop out of masked sums.
    """
    check_privacy(privacy)
    training = yield from _FedPNNTraining.begin(privacy, run)
    schema = training.schema
    low, high = public_bounds(privacy, schema.n_features)
    origin = yield from training.request_origin()
    neurons = yield from training.request_neurons(origin)
    model = PrivateFedPNNModel(
        classes=schema.classes,
        low=low,
        high=high,
        origin=origin,
        neurons=neurons,
        guarantee=training.guarantee,
        feature_names=schema.feature_names,
    )
    replies = yield gather(PrivateFedPNNRelease(model))
    replies.complete("the model")
    return model


def check_privacy(privacy: Privacy) -> None:
    """Check that the privacy settings are complete and supported by FedPNN.

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
        public_bounds(privacy, 1)  # raises; the number of columns is not known here
    privacy.check_classes()


class _FedPNNTraining(PrivateTraining):
    """State of one training, with a generator for each of the coordinator's rounds."""

    def request_origin(self) -> Coordinator[Floats]:
        """Request the noised number and sum of all rows; return their mean."""
        release = origin_release(self.privacy, self.schema.n_features, len(self.schema.classes))
        request_type = MaskedOriginRequest if self.is_masked else OriginRequest
        request = request_type(*self.request_fields, self.schema.classes)
        values, variance = yield from self._sum(request, release, "the origin")
        return estimate_origin(
            values, n_features=self.schema.n_features, levels=release.levels, variance=variance
        )

    def request_neurons(self, origin: Floats) -> Coordinator[Neurons]:
        """Request noised class sums and, for two classes, cells; return the neurons."""
        n_classes = len(self.schema.classes)
        release = class_sums_release(self.privacy, self.schema.n_features, n_classes)
        sums_type = MaskedClassSumsRequest if self.is_masked else ClassSumsRequest
        request = sums_type(*self.request_fields, self.schema.classes, origin)
        values, variance = yield from self._sum(request, release, "the class sums")
        means = estimate_means(
            values, n_classes=n_classes, levels=release.levels, variance=variance
        )
        if n_classes > 2:
            return mean_neurons(means.means)
        axis = axis_between(means.means)
        cells_type = MaskedCellsRequest if self.is_masked else CellsRequest
        for_cells = cells_type(*self.request_fields, self.schema.classes, origin, axis)
        values, variance = yield from self._sum(for_cells, cells_release(self.privacy), "the cells")
        return cell_neurons(values, axis, means, variance=variance)

    def _sum(
        self, request: Message, release: Release, sum_name: str
    ) -> Coordinator[tuple[Integers, float]]:
        """Return the sum of the replies and the variance of its noise.

        Parties may drop out of masked sums. ``sum_name`` names the sum in messages.
        """
        replies = self.check_missing((yield total(request)), sum_name)
        reply = replies.total
        if reply is None or reply.values.shape != (release.n_cells,):
            raise ProtocolError(
                f"expected {release.n_cells} noised values for {sum_name}, got another number; a "
                "party sent a wrong reply"
            )
        variance = self.variance(
            release.budget,
            release.sensitivity,
            n_cells=release.n_cells,
            n_summed=self.n_parties - len(replies.missing),
        )
        return reply.values, variance
