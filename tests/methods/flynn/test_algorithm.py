from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors import FlyNNClassifier
from fedneighbors.federation._messages import encode
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn.algorithm import (
    HashPlan,
    compute_novelty,
    count_activations,
    decay_table,
    default_decay,
    default_sizes,
    draw_wiring,
    warmup,
)
from tests.naive import flynn as naive
from tests.seeds import cases

PAPER = {"standardize": False, "expand": None, "class_normalized": False}


@st.composite
def problems(draw):
    """Training rows, labels, test rows and sizes; values tie often."""
    n_features = draw(st.integers(1, 6))
    n_units = draw(st.integers(1, 40))
    sizes = {
        "n_units": n_units,
        "n_inputs": draw(st.integers(1, n_features)),
        "n_active": draw(st.integers(1, n_units)),
        "random_state": draw(st.integers(0, 99)),
    }
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["few integers", "bytes", "floats"]))
    shape = (draw(st.integers(2, 12)) + 8, n_features)
    x = {
        "few integers": rng.integers(-1, 2, shape),
        "bytes": rng.integers(0, 256, shape).astype(np.uint8),
        "floats": rng.normal(size=shape),
    }[kind]
    y = rng.integers(0, draw(st.integers(2, 4)), len(x) - 8)
    y[:2] = 0, 1
    return x[:-8], y, x[-8:], sizes


def train_naive(x, y, sizes, gamma):
    """Return matrix, classes, filters and counts of the naive training."""
    wiring = draw_wiring(x.shape[1], sizes["n_units"], sizes["n_inputs"], sizes["random_state"])
    matrix = naive.dense_matrix(wiring, x.shape[1])
    classes = sorted(set(y.tolist()))
    filters, counts = naive.train(
        x.tolist(),
        y.tolist(),
        matrix,
        n_active=sizes["n_active"],
        gamma=gamma,
        classes=classes,
    )
    return matrix, classes, filters, counts


@settings(max_examples=cases(300))
@given(problems(), st.sampled_from([0.0, 0.5, 0.25, 1.0]))
def test_novelties_are_exact_if_decay_is_a_power_of_two(problem, gamma):
    x, y, x_new, sizes = problem
    matrix, classes, filters, counts = train_naive(x, y, sizes, gamma)

    classifier = FlyNNClassifier(decay=gamma, **PAPER, **sizes).fit(x, y)

    options = {"n_active": sizes["n_active"], "classes": classes}
    assert classifier.counts_.tolist() == [counts[label] for label in classes]
    expected = [naive.novelty(row, matrix, filters, **options) for row in x_new.tolist()]
    assert classifier.model_.novelty(x_new).tolist() == expected
    predicted = [naive.infer(row, matrix, filters, **options) for row in x_new.tolist()]
    assert classifier.predict(x_new).tolist() == predicted


@settings(max_examples=100)
@given(problems(), st.floats(0, 1))
def test_with_any_decay_novelties_are_those_of_algorithm_1(problem, gamma):
    x, y, x_new, sizes = problem
    matrix, classes, filters, _ = train_naive(x, y, sizes, gamma)

    scores = FlyNNClassifier(decay=gamma, **PAPER, **sizes).fit(x, y).model_.novelty(x_new)

    options = {"n_active": sizes["n_active"], "classes": classes}
    expected = [naive.novelty(row, matrix, filters, **options) for row in x_new.tolist()]
    np.testing.assert_allclose(scores, np.array(expected, float), rtol=1e-12, atol=1e-300)


@settings(max_examples=100)
@given(problems(), st.floats(0, 1))
def test_class_normalized_novelties_follow_their_formula(problem, gamma):
    x, y, x_new, sizes = problem
    matrix, classes, _, counts = train_naive(x, y, sizes, gamma)
    rows_of = {label: int((y == label).sum()) for label in classes}
    options = {**PAPER, **sizes, "class_normalized": True, "decay": gamma}

    scores = FlyNNClassifier(**options).fit(x, y).model_.novelty(x_new)

    expected = [
        naive.normalized_novelty(
            row,
            matrix,
            counts,
            n_active=sizes["n_active"],
            classes=classes,
            gamma=gamma,
            sizes=rows_of,
        )
        for row in x_new.tolist()
    ]
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-300)


def test_decay_0_indicates_units_never_active():
    x, y = np.array([[1, 0], [1, 0], [0, 1]]), np.array([0, 0, 1])
    options = {"n_units": 40, "n_inputs": 1, "n_active": 2, "decay": 0.0, **PAPER}

    classifier = FlyNNClassifier(**options).fit(x, y)

    assert classifier.model_.novelty(x).tolist() == [[0, 2], [0, 2], [2, 0]]


