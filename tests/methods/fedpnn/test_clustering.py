import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedneighbors import EvolvingClustering
from tests.naive.clustering import evolving as naive

# scikit-learn checks that fail by design, with the reason; none at present.
EXPECTED_FAILURES: dict[str, str] = {}


@parametrize_with_checks(
    # the columns of the checks have spread 1 and need larger balls than rows in [0, 1]
    [EvolvingClustering(threshold=0.5), EvolvingClustering(threshold=0.5, rule="original")],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
@pytest.mark.filterwarnings("ignore:threshold=.* one center", "ignore:threshold=.* rows a center")
def test_clusterer_passes_the_scikit_learn_checks(estimator, check):
    check(estimator)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**64 - 1),
    st.sampled_from(["modified", "original"]),
    st.sampled_from([None, 4]),
)
def test_partial_fit_in_batches_equals_one_fit(seed, rule, max_centers):
    rng = np.random.default_rng(seed)
    x, y = rng.random((30, 3)), rng.choice(["cat", "dog", "owl"], 30)
    split_points = np.sort(rng.integers(1, 30, 2))
    at_once = EvolvingClustering(0.2, rule=rule, max_centers=max_centers)
    in_batches = clone(at_once)

    at_once.fit(x, y)
    labels = []
    for part in np.split(np.arange(30), np.unique(split_points)):
        labels += in_batches.partial_fit(x[part], y[part]).labels_.tolist()

    assert in_batches.centers_.tobytes() == at_once.centers_.tobytes()
    assert in_batches.radii_.tobytes() == at_once.radii_.tobytes()
    assert in_batches.counts_.tolist() == at_once.counts_.tolist()
    assert in_batches.classes_.tolist() == at_once.classes_.tolist()
    assert labels == at_once.labels_.tolist()
    assert (in_batches.n_seen_, in_batches.n_outside_) == (at_once.n_seen_, at_once.n_outside_)


def test_new_labels_get_a_column_of_counts():
    model = EvolvingClustering(0.5)

    model.partial_fit([[0.0], [9.0]], ["m", "z"]).partial_fit([[0.1], [9.1]], ["a", "m"])

    assert model.classes_.tolist() == ["a", "m", "z"]
    assert model.counts_.tolist() == [[1, 1, 0], [0, 1, 1]]


def test_without_labels_rows_are_counted():
    model = EvolvingClustering(0.5).fit([[0.0], [9.0], [0.1]])

    assert model.classes_ is None
    assert model.counts_.tolist() == [[2], [1]]
    assert model.n_seen_ == 3


@pytest.mark.parametrize(("first", "second"), [(None, [1]), ([1], None)])
def test_labels_must_be_given_in_every_call_or_in_none(first, second):
    model = EvolvingClustering(0.5).partial_fit([[0.0]], first)

    with pytest.raises(ValueError, match="labels in every call"):
        model.partial_fit([[1.0]], second)


def test_fit_discards_earlier_centers():
    model = EvolvingClustering(0.1, max_centers=1).partial_fit([[5.0], [9.0]], [1, 2])

    model.fit([[0.0, 1.0]])

    assert model.centers_.tolist() == [[0.0, 1.0]]
    assert (model.n_seen_, model.n_outside_, model.n_features_in_) == (1, 0, 2)


def test_predict_returns_the_nearest_center():
    rng = np.random.default_rng(0)
    x = rng.random((200, 3))
    model = EvolvingClustering(0.2, n_jobs=2).fit(x)

    predicted = model.predict(x)

    assert predicted.tolist() == naive.nearest(x.tolist(), model.centers_.tolist())[0]


def test_clusters_do_not_depend_on_threads():
    x = np.random.default_rng(0).random((3_000, 3))

    one_thread, two_threads = (EvolvingClustering(0.1, n_jobs=jobs).fit(x) for jobs in (1, 2))

    assert one_thread.centers_.tobytes() == two_threads.centers_.tobytes()
    assert one_thread.labels_.tolist() == two_threads.labels_.tolist()


