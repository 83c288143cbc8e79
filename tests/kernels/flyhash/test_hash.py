import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.flyhash import _hash as flyhash
from fedneighbors.kernels.flyhash import _lanes as lanes
from fedneighbors.kernels.flyhash._hash import draw_wiring, winners
from tests.naive.flyhash import hash as naive
from tests.seeds import over_seeds

CASES = 10_000  # for each type, with small rows that are cheap to draw
FEWER_CASES = 2_000  # for types that are converted in the same way as others
LARGE_CASES = 12  # for each path through the kernel, with enough units to cover all of it

INTEGERS = [np.uint8, np.int8, np.int16, np.uint16, np.int32, np.int64]


def draw_integers(rng, dtype, shape, n_inputs):
    """Draw integers from small ranges, the whole range, or its extremes.

    int64 is limited to values whose sums fit.
    """
    info = np.iinfo(dtype)
    largest = (2**63 - 1) // n_inputs
    lowest, highest = max(info.min, -largest), min(info.max, largest)
    ranges = [(max(lowest, -2), 2), (0, 63), (0, 64), (0, 127), (max(lowest, -128), 127)]
    ranges += [(lowest, highest), (lowest, lowest + 9), (highest - 9, highest)]
    low, high = ranges[rng.integers(8)]
    x = rng.integers(low, high, shape, np.int64, endpoint=True)
    if rng.random() < 0.2:
        x = rng.choice([lowest, highest], shape)
    return x.astype(dtype)


def draw_floats(rng, dtype, shape, n_inputs):
    """Draw floats of one kind.

    Kinds are ordinary, huge, denormal, whole, nearly equal, signed zeros, or with outliers.
    """
    info = np.finfo(dtype)
    normal = rng.normal(size=shape)
    kinds = [
        lambda: normal,
        lambda: np.clip(normal, -1, 1) * (float(info.max) / 2 / n_inputs),
        lambda: rng.integers(-3, 4, shape) * float(info.smallest_subnormal),
        lambda: rng.integers(-2, 200, shape),
        lambda: 1e6 + normal * 1e-9,
        lambda: rng.choice([-0.0, 0.0, 1.0], shape),
        lambda: normal * 10.0 ** rng.integers(-30, 30, shape),
        lambda: rng.integers(-2, 3, shape) / 3,
    ]
    return kinds[rng.integers(len(kinds))]().astype(dtype)


def add_ties(rng, x):
    """Insert constant rows, constant columns and duplicates, which cause ties."""
    if x.size and rng.random() < 0.3:
        x[rng.integers(x.shape[0])] = x[0, 0]
    if x.size and rng.random() < 0.2:
        x[:, rng.integers(x.shape[1])] = x[0, 0]
    if x.size and rng.random() < 0.2:
        x[:] = x[0]
    return x


