"""FedPNN's party: what one organization answers of its table."""

import logging
import warnings
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._messages import Message, message
from fedneighbors.federation._roles import Refuse
from fedneighbors.kernels._exactsum import MAX_MAGNITUDE
from fedneighbors.methods.fedpnn._model import (
    Exposure,
    FedPNNModel,
    Released,
    leave_one_out_losses,
    release_centers,
)
from fedneighbors.methods.fedpnn._scaling import (
    MOST_ROWS,
    Booleans,
    PointMomentsReply,
    PointMomentsRequest,
    Scaling,
    ScalingReply,
    ScalingRequest,
    class_moments,
    column_constants,
    in_usual_classes,
    make_frame,
    without_few_cells,
    without_few_pairs,
    without_few_told,
)
from fedneighbors.methods.fedpnn._selection import SelectionReply, SelectionRequest, class_sums
from fedneighbors.methods.fedpnn.algorithm import SIGMAS, group_means
from fedneighbors.tabular._ownership import TableParty
from fedneighbors.tabular._schema import Receipt, Schema

log = logging.getLogger(__name__)


FARTHEST_CENTER = 1e150
"""Centers lie nearer to zero, so that squares of distances stay finite."""


@message
class FedPNNSchemaRequest:
    """Ask what the table looks like; labels of fewer than ``min_count`` rows are not announced."""

    reply: ClassVar[type] = Schema
    min_count: int


@message
class CentersReply:
    """The centers of a party, each of at least ``min_count`` records.

    ``centers`` is float64 of shape (n_centers, n_dimensions), ``counts`` int64 of shape (n_centers,
    n_classes). ``silent`` says of which classes there are fewer than ``min_count`` records, so that
    nothing is sent. ``choice`` is the position of the smoothing that suits the party's rows best,
    -1 if they cannot tell. ``constants`` are those of the party's own frame, None where the frame
    was agreed before.
    """

    centers: Floats
    counts: Integers
    silent: Booleans
    choice: int
    constants: ScalingReply | None

    def __post_init__(self) -> None:
        if self.centers.ndim != 2 or not (np.abs(self.centers) < FARTHEST_CENTER).all():
            raise ValueError(f"a center is not a point within {FARTHEST_CENTER:g}")
        if self.counts.ndim != 2 or len(self.counts) != len(self.centers):
            raise ValueError("centers and counts differ in number")
        if (self.counts < 0).any() or (self.counts >= MOST_ROWS).any():
            raise ValueError("a count is of no table's size")
        if not -1 <= self.choice < len(SIGMAS):
            raise ValueError("there is no such smoothing")


@message
class CentersRequest:
    """Ask for centers in the agreed frame and metric; the metric is the unit one where empty.

    Where ``frame`` is None, each party uses the frame of its own constants, in ``n_knots`` groups,
    and sends these along.
    """

    reply: ClassVar[type] = CentersReply
    frame: Scaling | None
    own_frame: str
    n_knots: int
    metric: Floats
    classes: tuple[str | int | float | bool, ...]
    threshold: float | None
    factor: float
    classwise: bool
    min_count: int
    activation: str
    means: bool
    columns: Integers | None = None

    def __post_init__(self) -> None:
        ScalingRequest(self.n_knots, self.min_count, self.columns)
        if self.metric.ndim != 2 or not np.isfinite(self.metric).all():
            raise ValueError("a metric is no matrix of finite numbers")

    def check(self, party: str, reply: CentersReply) -> None:
        """Raise for centers of too few records or too few values."""
        if reply.counts.shape[1] != len(self.classes) or reply.silent.shape != (len(self.classes),):
            raise ValueError(f"expected counts of {len(self.classes)} classes")
        if len(self.metric) and reply.centers.shape[1] != self.metric.shape[1]:
            raise ValueError(f"expected centers of {self.metric.shape[1]} dimensions")
        if (reply.counts.sum(axis=1) < self.min_count).any():
            raise ValueError(f"a center stands for fewer than {self.min_count} records")
        if (reply.constants is None) != (self.frame is not None):
            raise ValueError("expected constants exactly where a party uses a frame of its own")
        if reply.constants is not None:
            asked = ScalingRequest(self.n_knots, self.min_count, self.columns)
            asked.check(party, reply.constants)


