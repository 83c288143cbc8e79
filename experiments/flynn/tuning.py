"""Baselines for FlyNN, tuned by cross-validation on the training rows."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import ParameterGrid
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from fedneighbors._typing import Floats
from fedneighbors.baselines._simhash import (
    SimHashBloomClassifier,
    count_bits,
    derive_decay,
    hash_signs,
)

MAX_NEIGHBORS = 64
MAX_BITS = 4096
PAPER_DECAYS = (0.0, 0.2, 0.4, 0.6, 0.8)
LOADS = (0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
LOGISTIC_GRID: Mapping[str, Sequence[Any]] = {
    "C": [2.0**-8, 2.0**-4, 1.0, 2.0**4],
    "class_weight": [None, "balanced"],
}
NETWORK_GRID: Mapping[str, Sequence[Any]] = {
    "hidden_layer_sizes": [(64,), (128,)],
    "learning_rate_init": [0.001, 0.01],
    "batch_size": [16, 64],
}

Rows = npt.NDArray[np.int64]
Split = tuple[Rows, Rows]
"""Training rows and test rows, as from scikit-learn's splitters."""


@dataclass(frozen=True)
class BestModel:
    """The best setting of a classifier.

    Parameters
    ----------
    score : float
        Mean accuracy over the folds.
    model : scikit-learn classifier
        The unfitted classifier.
    """

    score: float
    model: Any


def neighbor_scores(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    splits: Iterable[Split],
    *,
    max_neighbors: int = MAX_NEIGHBORS,
) -> Floats:
    """Return the nearest-neighbour accuracy for every k.

    The cost is that of the largest k: the neighbours of a row are found once and sorted, and the
    votes of the first k are a running sum.

    Parameters
    ----------
    x : array of shape (n_rows, n_features)
        Features, finite.
    y : array of shape (n_rows,)
        Labels.
    splits : iterable of Split
        The folds.
    max_neighbors : int
        Largest k; smaller if a fold has fewer training rows.

    Returns
    -------
    float64 array of shape (n_folds, max_neighbors)
        Column k - 1 equals scikit-learn's ``cross_val_score`` for k if no two training rows have
        the same distance to a row. Ties between classes go to the lower class.
    """
    classes, labels = np.unique(y, return_inverse=True)
    folds = list(splits)
    k_max = min(max_neighbors, *(len(train) for train, _ in folds))
    scores = np.empty((len(folds), k_max))
    for fold, (train, test) in enumerate(folds):
        search = NearestNeighbors(n_neighbors=k_max).fit(x[train])
        with threadpool_limits(1):  # the order of equal distances depends on the number of threads
            near = labels[train][search.kneighbors(x[test], return_distance=False)]
        votes = np.cumsum(near[:, :, None] == np.arange(len(classes)), axis=1, dtype=np.int16)
        scores[fold] = (votes.argmax(axis=2) == labels[test][:, None]).mean(axis=0)
    return scores


def tune_neighbors(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    splits: Sequence[Split],
    *,
    max_neighbors: int = MAX_NEIGHBORS,
) -> BestModel:
    """Return nearest neighbours with the best k, the lowest if tied."""
    mean = neighbor_scores(x, y, splits, max_neighbors=max_neighbors).mean(axis=0)
    best = int(np.argmax(mean))
    return BestModel(float(mean[best]), KNeighborsClassifier(best + 1))