def draw_case(seed, dtype):
    rng = np.random.default_rng(seed)
    n_features = int(rng.integers(1, 9))
    n_inputs = int(rng.integers(1, n_features + 1))
    n_units = int(rng.integers(1, 25))
    n_active = n_units if rng.random() < 0.1 else int(rng.integers(1, n_units // 3 + 2))
    shape = (int(rng.choice([0, 1, 2, 3])), n_features)
    draw = draw_floats if np.dtype(dtype).kind == "f" else draw_integers
    x = add_ties(rng, draw(rng, dtype, shape, n_inputs))
    units = draw_wiring(n_features, n_units, n_inputs, int(rng.integers(100)))
    return x, units, min(n_active, n_units)


@pytest.mark.hypothesis
@pytest.mark.parametrize("dtype", [*INTEGERS, np.float32, np.float64])
def test_winners_match_naive_version(dtype):
    @over_seeds(FEWER_CASES if dtype in (np.int8, np.uint16) else CASES)
    def check(seed):
        x, units, n_active = draw_case(seed, dtype)

        ranked = winners(x, units, n_active, ranked=True)

        assert ranked.tolist() == naive.winners(x, units, n_active)
        assert ranked.dtype == np.int32
        np.testing.assert_array_equal(winners(x, units, n_active), np.sort(ranked, axis=1))

    check()


# dtype after conversion, largest value, units, winners, expected number of units with stored sums
PATHS = {
    "sample of bytes": (np.uint8, 255, 9_000, 7, 4_096),
    "sample of exact bytes": (np.uint8, 40, 9_000, 7, 4_096),
    "sample of int32": (np.int32, 2**20, 5_000, 9, 4_096),
    "sample of int64": (np.int64, 2**59, 5_000, 9, 4_096),
    "sample of floats": (np.float64, 1, 5_000, 9, 4_096),
    "all of int64": (np.int64, 2**59, 5_000, 60, 5_000),
    "all of floats": (np.float64, 1, 5_000, 60, 5_000),
    "all of bytes": (np.uint8, 255, 9_000, 95, 9_000),
    "count of few units": (np.uint8, 63, 3_000, 11, 3_000),
    "count of many units": (np.uint8, 9, 12_000, 100, 12_000),
    "no thresholds": (np.float64, 1, 300, 120, 0),
}


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("n_inputs", [1, 2, 3, 4, 5, 11])
def test_every_code_path_matches_naive_version(name, n_inputs):
    dtype, largest, n_units, n_active, n_stored = PATHS[name]
    rng = np.random.default_rng(n_inputs)
    x = rng.random((67, 14)) * largest  # a full block of 64 rows and a partial one
    x = x.astype(dtype) if dtype == np.float64 else np.rint(x).astype(dtype)
    x[3] = x[3, 0]
    x[:, 0], x[0, 1] = largest, 0
    units = draw_wiring(14, n_units, n_inputs, 1)

    narrow = flyhash._narrow_rows(x, n_inputs)
    active = winners(x, units, n_active, ranked=True)

    assert narrow.dtype == dtype
    assert flyhash._choose_stored(narrow, n_units, n_active) == n_stored
    rows = [0, 3, 40, 63, 64, 66]
    assert active[rows].tolist() == naive.winners(x[rows], units, n_active)


@settings(max_examples=LARGE_CASES, deadline=None)
@given(st.integers(0, 2**64 - 1), st.sampled_from([np.uint8, np.int32, np.float64]))
def test_number_of_stored_sums_does_not_affect_winners(seed, dtype):
    rng = np.random.default_rng(seed)
    x = np.rint(rng.gamma(1.0, 40.0, (70, 20))).clip(0, 255).astype(dtype)
    x = x / 3 if dtype == np.float64 else x
    units, zero = draw_wiring(20, 2_000, 7, 2), (np.float64 if dtype == np.float64 else np.int64)(0)
    results = [np.empty((70, 5), np.int32) for _ in range(4)]

    for n_stored, result in zip((0, 5, 700, 2_000), results, strict=True):
        flyhash.hash_rows(x, units, zero, n_stored, result)

    expected = np.sort(naive.winners(x, units, 5), axis=1)
    for result in results:
        np.testing.assert_array_equal(np.sort(result, axis=1), expected)


def test_many_features_use_32_bit_indices():
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (5, 9_000)).astype(np.uint8)
    units = draw_wiring(9_000, 1_000, 7, 6)

    assert winners(x, units, 4, ranked=True).tolist() == naive.winners(x, units, 4)


@pytest.mark.parametrize("n_inputs", [1_050, 9_000, 70_000])
def test_units_with_many_inputs_are_summed_exactly(n_inputs):
    rng = np.random.default_rng(6)
    x = rng.integers(0, 256, (4, n_inputs + 3)).astype(np.uint8)
    units = draw_wiring(n_inputs + 3, 20, n_inputs, 6)

    assert winners(x, units, 3, ranked=True).tolist() == naive.winners(x, units, 3)


def test_ties_go_to_the_lower_unit():
    x = np.zeros((70, 5), np.float32)

    active = winners(x, draw_wiring(5, 6_000, 2, 0), 3)

    assert active.tolist() == [[0, 1, 2]] * 70


def test_signed_zeros_tie():
    x = np.array([[-0.0, 0.0, -1.0]])

    active = winners(x, np.array([[2], [0], [1]], np.uint16), 2, ranked=True)

    assert active.tolist() == [[1, 2]]


def test_floats_are_added_from_left_to_right():
    x = np.array([[1e16, 1.0, 1.0, -1e16, 1.0]])
    # From left to right the sums are 0 and 1; exact sums would be 2 and 2.
    forwards = np.array([[0, 1, 2, 3], [0, 1, 3, 4]], np.uint16)

    assert winners(x, forwards, 1).tolist() == [[1]]


@pytest.mark.parametrize("n_threads", [2, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_number_of_threads_does_not_affect_winners(dtype, n_threads):
    x = np.random.default_rng(0).integers(0, 256, (1_500, 30)).astype(dtype)
    units = draw_wiring(30, 2_000, 7, 0)

    parallel = winners(x, units, 20, n_threads=n_threads)

    np.testing.assert_array_equal(parallel, winners(x, units, 20))


def test_concurrent_callers_do_not_affect_each_other():
    x = np.random.default_rng(0).integers(0, 256, (300, 30)).astype(np.uint8)
    wirings = [draw_wiring(30, 2_000, 7, seed) for seed in range(4)]
    expected = [winners(x, units, 20) for units in wirings]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda units: winners(x, units, 20, n_threads=2), wirings))

    for concurrent, single in zip(results, expected, strict=True):
        np.testing.assert_array_equal(concurrent, single)


def test_winners_of_a_row_do_not_depend_on_other_rows():
    x = np.random.default_rng(1).normal(size=(200, 12))
    units = draw_wiring(12, 5_000, 5, 0)

    together = winners(x, units, 8)

    alone = np.vstack([winners(x[row : row + 1], units, 8) for row in range(0, 200, 9)])
    np.testing.assert_array_equal(together[::9], alone)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
def test_strided_and_read_only_arrays_are_accepted(dtype):
    x = np.random.default_rng(2).integers(0, 100, (40, 24)).astype(dtype)
    units = draw_wiring(12, 500, 5, 0)
    strided = x[::-1, ::2]
    strided.flags.writeable = units.flags.writeable = False

    active = winners(strided, np.asfortranarray(units), 8)

    np.testing.assert_array_equal(active, winners(strided.copy(), units, 8))


def test_shifting_or_scaling_integers_keeps_winners():
    x = np.random.default_rng(3).integers(0, 50, (80, 20))
    units = draw_wiring(20, 1_000, 6, 0)
    expected = winners(x, units, 10)

    for changed in (x + 1_000, x * 7_000, x - 10**12, (x * 3).astype(np.float32)):
        np.testing.assert_array_equal(winners(changed, units, 10), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.float64])
