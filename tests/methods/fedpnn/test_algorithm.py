"""Clusters, densities, thresholds and warm-up of FedPNN."""

import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_wine

from fedneighbors import FedPNNClassifier
from fedneighbors.methods.fedpnn.algorithm import (
    Clusters,
    canonical_order,
    choose_threshold,
    class_log_densities,
    describe_threshold,
    evolve_rows,
    log_posteriors,
    majority,
    merge_centers,
)
from tests.naive.clustering import evolving as naive
from tests.seeds import cases

# the expected clusters of these rows are computed by hand
ROWS = np.array([[0, 0], [0.2, 0], [0.9, 0.9], [0.9, 0.7], [0.5, 0.5]])
LABELS = np.array([0, 0, 1, 1, 0])


def test_evolve_rows_matches_a_hand_computed_example():
    clusters = evolve_rows(ROWS, LABELS, 2, threshold=0.1)

    np.testing.assert_allclose(clusters.centers, [[0.1, 0], [0.9, 0.8], [0.5, 0.5]], rtol=1e-15)
    np.testing.assert_allclose(clusters.radii, [0.005**0.5, 0.005**0.5, 0], rtol=1e-14)
    assert clusters.counts.tolist() == [[2, 0], [0, 2], [1, 0]]
    assert clusters.rows.tolist() == [0, 0, 1, 1, 2]


def test_row_inside_the_nearest_ball_changes_only_its_count():
    row = np.array([[0.1, 0.09]])  # at .0636 of the first center, whose radius is .0707
    before = evolve_rows(ROWS, LABELS, 2, threshold=0.1)

    after = evolve_rows(row, np.array([1]), 2, threshold=0.1, start=before)

    assert after.centers.tobytes() == before.centers.tobytes()
    assert after.radii.tobytes() == before.radii.tobytes()
    assert after.counts.tolist() == [[2, 1], [0, 2], [1, 0]]


def test_factor_of_the_pseudo_code_gives_more_centers():
    rng = np.random.default_rng(0)
    x, y = rng.random((400, 4)), np.zeros(400, np.int64)

    text = evolve_rows(x, y, 1, threshold=0.15, factor=2)
    pseudo_code = evolve_rows(x, y, 1, threshold=0.15, factor=1)

    assert len(pseudo_code.centers) > len(text.centers)
    assert pseudo_code.radii.max() <= 0.15 / 2


def test_rules_differ_in_overlapping_balls():
    # the row at .45 is in the large ball around 0, but nearer to the center of the small ball
    start = Clusters(np.array([[0.0], [0.6]]), np.array([0.5, 0.1]), np.zeros((2, 1), np.int64))
    row, label = np.array([[0.45]]), np.array([0])

    modified = evolve_rows(row, label, 1, threshold=0.6, start=start)
    original = evolve_rows(row, label, 1, threshold=0.6, rule="original", start=start)

    assert modified.rows.tolist() == [1]
    assert modified.radii.tolist() == [0.5, 0.5 * (0.6 - 0.45 + 0.1)]
    assert original.rows.tolist() == [0]
    assert original.radii.tolist() == [0.5, 0.1]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**64 - 1), st.sampled_from(["modified", "original"]))
def test_counts_match_the_rows_of_each_center(seed, rule):
    rng = np.random.default_rng(seed)
    x, y = rng.random((60, 3)), rng.integers(0, 4, 60)

    clusters = evolve_rows(x, y, 4, threshold=0.15, rule=rule)

    assert clusters.counts.sum() == 60
    assert clusters.counts.sum(axis=0).tolist() == np.bincount(y, minlength=4).tolist()
    for center, counts in enumerate(clusters.counts):
        assert np.bincount(y[clusters.rows == center], minlength=4).tolist() == counts.tolist()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_every_row_stays_within_its_ball(seed):
    rng = np.random.default_rng(seed)
    x = rng.random((60, int(rng.integers(1, 6))))

    clusters = evolve_rows(x, np.zeros(60, np.int64), 1, threshold=0.2)

    distances = np.sqrt(np.mean((x - clusters.centers[clusters.rows]) ** 2, axis=1))
    assert (
        distances <= clusters.radii[clusters.rows] + 1e-14
    ).all()  # rounding of numbers of size 1
    assert (clusters.radii <= 0.2).all()


