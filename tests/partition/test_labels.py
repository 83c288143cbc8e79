"""Splits with label skew."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import PartitionError
from fedneighbors.partition import dirichlet, pachinko, pathological, pathological_v2


def counts_by_class(parties, y):
    names = sorted(set(parties.tolist()))
    return np.array(
        [[np.sum((parties == name) & (y == label)) for name in names] for label in np.unique(y)]
    )


def test_large_alpha_gives_each_party_its_share_of_each_class():
    y = np.repeat([0, 1], [4000, 1000])

    counts = counts_by_class(dirichlet(y, 4, alpha=1e9, seed=0), y)

    assert abs(counts[0] - 1000).max() <= 1
    assert abs(counts[1] - 250).max() <= 1


def test_small_alpha_gives_each_class_to_one_party():
    y = np.repeat(np.arange(20), 50)

    counts = counts_by_class(dirichlet(y, 5, alpha=1e-6, min_rows=0, seed=0), y)

    assert np.array_equal(np.count_nonzero(counts, axis=1), np.ones(20))


def test_shares_follow_the_dirichlet_distribution():
    # With alpha = 0.5 and 4 parties a share has mean 1/4 and variance
    # (1/4 * 3/4) / (4 * 0.5 + 1) = 1/16. Over 2,000 classes the standard error of the variance
    # is below 0.002 (fourth central moment below 0.0117); six of them is a false alarm rate
    # below 1e-8, and the seed is fixed.
    y = np.repeat(np.arange(2000), 200)

    shares = fast_counts_by_class(dirichlet(y, 4, alpha=0.5, seed=3), y, n_parties=4) / 200

    assert abs(shares.mean(axis=0) - 0.25).max() < 6 * 0.25 / np.sqrt(2000)
    assert abs(shares.var(axis=0) - 1 / 16).max() < 0.012


def fast_counts_by_class(parties, y, *, n_parties):
    owner = np.array([int(name[6:]) for name in parties])
    counts = np.bincount(y * n_parties + owner, minlength=(y.max() + 1) * n_parties)
    return counts.reshape(-1, n_parties)


@given(
    y=st.lists(st.integers(0, 4), min_size=20, max_size=80),
    alpha=st.floats(1e-9, 1e9),
    min_rows=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
@settings(deadline=None)
def test_no_party_has_fewer_rows_than_the_minimum(y, alpha, min_rows, seed):
    try:
        parties = dirichlet(y, 4, alpha=alpha, min_rows=min_rows, max_tries=5, seed=seed)
    except PartitionError:
        return

    assert len(parties) == len(y)
    assert min(np.unique(parties, return_counts=True)[1]) >= min_rows


def test_unreachable_minimum_reports_the_attempts():
    y = np.zeros(100, dtype=int)

    with pytest.raises(PartitionError) as error:
        dirichlet(y, 10, alpha=0.01, min_rows=10, max_tries=7, seed=0)

    assert str(error.value) == (
        "found no partition into 10 parties with at least 10 rows each at alpha=0.01; in 7 draws "
        "the smallest party had at most 0 of 100 rows. Raise alpha, lower n_parties or min_rows, "
        "or allow empty parties with min_rows=0"
    )


@pytest.mark.parametrize("alpha", [0.0, -1.0, 1e-10, 1e10, float("nan"), float("inf")])
def test_invalid_alpha_is_refused(alpha):
    with pytest.raises(ValueError, match=r"alpha must be in \[1e-9, 1e9\]"):
        dirichlet([0, 1], 2, alpha=alpha, seed=0)


def test_zero_tries_and_negative_minimum_are_refused():
    with pytest.raises(ValueError, match="max_tries must be at least 1"):
        dirichlet([0, 1], 2, max_tries=0, seed=0)
    with pytest.raises(ValueError, match="min_rows must not be negative"):
        dirichlet([0, 1], 2, min_rows=-1, seed=0)


def test_dirichlet_reproduces_the_recorded_partition():
    parties = dirichlet(["a"] * 6 + ["b"] * 6, 3, alpha=1.0, seed=7)

    assert "".join(name[-1] for name in parties) == "221011220222"


@given(
    y=st.lists(st.integers(0, 5), min_size=24, max_size=90),
    n_parties=st.integers(1, 8),
    classes_per_party=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
@settings(deadline=None)
def test_no_party_exceeds_classes_per_party(y, n_parties, classes_per_party, seed):
    y = np.array(y)
    is_possible = n_parties * classes_per_party >= len(np.unique(y))

    if not is_possible:
        with pytest.raises(PartitionError, match="raise n_parties or classes_per_party"):
            pathological(y, n_parties, classes_per_party=classes_per_party, seed=seed)
        return
    parties = pathological(y, n_parties, classes_per_party=classes_per_party, seed=seed)

    for name in set(parties.tolist()):
        assert len(np.unique(y[parties == name])) <= classes_per_party
    assert len(set(parties.tolist())) == n_parties


def test_balanced_classes_give_equal_shards():
    y = np.repeat(np.arange(10), 60)

    parties = pathological(y, 10, classes_per_party=2, seed=0)

    assert np.unique(parties, return_counts=True)[1].tolist() == [60] * 10
    assert set(counts_by_class(parties, y).ravel().tolist()) <= {0, 30, 60}


def test_the_largest_class_is_cut_into_the_most_shards():
    y = np.repeat([0, 1, 2], [60, 20, 10])

    counts = counts_by_class(pathological(y, 6, classes_per_party=1, seed=0), y)

    assert sorted(counts[0].tolist()) == [0, 0, 15, 15, 15, 15]
    assert sorted(counts[1].tolist()) == [0, 0, 0, 0, 0, 20]
    assert sorted(counts[2].tolist()) == [0, 0, 0, 0, 0, 10]


def test_uneven_shards_differ_by_at_most_one_row():
    counts = counts_by_class(pathological([0] * 11, 4, classes_per_party=1, seed=0), np.zeros(11))

    assert sorted(counts[0].tolist()) == [2, 3, 3, 3]


def test_fewer_than_one_class_per_party_is_refused():
    with pytest.raises(ValueError, match="classes_per_party must be at least 1, got 0"):
        pathological([0, 1], 2, classes_per_party=0, seed=0)


def test_fewer_rows_than_shards_are_refused():
    with pytest.raises(PartitionError, match="2 parties with at least 2 rows"):
        pathological([0, 1, 1], 2, classes_per_party=2, seed=0)


def test_pathological_reproduces_the_recorded_partition():
    parties = pathological(["a"] * 6 + ["b"] * 6, 3, classes_per_party=1, seed=7)

    assert "".join(name[-1] for name in parties) == "002022111111"


@pytest.mark.parametrize(
    ("n_classes", "n_parties", "classes_per_party"), [(10, 20, 2), (10, 7, 3), (4, 4, 1)]
)
def test_parties_have_exactly_classes_per_party(n_classes, n_parties, classes_per_party):
    y = np.repeat(np.arange(n_classes), 60)

    parties = pathological_v2(y, n_parties, classes_per_party=classes_per_party, seed=0)

    counts = np.array(
        [
            [(y[parties == f"party-{p}"] == c).sum() for c in range(n_classes)]
            for p in range(n_parties)
        ]
    )
    assert ((counts > 0).sum(axis=1) == classes_per_party).all()
    parties_by_class = (counts > 0).sum(axis=0)
    assert parties_by_class.max() - parties_by_class.min() <= 1
    assert counts.sum() == len(y)
    shared = counts[:, parties_by_class > 1]
    weights = [column[column > 0] for column in shared.T]
    assert all(weight.max() <= 1.5 * weight.min() + 3 for weight in weights)  # 1.5 = 0.6 / 0.4


def test_unheld_classes_or_too_few_rows_are_refused():
    with pytest.raises(PartitionError, match="cannot hold the 10 classes"):
        pathological_v2(np.arange(10).repeat(9), 4, classes_per_party=2, seed=0)
    with pytest.raises(PartitionError, match="rows of one class"):
        pathological_v2([0, 1, 1, 1, 1, 1, 1, 1], 4, classes_per_party=2, seed=0)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        pathological_v2([0, 1], 1, classes_per_party=0, seed=0)


FINE = np.repeat(np.arange(20), 30)
COARSE = FINE // 5


@given(
    st.lists(st.integers(0, 8), min_size=12, max_size=60),
    st.integers(1, 12),
    st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
    st.integers(0, 10),
)
def test_every_row_has_a_party_and_parties_are_balanced(fine, n_parties, alpha, seed):
    coarse = [label // 3 for label in fine]

    parties = pachinko(coarse, fine, n_parties, alpha=alpha, beta=alpha, seed=seed)

    sizes = np.unique(parties, return_counts=True)[1]
    assert len(sizes) == n_parties
    assert sizes.max() - sizes.min() <= 1
    repeated = pachinko(coarse, fine, n_parties, alpha=alpha, beta=alpha, seed=seed)
    assert parties.tolist() == repeated.tolist()


def mean_coarse_labels(alpha):
    parties = pachinko(COARSE, FINE, 20, alpha=alpha, seed=3)
    return np.mean([len(set(COARSE[parties == name])) for name in np.unique(parties)])


def test_a_small_alpha_gives_a_party_few_coarse_labels():
    assert mean_coarse_labels(0.01) < 2 < 3.9 < mean_coarse_labels(100.0)


def test_draws_follow_the_distributions_of_both_levels():
    """Compare the first party's mean shares with those of the Dirichlet distribution.

    400 splits of 30 rows; the share of a coarse label has deviation .25 / 20 at most, and four
    deviations are allowed for four labels: a false alarm in 1 of 4,000.
    """
    shares = np.zeros(4)
    for seed in range(400):
        parties = pachinko(COARSE, FINE, 20, alpha=1.0, seed=seed)
        shares += np.bincount(COARSE[parties == "party-0"], minlength=4) / 30 / 400

    assert abs(shares - 0.25).max() < 4 * 0.25 / 20


def test_a_fine_label_belongs_to_one_coarse_label():
    with pytest.raises(ValueError, match="one coarse label for each fine label"):
        pachinko([0, 1, 0], [5, 5, 6], 1, seed=0)


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (1.0, float("nan"))])
def test_concentrations_are_checked(alpha, beta):
    with pytest.raises(ValueError, match="must be in"):
        pachinko(COARSE, FINE, 2, alpha=alpha, beta=beta, seed=0)


def test_more_parties_than_rows_are_refused():
    with pytest.raises(PartitionError, match="only 2 rows"):
        pachinko([0, 0], [0, 1], 3, seed=0)
