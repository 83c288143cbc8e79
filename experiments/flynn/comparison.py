"""Scores of all methods on one split of a real table, tuned on the training rows."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from experiments.flynn.tuning import (
    BestModel,
    Split,
    fit_quietly,
    tune_logistic,
    tune_neighbors,
    tune_network,
    tune_simhash,
)
from fedneighbors._typing import Array
from fedneighbors.baselines import FederatedBoostingClassifier
from fedneighbors.datasets import Dataset
from fedneighbors.methods.flynn._scoring import Candidate
from fedneighbors.methods.flynn._selection import FlyNNSearchCV
from fedneighbors.methods.flynn.estimator import FlyNNClassifier
from fedneighbors.metrics import accuracy

FLYNN, DEFAULTS, PRINTED = "FlyNNSearchCV()", "FlyNNClassifier()", "Algorithm 1"
BOOSTING = "FederatedBoostingClassifier()"
METHODS = (
    "kNN",
    "1NN",
    "SBFC",
    "SBFC, matched decay",
    "LR",
    "LR, converged",
    "MLP",
    BOOSTING,
    "kNN, scaling tuned",
    PRINTED,
    DEFAULTS,
    FLYNN,
)
UNTUNED = (BOOSTING, DEFAULTS)
MIN_CLASS_ROWS = 10
PRINTED_UNITS, PRINTED_ACTIVE, PRINTED_DECAYS = 200_000, (8, 45, 256), (0.0, 0.2, 0.5, 0.8)
N_PRINTED_HASHES = 5


@dataclass(frozen=True)
class Effort:
    """Tuning effort.

    Parameters
    ----------
    n_folds : int
        Folds of the cross-validation on the training rows.
    max_rows : int
        Size of the sample of a larger table.
    test_size : float
        Fraction of rows held out.
    search : mapping
        Arguments of FlyNN's search other than its defaults.
    """

    n_folds: int = 5
    max_rows: int = 4000
    test_size: float = 0.3
    search: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """Score of a method on one split.

    Parameters
    ----------
    tuned : float or None
        Best cross-validated accuracy on the training rows; None for defaults.
    held_out : float
        Accuracy on the held-out rows.
    cpu : float
        CPU seconds of tuning, fitting and predicting.
    chosen : str
        The best setting, as text.
    """

    tuned: float | None
    held_out: float
    cpu: float
    chosen: str


def sample_rows(data: Dataset, max_rows: int, seed: int) -> Dataset:
    """Return a stratified sample without classes of fewer than ten rows."""
    rows = np.arange(data.n_rows)
    if data.n_rows > max_rows:
        eligible = _rows_of_frequent_classes(data.y, rows)
        rows, _ = train_test_split(
            eligible, train_size=max_rows, stratify=data.y[eligible], random_state=seed
        )
    return data.take(np.sort(_rows_of_frequent_classes(data.y, rows)))


def _rows_of_frequent_classes(y: Array, rows: Array) -> Array:
    labels, counts = np.unique(y[rows], return_counts=True)
    return np.asarray(rows[np.isin(y[rows], labels[counts >= MIN_CLASS_ROWS])])


def score_split(data: Dataset, effort: Effort, seed: int) -> dict[str, Score]:
    """Return the score of every method on one stratified split.

    All settings are chosen by cross-validation on the training rows. The held-out rows are
    predicted once, with the best setting.
    """
    x_train, x_test, y_train, y_test = train_test_split(
        data.x.astype(np.float64),
        data.y,
        test_size=effort.test_size,
        stratify=data.y,
        random_state=seed,
    )
    splitter = StratifiedKFold(effort.n_folds, shuffle=True, random_state=seed)
    folds = list(splitter.split(x_train, y_train))
    scaler = StandardScaler().fit(x_train)
    z_train, z_test = scaler.transform(x_train), scaler.transform(x_test)
    result = {}
    for method, tune in _tuners(seed).items():
        clock = time.process_time()
        tuned = tune(z_train, y_train, folds)
        model = fit_quietly(clone(tuned.model), z_train, y_train)
        held_out = accuracy(y_test, model.predict(z_test))
        result[method] = Score(
            tuned.score, held_out, time.process_time() - clock, _describe_settings(tuned.model)
        )
    rows = (x_train, y_train, x_test, y_test)
    result["kNN, scaling tuned"] = _score_neighbors(rows, folds)
    result[BOOSTING] = _score_defaults(FederatedBoostingClassifier(random_state=seed), rows)
    result[DEFAULTS] = _score_defaults(FlyNNClassifier(random_state=seed), rows)
    printed = _printed_space(data.n_features, effort)
    scaled = (z_train, y_train, z_test, y_test)
    result[PRINTED] = _score_flynn(scaled, folds, printed, seed)
    result[FLYNN] = _score_flynn(rows, folds, effort.search, seed)
    return {method: result[method] for method in METHODS}


def _tuners(seed: int) -> dict[str, Callable[[Array, Array, list[Split]], BestModel]]:
    return {
        "kNN": tune_neighbors,
        "1NN": lambda x, y, folds: tune_neighbors(x, y, folds, max_neighbors=1),
        "SBFC": lambda x, y, folds: tune_simhash(x, y, folds, matched=False, seed=seed),
        "SBFC, matched decay": lambda x, y, folds: tune_simhash(
            x, y, folds, matched=True, seed=seed
        ),
        "LR": lambda x, y, folds: tune_logistic(x, y, folds, seed=seed),
        "LR, converged": lambda x, y, folds: tune_logistic(x, y, folds, seed=seed, converged=True),
        "MLP": lambda x, y, folds: tune_network(x, y, folds, seed=seed),
    }


def _describe_settings(model: Any) -> str:
    names = ("n_neighbors", "n_bits", "decay", "C", "class_weight", "hidden_layer_sizes")
    settings = model.get_params()
    return " ".join(f"{key}={settings[key]}" for key in names if key in settings)


def _score_neighbors(rows: tuple[Array, Array, Array, Array], folds: list[Split]) -> Score:
    """Score nearest neighbours, with features standardized or raw by cross-validation."""
    x_train, y_train, x_test, y_test = rows
    clock = time.process_time()
    best = BestModel(-1.0, None)
    for scaler in (StandardScaler(), StandardScaler(with_mean=False, with_std=False)):
        tuned = tune_neighbors(scaler.fit_transform(x_train), y_train, folds)
        if tuned.score > best.score:
            best = BestModel(tuned.score, make_pipeline(scaler, tuned.model))
    held_out = accuracy(y_test, best.model.fit(x_train, y_train).predict(x_test))
    chosen = f"with_std={best.model[0].with_std} {_describe_settings(best.model[1])}"
    return Score(best.score, held_out, time.process_time() - clock, chosen)


def _score_defaults(model: Any, rows: tuple[Array, Array, Array, Array]) -> Score:
    """Score a model with its default parameters."""
    x_train, y_train, x_test, y_test = rows
    clock = time.process_time()
    held_out = accuracy(y_test, model.fit(x_train, y_train).predict(x_test))
    return Score(None, held_out, time.process_time() - clock, "")


def _printed_space(n_features: int, effort: Effort) -> dict[str, Any]:
    """Return 60 settings of Algorithm 1 in the paper's ranges.

    m is from 2 d to 2048 d, s from 2 to d / 2, rho from 8 to 256 and gamma from 0 to 0.8.
    """
    most = min(PRINTED_UNITS, effort.search.get("max_units", PRINTED_UNITS))
    hashes = [
        Candidate(
            False,
            None,
            n_units=min(round(2 * n_features * 1024 ** (step / (N_PRINTED_HASHES - 1))), most),
            n_inputs=max(2, round((step + 1) / N_PRINTED_HASHES * n_features / 2)),
        )
        for step in range(N_PRINTED_HASHES)
    ]
    return {
        "candidates": hashes,
        "n_finalists": None,
        "n_active": PRINTED_ACTIVE,
        "load": (),
        "decay": PRINTED_DECAYS,
        "class_normalized": (False,),
    }


def _score_flynn(
    rows: tuple[Array, Array, Array, Array],
    folds: list[Split],
    space: Mapping[str, Any],
    seed: int,
) -> Score:
    x_train, y_train, x_test, y_test = rows
    clock = time.process_time()
    search = FlyNNSearchCV(folds, random_state=seed, **space).fit(x_train, y_train)
    held_out = accuracy(y_test, search.predict(x_test))
    best = search.best_params_
    chosen = (
        f"{best['expand']} {best['standardize']} m={best['n_units']} s={best['n_inputs']} "
        f"rho={best['n_active']} gamma={best['decay']:.3g} normalized={best['class_normalized']}"
    )
    return Score(search.best_score_, held_out, time.process_time() - clock, chosen)
