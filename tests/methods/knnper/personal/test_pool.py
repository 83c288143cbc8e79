from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedneighbors.methods.knnper.algorithm import local_prior, soften
from fedneighbors.methods.knnper.personal._pool import (
    FittedPool,
    PoolTerms,
    pool,
    pool_steps,
    pool_terms,
)
from tests.naive import knnper as naive


def fit_pool(used, sum_terms):
    """Return the weights of the lowest loss, and the mean loss, given all terms at once."""
    steps = pool_steps(np.array(used, bool))
    weights = next(steps)
    while True:
        try:
            weights = steps.send(sum_terms(weights))
        except StopIteration as stop:
            return stop.value


def make_experts(n=60, n_classes=4, n_experts=3, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(n_classes, size=n)
    scores = random.normal(size=(n, n_classes, n_experts))
    scores[np.arange(n), labels] += [1.5, 0.5, 0.0]
    return scores, labels


def test_gradient_and_hessian_match_the_loss():
    scores, labels = make_experts()
    weights, step = np.array([0.7, -0.2, 0.4]), 1e-5

    terms = pool_terms(scores, labels, weights)

    for j, unit in enumerate(np.eye(3) * step):
        up, down = (pool_terms(scores, labels, weights + s * unit) for s in (1, -1))
        slope = (up.loss - down.loss) / (2 * step)
        assert terms.gradient[j] == pytest.approx(slope, rel=1e-6, abs=1e-6)
        np.testing.assert_allclose(
            terms.hessian[j], (up.gradient - down.gradient) / (2 * step), rtol=1e-6, atol=1e-6
        )


def test_weights_maximize_the_likelihood():
    scores, labels = make_experts()
    start = np.array([1.0, 0.0, 0.0])

    weights, mean_loss = fit_pool([1, 1, 1], lambda w: pool_terms(scores, labels, w))

    def loss(w):
        return pool_terms(scores, labels, w).loss + ((w - start) ** 2).sum() / 2

    expected = minimize(loss, start, method="L-BFGS-B", bounds=[(0, None)] * 3, tol=1e-12).x
    np.testing.assert_allclose(weights, expected, atol=1e-4)
    assert mean_loss == pool_terms(scores, labels, weights).loss / 60


@given(st.integers(0, 10_000), st.tuples(*[st.booleans()] * 3).filter(any))
def test_weights_satisfy_the_conditions_of_a_minimum(seed, used):
    scores, labels = make_experts(n=30, seed=seed)

    weights, _ = fit_pool(used, lambda w: pool_terms(scores, labels, w))

    gradient = naive.pool_gradient(scores.tolist(), labels.tolist(), weights.tolist(), used[0])
    for weight, slope, is_used in zip(weights, gradient, used, strict=True):
        assert weight >= 0 if is_used else weight == 0
        assert not is_used or slope > -1e-2  # a larger weight does not lower the loss
        assert weight == 0 or slope < 1e-2  # nor does a smaller one


def test_an_expert_that_misleads_gets_the_weight_0():
    scores, labels = make_experts(n=300)
    scores[:, :, 2] = -scores[:, :, 0]

    weights, loss = fit_pool([1, 1, 1], lambda w: pool_terms(scores, labels, w))

    _, loss_without = fit_pool([1, 1, 0], lambda w: pool_terms(scores, labels, w))
    assert weights[2] == 0 < weights[0]
    assert loss == pytest.approx(loss_without, abs=1e-9)


def test_a_fitted_pool_lists_its_experts():
    fitted = FittedPool(
        ("shared model", "memory"), np.array([0.75, 0.0]), 0.5, np.array([0.9, 0.5])
    )

    table = fitted.tabulate()

    assert table.columns == ("expert", "weight", "held-out loss without it")
    assert table.rows == (("none", None, 0.5), ("shared model", 0.75, 0.9), ("memory", 0.0, 0.5))


@pytest.mark.parametrize(
    ("weights", "loss", "losses"),
    [
        ([1.0], 0.5, [0.9, 0.5]),
        ([1.0, -0.1], 0.5, [0.9, 0.5]),
        ([1.0, np.nan], 0.5, [0.9, 0.5]),
        ([[1.0, 0.0]], 0.5, [0.9, 0.5]),
        ([1.0, 0.0], np.inf, [0.9, 0.5]),
        ([1.0, 0.0], 0.5, [0.9]),
        ([1.0, 0.0], 0.5, [0.9, np.nan]),
    ],
)
def test_an_impossible_pool_is_refused(weights, loss, losses):
    with pytest.raises(ValueError, match="expected"):
        FittedPool(("shared model", "memory"), np.array(weights), loss, np.array(losses))


def test_summed_terms_give_the_pooled_rows_weights():
    scores, labels = make_experts()
    clients = np.arange(60) % 7

    def sum_terms(w):
        terms = [pool_terms(scores[clients == c], labels[clients == c], w) for c in range(7)]
        return PoolTerms(*(sum(getattr(part, f.name) for part in terms) for f in fields(PoolTerms)))

    from_sums, _ = fit_pool([1, 1, 1], sum_terms)

    from_rows, _ = fit_pool([1, 1, 1], lambda w: pool_terms(scores, labels, w))
    np.testing.assert_allclose(from_sums, from_rows, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_too_long_steps_are_halved_until_the_loss_falls(scale):
    scores, labels = make_experts()
    losses = []

    def sum_terms(w):
        terms = pool_terms(scale * scores, labels, w)
        losses.append(terms.loss + ((w - start) ** 2).sum() / 2)
        return terms

    start = np.array([1.0, 0.0, 0.0])
    weights, _ = fit_pool([1, 1, 1], sum_terms)

    final = pool_terms(scale * scores, labels, weights)
    assert final.loss + ((weights - start) ** 2).sum() / 2 == min(losses)
    slopes = final.gradient + weights - start
    assert np.abs(slopes[weights > 0]).max() < 1e-2 * max(scale, 1)
    assert (slopes > -1e-2 * max(scale, 1)).all()


def test_without_rows_the_weights_do_not_change():
    no_rows = np.empty((0, 3, 2)), np.empty(0, int)

    weights, loss = fit_pool([1, 1], lambda w: pool_terms(*no_rows, w))

    assert (weights.tolist(), loss) == ([1.0, 0.0], 0.0)


def test_one_expert_of_weight_1_is_the_pool():
    shares = np.array([[0.2, 0.8], [0.5, 0.5]])

    np.testing.assert_allclose(pool(np.log(shares)[:, :, None], np.ones(1)), shares, rtol=1e-15)


def test_softened_votes_have_no_infinite_logarithm():
    logs = soften(np.array([[1.0, 0.0, 0.0, 0.0]]))

    np.testing.assert_allclose(np.exp(logs), [[0.985, 0.005, 0.005, 0.005]], rtol=1e-12)


def test_a_prior_adds_one_row_of_the_overall_shares():
    overall = np.array([0.5, 0.25, 0.25])

    assert local_prior(np.array([1, 1, 2]), overall).tolist() == [0.125, 0.5625, 0.3125]
    assert local_prior(np.empty(0, int), overall).tolist() == overall.tolist()