def test_rows_beyond_max_centers_count_for_the_nearest():
    x = np.array([[0.0], [1.0], [5.0], [0.6]])

    clusters = evolve_rows(x, np.zeros(4, np.int64), 1, threshold=0.1, max_centers=2)

    assert clusters.centers.tolist() == [[0.0], [1.0]]
    assert clusters.radii.tolist() == [0.0, 0.0]
    assert clusters.rows.tolist() == [0, 1, 1, 1]
    assert clusters.n_outside == 2


def draw_centers(rng, n_classes=3):
    n = int(rng.integers(1, 30))
    centers = rng.random((n, int(rng.integers(1, 4)))).round(1)  # with equal centers and distances
    return centers, rng.integers(0, 5, (n, n_classes))


@settings(max_examples=cases(500), deadline=None)
@given(st.integers(0, 2**64 - 1), st.booleans(), st.sampled_from([None, 0.05, 0.2]))
def test_merging_does_not_depend_on_the_order_of_parties(seed, classwise, threshold):
    rng = np.random.default_rng(seed)
    centers, counts = draw_centers(rng)
    shuffled = rng.permutation(len(centers))
    signs = np.where(rng.random(centers.shape) < 0.5, 1.0, -1.0)  # zeros of either sign

    merged = merge_centers(centers, counts, threshold=threshold, classwise=classwise)

    reordered = merge_centers(
        np.where(centers == 0, signs * centers, centers)[shuffled],
        counts[shuffled],
        threshold=threshold,
        classwise=classwise,
    )
    for first, second in zip(vars(merged).values(), vars(reordered).values(), strict=True):
        assert first.tobytes() == second.tobytes()
    assert merged.counts.sum(axis=0).tolist() == counts.sum(axis=0).tolist()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_merging_matches_the_naive_clustering_of_centers(seed):
    rng = np.random.default_rng(seed)
    centers, counts = draw_centers(rng)
    order = sorted(range(len(centers)), key=lambda j: (*centers[j], *counts[j]))

    merged = merge_centers(centers, counts, threshold=0.1)

    expected, radii, rows, _ = naive.evolve(centers[order].tolist(), [], [], limit=0.2)
    assert canonical_order(centers, counts).tolist() == order
    assert merged.centers.tolist() == expected
    assert merged.radii.tolist() == radii
    for center, sums in enumerate(merged.counts):
        assert sums.tolist() == counts[order][np.array(rows) == center].sum(axis=0).tolist()


def test_classwise_merging_keeps_rare_classes():
    centers = np.array([[0.50], [0.51], [0.52]])
    counts = np.array([[9, 0], [0, 1], [9, 0]])

    jointly = merge_centers(centers, counts, threshold=0.1)
    by_class = merge_centers(centers, counts, threshold=0.1, classwise=True)

    assert majority(jointly.counts).tolist() == [0]
    assert by_class.counts.tolist() == [[18, 0], [0, 1]]


def test_merging_no_centers_gives_none():
    merged = merge_centers(np.zeros((0, 2)), np.zeros((0, 3), np.int64), threshold=0.1)

    assert [part.shape for part in vars(merged).values()] == [(0, 2), (0,), (0, 3)]


def test_majority_ties_go_to_the_lower_class():
    assert majority(np.array([[1, 3, 3], [2, 2, 0], [0, 0, 0]])).tolist() == [1, 0, 0]


