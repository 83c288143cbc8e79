import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import DataError
from fedneighbors.methods.fedpnn.synthesis import (
    category_coverage,
    correlation_similarity,
    ks_complement,
    nearest_records,
    utility,
)

columns = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=30).map(
    lambda cells: np.array(cells)[:, None]
)


def find_largest_gap(a, b):
    """Compute Eq 6 directly: compare empirical distributions at every value."""
    return max(abs((a <= x).mean() - (b <= x).mean()) for x in np.concatenate([a, b]))


@settings(max_examples=80)
@given(columns, columns)
def test_ks_complement_matches_its_definition(a, b):
    expected = 1.0 - find_largest_gap(a, b)

    assert ks_complement(a, b)["x0"] == pytest.approx(expected, abs=1e-12)


def test_ks_complement_ignores_missing_cells():
    real = np.array([[1.0], [np.nan], [2.0]])
    missing = np.full((2, 1), np.nan)

    assert ks_complement(real, np.array([[2.0], [1.0], [np.nan]])) == {"x0": 1.0}
    assert ks_complement(real, missing) == {"x0": 0.0}
    assert ks_complement(missing, missing) == {"x0": 1.0}


def test_correlations_match_numpy():
    rng = np.random.default_rng(0)
    real, synthetic = rng.normal(size=(50, 4)), rng.normal(size=(60, 4))

    result = correlation_similarity(real, synthetic)

    np.testing.assert_allclose(result.real, np.corrcoef(real.T), rtol=1e-10)
    pairs = np.triu_indices(4, 1)
    gaps = np.abs(np.corrcoef(real.T) - np.corrcoef(synthetic.T))[pairs]
    assert result.mean == pytest.approx(1.0 - gaps.mean() / 2.0, rel=1e-12)


def test_correlations_with_missing_cells_match_pandas():
    rng = np.random.default_rng(1)
    real = rng.normal(size=(60, 3))
    real[rng.random(real.shape) < 0.2] = np.nan

    result = correlation_similarity(real, real)

    np.testing.assert_allclose(result.real, pd.DataFrame(real).corr(), rtol=1e-9)
    assert result.mean == 1.0


def test_correlations_of_constant_columns():
    x = np.array([[0.0, 0.0, 5.0], [1.0, 1.0, 5.0], [2.0, 2.0, 5.0]])
    synthetic = np.array([[0.0, 4.0, 1.0], [1.0, 4.0, 2.0], [2.0, 4.0, 7.0]])

    result = correlation_similarity(x, synthetic)

    assert np.isnan(result.similarity[:, 2]).all()
    assert result.mean == pytest.approx(0.5)  # the only remaining pair: 1 against 0


def test_coverage_counts_missing_as_a_category():
    real = pd.DataFrame({"w": ["a", "b", "c", None]})
    synthetic = pd.DataFrame({"w": ["a", "a", None, "new"]})

    assert category_coverage(real, synthetic) == {"w": 0.5}


def test_tables_of_different_columns_are_rejected():
    real = pd.DataFrame({"a": [1.0, 2.0]})

    with pytest.raises(DataError, match=r"expected the real columns \['a'\], got \['b'\]"):
        ks_complement(real, pd.DataFrame({"b": [1.0]}))
    with pytest.raises(DataError, match="'a' is numeric in one table and nominal"):
        ks_complement(real, pd.DataFrame({"a": ["x"]}))


def test_copies_are_counted_for_all_kinds_of_cells():
    real = pd.DataFrame({"n": [1.0, 2.0, np.nan, 4.0], "w": ["a", None, "b", "a"]})
    synthetic = pd.DataFrame({"n": [2.0, np.nan, 4.5, 1.0], "w": [None, "b", "a", "z"]})

    result = nearest_records(real, synthetic)

    assert result.copies == 0.5
    assert result.duplicates == 0.0
    assert result.synthetic[:2].tolist() == [0.0, 0.0]
    assert (result.synthetic[2:] > 0).all()


