"""Predictions over several parties equal those of scikit-learn on the pooled rows."""

import inspect

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedneighbors import (
    FederatedNeighbors,
    FederatedNeighborsClassifier,
    FederatedNeighborsRegressor,
    Privacy,
)
from fedneighbors.datasets._graphs import Graph

# scikit-learn checks that cannot pass, with reasons: none
EXPECTED_FAILURES: dict[str, str] = {}

RNG = np.random.default_rng(11)
POINTS, NEW_POINTS = RNG.normal(size=(300, 5)), RNG.normal(size=(80, 5))
PLACES = RNG.uniform(-80, 80, (200, 2))  # longitude, latitude


@parametrize_with_checks(
    [FederatedNeighborsClassifier(), FederatedNeighborsRegressor()],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


def owners_of(n, n_parties=4):
    return [f"party-{row * row % n_parties}" for row in range(n)]


def split_rows(x, y):
    """Return every second row for training, and the others for testing."""
    return x[::2], x[1::2], y[::2], y[1::2]


@pytest.mark.parametrize("k", [1, 2, 5, 12])
@pytest.mark.parametrize("metric", ["euclidean", "manhattan", "cosine"])
def test_classes_and_probabilities_equal_those_of_pooled_rows(metric, k):
    classes, codes = np.array(["a", "b", "c"]), RNG.integers(3, size=len(POINTS))
    # some versions of scikit-learn predict no text with a Manhattan metric
    pooled = KNeighborsClassifier(k, metric=metric, algorithm="brute").fit(POINTS, codes)

    federated = FederatedNeighborsClassifier(k, metric=metric).fit(
        POINTS, classes[codes], parties=owners_of(300)
    )

    assert federated.classes_.tolist() == classes.tolist()
    assert federated.predict(NEW_POINTS).tolist() == classes[pooled.predict(NEW_POINTS)].tolist()
    assert np.array_equal(federated.predict_proba(NEW_POINTS), pooled.predict_proba(NEW_POINTS))


@pytest.mark.parametrize("weights", ["uniform", "distance"])
@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
def test_predictions_on_real_tables_equal_those_of_pooled_rows(load, weights):
    x, x_new, y, y_new = split_rows(*load(return_X_y=True))
    pooled = KNeighborsClassifier(weights=weights).fit(x, y)

    federated = FederatedNeighborsClassifier(weights=weights).fit(x, y, parties=owners_of(len(x)))

    assert np.array_equal(federated.predict(x_new), pooled.predict(x_new))
    assert federated.score(x_new, y_new) == pooled.score(x_new, y_new)
    # distances differ in their last digits
    np.testing.assert_allclose(
        federated.predict_proba(x_new), pooled.predict_proba(x_new), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("k", [1, 4, 9, 20])
def test_means_equal_those_of_pooled_rows(k):
    x, x_new, y, y_new = split_rows(*load_diabetes(return_X_y=True))
    pooled = KNeighborsRegressor(k).fit(x, y)

    federated = FederatedNeighborsRegressor(k).fit(x, y, parties=owners_of(len(x)))

    assert np.array_equal(federated.predict(x_new), pooled.predict(x_new))
    assert federated.score(x_new, y_new) == pooled.score(x_new, y_new)


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_weighted_means_equal_those_of_pooled_rows(n_outputs):
    y = RNG.normal(size=(300, n_outputs)) if n_outputs > 1 else RNG.normal(size=300)
    pooled = KNeighborsRegressor(7, weights="distance").fit(POINTS, y)

    federated = FederatedNeighborsRegressor(7, weights="distance").fit(
        POINTS, y, parties=owners_of(300)
    )

    np.testing.assert_allclose(federated.predict(NEW_POINTS), pooled.predict(NEW_POINTS), rtol=1e-9)


def test_classes_of_places_equal_those_of_scikit_learn():
    y = np.arange(200) % 3
    radians = np.radians(PLACES[:, ::-1])  # scikit-learn expects latitude first
    pooled = KNeighborsClassifier(metric="haversine").fit(radians[:150], y[:150])

    federated = FederatedNeighborsClassifier(metric="haversine")
    federated.fit(PLACES[:150], y[:150], parties=owners_of(150))

    assert np.array_equal(federated.predict(PLACES[150:]), pooled.predict(radians[150:]))


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_weights_by_distance_use_only_objects_at_distance_0(weights):
    x, y = [[0.0], [0.0], [1.0], [1.0], [1.0]], [10.0, 20.0, 0.0, 0.0, 0.0]

    regressor = FederatedNeighborsRegressor(5, weights=weights).fit(x, y, parties="abcab")

    assert regressor.predict([[0.0]]).tolist() == [15.0 if weights == "distance" else 6.0]


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_the_first_of_two_tied_classes_is_predicted(weights):
    model = FederatedNeighborsClassifier(2, weights=weights)

    model.fit([[-1.0], [1.0]], ["late", "early"], parties="ab")

    assert model.predict([[0.0]]).tolist() == ["early"]
    assert model.predict_proba([[0.0]]).tolist() == [[0.5, 0.5]]


def test_all_objects_vote_if_there_are_fewer_than_k():
    model = FederatedNeighborsClassifier(9).fit([[0.0], [1.0], [2.0]], [1, 1, 0], parties="abc")

    assert model.predict_proba([[5.0]]).tolist() == [[1 / 3, 2 / 3]]


@pytest.mark.parametrize("kind", [list, np.array, lambda words: pd.Series(words, index=words)])
def test_strings_are_classified_by_edit_distance(kind):
    words, language = ["bank", "tank", "Zweig", "Zwerg"], ["en", "en", "de", "de"]

    model = FederatedNeighborsClassifier(1, metric="edit").fit(
        kind(words), language, parties="abab"
    )

    assert model.predict(["rank", "Zwang"]).tolist() == ["en", "de"]
    assert model.predict("rank").tolist() == ["en"]


def test_graphs_can_have_numeric_targets():
    chain, ring = Graph("CCO", [(0, 1), (1, 2)]), Graph("CCC", [(0, 1), (1, 2), (2, 0)])

    model = FederatedNeighborsRegressor(1, metric="graph_edit")
    model.fit([chain, ring], [[1, 2], [3, 4]], parties="ab")

    assert model.predict([Graph("CCCC", [(0, 1), (1, 2), (2, 0)])]).tolist() == [[3.0, 4.0]]


def test_a_distance_function_is_accepted_as_metric():
    model = FederatedNeighborsClassifier(1, metric=lambda a, b: abs(float(a[0]) - float(b[0])))

    model.fit([[1.0], [5.0]], ["low", "high"], parties="ab")

    assert model.predict([[4.0]]).tolist() == ["high"]


def test_the_search_records_the_cost_of_each_query():
    model = FederatedNeighborsClassifier(3).fit(POINTS, np.arange(300) % 2, parties=owners_of(300))

    model.predict(NEW_POINTS[:7])

    assert len(model.search_.query_records_) == 7
    assert all(record.exact for record in model.search_.query_records_)


def test_private_searches_give_the_same_classes():
    y = np.arange(300) % 3
    not_private = FederatedNeighborsClassifier(4).fit(POINTS, y, parties=owners_of(300))
    privacy = Privacy(epsilon=1, delta=1e-6)

    model = FederatedNeighborsClassifier(4, algorithm="dann*", privacy=privacy, grid_s=0)
    model.fit(POINTS, y, parties=owners_of(300))

    assert model.predict(NEW_POINTS[:9]).tolist() == not_private.predict(NEW_POINTS[:9]).tolist()
    assert {record.algorithm for record in model.search_.query_records_} == {"dann*"}


@pytest.mark.parametrize("kind", [FederatedNeighborsClassifier, FederatedNeighborsRegressor])
def test_parameters_of_the_search_have_equal_defaults(kind):
    parameters = inspect.signature(kind).parameters

    expected = inspect.signature(FederatedNeighbors).parameters
    assert {name: parameters[name].default for name in expected} == {
        name: parameter.default for name, parameter in expected.items()
    }
    assert set(parameters) - set(expected) == {"n_neighbors", "standardize", "weights"}


@pytest.mark.parametrize("metric", ["euclidean", "manhattan", "cosine"])
@pytest.mark.parametrize("n_columns", [2, 20])
def test_queries_answered_together_have_the_neighbors_of_single_ones(metric, n_columns):
    x, queries = RNG.integers(1, 4, (300, n_columns)), RNG.integers(1, 4, (40, n_columns))
    search = FederatedNeighbors(metric=metric).fit(x, parties=owners_of(300))

    distances, positions = search._nearest_batch(queries.astype(float), 7)

    expected = search.kneighbors(queries, 7)
    assert distances.tolist() == [row.tolist() for row in expected[0]]
    assert positions.tolist() == [row.tolist() for row in expected[1]]


def test_votes_of_parties_equal_those_of_one_party_bit_for_bit():
    y = np.arange(300) % 3
    pooled = FederatedNeighborsClassifier(weights="distance").fit(POINTS, y)

    federated = FederatedNeighborsClassifier(weights="distance")
    federated.fit(POINTS, y, parties=owners_of(300))

    assert np.array_equal(federated.predict_proba(NEW_POINTS), pooled.predict_proba(NEW_POINTS))


def test_queries_together_need_one_exchange_of_equally_shared_cost():
    model = FederatedNeighborsClassifier(3).fit(POINTS, np.arange(300) % 2, parties=owners_of(300))

    model.predict(NEW_POINTS)

    records = model.search_.query_records_
    assert len(records) == 80
    assert {record.n_rounds for record in records} == {1}
    assert records[0].phase_seconds.keys() == {"objects"}
    assert 0 < records[0].upload_bytes < 4 * 3 * 8 * 3 + 100  # 3 objects of 4 parties a query


@pytest.mark.parametrize("weights", ["uniform", "distance"])
@pytest.mark.parametrize("kind", [FederatedNeighborsClassifier, FederatedNeighborsRegressor])
def test_integer_weights_equal_repeated_rows(kind, weights):
    y, copies = np.arange(300) % 3, np.arange(300) % 4
    repeated = np.repeat(np.arange(300), copies)
    owners = np.array(owners_of(300))

    weighted = kind(6, weights=weights)
    weighted.fit(POINTS, y, parties=owners, sample_weight=copies)
    model = kind(6, weights=weights)
    model.fit(POINTS[repeated], y[repeated], parties=owners[repeated])

    predict = "predict" if kind is FederatedNeighborsRegressor else "predict_proba"
    found, expected = (getattr(each, predict)(NEW_POINTS) for each in (weighted, model))
    if weights == "uniform" and predict == "predict_proba":  # sums of integers
        assert np.array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_weights_of_objects_below_1_let_more_objects_vote():
    model = FederatedNeighborsClassifier(1)

    model.fit([[0.0], [1.0], [2.0]], ["a", "b", "b"], sample_weight=[0.5, 0.25, 1.0])

    assert model.predict_proba([[0.0]]).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("settings", "weights", "words"),
    [
        ({}, [1, -1], "Negative"),
        ({}, [0, 0], "at least one non-zero"),
        ({}, [1, 2, 3], "sample_weight.shape"),
        ({"privacy": Privacy(epsilon=1, delta=1e-6)}, [1, 2], "weights of single objects"),
    ],
)
def test_invalid_sample_weights_are_refused(settings, weights, words):
    with pytest.raises(ValueError, match=words):
        FederatedNeighborsClassifier(**settings).fit([[0.0], [1.0]], [0, 1], sample_weight=weights)


@pytest.mark.parametrize("missing", [np.nan, None, ""])
@pytest.mark.parametrize("kind", [FederatedNeighborsClassifier, FederatedNeighborsRegressor])
def test_objects_without_a_party_are_refused(kind, missing):
    with pytest.raises(ValueError, match="expected a party for every row, found 1 rows without"):
        kind().fit([[0.0], [1.0]], [0, 1], parties=["a", missing])


@pytest.mark.parametrize("metric", ["euclidean", "edit"])
def test_mappings_are_refused(metric):
    x = [[0.0], [1.0]] if metric == "euclidean" else ["a", "b"]
    model = FederatedNeighborsClassifier(1, metric=metric)

    with pytest.raises(TypeError, match="got a mapping"):
        model.fit(dict(enumerate(x)), [0, 1])
    with pytest.raises(TypeError, match="got a mapping"):
        model.fit(x, [0, 1], parties={0: "a", 1: "b"})
    model.fit(x, [0, 1])
    with pytest.raises(TypeError, match="got a mapping"):
        model.predict({0: x[0]})
    with pytest.raises(TypeError, match="got a mapping"):
        model.search_.fit({0: x[0]})


def test_cross_validation_equals_that_of_scikit_learn():
    scores = cross_val_score(FederatedNeighborsClassifier(), *load_wine(return_X_y=True), cv=3)

    expected = cross_val_score(KNeighborsClassifier(), *load_wine(return_X_y=True), cv=3)
    assert scores.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", [FederatedNeighborsClassifier, FederatedNeighborsRegressor])
@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"n_neighbors": 0}, ValueError, "expected n_neighbors of 1 or more"),
        ({"n_neighbors": 2.0}, TypeError, "expected n_neighbors as an integer"),
        ({"weights": "votes"}, ValueError, "expected weights as one of"),
        ({"algorithm": "magic"}, ValueError, "expected algorithm as one of"),
        ({"metric": "hamming"}, ValueError, "expected a metric among"),
    ],
)
def test_invalid_settings_are_refused_at_fit(kind, settings, error, words):
    with pytest.raises(error, match=words):
        kind(**settings).fit([[0.0], [1.0]], [0, 1])


