"""Party of FedPNN: one organization's table and its replies."""

import logging
import warnings
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, ClassVar

import numpy as np

from fedneighbors._typing import Array, Booleans, Floats, Integers
from fedneighbors.federation._messages import Message, message
from fedneighbors.federation._roles import Refused
from fedneighbors.kernels._exactsum import MAX_MAGNITUDE
from fedneighbors.kernels.clustering._kerneldensity import ACTIVATIONS
from fedneighbors.methods.fedpnn._model import (
    Exposure,
    FedPNNModel,
    ReleasedCenters,
    leave_one_out_losses,
    release_centers,
)
from fedneighbors.methods.fedpnn._scaling import (
    MAX_ROWS,
    SCALING_KINDS,
    PointMomentsRequest,
    ScalingReply,
    ScalingRequest,
    TableScaling,
    check_scaling,
    column_constants,
    constants_request,
    group_values,
    make_scaling,
)
from fedneighbors.methods.fedpnn._selection import SelectionReply, SelectionRequest, class_sums
from fedneighbors.methods.fedpnn._suppression import (
    mask_frequent_classes,
    share_clipped,
    share_means,
    suppress_few_cells,
    suppress_few_indicators,
    suppress_few_pairs,
)
from fedneighbors.methods.fedpnn.algorithm import SIGMAS, group_means
from fedneighbors.tabular._ownership import TableParty
from fedneighbors.tabular._schema import (
    PointMomentsReply,
    Receipt,
    SchemaReply,
    check_n_classes,
    class_moments,
)

log = logging.getLogger(__name__)


CENTER_LIMIT = 1e150
"""Upper bound on coordinates of centers, so that squared distances stay finite."""


MAX_STRETCH = 1e80
"""Upper bound on cells of a linear map: values below 2**200 then stay below ``CENTER_LIMIT``."""


@message
class FedPNNSchemaRequest:
    """Request for the schema; only labels with at least ``min_count`` rows are listed."""

    reply: ClassVar[type] = SchemaReply
    single_use: ClassVar[str] = "always"
    min_count: int


@message
class CentersReply:
    """Centers of a party, each of at least ``min_count`` rows.

    ``centers`` is float64 of shape (n_centers, n_dimensions), ``counts`` int64 of shape (n_centers,
    n_classes). ``suppressed`` marks the classes of fewer than ``min_count`` rows, about which
    nothing is sent. ``sigma_index`` is the index in ``SIGMAS`` of the smoothing parameter with the
    lowest loss on the party's rows, -1 if it sends centers of fewer than two classes. ``constants``
    are the party's own scaling constants, None if all parties use the same scaling.
    """

    centers: Floats
    counts: Integers
    suppressed: Booleans
    sigma_index: int
    constants: ScalingReply | None

    def __post_init__(self) -> None:
        if self.centers.ndim != 2 or not (np.abs(self.centers) < CENTER_LIMIT).all():
            raise ValueError(f"coordinates of centers must be below {CENTER_LIMIT:g}")
        if self.counts.ndim != 2 or len(self.counts) != len(self.centers):
            raise ValueError("centers and counts differ in number")
        if (self.counts < 0).any() or (self.counts >= MAX_ROWS).any():
            raise ValueError("counts of rows must be in [0, 2**40)")
        last = len(SIGMAS) - 1
        if not -1 <= self.sigma_index <= last:
            raise ValueError(f"expected sigma_index from -1 to {last}, got {self.sigma_index}")


