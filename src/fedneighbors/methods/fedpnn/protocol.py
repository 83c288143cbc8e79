"""Coordinator of FedPNN (Algorithms 1 to 4 of the paper).

The first round compares the schemas of the tables, the last one distributes the model. In between,
one round of centers trains it. Up to three rounds precede the centers: sums, to select columns;
constants, so that all parties scale the columns alike; and moments, for a common metric that
separates the classes.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import DataError, ProtocolError
from fedneighbors.federation._loop import Coordinator, gather, total
from fedneighbors.federation._messages import Message
from fedneighbors.methods.fedpnn._model import FedPNNModel
from fedneighbors.methods.fedpnn._party import (
    CentersRequest,
    FedPNNModelRelease,
    FedPNNSchemaRequest,
)
from fedneighbors.methods.fedpnn._scaling import (
    MAX_COORDINATES,
    PointMomentsRequest,
    ScalingReply,
    ScalingRequest,
    TableScaling,
    make_scaling,
)
from fedneighbors.methods.fedpnn._selection import (
    Selection,
    SelectionRequest,
    select_columns,
    welch_statistics,
)
from fedneighbors.methods.fedpnn.algorithm import (
    SIGMAS,
    Clusters,
    describe_threshold,
    majority,
    merge_centers,
)
from fedneighbors.tabular._schema import (
    JointSchema,
    Label,
    PointMomentsReply,
    SchemaReply,
    agree,
    covariance_within,
)

_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "normalize": ("quantile", "minmax", None),
    "frame": ("global", "local"),
    "metric": ("supervised", None),
    "activation": ("gaussian", "logistic", "cauchy"),
}
_SPECIAL_VALUES: Mapping[str, Any] = {  # allowed in addition to positive numbers
    "client_threshold": None,
    "server_threshold": None,
    "sigma": "loo",
}


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf


@dataclass(frozen=True)
class FedPNNSettings:
    """Settings of the coordinator.

    Parameters
    ----------
    client_threshold : float or None
        Dthr of the parties; None lets each choose, see :func:`~.algorithm.choose_threshold`.
    server_threshold : float or None
        Dthr of the meta-clustering; None keeps every center.
    normalize : {"quantile", "minmax"} or None
        Scaling of the columns.
    frame : {"global", "local"}
        Agree on the scaling constants in a preceding round, or let each party use its own, see
        :class:`~._scaling.TableScaling`.
    classwise : bool
        Cluster each class separately.
    metric : {"supervised"} or None
        ``"supervised"`` maps scaled rows linearly so that Euclidean distance separates classes;
        the map is derived from moments that are summed in a preceding round.
    min_count : int
        Minimum number of rows behind every center and every constant.
    sigma : "loo" or float
        Smoothing. With ``"loo"``, each party chooses the smoothing with the lowest leave-one-out
        loss, and the median of the choices is used, see :func:`median_sigma`.
    activation : str
        Kernel of the network.
    factor : float
        A ball may grow to contain a row if distance plus radius is at most ``factor`` times Dthr.
    ridge, boost : float
        Parameters of the linear map, see :func:`derive_linear_map`.
    means : bool
        Parties send the means of their clusters' rows instead of the final centers of the
        clustering, which need ``min_count=1``.
    n_knots : int
        Maximum number of groups of neighboring values of a column; their means are sent.
    classes : tuple of labels
        Labels to include in addition to those that parties announce. A party announces the labels
        of which it has at least ``min_count`` rows.
    n_features_to_select : int or None
        Number of columns to keep, those with the largest t; None keeps all, without a round.
    """

    client_threshold: float | None = None
    server_threshold: float | None = None
    normalize: Literal["quantile", "minmax"] | None = "quantile"
    frame: Literal["global", "local"] = "global"
    classwise: bool = True
    metric: Literal["supervised"] | None = "supervised"
    min_count: int = 5
    sigma: float | Literal["loo"] = "loo"
    activation: str = "cauchy"
    factor: float = 2.0
    ridge: float = 0.1
    boost: float = 3.0
    n_knots: int = 100
    means: bool = True
    classes: tuple[Label, ...] = ()
    n_features_to_select: int | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"expected {name} among {choices}, got {getattr(self, name)!r}")
        for name, special in _SPECIAL_VALUES.items():
            value = getattr(self, name)
            if value != special and not _is_positive(value):
                raise ValueError(f"expected {name} above 0 or {special!r}, got {value!r}")
        for name in ("factor", "ridge", "boost"):
            if not _is_positive(getattr(self, name)):
                raise ValueError(f"expected {name} above 0, got {getattr(self, name)!r}")
        for name in ("client_threshold", "server_threshold"):
            value = getattr(self, name)
            if value is not None and not self.factor * value < math.inf:
                raise ValueError(f"expected factor * {name} to be finite, got {value!r}; lower it")
        for name in ("min_count", "n_knots", "n_features_to_select"):
            value = getattr(self, name)
            if name == "n_features_to_select" and value is None:
                continue
            if not isinstance(value, Integral) or not _is_positive(value):
                raise ValueError(f"expected {name} as an integer of 1 or more, got {value!r}")
        if not self.means and self.min_count > 1:
            raise ValueError(
                "means=False sends centers that may depend on two rows: use min_count=1, or "
                "means=True"
            )
        if self.metric is not None and (self.frame == "local" or self.normalize is None):
            raise ValueError(
                "a supervised metric needs common scaling: use frame='global' and a normalize "
                "other than None, or metric=None"
            )

    @property
    def scaling_kind(self) -> str:
        """Return the kind of the scaling, as written to model files."""
        return self.normalize or "none"


DEFAULT_SIGMA = 0.5
"""Smoothing if no party has rows of two classes, so that none can choose one."""


def median_sigma(choices: Sequence[int], weights: Sequence[int]) -> float:
    """Return the weighted median of the parties' smoothings.

    Parameters
    ----------
    choices : sequence of int
        Position of each party's smoothing in ``SIGMAS``, -1 for none.
    weights : sequence of int
        Number of rows of each party.
    """
    votes = sorted((c, w) for c, w in zip(choices, weights, strict=True) if c >= 0)
    if not votes:
        return DEFAULT_SIGMA
    cumulative = np.cumsum([weight for _, weight in votes])
    return float(SIGMAS[votes[int(np.searchsorted(cumulative, cumulative[-1] / 2))][0]])


def coordinate(settings: FedPNNSettings) -> Coordinator[FedPNNModel]:
    """Train one model over all parties, independent of their order.

    Yields
    ------
    Ask
        Requests for the schema; the sums, if columns are to be selected; the constants, if the
        scaling is global; the moments, if the metric is supervised; the centers. Then the model.

    Returns
    -------
    FedPNNModel
        The model, which every party receives too.

    Raises
    ------
    SchemaMismatch
        If the tables of the parties differ in their columns or labels.
    PartyMissing
        If a party does not answer; no model is trained.
    DataError
        If no party has enough rows of any class, there are fewer than two classes in all, fewer
        columns than ``n_features_to_select``, or too many coordinates for a supervised metric.
    ProtocolError
        If a reply contradicts the schema or the request.
    """
    replies = yield gather(FedPNNSchemaRequest(settings.min_count))
    schema = _agree_on_schema(replies.complete("the schema").each, settings)
    selection = None
    if settings.n_features_to_select is not None:
        selection = yield from _select(settings.n_features_to_select, settings, schema)
    plan = _Plan(settings, schema, selection)
    if settings.frame == "global" and settings.metric == "supervised":
        _check_coordinates(plan.n_features)  # before parties sort thousands of columns
    scaling, linear_map = None, np.zeros((0, 0))
    signed: Mapping[str, ScalingReply] = {}
    if settings.frame == "global":
        replies = yield gather(plan.constants_request())
        by_party = replies.complete("the constants").each
        scaling = plan.build_scaling(by_party)
        signed = _signed_constants(by_party)
    if scaling is not None and settings.metric == "supervised":
        replies = yield total(plan.moments_request(scaling, signed))
        linear_map = plan.build_linear_map(replies.summed("the moments"), scaling)
    replies = yield gather(plan.centers_request(scaling, linear_map, signed))
    by_party = replies.complete("the centers").each
    if scaling is None:
        constants = {name: reply.constants for name, reply in by_party.items()}
        scaling = plan.build_scaling(constants).without_indicators()
    model = plan.build_model(by_party, scaling, linear_map)
    replies = yield gather(FedPNNModelRelease(model))
    replies.complete("the model")
    return model


def _signed_constants(by_party: Mapping[str, Any]) -> Mapping[str, ScalingReply]:
    """Return the constants if all parties sign them, nothing if none does."""
    unsigned = [name for name, part in by_party.items() if not part.signature]
    if not unsigned:
        return by_party
    if len(unsigned) < len(by_party):
        raise ProtocolError(
            f"some parties sign their constants, but {', '.join(map(repr, unsigned))} did not; "
            "set identity-key, roster and mask-state at all nodes, or at none"
        )
    return {}


def _agree_on_schema(schemas: Mapping[str, SchemaReply], settings: FedPNNSettings) -> JointSchema:
    """Return the common schema, checked for at least two classes."""
    labels = set(settings.classes).union(*(schema.labels for schema in schemas.values()))
    if not any(schema.labels for schema in schemas.values()):
        raise _no_rows_error()
    if len(labels) < 2:
        raise DataError(
            f"expected at least two classes of min_count={settings.min_count} rows at a party, "
            f"got one class {min(labels)!r}; add rows of another class, or lower min_count"
        )
    return agree(schemas, settings.classes)


def _select(n: int, settings: FedPNNSettings, schema: JointSchema) -> Coordinator[Selection | None]:
    """Select the n columns with the largest Welch t.

    Returns None, without a round, if the table has n columns.
    """
    if n > schema.n_features:
        raise DataError(
            f"expected n_features_to_select of at most {schema.n_features}, the number of columns "
            f"(a category is a column), got {n}; choose fewer, or omit it to keep all"
        )
    if n == schema.n_features:
        return None
    request = SelectionRequest(schema.classes, schema.n_features, settings.min_count)
    replies = yield total(request)
    sums = replies.summed("the sums of classes")
    try:
        request.check("all", sums)  # nothing else validates a masked sum
    except ValueError as error:
        raise ProtocolError(f"the sums of classes: {error}") from None
    return select_columns(welch_statistics(sums), n)


def _no_rows_error() -> DataError:
    return DataError(
        "no party has min_count rows of any class, so that parties cannot send anything; lower "
        "min_count, or add parties with more rows"
    )


def _check_coordinates(n: int) -> None:
    """Raise DataError for too many coordinates for a supervised metric."""
    if n > MAX_COORDINATES:
        raise DataError(
            f"a supervised metric of {n} coordinates would take {8e-6 * n * n:.0f} MB from "
            f"each party; the limit is {MAX_COORDINATES} coordinates. Keep fewer columns with "
            "n_features_to_select, or use metric=None"
        )


@dataclass(frozen=True)
class _Plan:
    """Creates the requests to the parties and aggregates their replies."""

    settings: FedPNNSettings
    schema: JointSchema
    selection: Selection | None

    @property
    def columns(self) -> Integers | None:
        """Return the positions of the selected columns; None for all."""
        return None if self.selection is None else self.selection.columns

    @property
    def n_features(self) -> int:
        """Return the number of columns in use."""
        return self.schema.n_features if self.columns is None else len(self.columns)

    def constants_request(self) -> ScalingRequest:
        return ScalingRequest(self.settings.n_knots, self.settings.min_count, self.columns)

    def build_scaling(self, by_party: Mapping[str, Any]) -> TableScaling:
        """Build the scaling from the constants of all parties."""
        for name, part in by_party.items():
            if len(part.knots) != self.n_features:
                raise ProtocolError(f"party {name!r}: constants of the wrong number of columns")
        parts = list(by_party.values())
        return make_scaling(self.settings.scaling_kind, parts, min_count=self.settings.min_count)

    def moments_request(
        self, scaling: TableScaling, signed: Mapping[str, ScalingReply]
    ) -> PointMomentsRequest:
        _check_coordinates(scaling.n_coordinates)  # with indicators of missing cells
        min_count = self.settings.min_count
        return PointMomentsRequest(scaling, self.schema.classes, min_count, self.columns, signed)

    def build_linear_map(self, reply: Message, scaling: TableScaling) -> Floats:
        _check_moments(reply, scaling, self.schema)
        return derive_linear_map(reply, ridge=self.settings.ridge, boost=self.settings.boost)

    def centers_request(
        self, scaling: TableScaling | None, linear_map: Floats, signed: Mapping[str, ScalingReply]
    ) -> CentersRequest:
        settings = self.settings
        return CentersRequest(
            scaling=scaling,
            scaling_kind=settings.scaling_kind,
            n_knots=settings.n_knots,
            linear_map=linear_map,
            classes=self.schema.classes,
            threshold=settings.client_threshold,
            factor=settings.factor,
            classwise=settings.classwise,
            min_count=settings.min_count,
            activation=settings.activation,
            means=settings.means,
            columns=self.columns,
            constants=signed,
        )

    def build_model(
        self, by_party: Mapping[str, Any], scaling: TableScaling, linear_map: Floats
    ) -> FedPNNModel:
        """Build the model from the centers of all parties."""
        for name in by_party:
            if by_party[name].centers.shape[1] != (len(linear_map) or scaling.n_coordinates):
                raise ProtocolError(f"party {name!r}: centers of the wrong number of dimensions")
        merged = self._merge_centers(by_party)
        sigma = self.settings.sigma
        if sigma == "loo":
            names = sorted(by_party)
            weights = [int(by_party[name].counts.sum()) for name in names]
            sigma = median_sigma([by_party[name].sigma_index for name in names], weights)
        return FedPNNModel(
            scaling=scaling,
            linear_map=linear_map if len(linear_map) else np.eye(merged.centers.shape[1]),
            classes=self.schema.classes,
            centers=merged.centers,
            counts=merged.counts,
            sigma=float(sigma),
            activation=self.settings.activation,
            feature_names=self.schema.feature_names,
            selection=self.selection,
        )

    def _merge_centers(self, by_party: Mapping[str, Any]) -> Clusters:
        """Cluster the centers of all parties; warn about an unsuitable threshold."""
        centers = np.concatenate([by_party[name].centers for name in by_party])
        counts = np.concatenate([by_party[name].counts for name in by_party])
        if len(centers) == 0:
            raise _no_rows_error()
        threshold, classwise = self.settings.server_threshold, self.settings.classwise
        merged = merge_centers(
            centers,
            counts,
            threshold=threshold,
            factor=self.settings.factor,
            classwise=classwise,
        )
        if threshold is not None:
            before, after = (
                majority(freq) if classwise else np.zeros(len(freq), np.int64)
                for freq in (counts, merged.counts)
            )
            advice = describe_threshold(
                [(centers[before == group], sum(after == group)) for group in np.unique(before)],
                threshold=threshold,
                factor=self.settings.factor,
            )
            if advice:
                warnings.warn(
                    f"server_threshold{advice}; None keeps every center", UserWarning, stacklevel=2
                )
        return merged


def derive_linear_map(moments: PointMomentsReply, *, ridge: float, boost: float) -> Floats:
    """Return a linear map after which Euclidean distance separates classes.

    Coordinates are whitened by the covariance within classes; the directions between the means of
    the classes are then stretched.

    Parameters
    ----------
    moments : PointMomentsReply
        Moments summed over all parties.
    ridge : float
        Added to every variance within classes, relative to the mean of these variances.
    boost : float
        Factor by which directions between class means are stretched; 1 for no stretching.

    Returns
    -------
    float64 array of shape (n_coordinates, n_coordinates)
        Matrix to multiply points with from the right.
    """
    means, within = covariance_within(moments)
    spread, directions = np.linalg.eigh(within)
    unit = float(np.trace(within)) / len(within) or 1.0  # 1 if nothing varies within classes
    whiten = directions / np.sqrt(np.maximum(spread, 0.0) + ridge * unit)
    centered = (means - means.mean(axis=0)) @ whiten
    _, singular, axes = np.linalg.svd(centered, full_matrices=False)
    stretched = axes[singular > 1e-9 * max(float(singular.max(initial=0.0)), 1.0)]
    result: Floats = whiten + (boost - 1.0) * (whiten @ stretched.T) @ stretched
    return result


def _check_moments(reply: Message, scaling: TableScaling, schema: JointSchema) -> None:
    n, n_classes = scaling.n_coordinates, len(schema.classes)
    shapes = (reply.counts.shape, reply.sums.shape, reply.products.shape)
    if shapes != ((n_classes,), (n_classes, n), (n, n)):
        raise ProtocolError(
            f"moments have shapes {shapes}, which do not fit the schema and the scaling; a party "
            "sent wrong moments"
        )
    if (reply.counts < 0).any() or (np.diag(reply.products) < 0).any():
        raise ProtocolError(
            "moments contain negative counts or sums of squares; a party sent wrong moments"
        )
    if reply.counts.sum() < 1:
        raise _no_rows_error()
