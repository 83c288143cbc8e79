"""Baselines of FlyNN: classifiers tuned by cross-validation on the training rows only."""

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
    bit_counts,
    matched_decay,
    sign_bits,
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
"""Rows to train on and rows to score, as scikit-learn's splitters give them."""


@dataclass(frozen=True)
class Tuned:
    """The best setting of a classifier.

    Parameters
    ----------
    score : float
        Its mean accuracy over the folds.
    model : scikit-learn classifier
        Not fitted.
    """

    score: float
    model: Any


def neighbor_scores(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    splits: Iterable[Split],
    *,
    most: int = MAX_NEIGHBORS,
) -> Floats:
    """Return the nearest-neighbour accuracy for every k.

    All k cost as much as the largest.

    The neighbours of a row are found once and sorted; the votes of the first k are a running sum.

    Parameters
    ----------
    x : array of shape (n_rows, n_features)
        Finite numbers.
    y : array of shape (n_rows,)
        Labels.
    splits : iterable of Split
        The folds.
    most : int
        Largest k; smaller if a fold has fewer training rows.

    Returns
    -------
    float64 array of shape (n_folds, most)
        Column k - 1 is what scikit-learn's ``cross_val_score`` gives for k, ties between classes
        going to the lower one, wherever no two training rows are equally far from a row.
    """
    classes, labels = np.unique(y, return_inverse=True)
    folds = list(splits)
    k_max = min(most, *(len(train) for train, _ in folds))
    scores = np.empty((len(folds), k_max))
    for fold, (train, test) in enumerate(folds):
        search = NearestNeighbors(n_neighbors=k_max).fit(x[train])
        with threadpool_limits(1):  # which of equally far rows comes first depends on the threads
            near = labels[train][search.kneighbors(x[test], return_distance=False)]
        votes = np.cumsum(near[:, :, None] == np.arange(len(classes)), axis=1, dtype=np.int16)
        scores[fold] = (votes.argmax(axis=2) == labels[test][:, None]).mean(axis=0)
    return scores


def tune_neighbors(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    splits: Sequence[Split],
    *,
    most: int = MAX_NEIGHBORS,
) -> Tuned:
    """Fit nearest neighbours with the best k in 1..``most``.

    Ties go to the lower k.
    """
    mean = neighbor_scores(x, y, splits, most=most).mean(axis=0)
    best = int(np.argmax(mean))
    return Tuned(float(mean[best]), KNeighborsClassifier(best + 1))


def bit_choices(n_features: int, *, most: int = MAX_BITS) -> tuple[int, ...]:
    """Return numbers of bits that project down and up.

    Within [1, d] and [d, 2048 d], at most ``most``.

    Examples
    --------
    >>> bit_choices(64, most=1024)
    (8, 16, 32, 64, 128, 256, 512, 1024)
    """
    down = (n_features // 8, n_features // 4, n_features // 2, n_features)
    up = (2**power * n_features for power in range(1, 12))
    return tuple(sorted({min(max(bits, 1), most) for bits in (*down, *up)}))


def simhash_scores(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    splits: Iterable[Split],
    *,
    n_bits: Sequence[int],
    decays: Sequence[float],
    seed: int = 0,
) -> Floats:
    """Score SBFC for all bits and decays from one hash pass.

    Returns
    -------
    float64 array of shape (n_folds, len(n_bits), len(decays))
        As scikit-learn's ``cross_val_score`` of :class:`~.simhash.SimHashBloomClassifier`, up to
        the rounding of the sums.
    """
    classes, labels = np.unique(y, return_inverse=True)
    bits = sign_bits(x, max(n_bits), seed)
    scores = []
    for train, test in splits:
        counts = bit_counts(bits[train], labels[train], len(classes))
        shown = bits[test].astype(np.float64)
        scores.append([_hit_rates(shown, labels[test], counts, gamma, n_bits) for gamma in decays])
    return np.array(scores).transpose(0, 2, 1)


def _hit_rates(
    shown: Floats,
    labels: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    decay: float,
    n_bits: Sequence[int],
) -> list[float]:
    """Return the accuracy for every number of leading bits."""
    weights = np.power(decay, counts)
    return [
        float((np.argmin(shown[:, :m] @ weights[:, :m].T, axis=1) == labels).mean()) for m in n_bits
    ]


def tune_simhash(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    splits: Sequence[Split],
    *,
    matched: bool,
    most_bits: int = MAX_BITS,
    seed: int = 0,
) -> Tuned:
    """Return SBFC with the best number of bits and decay.

    Parameters
    ----------
    x, y, splits
        As for :func:`neighbor_scores`.
    matched : bool
        Try decays that suit the mean load of a bit; otherwise those of the paper, 0 to 0.8, under
        which the filters of all but the smallest tables saturate.
    most_bits : int
        Most bits to try.
    seed : int
        Seed of the projections.
    """
    n_bits = bit_choices(x.shape[1], most=most_bits)
    n_rows, n_classes = len(splits[0][0]), len(np.unique(y))
    loads = [matched_decay(n_rows, n_classes, kappa=kappa) for kappa in LOADS]
    decays = loads if matched else list(PAPER_DECAYS)
    mean = simhash_scores(x, y, splits, n_bits=n_bits, decays=decays, seed=seed).mean(axis=0)
    size, gamma = np.unravel_index(int(np.argmax(mean)), mean.shape)
    model = SimHashBloomClassifier(n_bits[size], decays[gamma], random_state=seed)
    return Tuned(float(mean.max()), model)


def tune_logistic(
    x: npt.NDArray[Any], y: npt.NDArray[Any], splits: Sequence[Split], *, seed: int = 0
) -> Tuned:
    """Tune logistic regression, one pass of SAG over the rows."""
    model = LogisticRegression(solver="sag", max_iter=1, random_state=seed)
    return _tune(model, LOGISTIC_GRID, x, y, splits)


def tune_network(
    x: npt.NDArray[Any], y: npt.NDArray[Any], splits: Sequence[Split], *, seed: int = 0
) -> Tuned:
    """Tune a one-hidden-layer network, one pass of Adam over the rows."""
    model = MLPClassifier(max_iter=1, random_state=seed)
    return _tune(model, NETWORK_GRID, x, y, splits)


def fit_quietly(model: Any, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> Any:
    """Fit a model without convergence warnings.

    A single pass rarely converges.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x, y)


def _tune(
    model: Any,
    grid: Mapping[str, Sequence[Any]],
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    splits: Sequence[Split],
) -> Tuned:
    """Return the setting of best mean accuracy, the first if tied."""
    tried = [clone(model).set_params(**setting) for setting in ParameterGrid(dict(grid))]
    scores = []
    for candidate in tried:
        hits = [
            (fit_quietly(clone(candidate), x[train], y[train]).predict(x[test]) == y[test]).mean()
            for train, test in splits
        ]
        scores.append(float(np.mean(hits)))
    best = int(np.argmax(scores))
    return Tuned(scores[best], tried[best])