@message
class CentersRequest:
    """Request for the centers of scaled and linearly mapped rows.

    The scaled rows are multiplied with the matrix ``linear_map`` from the right, unless it is
    empty. If ``scaling`` is None, each party scales by its own constants, with kind
    ``scaling_kind`` and at most ``n_knots`` knots per column, and sends these constants with its
    centers.

    ``threshold``, ``factor``, ``classwise`` and ``means`` are settings of the clustering, see
    :func:`~fedneighbors.methods.fedpnn._model.release_centers`. ``activation`` is the kernel of the
    network, with which the party chooses a smoothing parameter. ``constants`` are the signed
    constants from which ``scaling`` follows; empty if the parties do not sign.
    """

    reply: ClassVar[type] = CentersReply
    single_use: ClassVar[str] = "always"
    scaling: TableScaling | None
    scaling_kind: str
    n_knots: int
    linear_map: Floats
    classes: tuple[str | int | float | bool, ...]
    threshold: float | None
    factor: float
    classwise: bool
    min_count: int
    activation: str
    means: bool
    columns: Integers | None = None
    constants: Mapping[str, ScalingReply] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ScalingRequest(self.n_knots, self.min_count, self.columns)
        if self.linear_map.ndim != 2 or not (np.abs(self.linear_map) <= MAX_STRETCH).all():
            raise ValueError(f"the linear map is not a matrix of finite numbers to {MAX_STRETCH:g}")
        if len(self.linear_map) and not self.linear_map.size:
            raise ValueError("the linear map has no columns")
        n_coordinates = 0 if self.scaling is None else self.scaling.n_coordinates
        if len(self.linear_map) not in (0, n_coordinates):
            raise ValueError("the linear map is for points of another number of coordinates")
        check_n_classes(len(self.classes))
        if self.activation not in ACTIVATIONS or self.scaling_kind not in SCALING_KINDS:
            raise ValueError("unknown activation or kind of scaling")
        if not 1 / MAX_STRETCH <= self.factor <= MAX_STRETCH:
            raise ValueError(
                f"expected factor from {1 / MAX_STRETCH:g} to {MAX_STRETCH:g}, got {self.factor!r}"
            )
        if self.threshold is not None and not 0 < self.threshold < np.inf:
            raise ValueError(f"expected a threshold above 0, got {self.threshold!r}")
        if not self.means and self.min_count > 1:
            raise ValueError(f"centers that are not means need min_count=1, got {self.min_count}")

    @property
    def quoted(self) -> Mapping[str, ScalingReply] | None:
        """Return the replies on which the request depends, by party."""
        return None if self.scaling is None else self.constants

    @property
    def quoted_request(self) -> ScalingRequest:
        """Return the request to which these are replies."""
        return constants_request(self.constants, min_count=self.min_count, columns=self.columns)

    @property
    def implied(self) -> tuple[ScalingRequest, ...]:
        """Return the request for constants, whose groups the centers depend on."""
        return (ScalingRequest(self.n_knots, self.min_count, self.columns),)

    @property
    def excluded(self) -> tuple[type[Any], ...]:
        """Return the kinds of requests that this one excludes.

        Clusters of several classes are joined until they have few rows of no class, unless there
        are no sums of classes to compare them with.
        """
        has_sums = self.classwise or len(self.linear_map) or self.columns is not None
        return () if has_sums else (SelectionRequest, PointMomentsRequest)

    def check_quoted(self) -> None:
        """Raise ValueError if the request does not follow from the quoted replies."""
        if self.scaling is not None:
            check_scaling(self.scaling, self.constants, min_count=self.min_count)

    def check(self, party: str, reply: CentersReply) -> None:
        """Check the shapes, and that centers and constants describe enough rows."""
        shape = (len(self.classes),)
        if reply.counts.shape[1:] != shape or reply.suppressed.shape != shape:
            raise ValueError(f"expected counts of {len(self.classes)} classes")
        if len(self.linear_map) and reply.centers.shape[1] != self.linear_map.shape[1]:
            raise ValueError(f"expected centers of {self.linear_map.shape[1]} dimensions")
        if (reply.counts.sum(axis=1) < self.min_count).any():
            raise ValueError(f"a center has fewer than {self.min_count} rows")
        if (reply.constants is None) != (self.scaling is not None):
            raise ValueError("expected constants if and only if each party scales by its own")
        if reply.constants is not None:
            self.implied[0].check(party, reply.constants)


@message
class FedPNNModelRelease:
    """Message with the finished model."""

    reply: ClassVar[type] = Receipt
    model: FedPNNModel


