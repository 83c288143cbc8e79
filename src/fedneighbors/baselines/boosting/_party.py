"""Party of federated boosting: its requests and replies.

A request for histograms contains everything on which the reply depends, so that a party may be
built again for each message. A party that lives on keeps scores and rows of nodes.
"""

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from fedneighbors._limits import MAX_CELLS, MAX_STEPS
from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.baselines.boosting._bins import (
    MAX_EDGES,
    Holdout,
    RankReply,
    RankRequest,
    bin_rows,
    keys_of,
)
from fedneighbors.baselines.boosting._model import BoostingModel, Trees, count_scores
from fedneighbors.federation._messages import Message, message
from fedneighbors.federation._roles import Refused
from fedneighbors.kernels._exactsum import MAX_MAGNITUDE, exact_moments
from fedneighbors.kernels.boosting._histograms import split_rows, sum_bins
from fedneighbors.kernels.boosting._losses import class_gradients, class_losses
from fedneighbors.kernels.boosting._trees import add_values
from fedneighbors.tabular._ownership import TableParty
from fedneighbors.tabular._schema import Label, Receipt, SchemaReply, check_n_classes


@message
class BoostingSchemaRequest:
    """Request for the schema; with labels unless they are numbers to predict."""

    reply: ClassVar[type] = SchemaReply
    with_labels: bool


@message
class TargetReply:
    """Sums of the target over rows of training (first) and held-out rows (second).

    Parameters
    ----------
    counts : int64 array of shape (2, n_classes)
        Rows of each class; for regression of shape (2, 1), all rows.
    sums, squares : int64 arrays of shape (2, 13) and (2, 26)
        Exact sums of the numbers to predict and of their squares, see
        :mod:`fedneighbors.kernels._exactsum`; zeros for classes.
    """

    counts: Integers
    sums: Integers
    squares: Integers


@message
class TargetRequest:
    """Request for the sums of the target; ``classes`` is empty for regression."""

    reply: ClassVar[type] = TargetReply
    classes: tuple[Label, ...]
    holdout: Holdout

    def __post_init__(self) -> None:
        check_n_classes(len(self.classes))

    def check(self, party: str, reply: TargetReply) -> None:  # noqa: ARG002 - runtimes name it
        """Check the shapes."""
        if reply.counts.shape != (2, len(self.classes) or 1) or (reply.counts < 0).any():
            raise ValueError("expected counts of rows of each class")
        if reply.sums.shape != (2, 13) or reply.squares.shape != (2, 26):
            raise ValueError("expected exact sums of the target")


@dataclass(frozen=True, eq=False)
class BoostingPlan:
    """Constants of a training, the same for all parties.

    Parameters
    ----------
    classes : tuple of labels
        Labels, ascending; empty for regression.
    weights : float64 array of shape (n_classes,)
        Weights of the rows of each class; empty for regression.
    intercept : float64 array of shape (n_scores,)
        Scores before the first tree.
    factor : float
        Steps per unit of a gradient, a power of two: gradients are rounded to integers, so that
        their sums do not depend on order or on the split into parties.
    limit : float
        Maximum magnitude of a gradient in steps; keeps sums within 64 bits.
    loss_factor : float
        Steps per unit of a held-out loss, a power of two.
    edges : float64 array of shape (n_edges,)
        Thresholds between bins, column after column, ascending within each.
    starts : int64 array of shape (n_features + 1,)
        First threshold of each column, and the number of all.
    holdout : Holdout
        Rows held out of training.
    """

    classes: tuple[Label, ...]
    weights: Floats
    intercept: Floats
    factor: float
    limit: float
    loss_factor: float
    edges: Floats
    starts: Integers
    holdout: Holdout

    def __post_init__(self) -> None:
        check_n_classes(len(self.classes))
        if self.weights.shape != (len(self.classes),) or not (self.weights >= 0).all():
            raise ValueError("expected a weight for each class")
        if self.intercept.shape != (self.n_scores,) or not np.isfinite(self.intercept).all():
            raise ValueError("expected a finite intercept for each score")
        for number in (self.factor, self.limit, self.loss_factor):
            if not number > 0:
                raise ValueError("factors and limit of gradients must be above 0")
        if self.starts.ndim != 1 or not len(self.starts) or self.edges.ndim != 1:
            raise ValueError("expected the first threshold of each column")
        n_edges = np.diff(self.starts)
        if self.starts[0] != 0 or self.starts[-1] != len(self.edges):
            raise ValueError("thresholds of columns must follow one another")
        if (n_edges < 0).any() or (n_edges > MAX_EDGES).any():
            raise ValueError(f"expected at most {MAX_EDGES} thresholds of a column")
        is_first = np.zeros(len(self.edges) + 1, bool)
        is_first[self.starts] = True
        if np.isnan(self.edges).any() or ((np.diff(self.edges) <= 0) & ~is_first[1:-1]).any():
            raise ValueError("thresholds of a column must ascend")

    @property
    def n_scores(self) -> int:
        """Return the number of scores, and of trees in an iteration."""
        return count_scores(self.classes)

    @property
    def n_features(self) -> int:
        """Return the number of columns."""
        return len(self.starts) - 1

    @cached_property
    def bin_starts(self) -> Integers:
        """Return each column's first bin, and the number of all bins.

        A column has one bin more than thresholds, and one for its missing cells.
        """
        return self.starts + 2 * np.arange(len(self.starts))

    def threshold(self, feature: int, cut: int) -> float:
        """Return the threshold after a bin, infinity after the last one."""
        position = int(self.starts[feature]) + cut
        return float(self.edges[position]) if position < self.starts[feature + 1] else math.inf