def test_copies_and_duplicates_of_a_table_and_itself():
    x = np.array([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]])

    result = nearest_records(x, x)

    assert (result.copies, result.duplicates) == (1.0, 2 / 3)
    assert result.real[:2].tolist() == [0.0, 0.0]


def test_distances_combine_ranks_and_categories():
    real = pd.DataFrame({"n": [10.0, 20.0], "w": ["a", "b"]})
    synthetic = pd.DataFrame({"n": [10.0], "w": ["z"]})

    result = nearest_records(real, synthetic)

    # ranks of 10 and 20 are 0.25 and 0.75; "z" differs from both categories
    assert result.real.tolist() == pytest.approx([np.sqrt((0.25 + 1.0) / 2)] * 2)
    assert result.synthetic.tolist() == pytest.approx([np.sqrt(1.0 / 2)])


def test_single_real_row_raises():
    with pytest.raises(DataError, match="two real rows or more, got 1"):
        nearest_records(np.zeros((1, 2)), np.zeros((3, 2)))


def make_two_classes(n, shift, seed, *, marked=False):
    """Draw two classes ``shift`` apart; ``marked`` writes the class into column 2."""
    rng = np.random.default_rng(seed)
    y = np.repeat(["no", "yes"], n // 2)
    x = rng.normal(size=(n, 2))
    x[:, 0] += shift * (y == "yes")
    if marked:
        x[:, 1] = (y == "yes") + 0.01 * rng.normal(size=n)
    return x, y


def test_rows_of_the_real_distribution_have_equal_utility():
    result = utility(
        make_two_classes(400, 3.0, 0), make_two_classes(400, 3.0, 1), make_two_classes(400, 3.0, 2)
    )

    assert result.synthetic_on_real.roc_auc > 0.9
    assert abs(result.separability_gap.roc_auc) < 0.1


def test_marked_classes_have_a_separability_gap():
    result = utility(
        make_two_classes(400, 1.0, 0),
        make_two_classes(400, 0.0, 1, marked=True),
        make_two_classes(400, 1.0, 2),
    )

    assert result.synthetic_on_synthetic.balanced_accuracy == 1.0
    assert result.separability_gap.balanced_accuracy > 0.3
    assert result.separability_gap.roc_auc > 0.3


def test_empty_columns_do_not_prevent_a_score():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 60)
    x = np.c_[rng.normal(size=120) + 3 * y, np.full(120, np.nan)]

    scores = utility((x, y), (x, y), (x, y))

    assert scores.synthetic_on_real.roc_auc > 0.9


def test_utility_supports_many_classes_text_and_missing_cells():
    rng = np.random.default_rng(3)

    def rows(seed):
        y = np.repeat([0, 1, 2], 60)
        categories = pd.Series(np.array(["a", "b", "c"])[y], dtype=object)
        categories[rng.random(180) < 0.1] = None
        return pd.DataFrame({"w": categories, "n": rng.normal(size=180)}), y

    result = utility(rows(0), rows(1), rows(2))

    assert result.synthetic_on_real.balanced_accuracy > 0.8
    assert 0.8 < result.synthetic_on_real.roc_auc <= 1.0


def test_roc_auc_of_one_class_is_nan():
    x, y = make_two_classes(200, 3.0, 4)

    result = utility(
        make_two_classes(200, 3.0, 5), make_two_classes(200, 3.0, 6), (x[y == "no"], y[y == "no"])
    )

    assert np.isnan(result.real_on_real.roc_auc)
    assert result.real_on_real.balanced_accuracy > 0.8


def test_rows_unsuitable_for_training_are_rejected():
    real = make_two_classes(60, 1.0, 7)
    x, y = make_two_classes(60, 1.0, 8)

    with pytest.raises(DataError, match="synthetic rows to train on are all of class 'no'"):
        utility(real, (x[y == "no"], y[y == "no"]), real)
    with pytest.raises(DataError, match=r"classes \['yes'\] have one synthetic row"):
        utility(real, (x[:31], y[:31]), real)