class FedPNNParty(TableParty):
    """One organization's table, which replies to the coordinator's requests.

    Labels of classes with fewer than ``min_count`` rows are not sent, and rows of these classes do
    not affect the numbers that the party sends. However, all rows are checked: if any row has an
    invalid cell or label, the party refuses the request for the schema and names the column.

    Parameters
    ----------
    name, x, y
        Name and table, see :class:`~fedneighbors.tabular._ownership.TableParty`. Missing cells are
        NaN; all other cells must be below 2**200 in magnitude.
    min_count : int
        Minimum number of rows behind every number that the party sends. It refuses requests with a
        lower ``min_count``.
    **table
        Other arguments of :class:`~fedneighbors.tabular._ownership.TableParty`.

    Attributes
    ----------
    model : FedPNNModel or None
        The finished model, after training.
    exposure : Exposure or None
        Exposure of single rows by its centers; None until centers are computed.
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

    def __init__(self, name: str, x: Array, y: Array, *, min_count: int = 5, **table: Any) -> None:
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
    ) -> tuple[Floats, Array]:
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
        self, request: PointMomentsRequest | CentersRequest, scaling: TableScaling
    ) -> tuple[Floats, Floats, Integers]:
        """Return the rows of frequent classes, their points, and their class indices."""
        x, y = self._select_rows(request.min_count, request.columns, scaling.n_features)
        labels = self._positions(request.classes, y)
        return *_scale_rows(x, labels, scaling, min_count=request.min_count), labels

    def _compute_moments(self, request: PointMomentsRequest) -> PointMomentsReply:
        scaling = request.scaling
        x, points, labels = self._transform_rows(request, scaling)
        if request.min_count > 1:
            points = share_clipped(points, labels)
        moments = class_moments(points, labels, len(request.classes))
        if not np.isnan(x).any():
            return moments
        return suppress_few_pairs(
            moments,
            points,
            scaling.empty_point(),
            np.hstack([~np.isnan(x), points[:, scaling.n_features :] > 0]),
            n_columns=scaling.n_features,
            min_count=request.min_count,
        )

    def _compute_centers(self, request: CentersRequest) -> CentersReply:
        scaling, constants = request.scaling, None
        if scaling is None:
            constants = self._compute_constants(request)
            scaling = make_scaling(request.scaling_kind, [constants], min_count=request.min_count)
            scaling = scaling.without_indicators()
        x, scaled, labels = self._transform_rows(request, scaling)
        points = _map_points(scaled, request.linear_map)
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
        if request.means:
            described = _describe_clusters(request, x, scaled, labels, released.rows, scaling)
            if np.isnan(x).any() or (described != scaled).any():
                means = group_means(_map_points(described, request.linear_map), released.rows)
                released = replace(released, centers=means)
        n_rows, n_sent = len(self._y), int(released.counts.sum())
        self.exposure = replace(released.exposure, n_rows=n_rows, n_withheld=n_rows - n_sent)
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
            released.suppressed,
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
        disclosed = np.flatnonzero(~released.suppressed)
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


def _scale_rows(
    x: Floats, groups: Integers, scaling: TableScaling, *, min_count: int
) -> tuple[Floats, Floats]:
    """Suppress columns with few values in a group; return rows and points.

    A group is a class or a cluster. Cells are set to missing where a group has fewer than
    ``min_count`` values in a column. A missing-cell indicator is made constant in a group if fewer
    than ``min_count`` rows differ.
    """
    cells = suppress_few_cells(x, groups, min_count=min_count)
    points, n = scaling.apply(cells), scaling.n_features
    points[:, n:] = suppress_few_indicators(points[:, n:], groups, min_count=min_count)
    return cells, points


def _describe_clusters(
    request: CentersRequest,
    x: Floats,
    points: Floats,
    labels: Integers,
    clusters: Integers,
    scaling: TableScaling,
) -> Floats:
    """Return points whose means by cluster do not describe few cells."""
    _, released = _scale_rows(x, clusters, scaling, min_count=request.min_count)
    for j in range(x.shape[1]):
        released[:, j] = share_means(
            points[:, j],
            released[:, j],
            ~np.isnan(x[:, j]),
            clusters=clusters,
            classes=np.zeros_like(labels) if request.excluded else labels,
            groups=group_values(
                x[:, j], labels, n_knots=request.n_knots, min_count=request.min_count
            ),
            min_count=request.min_count,
        )
    return released


def _map_points(points: Floats, linear_map: Floats) -> Floats:
    """Multiply points with the linear map; an empty map leaves them unchanged."""
    return points @ linear_map if len(linear_map) else points
