"""FedPNN: the party and the coordinator (Algorithms 1 to 4 of the paper).

One exchange of centers makes the model. Two may come before it, and are counted: constants, so that
all parties measure in one frame, and moments, so that they measure in one metric that tells classes
apart. The first exchange of all compares what the tables look like, the last hands out the model.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import DataError, ProtocolError
from fedneighbors.federation.messages import Message
from fedneighbors.federation.roles import Coordinator, Refuse, gather, total
from fedneighbors.methods.fedpnn.algorithm import (
    SIGMAS,
    merge_centers,
)
from fedneighbors.methods.fedpnn.exposure import Exposure
from fedneighbors.methods.fedpnn.frame import Constants, Frame, column_constants, make_frame
from fedneighbors.methods.fedpnn.messages import (
    CentersReply,
    CentersRequest,
    ConstantsReply,
    ConstantsRequest,
    ModelRelease,
    MomentsReply,
    MomentsRequest,
    Receipt,
    SchemaRequest,
    frame_bytes,
    read_frame,
)
from fedneighbors.methods.fedpnn.metric import ClassMoments, class_moments, supervised_metric
from fedneighbors.methods.fedpnn.model import FedPNNModel
from fedneighbors.methods.fedpnn.releases import Released, release_centers
from fedneighbors.methods.fedpnn.settings import FedPNNSettings
from fedneighbors.methods.fedpnn.smoothing import leave_one_out_losses
from fedneighbors.tables.labels import Label, label_positions
from fedneighbors.tables.schema import Agreed, agree, describe

__all__ = ["FedPNNParty", "chosen_sigma", "coordinate"]

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

DEFAULT_SIGMA = 0.5
"""Where no party has rows of two classes, so that none can tell."""


class FedPNNParty:
    """One organization's table and what it answers.

    Parameters
    ----------
    name : str
        Its name in the federation.
    x : float64 array of shape (n_rows, n_features)
        Missing cells are NaN.
    y : array of shape (n_rows,)
        Labels: strings, integers, floats or booleans.
    feature_names : sequence of str, optional
        Column names.
    label_name : str
        Name of the label, for error messages.
    min_count : int
        Fewest records that anything it sends stands for; it refuses to go below.
    n_threads : int
        Taken as other methods' parties take it; clusters evolve in one thread.
    model_path : path, optional
        Where the finished model is written.

    Attributes
    ----------
    model : FedPNNModel or None
        The finished model, once training is over.
    exposure : Exposure or None
        What its centers tell of single records, once it has sent them.
    """

    accepts: tuple[type[Any], ...] = (
        SchemaRequest,
        ConstantsRequest,
        MomentsRequest,
        CentersRequest,
        ModelRelease,
    )

    def __init__(
        self,
        name: str,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        *,
        feature_names: tuple[str, ...] | None = None,
        label_name: str = "target",
        min_count: int = 5,
        n_threads: int = 1,  # noqa: ARG002 - all methods' parties are made alike
        model_path: str | Path | None = None,
    ) -> None:
        if len(y) != len(x):
            raise ValueError(f"expected one label for each of {len(x)} rows, got {len(y)}")
        self.name = name
        self.model: FedPNNModel | None = None
        self.exposure: Exposure | None = None
        self._x = np.asarray(x)
        self._y = np.asarray(y)
        self._feature_names = feature_names
        self._label_name = label_name
        self._min_count = min_count
        self._path = None if model_path is None else Path(model_path)

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts``."""
        if getattr(request, "min_count", self._min_count) < self._min_count:
            raise Refuse("fewer records for a number are asked for than this party allows")
        match request:
            case SchemaRequest():
                return describe(
                    self._x, self._y, self._feature_names, self._label_name, allow_missing=True
                )
            case ConstantsRequest():
                return _sent(self._constants(request.n_knots, request.min_count))
            case MomentsRequest():
                return self._moments(request)
            case CentersRequest():
                return self._centers(request)
            case ModelRelease():
                self.model = FedPNNModel.from_bytes(request.model)
                if self._path is not None:
                    self.model.save(self._path)
                return Receipt()
        raise Refuse("unknown request")

    def _constants(self, n_knots: int, min_count: int) -> Constants:
        """Return constants of the rows of classes that have enough of them."""
        _, label, sizes = np.unique(self._y, return_inverse=True, return_counts=True)
        told = sizes[label] >= min_count
        x = np.asarray(self._x, np.float64)[told]
        return column_constants(x, n_knots=n_knots, min_count=min_count)

    def _labels(self, classes: tuple[Label, ...]) -> Integers:
        return label_positions(self._y, classes, name=self._label_name)

    def _points(self, frame: Frame) -> Floats:
        if frame.n_features != self._x.shape[1]:
            raise Refuse("the number of columns is not the announced one")
        return frame.apply(np.asarray(self._x, np.float64))

    def _moments(self, request: MomentsRequest) -> MomentsReply:
        labels, n_classes = self._labels(request.classes), len(request.classes)
        enough = np.bincount(labels, minlength=n_classes) >= request.min_count
        told = enough[labels]
        points = self._points(read_frame(request.frame))[told]
        moments = class_moments(points, labels[told], n_classes)
        return MomentsReply(moments.counts, moments.sums, moments.products)

    def _centers(self, request: CentersRequest) -> CentersReply:
        constants = self._constants(request.n_knots, request.min_count)
        if request.frame:
            frame, sent = read_frame(request.frame), _nothing(self._x.shape[1])
        else:
            frame = make_frame(request.own_frame, [constants], min_count=request.min_count)
            frame, sent = frame.without_indicators(), _sent(constants)
        points = self._points(frame)
        if len(request.metric):
            points = points @ request.metric
        labels = self._labels(request.classes)
        released = release_centers(
            points,
            labels,
            len(request.classes),
            threshold=request.threshold,
            factor=request.factor,
            classwise=request.classwise,
            min_count=request.min_count,
            means=request.means,
        )
        self.exposure = released.exposure
        log.info("party %s: %s", self.name, released.exposure)
        return CentersReply(
            released.centers,
            released.counts,
            released.silent,
            _own_choice(points, labels, released, request.activation),
            sent.knots,
            sent.sizes,
            sent.n_missing,
        )