def test_densities_are_means_over_the_centers_of_a_class():
    x, centers = np.array([[0.0, 0.0]]), np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])

    densities = class_log_densities(x, centers, np.array([0, 0, 0, 2]), n_classes=3, sigma=1.0)

    expected = [np.log((1 + 2 * np.exp(-0.5)) / 3), -np.inf, -2.0]
    np.testing.assert_allclose(densities, [expected], rtol=1e-15)


@pytest.mark.parametrize("activation", ["gaussian", "logistic", "cauchy"])
def test_densities_with_500_features_and_small_sigma_are_finite(activation):
    rng = np.random.default_rng(0)
    centers, labels = rng.random((40, 500)), np.arange(40) % 3

    densities = class_log_densities(
        rng.random((10, 500)), centers, labels, n_classes=3, sigma=1e-3, activation=activation
    )

    assert np.isfinite(densities).all()


def test_posteriors_follow_from_densities_and_priors():
    with np.errstate(divide="ignore"):
        densities, priors = np.log([[0.2, 0.6, 0.0], [0.0, 0.0, 0.0]]), np.log([0.75, 0.25, 0.0])

    posteriors = np.exp(log_posteriors(densities, priors))

    np.testing.assert_allclose(posteriors[0], [0.5, 0.5, 0.0], rtol=1e-15)
    np.testing.assert_allclose(
        posteriors[1], [0.75, 0.25, 0.0], rtol=1e-15
    )  # all densities are 0: the priors


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threshold": 0.0}, "expected a finite threshold above 0"),
        ({"threshold": np.nan}, "expected a finite threshold above 0"),
        ({"factor": -1.0}, "expected a finite factor above 0"),
        ({"rule": "new"}, "expected rule as one of"),
        ({"max_centers": 0}, "expected max_centers of at least 1"),
    ],
)
def test_invalid_arguments_are_rejected(changes, words):
    with pytest.raises(ValueError, match=words):
        evolve_rows(ROWS, LABELS, 2, **{"threshold": 0.1, **changes})


X, Y = load_wine(return_X_y=True)
OWNERS = np.arange(len(Y)) % 2


def count_centers(rows, threshold):
    labels = np.zeros(len(rows), np.int64)
    return len(evolve_rows(rows, labels, 1, threshold=threshold, factor=2.0).centers)


@pytest.mark.parametrize("n", [3, 10, 60, 300])
@pytest.mark.parametrize("extreme", ["one", "all"])
def test_advised_thresholds_give_several_centers(n, extreme):
    rows = np.random.default_rng(n).normal(size=(n, 3))
    threshold, n_found = (1e9, 1) if extreme == "one" else (1e-9, n)

    advice = describe_threshold([(rows, n_found)], threshold=threshold, factor=2.0)

    low, high = map(float, re.findall(r"(?:about|to) ([\d.e-]+) \(", advice))
    assert advice.startswith(f"={threshold:g} leaves ")
    assert 1 < count_centers(rows, low * 1.01) < n
    assert 1 < count_centers(rows, (low + high) / 2) < n


def test_advice_for_two_rows_names_the_exact_threshold():
    rows = np.array([[0.0], [1.0]])

    advice = describe_threshold([(rows, 2)], threshold=1e-3, factor=2.0)

    advised = float(re.search(r"from about ([\d.e-]+) on", advice)[1])
    assert count_centers(rows, advised * 1.01) == 1
    assert count_centers(rows, advised * 0.99) == 2


@pytest.mark.parametrize("groups", [[], [(np.ones((9, 2)), 1)], [(np.ones((9, 2)), 1)] * 2])
def test_identical_rows_give_no_advice(groups):
    assert describe_threshold(groups, threshold=0.1, factor=2.0) == ""


def test_suitable_thresholds_give_no_advice():
    rows = np.arange(30.0)[:, None]

    assert describe_threshold([(rows, 2)], threshold=0.1, factor=2.0) == ""
    assert describe_threshold([(rows, 29)], threshold=0.1, factor=2.0) == ""
    assert describe_threshold([(rows, 1), (rows, 3)], threshold=0.1, factor=2.0) == ""


