"""Trees equal those that are grown on the rows, one split at a time."""

import math

import numpy as np
import pytest

from fedneighbors.baselines.boosting._bins import Holdout, bin_rows
from fedneighbors.baselines.boosting._growth import GrowthLimits, grow_trees, request_histograms
from fedneighbors.baselines.boosting._model import Trees
from fedneighbors.baselines.boosting._party import BoostingParty, BoostingPlan
from fedneighbors.federation._inprocess import run
from tests.naive.boosting import growth as naive
from tests.naive.boosting.losses import class_gradients

FACTOR = 2.0**30


def grow(plan, limits):
    """Grow the trees of the first iteration from the rows of all parties."""
    roots = [(t, 0) for t in range(plan.n_scores)]
    reply = yield from request_histograms(plan, Trees.empty(), (), roots)
    return Trees.join((yield from grow_trees(plan, Trees.empty(), reply.histograms, limits)))


def draw_rows(seed, n_classes):
    rng = np.random.default_rng(seed)
    n_rows = int(rng.integers(20, 80))
    x = rng.integers(0, 6, (n_rows, 3)).astype(float)  # many ties
    x[rng.random(x.shape) < 0.2] = np.nan
    y = (np.nansum(x, axis=1) + rng.integers(0, 4, n_rows)) % n_classes
    y[:n_classes] = np.arange(n_classes)
    return x, y.astype(np.int64)


def splits_by_place(trees, root, plan):
    """Return (column, bin, missing left) by place; the root has place 1."""
    result, stack = {}, [(1, root)]
    while stack:
        place, node = stack.pop()
        feature = trees.features[node]
        if feature < 0:
            continue
        edges = plan.edges[plan.starts[feature] : plan.starts[feature + 1]]
        cut = int(np.searchsorted(edges, trees.thresholds[node]))
        result[place] = int(feature), cut, bool(trees.missing_left[node])
        child = trees.children[node]
        stack += [(2 * place, child), (2 * place + 1, child + 1)]
    return result


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_trees_equal_growth_one_split_at_a_time(seed, n_classes):
    x, y = draw_rows(seed, n_classes)
    max_leaves, max_depth = (2, 5, 9, 31)[seed % 4], (2, 31, 31)[seed % 3]
    edges = [np.arange(5) + 0.5] * 3
    plan = BoostingPlan(
        classes=tuple(range(n_classes)),
        weights=np.ones(n_classes),
        intercept=np.zeros(1 if n_classes == 2 else n_classes),
        factor=FACTOR,
        limit=2.0**50,
        loss_factor=FACTOR,
        edges=np.concatenate(edges),
        starts=np.array([0, 5, 10, 15]),
        holdout=Holdout(0.0, 0),
    )
    most = (math.inf, 0.2)[seed % 2]
    limits = GrowthLimits(max_leaves, max_depth, 2, 1, 0.5 * FACTOR, 1.0, max_ratio=most)
    parties = [BoostingParty(f"p{k}", x[k::3], y[k::3]) for k in range(3)]

    trees = run(grow(plan, limits), parties).result

    derivatives = class_gradients(
        [[0.0] * plan.n_scores] * len(y), y.tolist(), [1.0] * n_classes, FACTOR
    )
    bins = bin_rows(x, edges).tolist()
    for t, (gradients, hessians) in enumerate(zip(*derivatives, strict=True)):
        splits, leaves = naive.grow(
            bins,
            plan.bin_starts.tolist(),
            gradients,
            hessians,
            max_leaves=max_leaves,
            max_depth=max_depth,
            min_rows=2,
            min_hessian=1,
            l2=0.5 * FACTOR,
        )
        assert splits_by_place(trees, trees.roots[t], plan) == splits
        ratios = {
            -sum(gradients[row] for row in rows)
            / (sum(hessians[row] for row in rows) + 0.5 * FACTOR)
            for rows in leaves.values()
        }
        expected = {math.copysign(min(abs(ratio), most), ratio) for ratio in ratios}
        assert most == math.inf or max(map(abs, ratios)) > most
        end = [*trees.roots, len(trees.features)][t + 1]
        nodes = slice(trees.roots[t], end)
        assert set(trees.values[nodes][trees.features[nodes] < 0].tolist()) == expected
    assert len(trees.features) > plan.n_scores
