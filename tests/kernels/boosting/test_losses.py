import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedneighbors.kernels.boosting._losses import class_gradients, class_losses
from tests.naive.boosting import losses as naive

SCORES = st.floats(-50, 50) | st.sampled_from([0.0, -0.0, 1e308, -1e308, 5e-324, 800.0, -800.0])
FACTORS = st.sampled_from([1.0, 2.0**30, 2.0**40, 2.0**-30])


@st.composite
def rows(draw):
    n_classes, n_rows = draw(st.integers(2, 5)), draw(st.integers(1, 6))
    n_scores = 1 if n_classes == 2 else n_classes
    scores = draw(arrays(np.float64, (n_rows, n_scores), elements=SCORES))
    labels = draw(arrays(np.int64, n_rows, elements=st.integers(0, n_classes - 1)))
    weights = draw(arrays(np.float64, n_classes, elements=st.floats(0, 1e3)))
    return scores, labels, weights


@settings(max_examples=100, deadline=None)
@given(rows(), FACTORS)
def test_derivatives_match_naive_version(table, factor):
    gradients, hessians = class_gradients(*table, factor)

    expected = naive.class_gradients(*(part.tolist() for part in table), factor)
    assert (gradients.tolist(), hessians.tolist()) == expected


@settings(max_examples=100, deadline=None)
@given(rows())
def test_losses_match_naive_version(table):
    loss = class_losses(*table, 2.0**30)

    expected = naive.class_losses(*(part.tolist() for part in table))
    # each row is rounded once, and its logarithm to about 2**-50 of its value
    assert abs(loss / 2.0**30 - float(expected)) <= 1e-8 * len(table[0]) + 1e-12 * float(expected)


def test_no_rows_have_no_loss():
    scores, labels = np.zeros((0, 3)), np.zeros(0, np.int64)

    assert class_losses(scores, labels, np.ones(3), 1.0) == 0
    assert class_gradients(scores, labels, np.ones(3), 1.0)[0].shape == (3, 0)


def test_sums_do_not_depend_on_the_order_of_rows():
    rng = np.random.default_rng(0)
    scores, labels, weights = rng.normal(size=(500, 3)), rng.integers(0, 3, 500), rng.random(3)
    order = rng.permutation(500)

    one, other = (class_losses(scores[k], labels[k], weights, 2.0**40) for k in (..., order))

    assert one == other