def _own_choice(points: Floats, labels: Integers, released: Released, activation: str) -> int:
    """Return which smoothing costs the rows of a party least, its classes weighing alike.

    Its losses themselves would tell single records. -1 if it has rows of one class alone, which any
    smoothing suits.
    """
    told = np.flatnonzero(~released.silent)
    if len(told) < 2:
        return -1
    losses = np.zeros(len(SIGMAS))
    for label in told:
        rows = labels == label
        own = leave_one_out_losses(
            points[rows], labels[rows], released.centers, released.counts, activation=activation
        )
        losses += own / rows.sum()
    return int(np.flatnonzero(losses == losses.min())[-1])  # the widest of equals


def chosen_sigma(choices: Sequence[int], weights: Sequence[int]) -> float:
    """Return the smoothing in the middle of what the parties chose.

    Parameters
    ----------
    choices : sequence of int
        Positions among the smoothings, -1 for none.
    weights : sequence of int
        Records that stand behind each choice.
    """
    votes = sorted((c, w) for c, w in zip(choices, weights, strict=True) if c >= 0)
    if not votes:
        return DEFAULT_SIGMA
    reached = np.cumsum([weight for _, weight in votes])
    return float(SIGMAS[votes[int(np.searchsorted(reached, reached[-1] / 2))][0]])


def _sent(constants: Constants) -> ConstantsReply:
    return ConstantsReply(constants.knots, constants.sizes, constants.n_missing)


def _nothing(n_features: int) -> ConstantsReply:
    empty = np.zeros((n_features, 0))
    return ConstantsReply(empty, empty.astype(np.int64), np.zeros(n_features, np.int64))


