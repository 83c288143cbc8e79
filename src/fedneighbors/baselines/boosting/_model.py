"""Trees and the finished model of federated boosting."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Booleans, Floats, Integers
from fedneighbors.kernels.boosting._trees import add_values
from fedneighbors.tabular._model_file import ModelFile
from fedneighbors.tabular._schema import Label, check_n_classes


@dataclass(frozen=True, eq=False)
class Trees:
    """Regression trees, their nodes one after another.

    Parameters
    ----------
    features : int32 array of shape (n_nodes,)
        Column of an inner node, -1 for a leaf.
    thresholds : float64 array of shape (n_nodes,)
        Rows with a value up to it go left.
    missing_left : bool array of shape (n_nodes,)
        Direction of rows without a value.
    children : int32 array of shape (n_nodes,)
        Left child of an inner node; the right child is the next node.
    values : float64 array of shape (n_nodes,)
        Values of leaves.
    roots : int64 array of shape (n_trees,)
        First node of each tree.
    """

    features: npt.NDArray[np.int32]
    thresholds: Floats
    missing_left: Booleans
    children: npt.NDArray[np.int32]
    values: Floats
    roots: Integers

    def __post_init__(self) -> None:
        n_nodes = len(self.features)
        columns = self.features, self.thresholds, self.missing_left, self.children, self.values
        if any(part.shape != (n_nodes,) for part in columns) or self.roots.ndim != 1:
            raise ValueError("arrays of trees differ in their number of nodes")
        if not np.isfinite(self.values).all() or np.isnan(self.thresholds).any():
            raise ValueError("a value or threshold of a tree is not a number")
        ends = np.append(self.roots[1:], n_nodes)
        if len(self.roots) == 0 < n_nodes or self.roots[:1].any() or (ends <= self.roots).any():
            raise ValueError("roots of trees must ascend from 0")
        # a child follows its parent within the tree, so that each walk ends at a leaf
        inner = np.flatnonzero(self.features >= 0)
        last = ends[np.searchsorted(self.roots, inner, side="right") - 1] - 1
        children = self.children[inner].astype(np.int64)
        if (children <= inner).any() or (children >= last).any():
            raise ValueError("a child of a tree is out of range")

    @property
    def n_features(self) -> int:
        """Return the minimum number of columns of a table."""
        return int(self.features.max(initial=-1)) + 1

    @classmethod
    def join(cls, parts: Sequence["Trees"]) -> "Trees":
        """Return all trees of several objects, in order."""
        offsets = np.cumsum([0, *(len(part.features) for part in parts)])
        pairs = list(zip(parts, offsets, strict=False))
        return cls(
            np.concatenate([part.features for part in parts]),
            np.concatenate([part.thresholds for part in parts]),
            np.concatenate([part.missing_left for part in parts]),
            np.concatenate([part.children + np.int32(start) for part, start in pairs]),
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.roots + start for part, start in pairs]),
        )

    @classmethod
    def empty(cls) -> "Trees":
        """Return no trees."""
        integers, floats = np.zeros(0, np.int32), np.zeros(0)
        return cls(integers, floats, np.zeros(0, bool), integers, floats, np.zeros(0, np.int64))


@dataclass(frozen=True)
class BoostingModel(ModelFile):
    """Trained boosting model.

    Parameters
    ----------
    classes : tuple of labels
        Labels, ascending; empty for regression.
    n_features : int
        Number of columns.
    intercept : float64 array of shape (n_scores,)
        Scores before the first tree. Two classes and regression have one score.
    trees : Trees
        Tree t adds to score t modulo the number of scores.
    feature_names : tuple of str or None
        Names of the columns, if they have any.
    """

    magic: ClassVar[bytes] = b"FNBOOST1"

    classes: tuple[Label, ...]
    n_features: int
    intercept: Floats
    trees: Trees
    feature_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_n_classes(len(self.classes))
        if self.intercept.shape != (count_scores(self.classes),):
            raise ValueError("the number of scores does not fit the classes")
        if not np.isfinite(self.intercept).all():
            raise ValueError("a score is not finite")
        if self.n_features < self.trees.n_features:
            raise ValueError("a tree uses a column that the table does not have")
        if self.feature_names is not None and len(self.feature_names) != self.n_features:
            raise ValueError("the numbers of column names and columns differ")

    def scores(self, x: Floats) -> Floats:
        """Return the scores of rows, shape (n_rows, n_scores)."""
        scores = np.tile(self.intercept, (len(x), 1))
        add_values(np.ascontiguousarray(x, np.float64), self.trees, first=0, scores=scores)
        return scores


def count_scores(classes: Sequence[Label]) -> int:
    """Return the number of scores, one for up to two classes."""
    return len(classes) if len(classes) > 2 else 1
