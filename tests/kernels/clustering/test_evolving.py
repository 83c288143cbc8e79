import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.clustering import _evolving as evolving
from fedneighbors.kernels.clustering._evolving import evolve, nearest
from tests.naive.clustering import evolving as naive
from tests.seeds import cases, over_seeds

CASES = 10_000
LARGE_CASES = 60  # with enough rows for every path through the loops

BLOCK_SIZES = [None, 1, 3, 8, 256]


def draw_points(rng, shape):
    """Draw points for which ties, order and range matter."""
    normal = rng.normal(size=shape)
    kinds = [
        lambda: rng.random(shape),
        lambda: rng.integers(0, 3, shape) / 2,  # many equal distances and sums
        lambda: rng.integers(0, 4, shape) / 10,  # the same, but with rounding
        lambda: normal * 10.0 ** rng.integers(-12, 12, shape),
        lambda: 1e9 + normal,
        lambda: 1e16 + rng.integers(0, 3, shape) * 2.0,
        lambda: normal * 1e170,  # squares overflow
        lambda: normal * 1e-170,  # squares underflow
        lambda: rng.choice([-1.7e308, 1.7e308, 0.0], shape),
        lambda: rng.integers(-3, 4, shape) * 5e-324,
        lambda: rng.choice([-0.0, 0.0, 1.0], shape),
        lambda: normal * 1e-30 + rng.integers(0, 2, shape),
        lambda: normal * 10.0 ** rng.integers(-40, 40, shape),  # float32 values (almost) underflow
        lambda: rng.random(shape[1]) + normal * 1e-7,  # below the resolution of float32
    ]
    return kinds[rng.integers(len(kinds))]()


def draw_case(seed):
    """Draw rows, parameters of the clustering and a block size."""
    rng = np.random.default_rng(seed)
    x = draw_points(rng, (int(rng.choice([0, 1, 2, 3, 7, 15])), int(rng.integers(1, 8))))
    if x.size and rng.random() < 0.3:
        x[:, rng.integers(x.shape[1])] = x[0, 0]
    if len(x) and rng.random() < 0.4:
        x = x[rng.integers(len(x), size=len(x))]
    spread = float(np.ptp(x[:, 0] / 2)) if x.size else 1.0
    limit = float(rng.choice([0.1, 0.5, 1.0, 3.0])) * (spread if 0 < spread < 1e300 else 1.0)
    parameters = {
        "limit": limit or 1.0,
        "original": bool(rng.integers(2)),
        "max_centers": int(rng.integers(1, 6)) if rng.random() < 0.2 else None,
    }
    return x, parameters, BLOCK_SIZES[rng.integers(len(BLOCK_SIZES))]


def to_bits(centers, radii, labels, n_outside):
    """Convert a result to values that are equal only bit for bit."""
    return (
        np.array(centers, np.float64).tobytes(),
        np.array(radii, np.float64).tobytes(),
        list(labels),
        n_outside,
    )


@pytest.mark.filterwarnings("error")
@over_seeds(CASES)
def test_centers_match_naive_version(seed):
    x, parameters, ahead = draw_case(seed)

    result = evolve(x, x[:0], np.empty(0), ahead=ahead, **parameters)

    assert to_bits(*result) == to_bits(*naive.evolve(x.tolist(), [], [], **parameters))


@settings(max_examples=cases(2_000), deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 15))
def test_rows_in_two_parts_give_the_same_centers(seed, cut):
    x, parameters, ahead = draw_case(seed)
    whole = evolve(x, x[:0], np.empty(0), **parameters)

    first = evolve(x[:cut], x[:0], np.empty(0), ahead=ahead, **parameters)
    second = evolve(x[cut:], first.centers, first.radii, ahead=ahead, **parameters)

    labels = [*first.labels, *second.labels]
    assert to_bits(
        second.centers, second.radii, labels, first.n_outside + second.n_outside
    ) == to_bits(*whole)


