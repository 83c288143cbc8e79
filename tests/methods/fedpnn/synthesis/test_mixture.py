import numpy as np
import pytest
from scipy.special import ndtr

from fedneighbors.methods.fedpnn.synthesis._mixture import fit_modes


def draw_three_modes(n=3_000, seed=0):
    rng = np.random.default_rng(seed)
    mode = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    return np.array([-10.0, 0.0, 25.0])[mode] + np.array([1.0, 0.5, 3.0])[mode] * rng.normal(size=n)


@pytest.mark.parametrize("seed", range(5))
def test_mixture_has_the_distribution_of_the_column(seed):
    column = np.sort(draw_three_modes(seed=seed))

    (modes,) = fit_modes([column])
    standard = (column[:, None] - modes.means) / modes.deviations
    expected = ndtr(standard) @ modes.weights

    observed = (np.arange(len(column)) + 0.5) / len(column)
    assert np.abs(expected - observed).max() < 0.015


def test_modes_have_valid_weights_means_and_deviations():
    columns = [draw_three_modes(seed=1), np.random.default_rng(2).standard_cauchy(2_000)]

    for modes in fit_modes(columns):
        assert modes.weights.sum() == pytest.approx(1.0, rel=1e-12)
        assert (np.diff(modes.means) >= 0).all()
        assert (modes.deviations > 0).all()
        assert 1 <= len(modes.means) <= 10


def test_modes_of_a_column_do_not_depend_on_other_columns():
    rng = np.random.default_rng(3)
    columns = [rng.normal(size=700), rng.gamma(1.0, size=30), draw_three_modes(seed=4)]

    together = fit_modes(columns)
    one_by_one = [fit_modes([column])[0] for column in columns]

    for a, b in zip(together, one_by_one, strict=True):
        np.testing.assert_allclose(a.means, b.means, rtol=1e-9)
        np.testing.assert_allclose(a.weights, b.weights, rtol=1e-9)


def test_modes_do_not_depend_on_the_order_of_rows():
    column = draw_three_modes(seed=5)

    (a,), (b,) = fit_modes([column]), fit_modes([column[::-1]])

    assert (a.means == b.means).all()
    assert (a.deviations == b.deviations).all()


def test_modes_scale_with_the_unit_of_the_column():
    column = draw_three_modes(seed=6)

    (a,), (b,) = fit_modes([column]), fit_modes([column * 1024.0])

    assert (a.means * 1024.0 == b.means).all()  # a power of two only changes the exponent
    assert (a.deviations * 1024.0 == b.deviations).all()


@pytest.mark.parametrize(
    "column",
    [[5.0], [5.0, 5.0, 5.0], [0.0, 1.0], [1e150, -1e150], [0.0] * 99 + [1e12], [1e-120, 2e-120]],
    ids=["one row", "constant", "two rows", "huge", "one outlier", "tiny"],
)
def test_unusual_columns_have_finite_modes(column):
    (modes,) = fit_modes([np.array(column)])

    for part in (modes.means, modes.deviations, modes.weights):
        assert np.isfinite(part).all()
    assert (modes.deviations > 0).all()


def test_posteriors_add_up_and_identify_the_mode():
    (modes,) = fit_modes([draw_three_modes(seed=7)])

    posterior = modes.posterior(np.array([-10.0, 0.0, 25.0]))

    np.testing.assert_allclose(posterior.sum(axis=1), 1.0, rtol=1e-12)
    assert [round(modes.means[k] / 25.0, 1) for k in posterior.argmax(axis=1)] == [-0.4, 0.0, 1.0]