@message
class FedPNNModelRelease:
    """Send the finished model."""

    reply: ClassVar[type] = Receipt
    model: FedPNNModel


class FedPNNParty(TableParty):
    """One organization's table and what it answers.

    Rows of classes with fewer than ``min_count`` of them enter nothing that it sends; it does not
    announce their labels either.

    Parameters
    ----------
    name, x, y
        Its table, see :class:`~fedneighbors.tabular._ownership.TableParty`. Missing cells are NaN,
        others below 2**200 in magnitude.
    min_count : int
        Fewest records that anything it sends stands for; it refuses to go below.
    **table
        The other arguments of that class.

    Attributes
    ----------
    model : FedPNNModel or None
        The finished model, once training is over.
    exposure : Exposure or None
        What its centers tell of single records, once it has sent them.
    """

    allows_missing = True
    accepts: tuple[type[Any], ...] = (
        FedPNNSchemaRequest,
        SelectionRequest,
        ScalingRequest,
        PointMomentsRequest,
        CentersRequest,
        FedPNNModelRelease,
    )

    def __init__(
        self,
        name: str,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        *,
        min_count: int = 5,
        **table: Any,
    ) -> None:
        super().__init__(name, np.asarray(x), y, **table)
        self.exposure: Exposure | None = None
        self._min_count = min_count

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts``."""
        if getattr(request, "min_count", self._min_count) < self._min_count:
            raise Refuse("fewer records for a number are asked for than this party allows")
        match request:
            case FedPNNSchemaRequest():
                return self._schema(request)
            case SelectionRequest():
                return self._sums(request)
            case ScalingRequest():
                return self._constants(request)
            case PointMomentsRequest():
                return self._moments(request)
            case CentersRequest():
                return self._centers(request)
            case FedPNNModelRelease():
                self._keep(request.model)
                return Receipt()
        raise Refuse("unknown request")

    def _schema(self, request: FedPNNSchemaRequest) -> Schema:
        """Return what the table looks like, without labels of few rows."""
        schema = self._described(self._y)
        huge = np.flatnonzero(
            (np.abs(np.asarray(self._x, np.float64)) >= MAX_MAGNITUDE).any(axis=0)
        )
        if len(huge):
            where = self._column(huge[0])
            raise Refuse("a value is 2**200 or more in magnitude; rescale the column", where)
        usual = in_usual_classes(self._y, min_count=request.min_count)
        announced = set(np.unique(self._y[usual]).tolist())
        labels = tuple(label for label in schema.labels if label in announced)
        return replace(schema, labels=labels, label_kind=schema.label_kind if labels else "none")

    def _told(
        self, min_count: int, columns: Integers | None, n_features: int | None = None
    ) -> tuple[Floats, npt.NDArray[Any]]:
        """Return the rows and labels of classes that have enough of them."""
        if columns is not None and len(columns) and columns[-1] >= self._x.shape[1]:
            raise Refuse("a column is asked for that the table does not have")
        if n_features not in (None, self._x.shape[1] if columns is None else len(columns)):
            raise Refuse("the number of columns is not the announced one")
        usual = in_usual_classes(self._y, min_count=min_count)
        x = self._x[usual] if columns is None else self._x[np.ix_(usual, columns)]
        return np.asarray(x, np.float64), self._y[usual]

    def _sums(self, request: SelectionRequest) -> SelectionReply:
        x, y = self._told(request.min_count, None, request.n_features)
        labels = self._positions(request.classes, y)
        return class_sums(x, labels, len(request.classes), min_count=request.min_count)

    def _constants(self, request: ScalingRequest | CentersRequest) -> ScalingReply:
        x, y = self._told(request.min_count, request.columns)
        _, labels = np.unique(y, return_inverse=True)
        return column_constants(
            x,
            n_knots=request.n_knots,
            min_count=request.min_count,
            labels=labels.astype(np.int64),
        )

    def _points(
        self, request: PointMomentsRequest | CentersRequest, frame: Scaling
    ) -> tuple[Floats, Floats, Integers]:
        """Return the releasable rows, their points and their classes."""
        x, y = self._told(request.min_count, request.columns, frame.n_features)
        labels = self._positions(request.classes, y)
        return *_points_of(x, labels, frame, min_count=request.min_count), labels

    def _moments(self, request: PointMomentsRequest) -> PointMomentsReply:
        frame = request.frame
        x, points, labels = self._points(request, frame)
        moments = class_moments(points, labels, len(request.classes))
        if not np.isnan(x).any():
            return moments
        return without_few_pairs(
            moments,
            points,
            frame.nothing_known(),
            np.hstack([~np.isnan(x), points[:, frame.n_features :] > 0]),
            n_columns=frame.n_features,
            min_count=request.min_count,
        )

    def _centers(self, request: CentersRequest) -> CentersReply:
        frame, constants = request.frame, None
        if frame is None:
            constants = self._constants(request)
            frame = make_frame(request.own_frame, [constants], min_count=request.min_count)
            frame = frame.without_indicators()
        x, points, labels = self._points(request, frame)
        points = _measured(points, request.metric)
        released = release_centers(
            points,
            labels,
            len(request.classes),
            threshold=request.threshold,
            factor=request.factor,
            classwise=request.classwise,
            min_count=request.min_count,
            means=request.means,
            n_threads=self._n_threads,
        )
        if request.means and np.isnan(x).any():
            _, again = _points_of(x, released.rows, frame, min_count=request.min_count)
            means = group_means(_measured(again, request.metric), released.rows)
            released = replace(released, centers=means)
        n_records, n_sent = len(self._y), int(released.counts.sum())
        self.exposure = replace(
            released.exposure, n_records=n_records, n_withheld=n_records - n_sent
        )
        log.info("party %s: %s", self.name, self.exposure)
        if released.advice:
            warnings.warn(
                f"party {self.name!r}: client_threshold{released.advice}; None lets each party "
                "choose",
                UserWarning,
                stacklevel=2,
            )
        return CentersReply(
            released.centers,
            released.counts,
            released.silent,
            self._own_choice(points, labels, released, request.activation),
            constants,
        )

    def _own_choice(
        self, points: Floats, labels: Integers, released: Released, activation: str
    ) -> int:
        """Return the smoothing of least loss on the party's rows.

        Classes weigh equally.

        Its losses themselves would tell single records. -1 if it has rows of one class alone, which
        any smoothing suits.
        """
        told = np.flatnonzero(~released.silent)
        if len(told) < 2:
            return -1
        losses = np.zeros(len(SIGMAS))
        for label in told:
            rows = labels == label
            own = leave_one_out_losses(
                points[rows],
                labels[rows],
                released.centers,
                released.counts,
                activation=activation,
                n_threads=self._n_threads,
            )
            losses += own / rows.sum()
        return int(np.flatnonzero(losses == losses.min())[-1])  # the widest of equals


def _points_of(
    x: Floats, groups: Integers, frame: Scaling, *, min_count: int
) -> tuple[Floats, Floats]:
    """Return rows without rare cells, and their points.

    A cell is rare if few of its class or cluster have it.
    """
    kept = without_few_cells(x, groups, min_count=min_count)
    points, n = frame.apply(kept), frame.n_features
    points[:, n:] = without_few_told(points[:, n:], groups, min_count=min_count)
    return kept, points


def _measured(points: Floats, metric: Floats) -> Floats:
    """Return points in a metric; the empty one is the unit metric."""
    return points @ metric if len(metric) else points
