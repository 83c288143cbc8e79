"""Best-first growth of the trees of one iteration from summed histograms.

The split with the largest gain among all leaves is made next. To save exchanges, the children of
all leaves that may be split are measured together: with room for r more splits, those of up to r of
the best candidates. Splits that turn out not to be among the best are dropped, so that the trees
are those of growth one split at a time.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedneighbors._typing import Integers
from fedneighbors.baselines.boosting._bins import sum_replies
from fedneighbors.baselines.boosting._model import Trees
from fedneighbors.baselines.boosting._party import BoostingPlan, HistogramReply, HistogramRequest
from fedneighbors.errors import ProtocolError
from fedneighbors.federation._loop import Coordinator
from fedneighbors.kernels.boosting._splits import NodeSplit, find_split


@dataclass(frozen=True)
class GrowthLimits:
    """Limits of a tree.

    Parameters
    ----------
    max_leaves : int
        Maximum number of leaves.
    max_depth : int
        Maximum number of edges from the root to a leaf.
    min_rows : int
        Minimum number of rows of a leaf.
    min_hessian : int
        Minimum sum of Hessians of a leaf, in steps.
    l2 : float
        L2 regularization, in steps of Hessians.
    step_size : float
        Value of a leaf is this, times the sum of gradients by that of Hessians.
    max_ratio : float
        Maximum of this ratio. The Hessians of rows with certain scores are almost 0.
    """

    max_leaves: int
    max_depth: int
    min_rows: int
    min_hessian: int
    l2: float
    step_size: float
    max_ratio: float = math.inf


@dataclass(eq=False)
class _Node:
    """Node of a growing tree; its histogram is dropped when it has children."""

    number: int
    place: int  # 1 for the root, 2 p and 2 p + 1 for the children of p
    gradient: int
    hessian: int
    n_rows: int
    histogram: Integers | None = None
    split: NodeSplit | None = None
    children: "tuple[_Node, _Node] | None" = None

    @property
    def depth(self) -> int:
        """Return the number of edges to the root."""
        return self.place.bit_length() - 1


class _GrowingTree:
    """One tree, from its root's histogram to its final nodes."""

    def __init__(self, histogram: Integers, plan: BoostingPlan, limits: GrowthLimits) -> None:
        self._plan = plan
        self._starts = plan.bin_starts
        self._limits = limits
        self._n_nodes = 1
        self._n_left = limits.max_leaves - 1  # splits that may still be made
        gradient, hessian, n_rows = histogram[: self._starts[1]].sum(axis=0).tolist()
        self._root = _Node(0, 1, gradient, hessian, n_rows)
        self._made: set[int] = set()  # numbers of the nodes whose split is final
        self._candidates: list[tuple[float, int, _Node]] = []
        self.measure(self._root, histogram)
        self._add_candidate(self._root)

    def may_split(self, node: _Node) -> bool:
        """Return whether a node may have children."""
        limits = self._limits
        return (
            node.depth < limits.max_depth
            and node.n_rows >= 2 * limits.min_rows
            and node.hessian >= 2 * limits.min_hessian
        )

    def measure(self, node: _Node, histogram: Integers) -> None:
        """Set a node's histogram and best split."""
        node.histogram = histogram
        if self.may_split(node):
            limits = self._limits
            node.split = find_split(
                histogram,
                self._starts,
                l2=limits.l2,
                min_hessian=limits.min_hessian,
                min_rows=limits.min_rows,
            )

    def advance(self) -> list[_Node]:
        """Make the splits that are certain; return the nodes to split next."""
        while self._candidates and self._n_left:
            *_, best = self._candidates[0]
            if self._n_left > 1 and best.children is None:
                break
            heapq.heappop(self._candidates)
            if best.children is None:
                self.divide(best)  # the last split: its children are leaves
            self._made.add(best.number)
            self._n_left -= 1
            for child in best.children or ():
                self._add_candidate(child)
        return [node for node in self._likely() if node.children is None]

    def _likely(self) -> list[_Node]:
        """Return the candidates that probably need children for further splits, best first.

        A node below a candidate counts with the least gain on its path. If gains halved with each
        level, a node of gain g would have g / h splits of at least gain h below it. A candidate is
        left for later when such splits of better ones fill the tree; with several trees in an
        exchange less readily, as the last one determines the number of exchanges.
        """
        ranked = list(self._candidates)
        for key, _, node in ranked:  # grows
            for child in node.children or ():
                if child.split is not None:
                    ranked.append((max(key, -child.split.gain), child.place, child))
        likely, total = [], 0.0
        for key, _, node in heapq.nsmallest(self._n_left - 1, ranked):
            if total > -key * self._n_left * self._plan.n_scores:
                break
            total -= key
            likely.append(node)
        return likely

    def _add_candidate(self, node: _Node) -> None:
        if node.split is not None:
            heapq.heappush(self._candidates, (-node.split.gain, node.place, node))

    def divide(self, node: _Node) -> tuple[_Node, _Node]:
        """Create the children of a node; return them, the smaller one first."""
        split = node.split
        if split is None:
            raise ValueError("expected a node with a split")
        rest = node.gradient - split.gradient, node.hessian - split.hessian
        number, place = self._n_nodes, 2 * node.place
        left = _Node(number, place, split.gradient, split.hessian, split.n_rows)
        right = _Node(number + 1, place + 1, *rest, node.n_rows - split.n_rows)
        node.children = left, right
        self._n_nodes += 2
        return (left, right) if left.n_rows <= right.n_rows else (right, left)

    def finish(self) -> Trees:
        """Return the tree of the splits that were made."""
        order, features, thresholds, directions, children, values = [self._root], [], [], [], [], []
        for node in order:  # grows: the children of a node are appended together
            split = node.split if node.number in self._made else None
            if split is None or node.children is None:
                hessian = node.hessian + self._limits.l2
                ratio = node.gradient / hessian if hessian else 0.0
                ratio = max(-self._limits.max_ratio, min(ratio, self._limits.max_ratio))
                values.append(-self._limits.step_size * ratio)
                features.append(-1)
                thresholds.append(0.0)
                directions.append(False)
                children.append(0)
                continue
            values.append(0.0)
            features.append(split.feature)
            thresholds.append(self._plan.threshold(split.feature, split.bin))
            directions.append(split.missing_left)
            children.append(len(order))
            order += node.children
        return Trees(
            np.array(features, np.int32),
            np.array(thresholds),
            np.array(directions),
            np.array(children, np.int32),
            np.array(values),
            np.zeros(1, np.int64),
        )