@pytest.mark.parametrize("kind", [FederatedNeighborsClassifier, FederatedNeighborsRegressor])
@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ([], [], "expected at least one object"),
        (["a", "b"], [1], "expected y for each of 2 objects"),
        (["a", "b"], [1, np.nan], "found 1 rows without one, first at position 1"),
    ],
)
def test_missing_or_invalid_targets_are_refused(kind, x, y, words):
    with pytest.raises(ValueError, match=words):
        kind(metric="edit").fit(x, y)


def test_several_labels_per_object_are_refused():
    with pytest.raises(ValueError, match="expected one label for each object"):
        FederatedNeighborsClassifier(metric="edit").fit(["a", "b"], [[0, 1], [1, 0]])


@pytest.mark.parametrize("kind", [FederatedNeighborsClassifier, FederatedNeighborsRegressor])
def test_prediction_before_fit_is_refused(kind):
    with pytest.raises(NotFittedError):
        kind(metric="edit").predict(["a"])


@pytest.mark.parametrize("kind", [FederatedNeighborsClassifier, FederatedNeighborsRegressor])
def test_standardized_columns_give_the_predictions_of_pooled_standardized_rows(kind):
    x, new = POINTS * [1, 10, 100, 1e4, 0] + 7, NEW_POINTS * [1, 10, 100, 1e4, 0] + 7
    y = RNG.integers(3, size=len(x))
    peer = KNeighborsClassifier if kind is FederatedNeighborsClassifier else KNeighborsRegressor
    pooled = make_pipeline(StandardScaler(), peer(5)).fit(x, y)

    model = kind(5, standardize=True).fit(x, y, parties=owners_of(300))

    assert np.array_equal(model.predict(new), pooled.predict(new))
    assert len(model.run_record_.rounds) == 2
    assert np.isfinite(model.predict(np.full((1, 5), 1e308))).all()
    assert kind(5).fit(x, y).run_record_ is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "edit"}, "standardize is for columns of numbers, not for metric 'edit'"),
        ({"metric": "haversine"}, "not for metric 'haversine'"),
        ({"privacy": Privacy(1, delta=1e-6)}, "which a privacy budget does not cover"),
    ],
)
def test_standardize_is_refused_where_it_cannot_be(settings, message):
    model = FederatedNeighborsClassifier(1, standardize=True, **settings)

    with pytest.raises(ValueError, match=message):
        model.fit(PLACES, np.arange(200) % 2)
