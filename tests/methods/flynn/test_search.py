from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import (
    KFold,
    LeaveOneOut,
    PredefinedSplit,
    RepeatedKFold,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
    cross_val_score,
)

from fedneighbors import FlyNNClassifier, FlyNNSearchCV
from fedneighbors.errors import ProtocolError
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.flynn._features import n_expanded
from fedneighbors.methods.flynn._scoring import Candidate, ScoringGrid, list_candidates
from fedneighbors.methods.flynn._search import SearchParty, coordinate_search

CANDIDATES = (
    Candidate(False, None, 60, 2),
    Candidate(False, "mirror", 90, 3),
    Candidate(False, "population", 70, 4),
)
GRID = {
    "n_active": (1, 4, 9),
    "load": (0.0, 0.4, 2.0, float("inf")),
    "decay": (0.9,),
    "class_normalized": (True, False),
}


def table(n_rows=48, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % n_classes
    return rng.normal(size=(n_rows, 4)) + 0.7 * y[:, None], y


def search(**options):
    stages = {"candidates": CANDIDATES, "n_finalists": None}
    return FlyNNSearchCV(**{**stages, **GRID, "cv": 3, "refit": False, **options})


def fold_scores(fitted):
    n_folds = sum(
        name.endswith("_test_score") and name[:5] == "split" for name in fitted.cv_results_
    )
    return np.stack([fitted.cv_results_[f"split{k}_test_score"] for k in range(n_folds)], axis=1)


# The scores are those of scikit-learn.


@pytest.mark.parametrize("scoring", ["accuracy", "balanced_accuracy"])
@pytest.mark.parametrize(
    "cv",
    [
        2,
        5,
        KFold(3),
        KFold(4, shuffle=True, random_state=1),
        StratifiedKFold(3, shuffle=True, random_state=2),
        PredefinedSplit([0, 1, 1, 2] * 12),
        [(np.arange(24), np.arange(24, 48)), (np.arange(24, 48), np.arange(24))],
    ],
    ids=["2", "5", "k-fold", "shuffled", "stratified", "predefined", "pairs"],
)
def test_scores_equal_those_of_cross_val_score_to_the_last_digit(cv, scoring):
    x, y = table()

    fitted = search(cv=cv, scoring=scoring).fit(x, y)

    scores = fold_scores(fitted)
    assert len(scores) == 3 * 3 * 5 * 2
    for k in np.random.default_rng(3).choice(len(scores), 6, replace=False):
        params = fitted.cv_results_["params"][k]
        expected = cross_val_score(FlyNNClassifier(**params), x, y, cv=cv, scoring=scoring)
        assert scores[k].tolist() == expected.tolist()


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("scoring", ["accuracy", "balanced_accuracy"])
def test_one_fold_classes_score_as_in_cross_val_score(scoring):
    x, y = table()
    order = np.argsort(y, kind="stable")
    x, y = x[order], y[order]  # each of three folds is one class, which the others lack

    fitted = search(cv=KFold(3), scoring=scoring).fit(x, y)

    scores = fold_scores(fitted)
    assert (scores == 0).all()
    expected = cross_val_score(
        FlyNNClassifier(**fitted.cv_results_["params"][7]), x, y, cv=KFold(3), scoring=scoring
    )
    assert scores[7].tolist() == expected.tolist()


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_classes_missing_in_folds_score_as_in_cross_val_score():
    x, y = table()
    y[y == 2] = 0
    y[[1, 2, 30]] = 2
    folds = KFold(4)

    fitted = search(cv=folds, scoring="balanced_accuracy").fit(x, y)

    scores = fold_scores(fitted)
    for k in range(0, len(scores), 13):
        params = fitted.cv_results_["params"][k]
        expected = cross_val_score(
            FlyNNClassifier(**params), x, y, cv=folds, scoring="balanced_accuracy"
        )
        assert scores[k].tolist() == expected.tolist()


def test_loo_scores_equal_those_of_cross_val_score():
    x, y = table(18)

    fitted = search(cv="loo").fit(x, y)

    for k in range(0, 90, 17):
        params = fitted.cv_results_["params"][k]
        expected = cross_val_score(FlyNNClassifier(**params), x, y, cv=LeaveOneOut())
        assert fitted.cv_results_["mean_test_score"][k] == expected.mean()


def test_leave_one_out_splitters_give_the_mean_of_loo():
    x, y = table(18)

    by_name, by_splitter = search(cv="loo").fit(x, y), search(cv=LeaveOneOut()).fit(x, y)

    np.testing.assert_allclose(
        by_name.cv_results_["mean_test_score"],
        by_splitter.cv_results_["mean_test_score"],
        rtol=1e-12,
    )


# Over parties.


@pytest.mark.parametrize(
    "cv", ["loo", KFold(4, shuffle=True, random_state=5)], ids=["loo", "folds"]
)
@pytest.mark.parametrize("n_parties", [1, 2, 7])
def test_a_federated_search_equals_the_pooled_search(cv, n_parties):
    x, y = table()
    owner = np.random.default_rng(n_parties).integers(0, n_parties, len(y))

    pooled = search(cv=cv).fit(x, y)
    federated = search(cv=cv).fit(x, y, parties=owner)

    assert fold_scores(federated).tolist() == fold_scores(pooled).tolist()
    assert federated.best_params_ == pooled.best_params_


def test_the_search_standardizes_by_all_parties():
    x, y = table()
    candidates = [Candidate("feature", "mirror", 60, 3), Candidate("global", None, 60, 2)]

    pooled = search(candidates=candidates, cv="loo").fit(x, y)
    federated = search(candidates=candidates, cv="loo").fit(x, y, parties=y)

    assert fold_scores(federated).tolist() == fold_scores(pooled).tolist()


def test_parties_assign_their_rows_to_the_same_folds_again():
    x, y = table(60)
    owner = np.arange(60) // 20

    fitted = search(cv=5).fit(x, y, parties=owner)
    again = search(cv=np.int64(5)).fit(x, y, parties=owner)

    assert fold_scores(fitted).shape == (90, 5)
    assert fold_scores(fitted).tolist() == fold_scores(again).tolist()


def test_folds_without_rows_do_not_count():
    x, y = table(6, n_classes=2)

    fitted = search(cv=50).fit(x, y, parties=[0, 1] * 3)

    assert fold_scores(fitted).shape == (90, 3)
    assert np.isfinite(fitted.cv_results_["mean_test_score"]).all()


def test_the_number_of_threads_changes_no_score():
    x, y = table()

    scores = [
        fold_scores(search(n_jobs=n).fit(x, y, parties=parties)).tobytes()
        for n in (1, 2)
        for parties in (None, np.zeros(48))
    ]

    assert scores[0] == scores[2]
    assert scores[1] == scores[3]


class Liar(SearchParty):
    """Answers one kind of request with altered fields."""

    def __init__(self, kind, change):
        x, y = table()
        super().__init__("liar", x, y, folds=np.arange(len(y)) % 3)
        self.lie = kind, change

    def answer(self, request):
        reply = super().answer(request)
        kind, change = self.lie
        return replace(reply, **change(reply)) if type(reply).__name__ == kind else reply


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("MomentsReply", lambda r: {"n_rows": r.n_rows + 1}),
        ("MomentsReply", lambda r: {"sums": r.sums[:-1], "squares": r.squares[:-1]}),
        ("MomentsReply", lambda r: {"squares": -r.squares}),
        ("FoldCounts", lambda r: {"counts": r.counts * np.uint16(2)}),
        ("FoldCounts", lambda r: {"counts": r.counts[:, :-1]}),
        ("FoldCounts", lambda r: {"rows": r.rows + 1}),
        ("FoldCounts", lambda r: {"rows": r.rows[::-1] * [0, 1, 2]}),
        ("FoldHits", lambda r: {"hits": r.hits[:-1]}),
    ],
)
def test_a_party_with_inconsistent_numbers_is_detected(kind, change):
    candidate = Candidate("feature", None, 60, 2)
    grid = ScoringGrid((4, 9), (0.4,), (True,))

    with pytest.raises(ProtocolError):
        run(coordinate_search([candidate], grid, n_folds=3, seed=0), [Liar(kind, change)])


