"""Scikit-learn estimator that selects FlyNN's settings by cross-validation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.model_selection import check_cv
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.flynn._features import convert_for_kernels
from fedneighbors.methods.flynn._scoring import Candidate, ScoringGrid, list_candidates
from fedneighbors.methods.flynn._search import (
    LEAVE_ONE_OUT,
    CandidateScores,
    SearchParty,
    coordinate_search,
)
from fedneighbors.methods.flynn.estimator import FlyNNClassifier
from fedneighbors.tabular._ownership import (
    check_labels,
    column_names,
    plain_targets,
    public_seed,
    rows_by_party,
    validate_rows,
)

SCREENING_ACTIVE = (64, 256)
SCREENING_LOADS = (0.8, 3.2)
"""Values of rho and kappa of the first stage."""


@dataclass(eq=False, repr=False)
class FlyNNSearchCV(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Cross-validated search over FlyNN's settings, with one pass per candidate hash.

    The first stage scores every kind of hash with few units, the second the best kinds with many.
    Scores equal those of scikit-learn's ``cross_val_score`` for a :class:`FlyNNClassifier` with
    the same settings (with standardizing constants fixed over the folds), because hashes are
    independent of labels and folds, and counts can be subtracted.

    Parameters
    ----------
    cv : int, scikit-learn splitter or "loo"
        Folds. With an integer in a federation, each party splits its own rows into stratified
        folds. ``"loo"`` is leave-one-out, which transfers the fewest bytes.
    scoring : {"accuracy", "balanced_accuracy"}
        Score to maximise.
    candidates : sequence of Candidate, optional
        Hashes to try. None tries every combination of scaling and expansion that suits the number
        of columns, with 20,000 units.
    n_finalists : int, optional
        Number of candidates that the second stage scores again with more units. None skips the
        first stage and scores the candidates as they are.
    units_per_row, max_units : int
        Number of units in the second stage: ``units_per_row`` for each row, at most ``max_units``,
        at least those of the candidate.
    n_active : sequence of int
        Values of rho to try.
    load : sequence of float
        Values of kappa to try in the decay exp(-kappa L m / (n rho)); inf means decay 0.
    decay : sequence of float
        Values of the decay to try in addition to those derived from ``load``.
    class_normalized : sequence of bool
        Values to try, see :class:`FlyNNClassifier`.
    refit : bool
        Fit ``best_estimator_`` on all rows.
    random_state : int, RandomState or None
        Seed of the hash.
    n_jobs : int, optional
        Threads.

    Attributes
    ----------
    best_params_ : dict
        Arguments of :class:`FlyNNClassifier`.
    best_score_ : float
        Mean score over the folds; ties go to the setting tried first.
    best_estimator_ : FlyNNClassifier
        Classifier fitted on all rows of the same parties.
    cv_results_ : dict of arrays
        As in scikit-learn's ``GridSearchCV``, for the last stage.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> search = FlyNNSearchCV().fit(X, y)
    >>> bool(search.best_score_ > 0.9)
    True
    """

    cv: Any = 5
    scoring: str = "accuracy"
    candidates: Sequence[Candidate] | None = None
    n_finalists: int | None = 2
    units_per_row: int = 40
    max_units: int = 120_000
    n_active: Sequence[int] = (32, 128, 256, 512)
    load: Sequence[float] = (0.2, 0.8, 1.6, 3.2, float("inf"))
    decay: Sequence[float] = ()
    class_normalized: Sequence[bool] = (True, False)
    refit: bool = True
    random_state: int | np.random.RandomState | None = 0
    n_jobs: int | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, parties: Sequence[Any] | Array | None = None) -> Self:
        """Score the candidates and fit the best one.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame of shape (n_rows, n_features)
            Finite numbers.
        y : array of shape (n_rows,)
            Labels.
        parties : sequence of shape (n_rows,), optional
            Owner of each row.
        """
        y = plain_targets(y, parties)
        x, labels = validate_rows(self, X, y, accept_sparse="csr", dtype="numeric")
        check_labels(labels)
        if self.scoring not in ("accuracy", "balanced_accuracy"):
            raise ValueError(
                f"expected scoring 'accuracy' or 'balanced_accuracy', got {self.scoring!r}"
            )
        seed, grid = public_seed(self.random_state), self._grid()
        candidates = self._list_candidates(x.shape[1])
        searched, n_folds = self._make_parties(convert_for_kernels(x), labels, parties)

        def score(candidates: Sequence[Candidate], grid: ScoringGrid) -> list[CandidateScores]:
            search = coordinate_search(candidates, grid, n_folds=n_folds, seed=seed)
            return run(search, searched, n_workers=int(effective_n_jobs(self.n_jobs))).result

        if self.n_finalists is not None:
            screening = ScoringGrid(SCREENING_ACTIVE, SCREENING_LOADS, grid.class_normalized)
            candidates = self._choose_finalists(score(candidates, screening), n_rows=len(labels))
        self.classes_ = np.unique(labels)
        self._set_results(score(candidates, grid), seed)
        if self.refit:
            self.best_estimator_ = FlyNNClassifier(**self.best_params_, n_jobs=self.n_jobs)
            self.best_estimator_.fit(X, y, parties=parties)
        return self

    def predict(self, X: Any) -> Array:
        """Predict classes with ``best_estimator_``."""
        return self._get_best().predict(X)

    def predict_proba(self, X: Any) -> Floats:
        """Predict class probabilities with ``best_estimator_``."""
        return self._get_best().predict_proba(X)

    def decision_function(self, X: Any) -> Floats:
        """Return the scores of ``best_estimator_``."""
        return self._get_best().decision_function(X)

    def _get_best(self) -> FlyNNClassifier:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    def _grid(self) -> ScoringGrid:
        return ScoringGrid(
            n_active=tuple(sorted(set(_check_sequence("n_active", self.n_active)))),
            load=_check_sequence("load", self.load),
            class_normalized=_check_sequence("class_normalized", self.class_normalized),
            decay=tuple(map(float, _check_sequence("decay", self.decay))),
        )

    def _list_candidates(self, n_features: int) -> list[Candidate]:
        for name in ("n_finalists", "units_per_row", "max_units"):
            value = getattr(self, name)
            allowed = name == "n_finalists" and value is None
            if not allowed and (not isinstance(value, Integral) or value < 1):
                raise ValueError(f"expected {name} as a positive integer, got {value!r}")
        if self.candidates is None:
            return list_candidates(n_features)
        candidates = list(_check_sequence("candidates", self.candidates))
        if not candidates or not all(isinstance(c, Candidate) for c in candidates):
            raise ValueError(f"expected candidates as Candidate objects, got {candidates}")
        return candidates

    def _choose_finalists(
        self, scored: Sequence[CandidateScores], *, n_rows: int
    ) -> list[Candidate]:
        """Return the best candidates with the units of the second stage."""
        units = min(self.units_per_row * n_rows, self.max_units)
        best = [
            max(
                _fold_scores(hits, result.rows, self.scoring).mean(axis=0).max()
                for hits in result.hits
            )
            for result in scored
        ]
        ranked = sorted(range(len(scored)), key=lambda k: -best[k])[: self.n_finalists]
        return [
            replace(scored[k].candidate, n_units=max(scored[k].candidate.n_units, units))
            for k in ranked
        ]

    def _make_parties(self, x: Any, y: Array, parties: Any) -> tuple[list[SearchParty], int]:
        """Return the parties and the number of folds."""
        columns = column_names(self)
        owned = rows_by_party(parties, len(y))
        threads = int(effective_n_jobs(self.n_jobs)) if len(owned) == 1 else 1
        result = []
        n_folds = LEAVE_ONE_OUT
        each_splits = parties is not None and isinstance(self.cv, Integral)
        if each_splits and self.cv < 2:
            raise ValueError(
                f"expected cv of at least 2, got {self.cv!r}; 'loo' leaves out one row"
            )
        common = None if each_splits else self._make_folds(x, y)
        for name, rows in owned.items():
            if common is not None:
                folds, n_folds = common[0][rows], common[1]
            else:
                folds, n_folds = _assign_folds(y[rows], int(self.cv)), int(self.cv)
            result.append(
                SearchParty(
                    name, x[rows], y[rows], folds=folds, feature_names=columns, n_threads=threads
                )
            )
        return result, n_folds

    def _make_folds(self, x: Any, y: Array) -> tuple[Integers, int]:
        """Return the fold of each row and the number of folds.

        For leave-one-out, all folds are -1 and the number is ``LEAVE_ONE_OUT``.
        """
        folds = np.full(len(y), -1, np.int64)
        if self.cv == "loo":
            return folds, LEAVE_ONE_OUT
        rows = np.arange(len(y))
        splits = list(check_cv(self.cv, y, classifier=True).split(x, y))
        for number, (train, held_out) in enumerate(splits):
            if not np.array_equal(np.sort(rows[train]), np.delete(rows, held_out)):
                raise ValueError(
                    "expected folds that train on all other rows; give a k-fold splitter"
                )
            if (folds[held_out] >= 0).any():
                raise ValueError("expected folds that do not overlap; give a k-fold splitter")
            folds[held_out] = number
        if (folds < 0).any():
            raise ValueError("expected folds that cover all rows; give a k-fold splitter")
        return folds, len(splits)

    def _set_results(self, scored: Sequence[CandidateScores], seed: int) -> None:
        """Set the result attributes and the best setting."""
        params: list[dict[str, Any]] = []
        scores: list[Floats] = []
        for result in scored:
            for k, n_active in enumerate(result.n_active):
                by_fold = _fold_scores(result.hits[k], result.rows, self.scoring)
                for setting, (decay, normalized) in enumerate(result.settings[k]):
                    params.append(
                        {
                            "n_units": result.candidate.n_units,
                            "n_inputs": result.candidate.n_inputs,
                            "n_active": n_active,
                            "decay": decay,
                            "standardize": result.candidate.standardize,
                            "expand": result.candidate.expand,
                            "class_normalized": normalized,
                            "random_state": seed,
                        }
                    )
                    scores.append(by_fold[:, setting])
        table = np.array(scores)
        mean = table.mean(axis=1)
        self.best_index_ = int(np.argmax(mean))
        self.best_score_ = float(mean[self.best_index_])
        self.best_params_ = params[self.best_index_]
        self.cv_results_ = {
            "params": params,
            **{f"param_{key}": np.array([p[key] for p in params], object) for key in params[0]},
            **{f"split{f}_test_score": table[:, f] for f in range(table.shape[1])},
            "mean_test_score": mean,
            "std_test_score": table.std(axis=1),
            "rank_test_score": 1 + (mean[None, :] > mean[:, None]).sum(axis=1),
        }


def _check_sequence(name: str, values: Any) -> tuple[Any, ...]:
    """Convert the values to try to a tuple; reject single values."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"expected {name} as a sequence of values to try, got {values!r}")
    return tuple(values)


def _assign_folds(y: Array, n_folds: int) -> Integers:
    """Assign rows to stratified folds: round-robin in the order of labels."""
    order = np.argsort(y, kind="stable")
    folds = np.empty(len(y), np.int64)
    folds[order] = np.arange(len(y)) % n_folds
    return folds


def _fold_scores(hits: Integers, rows: Integers, scoring: str) -> Floats:
    """Return the score of each non-empty fold and setting.

    Parameters
    ----------
    hits : int64 array of shape (n_folds, n_settings, n_classes)
    rows : int64 array of shape (n_folds, n_classes)
    """
    non_empty = rows.sum(axis=1) > 0
    hits, rows = hits[non_empty], rows[non_empty]
    if scoring == "accuracy":
        return np.asarray(hits.sum(axis=2) / rows.sum(axis=1)[:, None])
    present = rows > 0
    recalls = hits / np.maximum(rows, 1)[:, None, :]
    return np.asarray(recalls.sum(axis=2) / present.sum(axis=1)[:, None])