@message
class HistogramReply:
    """Sums of gradients, to be added up over parties.

    Parameters
    ----------
    histograms : int64 array of shape (n_nodes, n_bins, 3)
        Sum of gradients, sum of Hessians and number of rows of each bin of each requested node, in
        steps. For regression each Hessian is 1.
    loss : int
        Loss of the finished trees on held-out rows, in steps.
    """

    histograms: Integers
    loss: int


@message
class HistogramRequest:
    """Request for histograms of nodes of the trees that grow in an iteration.

    Parameters
    ----------
    plan : BoostingPlan
        Constants of the training.
    trees : Trees
        Finished trees.
    splits : int64 array of shape (n_splits, 5)
        Splits so far: tree of the iteration, node, column, last bin of the left child, and 1 if
        missing cells go left. Split k of a tree creates its nodes 2 k + 1 and 2 k + 2.
    nodes : int64 array of shape (n_nodes, 2)
        Tree and node of each requested histogram.
    """

    reply: ClassVar[type] = HistogramReply
    plan: BoostingPlan
    trees: Trees
    splits: Integers
    nodes: Integers

    def __post_init__(self) -> None:
        if self.splits.ndim != 2 or self.splits.shape[1] != 5 or (self.splits < 0).any():
            raise ValueError("expected five non-negative numbers for each split")
        if self.nodes.ndim != 2 or self.nodes.shape[1] != 2 or (self.nodes < 0).any():
            raise ValueError("expected tree and node of each histogram")
        if math.prod(self.reply_shape) > MAX_CELLS:
            raise ValueError(f"expected histograms of at most {MAX_CELLS} numbers")
        if self.trees.n_features > self.plan.n_features or len(self.trees.roots) % (
            self.plan.n_scores
        ):
            raise ValueError("the trees do not fit the plan")
        self._check_nodes()

    def _check_nodes(self) -> None:
        """Check that splits and requested nodes exist when they are used."""
        plan = self.plan
        n_edges = (plan.starts[1:] - plan.starts[:-1]).tolist()
        n_nodes, is_split = [1] * plan.n_scores, set[tuple[int, int]]()
        for tree, node, feature, cut, _ in self.splits.tolist():
            if tree >= plan.n_scores or node >= n_nodes[tree] or (tree, node) in is_split:
                raise ValueError("a split of an unknown or divided node")
            if feature >= len(n_edges) or cut > n_edges[feature]:
                raise ValueError("a split at an unknown column or bin")
            is_split.add((tree, node))
            n_nodes[tree] += 2
        for tree, node in self.nodes.tolist():
            if tree >= plan.n_scores or node >= n_nodes[tree]:
                raise ValueError("a histogram of an unknown tree or node")

    @property
    def reply_shape(self) -> tuple[int, int, int]:
        """Return the shape of the histograms."""
        return len(self.nodes), int(self.plan.bin_starts[-1]), 3

    def check(self, party: str, reply: HistogramReply) -> None:  # noqa: ARG002 - runtimes name it
        """Check the shape."""
        if reply.histograms.shape != self.reply_shape:
            raise ValueError("expected a histogram of each node")