def test_thresholds_never_exclude_a_unit_that_reaches_them(dtype):
    units = draw_wiring(12, 200, 5, 9)
    for seed, lane in itertools.product(range(300), (0, 31, 32, 63)):
        rng = np.random.default_rng(seed)
        draw = draw_floats if dtype == np.float64 else draw_integers
        row = flyhash._narrow_rows(draw(rng, dtype, (1, 12), 5), 5)[0]
        quantized = np.zeros(64 * 12, np.uint8)

        affine = np.array([lanes._quantize(row, 5, lane, quantized)] * 64)

        column = 2 * lane if lane < 32 else 2 * lane - 63
        stored = quantized.reshape(12, 64)[units, column].sum(axis=1, dtype=int)
        exact = np.array(naive.unit_sums(row.tolist(), units.tolist()), dtype=object)
        for unit in range(0, 200, 17):
            may_tie = int(lanes._threshold(affine, 0, exact[unit], False))
            must_exceed = int(lanes._threshold(affine, 0, exact[unit], True))
            assert (stored[exact >= exact[unit]] >= may_tie).all()
            assert (stored[exact > exact[unit]] >= must_exceed).all()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.array([[np.nan, 1.0]]), "x must be finite"),
        (np.array([[1.0, np.inf]]), "x must be finite"),
        (np.array([[-np.inf, 1.0]], np.float32), "x must be finite"),
        (np.array([[1e308, 1e308]]), "overflow; scale x down"),
        (np.array([[2**62, 0]]), "overflow; scale x down"),
        (np.array([[-(2**63), 0]]), "overflow; scale x down"),
        (np.zeros((1, 1)), "wiring reads feature 1 but x has 1 columns"),
        (np.zeros(2), "must be two-dimensional"),
    ],
)
def test_values_that_cannot_be_summed_are_rejected(x, message):
    with pytest.raises(ValueError, match=message):
        winners(x, np.array([[0, 1]], np.uint16), 1)


@pytest.mark.parametrize("dtype", [bool, np.uint32, np.uint64, np.float16, complex, object])
def test_unsupported_dtypes_are_rejected(dtype):
    with pytest.raises(TypeError, match="x must be one of"):
        winners(np.zeros((1, 2), dtype), np.array([[0, 1]], np.uint16), 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n_active": 0}, ValueError, "n_active=0 must lie between 1 and n_units=3"),
        ({"n_active": 4}, ValueError, "n_active=4 must lie between 1 and n_units=3"),
        ({"n_active": 1, "n_threads": 0}, ValueError, "n_threads must be at least 1"),
    ],
)
def test_counts_out_of_range_are_rejected(arguments, error, message):
    with pytest.raises(error, match=message):
        winners(np.zeros((1, 2)), draw_wiring(2, 3, 1, 0), **arguments)


@pytest.mark.parametrize(
    ("units", "error", "message"),
    [
        (np.zeros((3, 1), np.int64), TypeError, "wiring must be uint16 or uint32"),
        (np.zeros((0, 1), np.uint16), ValueError, "wiring not empty"),
        (np.zeros((1, 0), np.uint16), ValueError, "wiring not empty"),
        (np.zeros(3, np.uint16), ValueError, "must be two-dimensional"),
    ],
)
def test_invalid_wiring_is_rejected(units, error, message):
    with pytest.raises(error, match=message):
        winners(np.zeros((1, 2)), units, 1)


SECOND_PROCESS = """
import numpy as np
from fedneighbors.kernels.flyhash import _bloom, _hash, _lanes
units = _hash.draw_wiring(9, 50, 3, 0)
active = _hash.winners(np.zeros((5, 9), np.uint8), units, 2)
counts = np.zeros((50, 2), np.int32)
_bloom.accumulate(active, np.zeros(5, int), counts)
_bloom.novelty(active, counts, np.ones(9), np.zeros(2, np.int64))
for function in (_lanes.hash_rows, _hash._draw_dense, _bloom._accumulate, _bloom._add_weights):
    print(sum(function.stats.cache_hits.values()), sum(function.stats.cache_misses.values()))
"""


def test_second_process_loads_all_kernels_from_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    run = [sys.executable, "-c", SECOND_PROCESS]

    first, second = (
        subprocess.run(run, check=True, capture_output=True, text=True).stdout.split("\n")[:4]
        for _ in range(2)
    )

    assert first == ["0 1"] * 4
    assert second == ["1 0"] * 4