# Attributes after a search.


def test_results_have_the_layout_of_grid_search():
    x, y = table()

    fitted = search(n_active=(4,), load=(1.0, 0.1), decay=(), class_normalized=(True,)).fit(x, y)

    results = fitted.cv_results_
    assert [p["n_units"] for p in results["params"]] == [60, 60, 90, 90, 70, 70]
    assert list(results["param_n_units"]) == [60, 60, 90, 90, 70, 70]
    assert set(results["params"][0]) < set(FlyNNClassifier().get_params())
    scores = fold_scores(fitted)
    np.testing.assert_allclose(results["mean_test_score"], scores.mean(axis=1), rtol=1e-12)
    np.testing.assert_allclose(results["std_test_score"], scores.std(axis=1), rtol=1e-12)
    mean = results["mean_test_score"]
    assert results["rank_test_score"].tolist() == [
        1 + sum(m > score for m in mean) for score in mean
    ]
    assert fitted.best_score_ == mean.max()
    assert fitted.best_index_ == int(np.argmax(mean))
    assert fitted.best_params_ == results["params"][fitted.best_index_]
    assert results["rank_test_score"][fitted.best_index_] == 1


def test_the_best_setting_is_refitted_on_the_same_parties():
    x, y = table()
    owner = np.arange(48) % 3

    fitted = search(refit=True).fit(x, y, parties=owner)

    expected = FlyNNClassifier(**fitted.best_params_).fit(x, y)
    assert fitted.best_estimator_.model_.to_bytes() == expected.model_.to_bytes()
    assert set(fitted.best_estimator_.run_record_.rounds[0].upload_bytes) == {"0", "1", "2"}
    assert (fitted.predict(x) == expected.predict(x)).all()
    assert (fitted.predict_proba(x) == expected.predict_proba(x)).all()
    assert (fitted.decision_function(x) == expected.decision_function(x)).all()
    assert fitted.classes_.tolist() == [0, 1, 2]