@message
class BoostingRelease:
    """Message with the finished model."""

    reply: ClassVar[type] = Receipt
    model: BoostingModel


class BoostingParty(TableParty):
    """One organization's table, which replies to the coordinator's requests.

    Takes the arguments of :class:`~fedneighbors.tabular._ownership.TableParty`. Missing cells are
    NaN; for regression, the labels are numbers below 2**200 in magnitude.
    """

    allows_missing = True
    accepts: tuple[type[Any], ...] = (
        BoostingSchemaRequest,
        TargetRequest,
        RankRequest,
        HistogramRequest,
        BoostingRelease,
    )
    model: BoostingModel | None
    _sorted: tuple[Holdout, Integers] | None = None
    _training: "_TrainingState | None" = None

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts``."""
        match request:
            case BoostingSchemaRequest():
                return self._describe(self._y if request.with_labels else self._y[:0])
            case TargetRequest():
                return self._sum_target(request)
            case RankRequest():
                return self._rank(request)
            case HistogramRequest():
                return self._sum_gradients(request)
            case BoostingRelease():
                self._keep(request.model)
                return Receipt()
        raise Refused("unknown request")

    def _target(self, classes: tuple[Label, ...]) -> Integers | Floats:
        """Return each row's class as a position, or its number."""
        if classes:
            return self._positions(classes)
        try:
            numbers = self._y.astype(np.float64)
        except (TypeError, ValueError):
            raise Refused("a label is not a number", self._label_name) from None
        if not (np.abs(numbers) < MAX_MAGNITUDE).all():
            raise Refused("a label is missing, or 2**200 or more in magnitude", self._label_name)
        return numbers

    def _sum_target(self, request: TargetRequest) -> TargetReply:
        target, x = self._target(request.classes), np.asarray(self._x, np.float64)
        is_held_out = request.holdout.select(x)
        counts = np.zeros((2, max(1, len(request.classes))), np.int64)
        sums, squares = np.zeros((2, 13), np.int64), np.zeros((2, 26), np.int64)
        for k, part in enumerate([target[~is_held_out], target[is_held_out]]):
            if request.classes:
                counts[k] = np.bincount(part, minlength=len(request.classes))
            else:
                counts[k] = len(part)
                sums[k : k + 1], squares[k : k + 1] = exact_moments(
                    np.asarray(part[:, None], np.float64)
                )
        return TargetReply(counts, sums, squares)

    def _rank(self, request: RankRequest) -> RankReply:
        n_features = self._x.shape[1]
        if (request.columns >= n_features).any():
            raise Refused("a requested column is not in the table")
        if self._sorted is None or self._sorted[0] != request.holdout:
            x = np.asarray(self._x, np.float64)
            keys = keys_of(x[~request.holdout.select(x)])
            self._sorted = request.holdout, np.sort(keys.T, axis=1)
        counts = np.empty(len(request.cuts), np.int64)
        bounds = np.append(request.starts, len(request.cuts)).tolist()
        for k, column in enumerate(request.columns):
            part = slice(bounds[k], bounds[k + 1])
            counts[part] = np.searchsorted(self._sorted[1][column], request.cuts[part])
        return RankReply(counts)

    def _sum_gradients(self, request: HistogramRequest) -> HistogramReply:
        plan = request.plan
        if plan.n_features != self._x.shape[1]:
            raise Refused("the number of columns differs from the schema")
        n_walks = len(request.trees.roots) + len(request.splits) + plan.n_features
        if len(self._y) * n_walks * (1 + len(request.nodes)) > MAX_STEPS:
            raise Refused("the histograms would take too much time")
        training = self._training
        if training is None or not training.has_plan(plan):
            training = _TrainingState(
                plan, np.asarray(self._x, np.float64), self._target(plan.classes)
            )
            self._training = training
        training.follow(request.trees, request.splits)
        return training.reply(request)


