import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedneighbors.methods.flynn._features import (
    EXPANSIONS,
    FeatureMap,
    check_scaling,
    choose_expansion,
    expand,
    n_expanded,
    standardizer,
)
from fedneighbors.tabular._schema import column_moments

# Integer multiples of the quantum (2**-200), so that the moments are exact.
VALUES = st.floats(-(2.0**120), 2.0**120, width=64).map(lambda v: v if abs(v) > 1e-40 else 0.0)
TABLES = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=7), elements=VALUES)


@given(TABLES)
def test_global_scaling_divides_by_the_rms_deviation(x):
    _, deviations = standardizer(column_moments(x), "feature")
    varying = np.array([(x[:, j] != x[0, j]).any() for j in range(x.shape[1])])

    _, scale = standardizer(column_moments(x), "global")

    expected = np.sqrt((deviations[varying] ** 2).mean()) if varying.any() else 1.0
    assert len(set(scale.tolist())) == 1
    np.testing.assert_allclose(scale, expected, rtol=1e-12)


@given(TABLES)
def test_scaling_true_is_global_up_to_a_ratio_of_six(x):
    moments = column_moments(x)
    _, deviations = standardizer(moments, "feature")
    varying = deviations[[(x[:, j] != x[0, j]).any() for j in range(x.shape[1])]]

    _, scale = standardizer(moments, True)

    is_similar = len(varying) == 0 or varying.max() <= 6 * np.median(varying)
    expected = standardizer(moments, "global" if is_similar else "feature")[1]
    assert scale.tolist() == expected.tolist()


def columns_with_deviations(*deviations):
    """Return columns with these standard deviations exactly."""
    return np.array([[-1.0], [1.0]]) * np.array(deviations)


def test_a_ratio_of_six_is_still_global_and_more_is_not():
    within, beyond = (
        columns_with_deviations(1, 1, 6),
        columns_with_deviations(1, 1, np.nextafter(6, 7)),
    )

    scales = [standardizer(column_moments(x), True)[1] for x in (within, beyond)]

    assert scales[0].tolist() == [np.sqrt(38 / 3)] * 3
    assert scales[1].tolist() == [1, 1, np.nextafter(6, 7)]


def test_constant_columns_are_ignored_by_the_scaling():
    x = np.hstack([columns_with_deviations(2, 12), np.full((2, 50), 7.0)])

    mean, scale = standardizer(column_moments(x), True)

    assert mean.tolist() == [0, 0] + [7] * 50
    assert len(set(scale.tolist())) == 1


@pytest.mark.parametrize("value", [0.0, -0.0, 0.1, 1e50, -1e-30, 2.0**199])
@pytest.mark.parametrize("n_rows", [1, 2, 3, 1_000])
def test_a_constant_column_is_centred_exactly_and_divided_by_one(value, n_rows):
    x = np.full((n_rows, 1), value)

    mean, scale = standardizer(column_moments(x), "feature")

    assert mean.tolist() == [value]
    assert scale.tolist() == [1.0]
    assert FeatureMap(1, "none", mean, scale).apply(x).tolist() == [[0.0]] * n_rows


@pytest.mark.parametrize("value", ["Feature", "", None, 2, "true", np.inf])
def test_an_unknown_scaling_is_refused(value):
    with pytest.raises(ValueError, match="expected standardize True, False, 'feature' or 'global'"):
        check_scaling(value)


@pytest.mark.parametrize("kind", EXPANSIONS)
def test_expansions_have_their_width_and_act_by_row(kind):
    z = np.random.default_rng(2).normal(size=(9, 4))

    expanded = expand(z, kind, 5)

    assert expanded.shape == (9, n_expanded(kind, 4))
    for k in range(9):
        assert expand(z[[k]], kind, 5).tobytes() == expanded[[k]].tobytes()


def test_mirror_does_not_wrap_small_integers():
    z = np.array([[200, 3]], np.uint8)

    expanded = expand(z, "mirror", 0)

    assert expanded.tolist() == [[200, 3, -200, -3]]


def test_thermometer_separates_above_from_below():
    z = np.array([[-9.0], [0.0], [9.0]])

    expanded = expand(z, "thermometer", 0)

    assert expanded[:, :7].tolist() == [[0] * 7, [1] * 3 + [0] * 4, [1] * 7]
    assert (expanded[:, 7:] == 1 - expanded[:, :7]).all()


def test_population_is_highest_at_the_nearest_centre():
    z = np.array([[-2.0], [0.1], [2.0]])

    expanded = expand(z, "population", 0)

    assert expanded.argmax(axis=1).tolist() == [0, 4, 7]
    assert (expanded <= 0).all()


def test_fourier_depends_on_the_seed_within_eleven_bits():
    z = np.random.default_rng(3).normal(size=(50, 2)) * 100

    first, second = expand(z, "fourier", 0), expand(z, "fourier", 1)

    assert (first != second).any()
    assert np.abs(first).max() <= 1024
    assert first.dtype == np.int16


@pytest.mark.parametrize("value", ["Mirror", "", "sqrt", "AUTO"])
def test_an_unknown_expansion_is_refused(value):
    with pytest.raises(ValueError, match="expected expand 'auto', None or one of"):
        choose_expansion(value, 3)
    with pytest.raises(ValueError, match="expected an expansion among"):
        FeatureMap(3, value)


def test_constants_of_another_length_are_refused():
    with pytest.raises(ValueError, match="expected 3 standardizing constants"):
        FeatureMap(3, "none", np.zeros(2), np.ones(3))


def test_untouched_rows_keep_their_dtype():
    x = np.array([[1, 2]], np.uint8)

    rows = FeatureMap(2, "none").apply(x)

    assert rows is x