def test_predicting_without_refit_raises():
    x, y = table()

    fitted = search(refit=False).fit(x, y)

    assert not hasattr(fitted, "best_estimator_")
    with pytest.raises(NotFittedError):
        fitted.predict(x)


@pytest.mark.parametrize("form", ["frame", "sparse"])
def test_frames_and_sparse_tables_are_searched_like_arrays(form):
    x, y = table()
    names = np.array(["ill", "well", "dead"])[y]
    other = pd.DataFrame(x, columns=list("abcd")) if form == "frame" else scipy.sparse.csr_array(x)

    fitted = search(refit=True).fit(other, names)

    assert fold_scores(fitted).tolist() == fold_scores(search().fit(x, names)).tolist()
    assert set(fitted.predict(other)) <= set(names)


def test_a_rho_above_the_number_of_units_is_left_out():
    x, y = table()

    fitted = search(n_active=(4, 65, 80)).fit(x, y)

    sizes = {(p["n_units"], p["n_active"]) for p in fitted.cv_results_["params"]}
    assert sizes == {(60, 4), (70, 4), (70, 65), (90, 4), (90, 65), (90, 80)}


# Bad arguments.


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"cv": 1}, ValueError, "n_splits=2 or more, got n_splits=1"),
        ({"cv": 100}, ValueError, "n_splits=100 greater than the number of samples"),
        ({"cv": "ten"}, ValueError, "Expected `cv` as an integer"),
        ({"cv": ShuffleSplit(3, random_state=0)}, ValueError, "give a k-fold splitter"),
        ({"cv": TimeSeriesSplit(3)}, ValueError, "give a k-fold splitter"),
        (
            {"cv": [(range(48), range(24)), (range(24), range(24, 48))]},
            ValueError,
            "train on all other",
        ),
        ({"cv": RepeatedKFold(n_splits=2)}, ValueError, "folds that do not overlap"),
        ({"cv": PredefinedSplit([-1, 0, 1, 1] * 12)}, ValueError, "folds that cover all rows"),
        ({"cv": [(range(9), range(24)), (range(24), range(24, 48))]}, ValueError, "train on all"),
        ({"scoring": "f1"}, ValueError, "expected scoring 'accuracy' or 'balanced_accuracy', got"),
        ({"n_active": ()}, ValueError, r"expected n_active as positive integers to try, got \(\)"),
        ({"n_active": (0,)}, ValueError, r"expected n_active as positive integers to try, got \(0"),
        ({"n_active": 8}, TypeError, "expected n_active as a sequence of values to try, got 8"),
        ({"load": (-1,)}, ValueError, "expected values of load of at least 0"),
        ({"load": (float("nan"),)}, ValueError, "expected values of load of at least 0"),
        ({"load": (), "decay": ()}, ValueError, "expected a load or decay"),
        ({"decay": (2,)}, ValueError, r"expected values of decay in \[0, 1\]"),
        ({"class_normalized": ()}, ValueError, "a class_normalized to try"),
        ({"class_normalized": True}, TypeError, "expected class_normalized as a sequence"),
        ({"class_normalized": (1,)}, ValueError, "expected True and False to try"),
        ({"candidates": ()}, ValueError, "expected candidates as Candidate objects"),
        ({"candidates": (3,)}, ValueError, "expected candidates as Candidate objects"),
        ({"n_finalists": 0}, ValueError, "expected n_finalists as a positive integer, got 0"),
        ({"units_per_row": 1.5}, ValueError, "expected units_per_row as a positive integer"),
        ({"max_units": None}, ValueError, "expected max_units as a positive integer, got None"),
        ({"random_state": -1}, ValueError, "expected random_state in"),
    ],
    ids=str,
)
def test_a_wrong_argument_of_a_search_is_named(options, error, words):
    x, y = table()

    with pytest.raises(error, match=words):
        search(**options).fit(x, y)