def test_decay_1_forgets_nothing_and_learns_nothing():
    x, y = np.array([[1, 0], [0, 1]]), np.array([3, 8])

    classifier = FlyNNClassifier(n_units=6, n_inputs=1, n_active=2, decay=1.0, **PAPER).fit(x, y)

    assert (classifier.model_.novelty(x) == 2).all()
    assert classifier.predict(x).tolist() == [3, 3]  # a tie goes to the lower class


def test_activations_are_counted_by_unit_and_class():
    active = np.array([[0, 2], [1, 2], [0, 2]], np.int32)

    counts = count_activations(active, np.array([1, 0, 1]), n_units=4, n_classes=3)

    assert counts.tolist() == [[0, 2, 0], [1, 0, 0], [1, 2, 0], [0, 0, 0]]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), min_size=1, max_size=5),
    st.floats(0, 1),
    st.booleans(),
)
def test_the_decay_table_has_the_power_of_every_count(classes, decay, normalized):
    largest = np.array([count for count, _ in classes])
    sizes = np.array([size for _, size in classes])

    table = decay_table(largest, sizes, decay=decay, class_normalized=normalized)

    assert len(table.weights) == (largest + 1).sum()
    for label, (count, size) in enumerate(classes):
        exponent = sizes.sum() / len(sizes) / max(size, 1) if normalized else 1.0
        weights = table.weights[table.starts[label] :][: count + 1]
        expected = [decay ** (c * exponent) for c in range(count + 1)]
        np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-300)


def test_scores_do_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(0)
    active = np.sort(rng.integers(0, 50, (3_000, 6)).astype(np.int32), axis=1)
    counts = rng.integers(0, 9, (50, 3)).astype(np.int32)
    largest = counts.max(axis=0).astype(np.int64)
    table = decay_table(largest, np.array([5, 6, 7]), decay=0.7, class_normalized=True)

    scores = [compute_novelty(active, counts, table, n_threads=n).tobytes() for n in (1, 2, 3)]

    assert len(set(scores)) == 1


def test_default_decay_gives_every_mean_load_equal_weight():
    loads = [(1_000, 500, 20, 4), (7, 90, 3, 2), (10**6, 10**5, 128, 10)]

    weights = [
        default_decay(n, m, rho, n_classes, kappa=1.5) ** (n * rho / (m * n_classes))
        for n, m, rho, n_classes in loads
    ]

    np.testing.assert_allclose(weights, np.exp(-1.5), rtol=1e-9)
    assert default_decay(0, 5, 2, 2) == 0.0


@pytest.mark.parametrize("n_rows", [1, 10, 499, 500, 10_000, 10**7])
@pytest.mark.parametrize("n_outputs", [1, 2, 5, 100, 10**5])
def test_default_sizes_always_make_a_plan(n_rows, n_outputs):
    units, inputs, active = default_sizes(n_rows, n_outputs)

    plan = HashPlan(FeatureMap(n_outputs, "none"), units, inputs, active, seed=0)

    assert (plan.n_units, plan.n_inputs, plan.n_active) == (units, inputs, active)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_units": 0}, "expected n_units in"),
        ({"n_units": 2**24 + 1}, "expected n_units in"),
        ({"n_inputs": 0}, "n_inputs=0 does not lie in"),
        ({"n_inputs": 4}, "n_inputs=4 does not lie in"),
        ({"n_active": 0}, "n_active=0 does not lie in"),
        ({"n_active": 9}, "n_active=9 does not lie in"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_plan_refuses_sizes_that_do_not_fit(change, words):
    sizes = {"n_units": 8, "n_inputs": 2, "n_active": 3, "seed": 0, **change}

    with pytest.raises(ValueError, match=words):
        HashPlan(FeatureMap(3, "none"), **sizes)


def test_plans_with_equal_hash_parameters_have_equal_bytes():
    def plan(**change):
        values = {"n_units": 8, "n_inputs": 2, "n_active": 3, "seed": 0, **change}
        mean, scale = values.pop("mean", np.ones(3)), np.ones(3)
        return HashPlan(FeatureMap(3, values.pop("kind", "none"), mean, scale), **values)

    others = [
        plan(n_units=9),
        plan(n_inputs=1),
        plan(n_active=2),
        plan(seed=1),
        plan(kind="mirror"),
        plan(mean=np.array([1.0, 1.0, 1.5])),
        HashPlan(FeatureMap(3, "none"), 8, 2, 3, 0),
    ]

    assert encode(plan()) == encode(plan())
    assert not any(encode(plan()) == encode(other) for other in others)


def test_fractions_of_the_naive_filters_are_exact():
    x, y = np.array([[1, 0], [1, 0], [0, 1]]), np.array([0, 0, 1])
    sizes = {"n_units": 3, "n_inputs": 1, "n_active": 1, "random_state": 0}

    _, _, filters, _ = train_naive(x, y, sizes, 0.75)

    assert min(filters[0]) == Fraction(9, 16)
    assert min(filters[1]) == Fraction(3, 4)


def test_warmup_runs():
    assert warmup() is None
