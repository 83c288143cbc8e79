import math
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest

from fedneighbors.errors import MissingExtraError
from fedneighbors.privacy._guarantees import ZCDP, PureDP, Sensitivity
from fedneighbors.privacy.noise._mechanisms import (
    MAX_TABLE_SCALE,
    MAX_TABLE_VARIANCE,
    MAX_VALUE,
    DiscreteGaussian,
    DiscreteLaplace,
    NoisyTopK,
    opendp_laplace,
)

ROW = Sensitivity(unit="row", neighbors="add_remove", l1=9, l2_squared=9, linf=1)
EXCHANGED = Sensitivity(unit="row", neighbors="replace_one", l1=18, l2_squared=18, linf=1)
BOTH = [ROW, EXCHANGED]
MECHANISMS = [DiscreteLaplace(8), DiscreteGaussian(50)]


@pytest.fixture(autouse=True, scope="module")
def _opendp():
    dp.enable_features("contrib")


@pytest.mark.parametrize("scale", [0.5, 4, 32, 100])
@pytest.mark.parametrize("sensitivity", BOTH, ids=["add_remove", "replace_one"])
def test_laplace_cost_equals_opendps(scale, sensitivity):
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)

    opendp_cost = dp.m.make_laplace(*space, scale=float(scale)).map(sensitivity.l1)

    cost = DiscreteLaplace(scale).guarantee(sensitivity)
    assert cost == PureDP(Fraction(sensitivity.l1) / Fraction(scale))
    assert math.isclose(cost.epsilon, opendp_cost, rel_tol=1e-15)


@pytest.mark.parametrize("sigma", [0.5, 3, 24, 100])
@pytest.mark.parametrize("sensitivity", BOTH, ids=["add_remove", "replace_one"])
def test_gaussian_cost_equals_opendps(sigma, sensitivity):
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)

    measurement = dp.m.make_gaussian(*space, scale=float(sigma))
    opendp_cost = measurement.map(math.sqrt(sensitivity.l2_squared))

    cost = DiscreteGaussian(Fraction(sigma) ** 2).guarantee(sensitivity)
    assert cost == ZCDP(sensitivity.l2_squared / (2 * Fraction(sigma) ** 2))
    assert math.isclose(cost.rho, opendp_cost, rel_tol=1e-14)


@pytest.mark.parametrize("k", [1, 5])
def test_top_k_costs_opendps_value_for_two_sided_scores(k):
    cost = NoisyTopK(k, 4).guarantee(ROW)

    assert float(cost.epsilon) == pytest.approx(2 * k * ROW.linf / 4, rel=1e-15)


def test_top_k_selects_different_cells_and_prefers_large_ones():
    values = np.array([[0, 90], [80, 1]])

    indices = NoisyTopK(2, 1).release(values, ROW)

    assert indices.dtype == np.int64
    assert sorted(indices.tolist()) == [1, 2]  # another pair has odds below exp(-79)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_a_release_is_the_vector_plus_noise_of_the_mechanism(mechanism):
    values = np.arange(-6, 6, dtype=np.int32).reshape(3, 4)
    bits = [np.random.default_rng(5).bytes for _ in range(2)]

    released = mechanism.release(values, ROW, bits=bits[0])

    noise = mechanism.noise(12, bits=bits[1]).reshape(3, 4)
    assert released.dtype == np.int64
    assert (released == values + noise).all()
    assert noise.any()


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_values_that_noise_could_overflow_are_refused(mechanism):
    for value in (MAX_VALUE + 1, -MAX_VALUE - 1):
        with pytest.raises(ValueError, match="noise could make them overflow"):
            mechanism.release(np.array([0, value]), ROW)
    with pytest.raises(ValueError, match="overflow"):
        mechanism.release(np.array([2**64 - 1], np.uint64), ROW)

    assert mechanism.release(np.array([MAX_VALUE]), ROW)[0] > 0


@pytest.mark.parametrize("mechanism", [*MECHANISMS, NoisyTopK(1, 1)], ids=str)
def test_a_release_needs_integers_and_a_sensitivity(mechanism):
    with pytest.raises(TypeError, match="expected the Sensitivity of the vector"):
        mechanism.release(np.array([1, 2]), 3)
    with pytest.raises(TypeError, match="expected an array of integers, got float64"):
        mechanism.release(np.array([1.0, 2.0]), ROW)


@pytest.mark.parametrize("bad", [0, -1, "nan", math.inf, None, True])
def test_noise_needs_a_positive_finite_width(bad):
    for mechanism in (DiscreteLaplace, DiscreteGaussian, lambda scale: NoisyTopK(1, scale)):
        with pytest.raises((ValueError, TypeError), match="expected"):
            mechanism(bad)


def test_an_empty_vector_is_released_empty():
    assert DiscreteLaplace(3).release(np.zeros(0, np.int64), ROW).shape == (0,)


@pytest.mark.parametrize(
    ("mechanism", "sigma"),
    [
        (DiscreteLaplace(MAX_TABLE_SCALE + 1), math.sqrt(2) * (MAX_TABLE_SCALE + 1)),
        (DiscreteGaussian(MAX_TABLE_VARIANCE + 1), math.sqrt(MAX_TABLE_VARIANCE + 1)),
    ],
    ids=["laplace", "gaussian"],
)
def test_wide_noise_comes_from_opendp_only(mechanism, sigma):
    noise = mechanism.noise(2_000)

    assert 0.8 < noise.std() / sigma < 1.2  # more than six deviations of the estimate
    with pytest.raises(ValueError, match="drawn by OpenDP, which does not accept bits"):
        mechanism.noise(10, bits=lambda n: bytes(n))


def test_without_opendp_selection_names_the_missing_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opendp.prelude", None)

    with pytest.raises(MissingExtraError, match=r"fedneighbors\[privacy\]"):
        NoisyTopK(1, 1).release(np.array([1, 2]), ROW)
    with pytest.raises(MissingExtraError):
        opendp_laplace(Fraction(3), 1)


def test_noise_of_the_usual_widths_does_not_need_opendp(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opendp.prelude", None)

    assert DiscreteLaplace(32).release(np.zeros(100, np.int64), ROW).any()


def test_top_k_of_too_few_cells_is_refused():
    with pytest.raises(ValueError, match="expected 3 cells or more, got 2"):
        NoisyTopK(3, 1).release(np.array([1, 2]), ROW)
