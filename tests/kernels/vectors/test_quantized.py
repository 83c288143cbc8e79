import math
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedneighbors.kernels.vectors import _nearest
from fedneighbors.kernels.vectors import _quantized as quantized
from tests.naive.vectors import quantized as naive

NUMBERS = st.floats(-2.0, 2.0, allow_nan=False) | st.sampled_from(
    [
        0.0,
        1.0,
        -1.0,
        1.0 + 2.0**-52,
        127.0,
        0.1,
        1e-30,
        1e-38,
        3e-39,
        1e-44,
        -1e-44,
        5e-324,
        2.0**40,
    ]
)
STEPS = [0.0, 1 / 64, 0.3, 2.0**-120]


@st.composite
def tables(draw):
    n_columns = draw(st.integers(1, 20))
    n_rows = draw(st.integers(1, 70))
    n_distinct = draw(st.integers(1, 4))
    few = draw(arrays(np.float64, (n_distinct, n_columns), elements=NUMBERS))
    rows = few[np.arange(n_rows) % n_distinct]
    query = draw(st.sampled_from(list(few)) | arrays(np.float64, n_columns, elements=NUMBERS))
    return rows, query


def bounds_of(rows, query, step, of_products=False, module=quantized):
    table = module.QuantizedRows(*rows.shape, step=step)
    table.put(rows[: len(rows) // 2], 0)
    table.put(rows[len(rows) // 2 :], len(rows) // 2)
    bounds = table.bound(query, of_products=of_products)
    bounds.extend(len(rows) // 2)
    bounds.extend(len(rows))
    return bounds


@pytest.mark.parametrize(("step", "of_products"), [*((step, False) for step in STEPS), (0.0, True)])
@settings(max_examples=200, deadline=None)
@given(tables())
def test_bounds_match_naive_version_and_are_below_the_distances(step, of_products, table):
    rows, query = table
    step = float(np.float32(step))

    bounds = bounds_of(rows, query, step, of_products)

    n = len(rows)
    expected = naive.lower_bounds(rows.tolist(), query.tolist(), step, of_products)
    assert bounds.values[:n].tolist() == [float(bound) for bound in expected]
    assert (bounds.values[n:] == math.inf).all()
    assert bounds.minima.tolist() == bounds.values.reshape(-1, 64).min(axis=1).tolist()
    for bound, row in zip(bounds.values[:n], rows.tolist(), strict=True):
        assert not naive.exceeds_distance(bound, row, query.tolist(), step, of_products)


@pytest.mark.parametrize("step", [0.0, 1 / 40])
def test_bounds_are_close_to_the_distances(step):
    rng = np.random.default_rng(0)
    rows, query = rng.normal(size=(300, 40)), rng.normal(size=40)

    bounds = bounds_of(rows, query, step)

    differences = np.abs(rows - query)
    distances = differences.sum(axis=1) if step else np.sqrt((differences**2).sum(axis=1))
    assert (bounds.values[:300] > 0.98 * distances).mean() > 0.9


def test_bounds_of_products_are_close_to_the_distances():
    rng = np.random.default_rng(0)
    rows, query = rng.normal(size=(300, 40)), rng.normal(size=40)

    bounds = bounds_of(rows, query, 0.0, of_products=True)

    sizes = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
    assert (bounds.values[:300] > -rows @ query - 0.02 * sizes).all()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_rows_are_taken_once_within_limits(data):
    n = data.draw(st.integers(1, 200))
    values = data.draw(st.lists(st.integers(-3, 9), min_size=n, max_size=n))
    n_blocks = -(-n // 64)
    padded = np.full(n_blocks * 64, np.inf, np.float32)
    padded[:n] = values
    bounds = quantized.RowBounds(padded, padded.reshape(-1, 64).min(axis=1))
    left = dict(enumerate(values))

    while left:
        count = data.draw(st.integers(1, len(left)))
        limit = bounds.quantile(count)
        positions = bounds.take(limit).tolist()

        assert positions == [row for row, value in left.items() if value <= limit]
        assert len(positions) >= count
        left = {row: value for row, value in left.items() if value > limit}
        assert bounds.lowest() == min(left.values(), default=math.inf)


@pytest.mark.parametrize("kind", ["ROOT", "PLAIN", "HALF", "SQUARE", "PRODUCT"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8])
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_verified_rows_match_the_naive_version(kind, dtype, data):
    n, limit, most = (data.draw(st.integers(*ends)) for ends in ((1, 140), (-1, 9), (0, 140)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    table, query = (9 * rng.random((150, 11))).astype(dtype), rng.normal(size=11)
    order = data.draw(st.sampled_from([None, rng.permutation(150)]))
    values = np.full(-(-n // 64) * 64, np.inf, np.float32)
    values[:n] = rng.integers(0, 9, n)
    minima = values.reshape(-1, 64).min(axis=1)
    expected = naive.verify_within(
        table.tolist(),
        range(150) if order is None else order.tolist(),
        query.tolist(),
        kind,
        values.tolist(),
        limit,
        most,
    )

    rows, distances, lowest = quantized.verify_within(
        getattr(_nearest, kind), table, order, query, values, minima, float(limit), most
    )

    assert (rows.tolist(), distances.tolist(), lowest) == expected
    assert np.isinf(values[rows]).all()
    assert minima.tolist() == values.reshape(-1, 64).min(axis=1).tolist()


def narrow_cases():
    """Yield rows and queries whose bounds leave little room for errors."""
    rng = np.random.default_rng(0)
    for scale in np.float32([*rng.uniform(1, 9, 20), *(rng.uniform(1, 9, 20) * 2.0**-82)]):
        rows = float(scale) * np.append(np.full((64, 1), 127), rng.integers(-127, 128, (64, 2)), 1)
        yield rows, rows[0], 0.0  # exact codes, and squares below 2**-126
    for top in [*range(1, 60), 2**18 + 1, 2.0**-139]:
        rows = np.zeros((64, 2))
        rows[:, 0] = 127.0 * top  # exact codes: the residuals are zero
        yield rows, rows[0] * np.arange(1, 65)[rng.integers(64)], 0.0
        yield rows, rows[0], 0.0
        yield rows, np.array([0.0, rows[0, 0] * 0.7]), 0.0
    for power in range(-152, -120):
        rows = rng.uniform(1, 9, (64, 1)) * 2.0**power
        yield rows, np.array([20 * 2.0**power]), 0.0
        yield rows, np.array([20 * 2.0**power]), 2.0**-120
    for step in (0.0, 1 / 64):
        rows = rng.normal(size=(640, 3))
        for query in rows[:20] + 1e-3 * rng.normal(size=(20, 3)):
            yield rows, query, step
            yield rows * 9, query * 9, step  # clipped to about two


def narrow_cases_of_products():
    """Yield rows and queries whose bounds of products leave little room for errors."""
    rng = np.random.default_rng(0)
    for rows, query, step in narrow_cases():
        if step == 0.0:
            yield rows, query, step
    # codes are zero, and the length of a row has a relative error
    yield np.outer(rng.uniform(1, 2, 64), np.ones(64)) * 2.0**-117, np.full(64, 2.0**39), 0.0
    for power in (-60, -20, 0, 39):
        for query in rng.normal(size=(20, 2)) * 2.0**power:
            # codes are zero, and rows have the direction of the query
            yield np.outer(rng.uniform(1, 9, 64), query) * 2.0 ** (-122 - power), query, 0.0
            yield np.outer(rng.uniform(1, 9, 64), query) / 9, query, 0.0
            # exact codes, orthogonal to the largest element of the query
            rows = np.zeros((64, 2))
            rows[:, np.abs(query).argmin()] = 127.0 * rng.integers(-99, 99, 64)
            yield rows, query, 0.0


MUTATIONS = {
    "the residual of a row": [
        ("- (radii[i] + rho)", "- rho"),
    ],
    "the residual of the query": [
        ("- (radii[i] + rho)", "- radii[i]"),
    ],
    "the rounding of the square": [("lengths[i]) * factor", "lengths[i])")],
    "the relative error": [("* factor - (radii", "- (radii"), ("step * factor", "step")],
    "the clipped part of a row": [("abs(beyond - scales[i])", "beyond")],
    "the relative error of clipped parts": [(" - margin * max(beyond, scales[i])", "")],
    "underflow": [("length + 2.0**-140", "length"), ("_UNDERFLOW = 2.0**-70", "_UNDERFLOW = 0.0")],
}
MUTATIONS_OF_PRODUCTS = {
    "the residual of a row": [("- row_factor * radii[i]", "")],
    "the residual of the query": [("radius * (1.0 + 2.0**-20) + ", "")],
    "the residual in the length of the query": [
        ("math.sqrt(square) + radius", "math.sqrt(square)")
    ],
    "the relative error": [("1.0 + 2.0**-20", "1.0")],
    "rounding": [(" + 2.0**-20 * size", "")],
    "underflow": [(" - underflow", "")],
}


def has_too_high_bounds(module, of_products=False):
    cases = narrow_cases_of_products() if of_products else narrow_cases()
    return any(
        naive.exceeds_distance(bound, row, query.tolist(), step, of_products)
        for rows, query, step in cases
        for bound, row in zip(
            bounds_of(rows, query, step, of_products, module).values,
            rows.tolist(),
            strict=False,
        )
    )


@pytest.mark.parametrize("of_products", [False, True])
def test_narrow_cases_have_valid_bounds(of_products):
    assert not has_too_high_bounds(quantized, of_products)


@pytest.mark.parametrize(
    ("name", "of_products"),
    [*((name, False) for name in MUTATIONS), *((name, True) for name in MUTATIONS_OF_PRODUCTS)],
)
def test_each_term_of_the_error_is_needed(name, of_products):
    source = Path(quantized.__file__).read_text().replace("cache=True, ", "")
    for old, new in (MUTATIONS_OF_PRODUCTS if of_products else MUTATIONS)[name]:
        assert old in source
        source = source.replace(old, new)
    module = types.ModuleType("mutated")
    exec(compile(source, "mutated", "exec"), module.__dict__)

    assert has_too_high_bounds(module, of_products)


def test_sums_stay_below_the_limit_of_integers():
    n_columns = quantized.QuantizedRows.max_columns(is_square=False)
    rows = np.full((1, n_columns), -1.0)

    absolute = bounds_of(rows, -rows[0], 1 / 127)
    square = bounds_of(rows, -rows[0], 0.0)

    assert 1.9 * n_columns < absolute.values[0] <= 2.0 * n_columns
    assert 1.9 * n_columns**0.5 < square.values[0] <= 2.0 * n_columns**0.5