def test_advice_counts_distinct_rows():
    rows = np.repeat(np.arange(20.0), [2] * 5 + [1] * 15)[:, None]

    assert "as many centers as distinct rows" in describe_threshold(
        [(rows, 20)], threshold=1e-3, factor=2.0
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"client_threshold": 50.0}, "'0': client_threshold=50 leaves a single center of each"),
        ({"client_threshold": 1e-9}, "'1': client_threshold=1e-09 leaves as many centers as"),
        (
            {"client_threshold": 50.0, "classwise": False},
            "leaves a single center; try values from about",
        ),
        ({"server_threshold": 1e3}, "server_threshold=1000 leaves a single center of each"),
        ({"server_threshold": 1e-9}, "server_threshold=1e-09 leaves as many centers as"),
        ({"client_threshold": 1e-320}, "client_threshold=.* leaves as many centers as"),
        ({"client_threshold": 1e300}, "leaves a single center"),
    ],
)
def test_extreme_thresholds_warn_and_still_train(settings, words):
    with pytest.warns(UserWarning, match=words):
        classifier = FedPNNClassifier(**settings).fit(X, Y, parties=OWNERS)

    assert np.isfinite(classifier.predict_proba(X)).all()


def test_suitable_and_automatic_thresholds_do_not_warn():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        FedPNNClassifier().fit(X, Y, parties=OWNERS)
        FedPNNClassifier(0.6, 0.3).fit(X, Y, parties=OWNERS)
        FedPNNClassifier.paper(0.2, 0.2).fit(X, Y)

    assert caught == []


@pytest.mark.parametrize("name", ["client_threshold", "server_threshold"])
@pytest.mark.parametrize("value", [1.7e308, np.inf, np.nan, 0.0, -1.0, "wide", True])
def test_invalid_thresholds_are_rejected_at_fit(name, value):
    with pytest.raises(ValueError, match=name):
        FedPNNClassifier(**{name: value}).fit(X, Y)


def test_choose_threshold_does_not_depend_on_threads():
    rows = np.random.default_rng(0).normal(size=(3000, 4))

    assert choose_threshold(rows, factor=2.0, n_threads=3) == choose_threshold(rows, factor=2.0)


SCRIPT = """
import importlib, pkgutil
import numpy as np
from numba.core.dispatcher import Dispatcher
import fedneighbors.kernels
from fedneighbors import EvolvingClustering, ProbabilisticNeuralNetwork
from fedneighbors.methods.fedpnn.algorithm import merge_centers, warmup

def compiled():
    modules = [
        importlib.import_module(entry.name)
        for entry in pkgutil.walk_packages(fedneighbors.kernels.__path__, "fedneighbors.kernels.")
    ]
    return {
        (module.__name__, name): tuple(map(str, value.signatures))
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Dispatcher)
    }

warmup()
before = compiled()
rng = np.random.default_rng(0)
y = rng.integers(0, 3, 3000)
for x in (rng.random((3000, 5)), rng.random((3000, 5)).astype("f4"), np.asfortranarray(y[:, None])):
    x.flags.writeable = False
    for rule in ("modified", "original"):
        for threshold in (1, 0.1):
            model = EvolvingClustering(threshold, 2, rule, max_centers=50, n_jobs=2).fit(x, y)
            model.partial_fit(x, y).predict(x)
    merge_centers(model.centers_, model.counts_, threshold=1)
    for activation in ("gaussian", "logistic", "cauchy"):
        for sigma in (1, "loo"):
            ProbabilisticNeuralNetwork(sigma, activation).fit(x[:99], y[:99]).predict(x)
assert any(before.values())
print([name for name, types in compiled().items() if types != before[name]])
"""


def test_warmup_compiles_all_kernels():
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, check=False
    )

    assert (result.stdout, result.returncode) == ("[]\n", 0), result.stderr