@pytest.mark.parametrize("cv", [1, 0, -2, True])
def test_parties_need_two_folds_or_more(cv):
    x, y = table()

    with pytest.raises(
        ValueError, match=r"expected cv of at least 2, got .*'loo' leaves out one row"
    ):
        search(cv=cv).fit(x, y, parties=y)


# Candidates.


@pytest.mark.parametrize("n_features", [1, 2, 8, 9, 784])
def test_listed_candidates_suit_the_number_of_columns(n_features):
    candidates = list_candidates(n_features, n_units=99)

    assert len(set(candidates)) == len(candidates)
    for candidate in candidates:
        assert 1 <= candidate.n_inputs <= n_expanded(candidate.expand, n_features)
        assert candidate.n_units == 99
    assert ("fourier" in {c.expand for c in candidates}) == (n_features <= 8)
    assert {c.standardize for c in candidates} == {"feature", "global", False}


def test_the_best_candidates_are_scored_again_with_more_units():
    x, y = table()
    options = {"candidates": CANDIDATES, "scoring": "balanced_accuracy"}
    screen = search(**options, n_active=(64, 256), load=(0.8, 3.2), decay=()).fit(x, y)
    scores = zip(screen.cv_results_["params"], screen.cv_results_["mean_test_score"], strict=True)
    best = {}
    for params, score in scores:
        best[params["n_units"]] = max(score, best.get(params["n_units"], 0))
    order = sorted((60, 90, 70), key=lambda units: -best[units])

    fitted = search(**options, n_finalists=2, units_per_row=2, max_units=95).fit(x, y)

    finalists = [next(c for c in CANDIDATES if c.n_units == units) for units in order[:2]]
    expected = search(
        scoring="balanced_accuracy", candidates=[replace(c, n_units=95) for c in finalists]
    ).fit(x, y)
    assert fitted.cv_results_["params"] == expected.cv_results_["params"]
    assert fold_scores(fitted).tolist() == fold_scores(expected).tolist()


def test_finalists_have_no_fewer_units_than_their_candidates():
    x, y = table()

    fitted = search(n_finalists=3, units_per_row=1, max_units=80).fit(x, y)

    assert {p["n_units"] for p in fitted.cv_results_["params"]} == {60, 70, 90}


def test_a_grid_pairs_every_decay_with_every_exponent():
    grid = ScoringGrid((4,), (float("inf"), 0.0), (True, False), (0.25,))
    plan = FlyNNClassifier(n_units=50, n_active=4).fit(*table()).model_.plan

    settings = grid.settings(plan, n_rows=48, n_classes=3)

    assert settings == tuple((d, f) for f in (True, False) for d in (0.0, 1.0, 0.25))
