"""Party of FedPNN: one organization's table and its replies."""

import logging
import warnings
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._messages import Message, message
from fedneighbors.federation._roles import Refused
from fedneighbors.kernels._exactsum import MAX_MAGNITUDE
from fedneighbors.methods.fedpnn._model import (
    Exposure,
    FedPNNModel,
    ReleasedCenters,
    leave_one_out_losses,
    release_centers,
)
from fedneighbors.methods.fedpnn._scaling import (
    MAX_ROWS,
    Booleans,
    PointMomentsReply,
    PointMomentsRequest,
    ScalingReply,
    ScalingRequest,
    TableScaling,
    class_moments,
    column_constants,
    make_frame,
    mask_frequent_classes,
    suppress_few_cells,
    suppress_few_indicators,
    suppress_few_pairs,
)
from fedneighbors.methods.fedpnn._selection import SelectionReply, SelectionRequest, class_sums
from fedneighbors.methods.fedpnn.algorithm import SIGMAS, group_means
from fedneighbors.tabular._ownership import TableParty
from fedneighbors.tabular._schema import Receipt, SchemaReply

log = logging.getLogger(__name__)


CENTER_LIMIT = 1e150
"""Upper bound on coordinates of centers, so that squared distances stay finite."""


@message
class FedPNNSchemaRequest:
    """Request for the schema; only labels with at least ``min_count`` rows are listed."""

    reply: ClassVar[type] = SchemaReply
    min_count: int


@message
class CentersReply:
    """Centers of a party, each of at least ``min_count`` rows.

    ``centers`` is float64 of shape (n_centers, n_dimensions), ``counts`` int64 of shape (n_centers,
    n_classes). ``silent`` marks suppressed classes: those of fewer than ``min_count`` rows, about
    which nothing is sent. ``choice`` is the index in ``SIGMAS`` of the smoothing parameter with the
    lowest loss on the party's rows, -1 if it sends centers of fewer than two classes. ``constants``
    are the scaling constants of the party's own frame, None if all parties use the same frame.
    """

    centers: Floats
    counts: Integers
    silent: Booleans
    choice: int
    constants: ScalingReply | None

    def __post_init__(self) -> None:
        if self.centers.ndim != 2 or not (np.abs(self.centers) < CENTER_LIMIT).all():
            raise ValueError(f"coordinates of centers must be below {CENTER_LIMIT:g}")
        if self.counts.ndim != 2 or len(self.counts) != len(self.centers):
            raise ValueError("centers and counts differ in number")
        if (self.counts < 0).any() or (self.counts >= MAX_ROWS).any():
            raise ValueError("counts of rows must be in [0, 2**40)")
        if not -1 <= self.choice < len(SIGMAS):
            raise ValueError(f"expected choice from -1 to {len(SIGMAS) - 1}, got {self.choice}")


@message
class CentersRequest:
    """Request for centers in a given frame and metric.

    The *frame* transforms rows to points. ``metric`` is the matrix that points are multiplied with
    from the right; if it is empty, points are not multiplied. If ``frame`` is None, each party
    builds its own frame of kind ``own_frame`` from constants of at most ``n_knots`` groups of
    neighboring values per column, and sends these constants with its centers.

    ``threshold``, ``factor``, ``classwise`` and ``means`` are settings of the clustering, see
    :func:`~fedneighbors.methods.fedpnn._model.release_centers`. ``activation`` is the kernel of the
    network, with which the party chooses a smoothing parameter.
    """

    reply: ClassVar[type] = CentersReply
    frame: TableScaling | None
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
            raise ValueError("the metric is not a matrix of finite numbers")

    def check(self, party: str, reply: CentersReply) -> None:
        """Check the shapes, and that centers and constants describe enough rows."""
        if reply.counts.shape[1] != len(self.classes) or reply.silent.shape != (len(self.classes),):
            raise ValueError(f"expected counts of {len(self.classes)} classes")
        if len(self.metric) and reply.centers.shape[1] != self.metric.shape[1]:
            raise ValueError(f"expected centers of {self.metric.shape[1]} dimensions")
        if (reply.counts.sum(axis=1) < self.min_count).any():
            raise ValueError(f"a center has fewer than {self.min_count} rows")
        if (reply.constants is None) != (self.frame is not None):
            raise ValueError("expected constants if and only if parties use frames of their own")
        if reply.constants is not None:
            scaling = ScalingRequest(self.n_knots, self.min_count, self.columns)
            scaling.check(party, reply.constants)


@message
class FedPNNModelRelease:
    """Message with the finished model."""

    reply: ClassVar[type] = Receipt
    model: FedPNNModel


