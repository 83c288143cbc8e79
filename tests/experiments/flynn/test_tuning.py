"""Tuned baselines equal those of a search with scikit-learn."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import scale

from experiments.flynn.tuning import (
    fit_quietly,
    list_bit_counts,
    neighbor_scores,
    simhash_scores,
    tune_logistic,
    tune_neighbors,
    tune_network,
    tune_simhash,
)
from fedneighbors.baselines._simhash import SimHashBloomClassifier


def tables():
    yield scale(load_breast_cancer().data), load_breast_cancer().target
    yield scale(load_wine().data), load_wine().target
    yield make_classification(400, 30, n_informative=20, n_classes=5, random_state=2)
    yield make_classification(400, 4, n_informative=4, n_redundant=0, random_state=3)


def folds_of(x, y, n_folds=5):
    return list(StratifiedKFold(n_folds, shuffle=True, random_state=0).split(x, y))


@pytest.mark.parametrize("table", range(4))
@pytest.mark.parametrize("k", [1, 2, 3, 4, 10, 33, 64])
def test_scores_of_every_k_equal_those_of_scikit_learn(table, k):
    x, y = list(tables())[table]
    folds = folds_of(x, y)

    scores = neighbor_scores(x, y, folds)

    expected = cross_val_score(KNeighborsClassifier(k), x, y, cv=folds)
    assert scores[:, k - 1].tolist() == expected.tolist()


def test_k_is_limited_by_the_rows_of_a_fold():
    x, y = scale(load_wine().data)[::6], load_wine().target[::6]
    folds = folds_of(x, y, n_folds=2)

    assert neighbor_scores(x, y, folds).shape == (2, 15)


def test_tuned_k_is_the_best_of_a_full_search():
    x, y = make_classification(300, 12, n_informative=8, flip_y=0.2, random_state=4)
    folds = folds_of(x, y)

    tuned = tune_neighbors(x, y, folds, max_neighbors=20)

    means = [cross_val_score(KNeighborsClassifier(k), x, y, cv=folds).mean() for k in range(1, 21)]
    assert tuned.score == max(means)
    assert tuned.model.n_neighbors == 1 + int(np.argmax(means))


def test_scores_of_sbfc_equal_those_of_scikit_learn():
    x, y = scale(load_wine().data), load_wine().target
    folds = folds_of(x, y)

    scores = simhash_scores(x, y, folds, n_bits=(5, 40), decays=(0.0, 0.5, 0.99), seed=3)

    for i, n_bits in enumerate((5, 40)):
        for j, decay in enumerate((0.0, 0.5, 0.99)):
            model = SimHashBloomClassifier(n_bits, decay, random_state=3)
            assert scores[:, i, j].tolist() == cross_val_score(model, x, y, cv=folds).tolist()


def test_matched_decays_prevent_saturation_of_sbfc():
    x, y = make_classification(1000, 20, n_informative=10, n_classes=4, random_state=0)
    folds = folds_of(x, y)

    saturated = tune_simhash(x, y, folds, matched=False, max_bits=512)
    matched = tune_simhash(x, y, folds, matched=True, max_bits=512)

    assert matched.score > saturated.score
    assert cross_val_score(matched.model, x, y, cv=folds).mean() == pytest.approx(matched.score)


def test_bit_counts_range_below_and_above_the_features():
    assert list_bit_counts(2, max_bits=64) == (1, 2, 4, 8, 16, 32, 64)
    assert max(list_bit_counts(10, max_bits=10**6)) == 20480


@pytest.mark.parametrize("tune", [tune_logistic, tune_network])
def test_gradient_descent_is_tuned_with_one_pass_over_the_rows(tune):
    x, y = make_classification(300, 8, n_informative=6, class_sep=2.0, random_state=6)
    folds = folds_of(x, y, n_folds=3)

    tuned = tune(x, y, folds)

    scores = [
        fit_quietly(clone(tuned.model), x[train], y[train]).score(x[test], y[test])
        for train, test in folds
    ]
    assert tuned.model.max_iter == 1
    assert np.mean(scores) == pytest.approx(tuned.score)
    assert tuned.score > 0.7


def test_only_convergence_warnings_are_suppressed():
    x, y = scale(load_wine().data), load_wine().target

    with pytest.warns(UserWarning, match="made for this test") as caught:
        fit_quietly(_WarningModel(max_iter=1), x, y)

    assert [warning.category for warning in caught] == [UserWarning]


class _WarningModel(LogisticRegression):
    def fit(self, x, y):
        import warnings

        warnings.warn("made for this test", UserWarning, stacklevel=2)
        return super().fit(x, y)