def grow_trees(
    plan: BoostingPlan, trees: Trees, roots: Integers, limits: GrowthLimits
) -> Coordinator[list[Trees]]:
    """Build the trees of an iteration from the histograms of their roots.

    Parameters
    ----------
    plan : BoostingPlan
        Constants of the training.
    trees : Trees
        Finished trees.
    roots : int64 array of shape (n_trees, n_bins, 3)
        Summed histograms of the roots.
    limits : GrowthLimits
        Limits of each tree.
    """
    growing = [_GrowingTree(_add_hessians(root, plan), plan, limits) for root in roots]
    splits: list[tuple[int, ...]] = []
    while to_split := [(t, node) for t, tree in enumerate(growing) for node in tree.advance()]:
        pairs, nodes = [], []
        for t, node in to_split:
            tree, split, histogram = growing[t], node.split, node.histogram
            if split is None or histogram is None:
                raise ValueError("expected a node with a split and a histogram")
            smaller, larger = tree.divide(node)
            splits.append((t, node.number, split.feature, split.bin, int(split.missing_left)))
            if tree.may_split(smaller) or tree.may_split(larger):
                pairs.append((tree, histogram, smaller, larger))
                nodes.append((t, smaller.number))
            node.histogram = None
        if not pairs:
            continue
        reply = yield from request_histograms(plan, trees, splits, nodes)
        for (tree, parent, smaller, larger), part in zip(pairs, reply.histograms, strict=True):
            histogram = _add_hessians(part, plan)
            if int(histogram[: plan.bin_starts[1], 2].sum()) != smaller.n_rows:
                raise ProtocolError("the rows of a node differ from those of its parent's split")
            tree.measure(smaller, histogram)
            tree.measure(larger, np.subtract(parent, histogram, out=parent))
    return [tree.finish() for tree in growing]


def request_histograms(
    plan: BoostingPlan,
    trees: Trees,
    splits: Sequence[tuple[int, ...]],
    nodes: Sequence[tuple[int, ...]],
) -> Coordinator[HistogramReply]:
    """Request summed histograms of nodes."""
    request = HistogramRequest(
        plan, trees, np.array(splits, np.int64).reshape(-1, 5), np.array(nodes, np.int64)
    )
    summed: HistogramReply = yield from sum_replies(request, "the histograms")
    return summed


def _add_hessians(histogram: Integers, plan: BoostingPlan) -> Integers:
    """Return the histogram with the Hessians of regression, 1 for each row."""
    if not plan.classes:
        histogram = histogram.copy()
        histogram[:, 1] = histogram[:, 2]
    return histogram