class _TrainingState:
    """Scores, gradients and rows of nodes of one party during a training."""

    def __init__(self, plan: BoostingPlan, x: Floats, target: Array) -> None:
        self._plan = plan
        is_held_out = plan.holdout.select(x)
        self._x = [np.ascontiguousarray(x[~is_held_out]), np.ascontiguousarray(x[is_held_out])]
        self._target = [target[~is_held_out], target[is_held_out]]
        edges = np.split(plan.edges, plan.starts[1:-1]) if plan.n_features else []
        self._bins = bin_rows(self._x[0], edges)
        self._bin_starts = plan.bin_starts
        self._restart()

    def has_plan(self, plan: BoostingPlan) -> bool:
        """Return whether this state is that of a plan."""
        return plan is self._plan or all(
            np.array_equal(getattr(plan, field.name), getattr(self._plan, field.name))
            for field in fields(plan)
        )

    def _restart(self) -> None:
        self._trees = Trees.empty()
        self._scores = [np.tile(self._plan.intercept, (len(x), 1)) for x in self._x]
        self._differentiate()

    def _differentiate(self) -> None:
        """Compute gradients and held-out loss at the scores; drop all splits."""
        plan = self._plan
        scores, held_out = self._scores
        self._hessians: Integers | None
        if plan.classes:
            self._gradients, self._hessians = class_gradients(
                scores, self._target[0], plan.weights, plan.factor
            )
            self._loss = class_losses(held_out, self._target[1], plan.weights, plan.loss_factor)
        else:
            differences = (scores[:, 0] - self._target[0]) * plan.factor
            clipped = np.clip(np.rint(differences), -plan.limit, plan.limit)
            self._gradients, self._hessians = clipped.astype(np.int64)[None], None
            errors = (held_out[:, 0] - self._target[1]) * plan.factor / plan.limit
            squares = np.rint(np.minimum(errors**2, 1.0) * plan.loss_factor)
            self._loss = int(squares.astype(np.int64).sum())
        every_row = np.arange(len(scores))
        self._rows = [[every_row] for _ in range(plan.n_scores)]
        self._splits = np.zeros((0, 5), np.int64)

    def follow(self, trees: Trees, splits: Integers) -> None:
        """Apply finished trees and splits; start over if others are known."""
        n_known, n_trees = len(self._trees.roots), len(trees.roots)
        if trees is not self._trees and not _begins_with(trees, self._trees):
            self._restart()
            n_known = 0
        if n_trees > n_known:
            for x, scores in zip(self._x, self._scores, strict=True):
                add_values(x, trees, first=n_known, scores=scores)
            self._differentiate()
        self._trees = trees
        n_known = len(self._splits)
        if not np.array_equal(splits[:n_known], self._splits):
            self._rows = [rows[:1] for rows in self._rows]
            n_known = 0
        for tree, node, feature, cut, missing_left in splits[n_known:].tolist():
            missing = int(self._bin_starts[feature + 1] - self._bin_starts[feature]) - 1
            extra = missing if missing_left else cut
            rows = self._rows[tree][node]
            self._rows[tree] += split_rows(self._bins[feature], rows, last=cut, extra=extra)
        self._splits = splits

    def reply(self, request: HistogramRequest) -> HistogramReply:
        """Return the requested histograms and the held-out loss."""
        histograms = np.zeros(request.reply_shape, np.int64)
        for k, (tree, node) in enumerate(request.nodes.tolist()):
            hessians = None if self._hessians is None else self._hessians[tree]
            rows = self._rows[tree][node]
            gradients = self._gradients[tree]
            sum_bins(self._bins, self._bin_starts, rows, gradients, hessians, out=histograms[k])
        return HistogramReply(histograms, self._loss)


def _begins_with(trees: Trees, known: Trees) -> bool:
    """Return whether the first trees are known ones."""
    return len(trees.roots) >= len(known.roots) and all(
        np.array_equal(getattr(trees, name)[: len(part)], part)
        for name, part in vars(known).items()
    )
