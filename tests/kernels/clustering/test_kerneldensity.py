import numpy as np
import pytest

from fedneighbors.kernels.clustering._kerneldensity import ACTIVATIONS, log_sums
from tests.naive.clustering import kerneldensity as naive
from tests.seeds import over_seeds

CASES = 1_500  # for each kernel


def draw_case(seed):
    """Draw rows, centers by class, sigma and each row's omitted center."""
    rng = np.random.default_rng(seed)
    n_columns, n_classes = int(rng.integers(1, 10)), int(rng.integers(1, 5))
    sizes = rng.integers(0, 6, n_classes)  # a class may have no center
    scale = 10.0 ** rng.integers(-8, 9) if rng.random() < 0.5 else 1.0
    centers = rng.normal(size=(int(sizes.sum()), n_columns)) * scale
    x = rng.normal(size=(int(rng.integers(0, 7)), n_columns)) * scale
    if len(x) and len(centers):
        x[0] = centers[0]
    sigma = float(10.0 ** rng.integers(-6, 7))
    without = rng.integers(-1, len(centers), len(x)) if rng.random() < 0.5 else None
    return x, centers, np.append(0, sizes.cumsum()), sigma, without


@pytest.mark.hypothesis
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_log_sums_match_naive_version(activation):
    @over_seeds(CASES)
    def check(seed):
        x, centers, starts, sigma, without = draw_case(seed)
        options = {"sigma": sigma, "activation": activation, "without": without}

        result = log_sums(x, centers, starts, **options)

        expected = naive.log_sums(x.tolist(), centers.tolist(), starts.tolist(), **options)
        assert result.shape == (len(x), len(starts) - 1)
        # a log sum has the relative error of its exponent, or that of a sum of kernels: a few ulp
        np.testing.assert_allclose(
            result, np.array(expected).reshape(result.shape), rtol=1e-14, atol=1e-14
        )

    check()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n_columns", [1, 500])
def test_log_sums_of_narrow_kernels_stay_finite(activation, n_columns):
    rng = np.random.default_rng(0)
    x, centers = rng.random((20, n_columns)), rng.random((9, n_columns))

    result = log_sums(x, centers, np.array([0, 4, 9]), sigma=1e-3, activation=activation)

    assert np.isfinite(result).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_class_without_centers_has_log_sum_of_minus_infinity(activation):
    x = np.zeros((2, 3))

    result = log_sums(x, x[:1], np.array([0, 0, 1, 1]), sigma=1.0, activation=activation)

    assert np.isneginf(result).tolist() == [[True, False, True]] * 2


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_overflowing_distance_gives_minus_infinity(activation):
    x, centers = np.full((1, 2), 1e200), np.zeros((1, 2))

    result = log_sums(x, centers, np.array([0, 1]), sigma=1.0, activation=activation)

    assert result.tolist() == [[-np.inf]]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_number_of_threads_does_not_affect_log_sums(activation):
    rng = np.random.default_rng(1)
    x, centers = rng.random((1_500, 5)), rng.random((40, 5))
    starts = np.array([0, 13, 40])

    single = log_sums(x, centers, starts, sigma=0.1, activation=activation)

    parallel = log_sums(x, centers, starts, sigma=0.1, activation=activation, n_threads=3)
    assert single.tobytes() == parallel.tobytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": np.zeros((3, 1))}, "the same columns"),
        ({"x": np.zeros(2)}, "the same columns"),
        ({"starts": np.array([0, 1])}, "expected starts from 0 to 2"),
        ({"starts": np.array([0])}, "expected starts from 0 to 2"),
        ({"starts": np.array([0, 2, 1, 2])}, "expected ascending starts"),
        ({"sigma": 0.0}, "expected sigma from"),
        ({"sigma": np.nan}, "expected sigma from"),
        ({"activation": "box"}, "expected activation as one of"),
        ({"without": np.array([0, 1])}, "expected without to contain a center"),
        ({"without": np.array([0, 1, 2])}, "expected without to contain a center"),
        ({"n_threads": 0}, "expected n_threads of at least 1"),
    ],
)
def test_invalid_arguments_are_rejected(changes, words):
    arguments = {"x": np.zeros((3, 2)), "centers": np.zeros((2, 2)), "starts": np.array([0, 2])}
    arguments |= {"sigma": 1.0, **changes}

    with pytest.raises(ValueError, match=words):
        log_sums(**arguments)