def coordinate(settings: FedPNNSettings) -> Coordinator[FedPNNModel]:
    """Train one model over all parties, the same whatever their order.

    Yields
    ------
    Ask
        Schema; constants, if the frame is global; moments, if the metric is supervised; centers;
        model.

    Returns
    -------
    FedPNNModel
        The model that every party holds as well.

    Raises
    ------
    SchemaMismatch
        If a party's table differs from the others'.
    PartyMissing
        If a party does not answer; no model is made.
    DataError
        If no party has enough records of any class, or there are fewer than two classes in all.
    ProtocolError
        If a reply is not what a table can give.
    """
    replies = yield gather(SchemaRequest())
    schema = agree(replies.complete("the schema").each, settings.classes)
    frame = None
    if settings.frame == "global":
        replies = yield gather(ConstantsRequest(settings.n_knots, settings.min_count))
        frame = _merged_frame(replies.complete("the constants").each, settings, schema)
    metric = np.zeros((0, 0))
    if frame is not None and settings.metric == "supervised":
        replies = yield total(
            MomentsRequest(frame_bytes(frame), schema.classes, settings.min_count)
        )
        moments = _checked_moments(replies.summed("the moments"), frame, schema)
        metric = supervised_metric(moments, ridge=settings.ridge, boost=settings.boost)
    replies = yield gather(_centers_request(settings, schema, frame, metric))
    each = replies.complete("the centers").each
    if frame is None:
        frame = _merged_frame(each, settings, schema).without_indicators()
    model = _model(each, settings, schema, frame, metric)
    replies = yield gather(ModelRelease(model.to_bytes()))
    replies.complete("the model")
    return model


def _merged_frame(each: Mapping[str, Any], settings: FedPNNSettings, schema: Agreed) -> Frame:
    parts = [Constants(each[name].knots, each[name].sizes, each[name].n_missing) for name in each]
    for name, part in zip(each, parts, strict=True):
        if len(part.knots) != schema.n_features:
            raise ProtocolError(f"party {name!r}: constants of another number of columns came")
    return make_frame(settings.kind, parts, min_count=settings.min_count)


def _checked_moments(reply: Message, frame: Frame, schema: Agreed) -> ClassMoments:
    n, n_classes = frame.n_coordinates, len(schema.classes)
    shapes = (reply.counts.shape, reply.sums.shape, reply.products.shape)
    if shapes != ((n_classes,), (n_classes, n), (n, n)):
        raise ProtocolError(f"moments of other shapes came: {shapes}; a party sent another table's")
    if (reply.counts < 0).any() or (np.diag(reply.products) < 0).any():
        raise ProtocolError("moments are below what any table has; a party sent something else")
    if reply.counts.sum() < 1:
        raise _too_few()
    return ClassMoments(reply.counts, reply.sums, reply.products)


def _too_few() -> DataError:
    return DataError(
        "no party has enough records of any class to send anything; lower min_count, or let "
        "parties with more records take part"
    )


def _centers_request(
    settings: FedPNNSettings, schema: Agreed, frame: Frame | None, metric: Floats
) -> CentersRequest:
    return CentersRequest(
        frame=b"" if frame is None else frame_bytes(frame),
        own_frame=settings.kind,
        n_knots=settings.n_knots,
        metric=metric,
        classes=schema.classes,
        threshold=settings.client_threshold,
        factor=settings.factor,
        classwise=settings.classwise,
        min_count=settings.min_count,
        activation=settings.activation,
        means=settings.means,
    )


def _model(
    each: Mapping[str, Any],
    settings: FedPNNSettings,
    schema: Agreed,
    frame: Frame,
    metric: Floats,
) -> FedPNNModel:
    for name in each:
        if each[name].centers.shape[1] != (len(metric) or frame.n_coordinates):
            raise ProtocolError(f"party {name!r}: centers of another number of dimensions came")
    centers = np.concatenate([each[name].centers for name in each])
    counts = np.concatenate([each[name].counts for name in each])
    if len(centers) == 0:
        raise _too_few()
    merged = merge_centers(
        centers,
        counts,
        threshold=settings.server_threshold,
        factor=settings.factor,
        classwise=settings.classwise,
    )
    sigma = settings.sigma
    if sigma == "loo":
        names = sorted(each)
        weights = [int(each[name].counts.sum()) for name in names]
        sigma = chosen_sigma([each[name].choice for name in names], weights)
    return FedPNNModel(
        frame=frame,
        metric=metric if len(metric) else np.eye(centers.shape[1]),
        classes=schema.classes,
        centers=merged.centers,
        counts=merged.counts,
        sigma=float(sigma),
        activation=settings.activation,
        feature_names=schema.feature_names,
    )