def list_bit_counts(n_features: int, *, max_bits: int = MAX_BITS) -> tuple[int, ...]:
    """Return numbers of bits between d / 8 and 2048 d.

    Examples
    --------
    >>> list_bit_counts(64, max_bits=1024)
    (8, 16, 32, 64, 128, 256, 512, 1024)
    """
    down = (n_features // 8, n_features // 4, n_features // 2, n_features)
    up = (2**power * n_features for power in range(1, 12))
    return tuple(sorted({min(max(bits, 1), max_bits) for bits in (*down, *up)}))


def simhash_scores(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    splits: Iterable[Split],
    *,
    n_bits: Sequence[int],
    decays: Sequence[float],
    seed: int = 0,
) -> Floats:
    """Score SBFC for all bits and decays with one pass of hashing.

    Returns
    -------
    float64 array of shape (n_folds, len(n_bits), len(decays))
        Equal to scikit-learn's ``cross_val_score`` of ``SimHashBloomClassifier``, up to rounding.
    """
    classes, labels = np.unique(y, return_inverse=True)
    bits = hash_signs(x, max(n_bits), seed)
    scores = []
    for train, test in splits:
        counts = count_bits(bits[train], labels[train], len(classes))
        test_bits = bits[test].astype(np.float64)
        scores.append(
            [_hit_rates(test_bits, labels[test], counts, gamma, n_bits) for gamma in decays]
        )
    return np.array(scores).transpose(0, 2, 1)


def _hit_rates(
    test_bits: Floats,
    labels: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    decay: float,
    n_bits: Sequence[int],
) -> list[float]:
    """Return the accuracy for every number of leading bits."""
    weights = np.power(decay, counts)
    return [
        float((np.argmin(test_bits[:, :m] @ weights[:, :m].T, axis=1) == labels).mean())
        for m in n_bits
    ]


def tune_simhash(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    splits: Sequence[Split],
    *,
    matched: bool,
    max_bits: int = MAX_BITS,
    seed: int = 0,
) -> BestModel:
    """Return SBFC with the best number of bits and decay.

    Parameters
    ----------
    x, y, splits
        As for :func:`neighbor_scores`.
    matched : bool
        If True, try decays matched to the mean load of a bit. Otherwise try the paper's, 0 to
        0.8, under which filters saturate on all but the smallest tables.
    max_bits : int
        Maximum number of bits.
    seed : int
        Seed of the projections.
    """
    n_bits = list_bit_counts(x.shape[1], max_bits=max_bits)
    n_rows, n_classes = len(splits[0][0]), len(np.unique(y))
    loads = [derive_decay(n_rows, n_classes, kappa=kappa) for kappa in LOADS]
    decays = loads if matched else list(PAPER_DECAYS)
    mean = simhash_scores(x, y, splits, n_bits=n_bits, decays=decays, seed=seed).mean(axis=0)
    size, gamma = np.unravel_index(int(np.argmax(mean)), mean.shape)
    model = SimHashBloomClassifier(n_bits[size], decays[gamma], random_state=seed)
    return BestModel(float(mean.max()), model)


def tune_logistic(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    splits: Sequence[Split],
    *,
    seed: int = 0,
    converged: bool = False,
) -> BestModel:
    """Tune logistic regression with one pass of SAG, or to convergence."""
    model = LogisticRegression(solver="sag", max_iter=1, random_state=seed)
    if converged:
        model = LogisticRegression(max_iter=1000)
    return _tune(model, LOGISTIC_GRID, x, y, splits)


def tune_network(
    x: npt.NDArray[Any], y: npt.NDArray[Any], splits: Sequence[Split], *, seed: int = 0
) -> BestModel:
    """Tune a one-hidden-layer network with one pass of Adam over the rows."""
    model = MLPClassifier(max_iter=1, random_state=seed)
    return _tune(model, NETWORK_GRID, x, y, splits)


def fit_quietly(model: Any, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> Any:
    """Fit a model without convergence warnings, since one pass rarely converges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x, y)


def _tune(
    model: Any,
    grid: Mapping[str, Sequence[Any]],
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    splits: Sequence[Split],
) -> BestModel:
    """Return the model of best mean accuracy, the first if tied."""
    candidates = [clone(model).set_params(**setting) for setting in ParameterGrid(dict(grid))]
    scores = []
    for candidate in candidates:
        hits = [
            (fit_quietly(clone(candidate), x[train], y[train]).predict(x[test]) == y[test]).mean()
            for train, test in splits
        ]
        scores.append(float(np.mean(hits)))
    best = int(np.argmax(scores))
    return BestModel(scores[best], candidates[best])
