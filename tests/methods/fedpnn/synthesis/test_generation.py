import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedneighbors.methods.fedpnn.synthesis._generation import Conditions, Picks, RowsByCategory

CODES = np.array([[0, 2], [1, 0], [0, 0], [0, 1], [1, 2], [0, 2]])


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.booleans())
def test_drawn_row_has_the_requested_category(seed, damped):
    rows = RowsByCategory.of(CODES, [2, 3])
    rng = np.random.default_rng(seed)

    picks = rows.conditions().draw(20, rng, damped=damped)
    row_indices = rows.draw(picks, rng)

    assert (CODES[row_indices, picks.columns] == picks.categories).all()


def test_conditional_vector_is_one_hot():
    conditions = RowsByCategory.of(CODES, [2, 3]).conditions()

    vectors = conditions.vectors(Picks(np.array([0, 1, 1]), np.array([1, 0, 2])))

    assert conditions.width == 5
    assert vectors.tolist() == [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 1]]


def test_categories_are_drawn_by_frequency_or_its_logarithm():
    counts = np.array([900, 90, 10])
    conditions = Conditions((counts,))
    rng = np.random.default_rng(0)

    frequencies = {
        damped: np.bincount(conditions.draw(20_000, rng, damped=damped).categories, minlength=3)
        for damped in (False, True)
    }

    # fixed seed; with random seeds each would fail with probability 1e-3
    assert chisquare(frequencies[False], 20_000 * counts / counts.sum()).pvalue > 1e-3
    logs = np.log1p(counts)
    assert chisquare(frequencies[True], 20_000 * logs / logs.sum()).pvalue > 1e-3


def test_category_without_rows_is_never_drawn():
    conditions = Conditions((np.array([0, 5, 0, 3, 0]),))

    picks = conditions.draw(2_000, np.random.default_rng(1), damped=True)

    assert set(picks.categories.tolist()) == {1, 3}


def test_numeric_table_has_empty_conditions():
    conditions = RowsByCategory.of(np.empty((4, 0), np.int64), []).conditions()

    assert conditions.width == 0