@over_seeds(2_000)
def test_nearest_centers_match_naive_version(seed):
    x, _, _ = draw_case(seed)
    if len(x) < 2:
        return
    centers = x[len(x) // 2 :]

    labels, distances = nearest(x, centers)

    expected = naive.nearest(x.tolist(), centers.tolist())
    assert (labels.tolist(), distances.tolist()) == expected


def draw_clusters(rng, n_rows, n_columns, n_groups):
    """Draw rows around a few points, so that centers change rarely after the first rows."""
    centers = rng.random((n_groups, n_columns))
    return centers[rng.integers(n_groups, size=n_rows)] + rng.normal(
        scale=0.03, size=(n_rows, n_columns)
    )


@settings(max_examples=LARGE_CASES, deadline=None)
@given(st.integers(0, 2**64 - 1), st.sampled_from(BLOCK_SIZES), st.integers(1, 3), st.booleans())
def test_many_rows_in_several_threads_match_naive_version(seed, ahead, n_threads, original):
    rng = np.random.default_rng(seed)
    shape = int(rng.choice([300, 700])), int(rng.choice([2, 5, 9]))
    x = draw_clusters(rng, *shape, n_groups=int(rng.choice([3, 40])))
    x[rng.integers(len(x), size=20)] = x[0]
    parameters = {"limit": 0.2, "original": original}

    result = evolve(x, x[:0], np.empty(0), n_threads=n_threads, ahead=ahead, **parameters)

    assert to_bits(*result) == to_bits(*naive.evolve(x.tolist(), [], [], **parameters))


def test_threads_and_growing_tables_do_not_affect_result():
    rng = np.random.default_rng(0)
    x = draw_clusters(rng, 12_000, 4, n_groups=400)
    single = evolve(x, x[:0], np.empty(0), limit=0.05)

    parallel = evolve(x, x[:0], np.empty(0), limit=0.05, n_threads=2, ahead=4_000)

    assert len(single.centers) > evolving._N_SPARE  # otherwise no table grew
    assert to_bits(*parallel) == to_bits(*single)
    assert nearest(x, single.centers, n_threads=2)[0].tolist() == (
        nearest(x, single.centers)[0].tolist()
    )


def test_read_only_arrays_are_accepted():
    x = draw_clusters(np.random.default_rng(0), 50, 3, n_groups=3)
    read_only = x.copy()
    read_only.flags.writeable = False

    result = evolve(read_only, read_only[:2], np.zeros(2), limit=0.2)

    assert to_bits(*result) == to_bits(*evolve(x, x[:2], np.zeros(2), limit=0.2))


def test_too_many_features_for_float32_bounds_are_supported():
    x = np.zeros((4, evolving._MAX_FEATURES + 1))
    x[1:, 0] = 1.0, 5.0, 1.5
    limit = 2.0 / math.sqrt(x.shape[1])

    result = evolve(x, x[:0], np.empty(0), limit=limit)

    assert result.labels.tolist() == [0, 0, 1, 0]


@settings(max_examples=cases(300), deadline=None)
@given(st.integers(0, 2**64 - 1), st.booleans())
def test_radii_never_shrink_and_balls_nest(seed, original):
    rng = np.random.default_rng(seed)
    x = rng.random((40, int(rng.integers(1, 6))))
    limit = float(rng.choice([0.2, 0.6]))
    centers, radii = x[:0], np.empty(0)

    for row in x:
        previous = centers, radii
        centers, radii, labels, _ = evolve(
            row[None], centers, radii, limit=limit, original=original
        )

        n, label = len(previous[1]), labels[0]
        assert (radii[:n] >= previous[1]).all()
        assert (radii <= limit / 2).all()
        shift = np.sqrt(np.mean((centers[:n] - previous[0]) ** 2, axis=1))
        # 1e-14 covers the rounding of a few numbers of size 1
        assert (shift + previous[1] <= radii[:n] + 1e-14).all()
        assert np.sqrt(np.mean((row - centers[label]) ** 2)) <= radii[label] + 1e-14


@pytest.mark.parametrize("n_columns", [1, 5, 29, 300])
@pytest.mark.parametrize("scale", [1e-90, 1.0, 1e90])
def test_float32_bound_keeps_the_nearest_center(n_columns, scale):
    # many other centers are at almost the distance of the nearest one
    rng = np.random.default_rng(n_columns)
    centers = rng.normal(size=(80, n_columns))
    centers /= np.sqrt((centers**2).sum(axis=1, keepdims=True))
    centers *= (1 + 1e-7 * rng.random((80, 1))) * scale
    x = rng.normal(scale=1e-9, size=(40, n_columns)) * scale

    labels, distances = nearest(x, centers)

    assert (labels.tolist(), distances.tolist()) == naive.nearest(x.tolist(), centers.tolist())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("array", ["rows", "centers"])
def test_values_that_are_not_finite_are_rejected(value, array):
    x, centers = np.zeros((3, 2)), np.ones((2, 2))
    (x if array == "rows" else centers)[1, 1] = value

    with pytest.raises(ValueError, match="expected finite numbers"):
        evolve(x, centers, np.zeros(2), limit=1.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": np.zeros(3)}, "expected rows of shape"),
        ({"x": np.zeros((3, 0))}, "expected rows of shape"),
        ({"centers": np.zeros((2, 3))}, "expected centers of 2 columns"),
        ({"radii": np.zeros(1)}, "one radius for each"),
        ({"radii": np.array([0.0, -1.0])}, "expected finite radii"),
        ({"radii": np.array([0.0, np.nan])}, "expected finite radii"),
        ({"limit": 0.0}, "expected a finite limit above 0"),
        ({"limit": np.inf}, "expected a finite limit above 0"),
        ({"max_centers": 0}, "expected max_centers of at least 1"),
        ({"n_threads": 0}, "expected n_threads of at least 1"),
        ({"ahead": 0}, "expected ahead of at least 1"),
    ],
)
def test_invalid_arguments_are_rejected(changes, words):
    arguments = {"x": np.zeros((3, 2)), "centers": np.zeros((2, 2)), "radii": np.zeros(2)}
    arguments |= {"limit": 1.0, **changes}

    with pytest.raises(ValueError, match=words):
        evolve(**arguments)


def test_nearest_rejects_an_empty_set_of_centers():
    with pytest.raises(ValueError, match="expected at least one center"):
        nearest(np.zeros((1, 2)), np.zeros((0, 2)))