def test_single_row_is_one_center_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        model = EvolvingClustering(0.1).fit([[3.0, 4.0]])

    assert model.centers_.tolist() == [[3.0, 4.0]]
    assert model.radii_.tolist() == [0.0]


@pytest.mark.parametrize("n_rows", [2, 50])
def test_equal_rows_are_one_center_without_a_warning(n_rows):
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        model = EvolvingClustering(0.1).fit(np.full((n_rows, 2), 7.0))

    assert model.counts_.tolist() == [[n_rows]]


def test_constant_columns_only_scale_distances():
    rng = np.random.default_rng(0)
    x = rng.random((100, 2))
    padded_rows = np.column_stack([x[:, 0], np.full(100, 3.0), x[:, 1], np.full(100, -8.0)])

    model = EvolvingClustering(0.2).fit(x)
    padded_model = EvolvingClustering(0.2 / np.sqrt(2)).fit(padded_rows)

    assert padded_model.labels_.tolist() == model.labels_.tolist()


def test_threshold_with_one_center_warns_with_advice():
    x = np.random.default_rng(0).random((50, 2))

    with pytest.warns(UserWarning, match=r"one center for all 50 rows.*lower the threshold"):
        model = EvolvingClustering(3.0).fit(x)

    assert len(model.centers_) == 1


def test_threshold_with_a_center_per_row_warns_with_advice():
    x = np.random.default_rng(0).random((50, 2))

    with pytest.warns(UserWarning, match=r"each of 50 rows a center.*raise the"):
        model = EvolvingClustering(1e-6).fit(x)

    assert len(model.centers_) == len(x)


def test_one_center_because_of_max_centers_does_not_warn():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        EvolvingClustering(0.1, max_centers=1).fit([[0.0], [5.0]])

    assert caught == []


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("call", ["fit", "partial_fit", "predict"])
def test_non_finite_values_are_rejected(bad, call):
    model = EvolvingClustering(0.5).fit([[0.0], [0.1], [9.0]])

    with pytest.raises(ValueError, match=r"NaN|infinity"):
        getattr(model, call)([[0.0], [bad]])


def test_column_names_are_stored_and_checked():
    table = pd.DataFrame({"height": [0.0, 0.1, 5.0], "width": [0.0, 0.2, 5.0]})

    model = EvolvingClustering(0.5).fit(table)

    assert model.feature_names_in_.tolist() == ["height", "width"]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table[["width", "height"]])


def test_pickled_clusterer_predicts_and_continues_alike():
    x = np.random.default_rng(0).random((60, 2))
    model = EvolvingClustering(0.2).fit(x)

    copy = pickle.loads(pickle.dumps(model))  # noqa: S301 - written a line above

    assert copy.predict(x).tolist() == model.predict(x).tolist()
    assert copy.partial_fit(x).radii_.tolist() == model.partial_fit(x).radii_.tolist()


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"threshold": 0}, ValueError, "expected a finite threshold above 0"),
        ({"threshold": "small"}, TypeError, "expected threshold as a number"),
        ({"factor": np.inf}, ValueError, "expected a finite factor above 0"),
        ({"factor": True}, TypeError, "expected factor as a number"),
        ({"rule": "newer"}, ValueError, "expected rule as one of"),
        ({"max_centers": 0}, ValueError, "expected max_centers of at least 1"),
        ({"max_centers": 2.5}, TypeError, "expected max_centers as an integer"),
    ],
)
@pytest.mark.parametrize("call", ["fit", "partial_fit"])
def test_invalid_settings_are_rejected_at_fit(settings, error, words, call):
    with pytest.raises(error, match=words):
        getattr(EvolvingClustering(**settings), call)([[0.0], [1.0]])


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([1], "expected one label for each of 2 rows"),
        ([0.5, 0.25], "Unknown label type"),
        ([[1, 2], [3, 4]], "1d array"),
    ],
)
def test_labels_must_be_one_class_per_row(y, words):
    with pytest.raises(ValueError, match=words):
        EvolvingClustering(0.5).fit([[0.0], [0.1]], y)


def test_predict_before_fit_raises():
    with pytest.raises(NotFittedError):
        EvolvingClustering(0.5).predict([[0.0]])
