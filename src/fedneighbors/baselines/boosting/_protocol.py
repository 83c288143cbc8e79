"""Coordinator of federated histogram boosting.

Parties first agree on columns and labels, send sums of the target, and agree on bins. Then each
iteration sums histograms of gradients over the parties and grows one tree, or one for each of three
or more classes. Everything after the schema is a sum of integers, so that the model equals that of
the pooled rows bit for bit, and sums may be masked.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.baselines.boosting._bins import MAX_EDGES, Holdout, agree_bins, sum_replies
from fedneighbors.baselines.boosting._growth import GrowthLimits, grow_trees, request_histograms
from fedneighbors.baselines.boosting._model import BoostingModel, Trees
from fedneighbors.baselines.boosting._party import (
    BoostingPlan,
    BoostingRelease,
    BoostingSchemaRequest,
    TargetReply,
    TargetRequest,
)
from fedneighbors.errors import DataError, ProtocolError
from fedneighbors.federation._loop import Coordinator, gather
from fedneighbors.tabular._schema import (
    JointSchema,
    Label,
    MomentsReply,
    agree,
    agree_columns,
    mean_and_deviation,
)

_MAX_RATIO = 100.0  # larger steps of a rare class overshoot, and training diverges
_MIN_HESSIAN = 1e-3  # that of scikit-learn, keeps leaves of certain rows from dividing by almost 0
_SUM_BITS = 61  # sums of steps stay below 2**61, those of differences below 2**62
_MAX_STEP_BITS = 40  # a step of 2**-40 is far below the noise of a gradient
_EARLY_STOPPING_ROWS = 10_000  # as scikit-learn: with more, "auto" stops early


@dataclass(frozen=True)
class BoostingSettings:
    """Settings of the coordinator, as those of scikit-learn's histogram gradient boosting.

    Parameters
    ----------
    task : {"classification", "regression"}
        Log loss of classes, or squared error of numbers.
    learning_rate : float
        Factor of the values of leaves.
    max_iter : int
        Maximum number of iterations.
    max_leaf_nodes : int
        Maximum number of leaves of a tree.
    max_depth : int or None
        Maximum number of edges from the root to a leaf; None for no limit.
    min_samples_leaf : int
        Minimum number of rows of a leaf.
    l2_regularization : float
        Added to each sum of Hessians.
    max_bins : int
        Maximum number of bins of a column, besides that of missing cells.
    class_weight : {"balanced"}, mapping of labels as text to float, or None
        Weights of the rows of each class; "balanced" gives all classes the same total weight.
    early_stopping : bool or "auto"
        Stop when the loss on held-out rows does not fall; "auto" does with more than 10,000 rows.
    validation_fraction : float
        Fraction of rows that are held out for it.
    n_iter_no_change : int
        Number of iterations without a lower loss after which training stops.
    tol : float
        Minimum decrease of the loss.
    seed : int
        Public seed that selects the held-out rows.
    """

    task: Literal["classification", "regression"] = "classification"
    learning_rate: float = 0.1
    max_iter: int = 100
    max_leaf_nodes: int = 31
    max_depth: int | None = None
    min_samples_leaf: int = 20
    l2_regularization: float = 0.0
    max_bins: int = 255
    class_weight: Literal["balanced"] | Mapping[str, float] | None = None
    early_stopping: bool | Literal["auto"] = "auto"
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    tol: float = 1e-7
    seed: int = 0

    def __post_init__(self) -> None:
        if self.task not in ("classification", "regression"):
            raise ValueError(f"expected task classification or regression, got {self.task!r}")
        _check_integer("max_iter", self.max_iter, 1)
        _check_integer("max_leaf_nodes", self.max_leaf_nodes, 2)
        _check_integer("min_samples_leaf", self.min_samples_leaf, 1)
        _check_integer("max_bins", self.max_bins, 2, MAX_EDGES + 1)
        _check_integer("n_iter_no_change", self.n_iter_no_change, 1)
        _check_integer("seed", self.seed, 0, 2**63 - 1)
        if self.max_depth is not None:
            _check_integer("max_depth", self.max_depth, 1)
        for name in ("learning_rate", "l2_regularization", "tol", "validation_fraction"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, Real)
                or not 0 <= float(value) < math.inf
            ):
                raise ValueError(f"expected {name} as a number of 0 or more, got {value!r}")
        if not self.learning_rate > 0:
            raise ValueError("expected learning_rate above 0, got 0")
        if not 0 < self.validation_fraction < 1:
            raise ValueError(
                f"expected validation_fraction in (0, 1), got {self.validation_fraction!r}"
            )
        if self.early_stopping not in (True, False, "auto"):
            raise ValueError(
                f"expected early_stopping True, False or 'auto', got {self.early_stopping!r}"
            )
        weight = self.class_weight
        if weight is None or weight == "balanced":
            return
        if not isinstance(weight, Mapping):
            raise ValueError(f"expected class_weight 'balanced', a mapping or None, got {weight!r}")
        if not all(isinstance(w, Real) and 0 < float(w) < math.inf for w in weight.values()):
            raise ValueError(f"expected class_weight of numbers above 0, got {dict(weight)!r}")


def _check_integer(name: str, value: Any, low: int, high: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        limits = f"{low} or more" if high == math.inf else f"{low} to {high}"
        raise ValueError(f"expected {name} as an integer of {limits}, got {value!r}")


def coordinate(settings: BoostingSettings) -> Coordinator[BoostingModel]:
    """Train one model, equal to that of the pooled rows.

    Yields
    ------
    Ask
        Requests for the schema; sums of the target; counts of values below cuts; sums of histograms
        of gradients, ten to twenty exchanges an iteration. Then the model.

    Raises
    ------
    SchemaMismatch
        If the tables of the parties differ in their columns or labels.
    PartyMissing
        If a party does not answer; no model is trained.
    DataError
        If there are no rows or columns, or fewer than two classes.
    ProtocolError
        If a reply contradicts the request.
    """
    schema = yield from _agree_on_schema(settings)
    holdout = Holdout(settings.validation_fraction, settings.seed)
    request = TargetRequest(schema.classes, holdout)
    target = yield from sum_replies(request, "the sums of the target")
    n_rows = int(target.counts.sum())
    stops_early = settings.early_stopping
    if stops_early == "auto":
        stops_early = n_rows > _EARLY_STOPPING_ROWS
    if not stops_early:
        holdout = Holdout(0.0, settings.seed)
        target = TargetReply(*(_move_to_training(part) for part in vars(target).values()))
    if not target.counts[0].any() or not schema.n_features:
        raise DataError("expected a row and a column to train on, found none; add some")
    edges = yield from agree_bins(schema.n_features, max_bins=settings.max_bins, holdout=holdout)
    plan = _make_plan(settings, schema.classes, target, edges, holdout)
    trees = yield from _train(settings, plan, *map(int, target.counts.sum(axis=1)))
    model = BoostingModel(
        schema.classes, schema.n_features, plan.intercept, trees, schema.feature_names
    )
    replies = yield gather(BoostingRelease(model))
    replies.complete("the model")
    return model


def _move_to_training(part: Any) -> Any:
    """Return sums of which all rows are for training."""
    return np.stack([part.sum(axis=0), np.zeros_like(part[0])])


def _agree_on_schema(settings: BoostingSettings) -> Coordinator[JointSchema]:
    with_labels = settings.task == "classification"
    replies = yield gather(BoostingSchemaRequest(with_labels))
    schemas = replies.complete("the schema").each
    return agree(schemas) if with_labels else agree_columns(schemas)


def _make_plan(
    settings: BoostingSettings,
    classes: tuple[Label, ...],
    target: TargetReply,
    edges: list[Floats],
    holdout: Holdout,
) -> BoostingPlan:
    """Return the constants of the training, derived from sums."""
    n_rows = int(target.counts[0].sum())
    if classes:
        weights = _class_weights(settings.class_weight, classes, target.counts[0])
        intercept = _class_intercept(weights * target.counts[0])
        total_weight = float(weights @ target.counts.sum(axis=0))
        unit = 2.0 ** math.frexp(total_weight / target.counts.sum())[1]
        n_bits = _SUM_BITS - math.frexp(total_weight / unit)[1]
        n_loss_bits = n_bits - 10  # a loss is at most 2**10
    else:
        weights = np.zeros(0)
        moments = MomentsReply(n_rows, target.sums[:1], target.squares[:1])
        intercept, deviation = mean_and_deviation(moments)
        unit = 2.0 ** math.frexp(deviation[0])[1] if deviation[0] else 1.0
        # a number is at most sqrt(n_rows) deviations from the mean; two bits are to spare
        n_bits = math.floor(_SUM_BITS - 1.5 * math.log2(n_rows)) - 2
        n_loss_bits = _SUM_BITS - int(target.counts.sum()).bit_length()
    return BoostingPlan(
        classes=classes,
        weights=weights,
        intercept=intercept,
        factor=2.0 ** min(n_bits, _MAX_STEP_BITS) / unit,
        limit=2.0**_SUM_BITS / n_rows,
        loss_factor=2.0**n_loss_bits / (unit if classes else 1.0),
        edges=np.concatenate([np.zeros(0), *edges]),
        starts=np.cumsum([0, *(len(part) for part in edges)]),
        holdout=holdout,
    )


def _class_weights(setting: Any, classes: tuple[Label, ...], counts: Any) -> Floats:
    if setting is None:
        return np.ones(len(classes))
    if setting == "balanced":
        return np.asarray(counts.sum() / (len(classes) * np.maximum(counts, 1)))
    unknown = set(setting) - {str(label) for label in classes}
    if unknown:
        raise ValueError(f"class_weight has {min(unknown)!r}, which no row has as its label")
    return np.array([float(setting.get(str(label), 1.0)) for label in classes])


def _class_intercept(totals: Floats) -> Floats:
    """Return log-odds, or the log of each class share."""
    shares = np.maximum(totals / totals.sum(), 1e-12)  # held-out rows may be all of a class
    if len(shares) == 2:
        return np.asarray(np.log(shares[1:] / shares[0]))
    return np.asarray(np.log(shares))


def _train(
    settings: BoostingSettings, plan: BoostingPlan, n_rows: int, n_held_out: int
) -> Coordinator[Trees]:
    """Build all trees, or as many as lower the held-out loss."""
    is_class = bool(plan.classes)
    limits = GrowthLimits(
        max_leaves=settings.max_leaf_nodes,
        max_depth=settings.max_depth or settings.max_leaf_nodes,
        min_rows=settings.min_samples_leaf,
        min_hessian=max(1, math.ceil(_MIN_HESSIAN * plan.factor)) if is_class else 1,
        l2=settings.l2_regularization * (plan.factor if is_class else 1.0),
        step_size=settings.learning_rate / (1.0 if is_class else plan.factor),
        max_ratio=_MAX_RATIO if is_class else math.inf,
    )
    trees, losses = Trees.empty(), list[float]()
    loss_unit = 1 / plan.loss_factor
    if not is_class:
        loss_unit *= (plan.limit / plan.factor) ** 2
    roots = [(tree, 0) for tree in range(plan.n_scores)]
    for _ in range(settings.max_iter):
        reply = yield from request_histograms(plan, trees, (), roots)
        if (reply.histograms[:, : plan.bin_starts[1], 2].sum(axis=1) != n_rows).any():
            raise ProtocolError("the numbers of rows in histogram and target differ")
        if n_held_out:
            losses.append(reply.loss * loss_unit / n_held_out)
            if _has_stalled(losses, settings.n_iter_no_change, settings.tol):
                break
        grown = yield from grow_trees(plan, trees, reply.histograms, limits)
        trees = Trees.join([trees, *grown])
    return trees


def _has_stalled(losses: list[float], patience: int, tol: float) -> bool:
    """Return whether no recent loss is below the one before them."""
    if len(losses) <= patience:
        return False
    return min(losses[-patience:]) >= losses[-patience - 1] - tol