class FedPNNParty(TableParty):
    """One organization's table, which replies to the coordinator's requests.

    Labels of classes with fewer than ``min_count`` rows are not sent, and rows of these classes do
    not affect the numbers that the party sends. However, all rows are checked: an invalid cell or
    label in any row makes the party refuse the request for the schema, and the refusal names the
    column.

    Parameters
    ----------
    name, x, y
        Name and table, see :class:`~fedneighbors.tabular._ownership.TableParty`. Missing cells are
        NaN; all other cells must be below 2**200 in magnitude.
    min_count : int
        Minimum number of rows that a number sent by the party describes; it refuses requests with a
        lower ``min_count``.
    **table
        Other arguments of :class:`~fedneighbors.tabular._ownership.TableParty`.

    Attributes
    ----------
    model : FedPNNModel or None
        The finished model, after training.
    exposure : Exposure or None
        Numbers of rows, withheld rows, clusters and centers; None until centers are computed.
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
            raise Refused("min_count of the request is below the min_count of this party")
        match request:
            case FedPNNSchemaRequest():
                return self._schema(request)
            case SelectionRequest():
                return self._compute_sums(request)
            case ScalingRequest():
                return self._compute_constants(request)
            case PointMomentsRequest():
                return self._compute_moments(request)
            case CentersRequest():
                return self._compute_centers(request)
            case FedPNNModelRelease():
                self._keep(request.model)
                return Receipt()
        raise Refused("unknown request")

    def _schema(self, request: FedPNNSchemaRequest) -> SchemaReply:
        """Return the schema, without labels of fewer than ``min_count`` rows."""
        schema = self._describe(self._y)
        huge = np.flatnonzero(
            (np.abs(np.asarray(self._x, np.float64)) >= MAX_MAGNITUDE).any(axis=0)
        )
        if len(huge):
            column = self._column(huge[0])
            raise Refused("a value is 2**200 or more in magnitude; rescale the column", column)
        frequent = mask_frequent_classes(self._y, min_count=request.min_count)
        announced = set(np.unique(self._y[frequent]).tolist())
        labels = tuple(label for label in schema.labels if label in announced)
        return replace(schema, labels=labels, label_kind=schema.label_kind if labels else "none")

    def _select_rows(
        self, min_count: int, columns: Integers | None, n_features: int | None = None
    ) -> tuple[Floats, npt.NDArray[Any]]:
        """Return rows and labels of classes with at least ``min_count`` rows."""
        if columns is not None and len(columns) and columns[-1] >= self._x.shape[1]:
            raise Refused("a requested column is not in the table")
        if n_features not in (None, self._x.shape[1] if columns is None else len(columns)):
            raise Refused("the number of columns differs from the schema")
        frequent = mask_frequent_classes(self._y, min_count=min_count)
        x = self._x[frequent] if columns is None else self._x[np.ix_(frequent, columns)]
        return np.asarray(x, np.float64), self._y[frequent]

    def _compute_sums(self, request: SelectionRequest) -> SelectionReply:
        x, y = self._select_rows(request.min_count, None, request.n_features)
        labels = self._positions(request.classes, y)
        return class_sums(x, labels, len(request.classes), min_count=request.min_count)

    def _compute_constants(self, request: ScalingRequest | CentersRequest) -> ScalingReply:
        x, y = self._select_rows(request.min_count, request.columns)
        _, labels = np.unique(y, return_inverse=True)
        return column_constants(
            x,
            n_knots=request.n_knots,
            min_count=request.min_count,
            labels=labels.astype(np.int64),
        )

    def _transform_rows(
        self, request: PointMomentsRequest | CentersRequest, frame: TableScaling
    ) -> tuple[Floats, Floats, Integers]:
        """Return the rows of frequent classes, their points, and their class indices."""
        x, y = self._select_rows(request.min_count, request.columns, frame.n_features)
        labels = self._positions(request.classes, y)
        return *_apply_frame(x, labels, frame, min_count=request.min_count), labels

    def _compute_moments(self, request: PointMomentsRequest) -> PointMomentsReply:
        frame = request.frame
        x, points, labels = self._transform_rows(request, frame)
        moments = class_moments(points, labels, len(request.classes))
        if not np.isnan(x).any():
            return moments
        return suppress_few_pairs(
            moments,
            points,
            frame.empty_point(),
            np.hstack([~np.isnan(x), points[:, frame.n_features :] > 0]),
            n_columns=frame.n_features,
            min_count=request.min_count,
        )

    def _compute_centers(self, request: CentersRequest) -> CentersReply:
        frame, constants = request.frame, None
        if frame is None:
            constants = self._compute_constants(request)
            frame = make_frame(request.own_frame, [constants], min_count=request.min_count)
            frame = frame.without_indicators()
        x, points, labels = self._transform_rows(request, frame)
        points = _apply_metric(points, request.metric)
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
            _, cluster_points = _apply_frame(x, released.rows, frame, min_count=request.min_count)
            means = group_means(_apply_metric(cluster_points, request.metric), released.rows)
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
            self._choose_sigma(points, labels, released, request.activation),
            constants,
        )

    def _choose_sigma(
        self, points: Floats, labels: Integers, released: ReleasedCenters, activation: str
    ) -> int:
        """Return the index in ``SIGMAS`` with the lowest class-averaged loss.

        Only the index is sent, because the losses would disclose single rows. Returns -1 if the
        party sends centers of fewer than two classes: then all values of sigma are equally good.
        """
        disclosed = np.flatnonzero(~released.silent)
        if len(disclosed) < 2:
            return -1
        losses = np.zeros(len(SIGMAS))
        for label in disclosed:
            rows = labels == label
            class_losses = leave_one_out_losses(
                points[rows],
                labels[rows],
                released.centers,
                released.counts,
                activation=activation,
                n_threads=self._n_threads,
            )
            losses += class_losses / rows.sum()
        return int(np.flatnonzero(losses == losses.min())[-1])  # ties go to the largest


def _apply_frame(
    x: Floats, groups: Integers, frame: TableScaling, *, min_count: int
) -> tuple[Floats, Floats]:
    """Suppress columns with few values in a group; return rows and points.

    A group is a class or a cluster. A column with fewer than ``min_count`` values in a group is set
    to missing there. A missing-cell indicator is made constant in a group if fewer than
    ``min_count`` rows differ.
    """
    cells = suppress_few_cells(x, groups, min_count=min_count)
    points, n = frame.apply(cells), frame.n_features
    points[:, n:] = suppress_few_indicators(points[:, n:], groups, min_count=min_count)
    return cells, points


def _apply_metric(points: Floats, metric: Floats) -> Floats:
    """Multiply points with the matrix ``metric``, unless it is empty."""
    return points @ metric if len(metric) else points
