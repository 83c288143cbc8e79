import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.errors import PartitionError
from fedneighbors.partition import pachinko

FINE = np.repeat(np.arange(20), 30)
COARSE = FINE // 5


@given(
    st.lists(st.integers(0, 8), min_size=12, max_size=60),
    st.integers(1, 12),
    st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
    st.integers(0, 10),
)
def test_every_row_has_one_party_and_parties_are_equally_large(fine, n_parties, alpha, seed):
    coarse = [label // 3 for label in fine]

    parties = pachinko(coarse, fine, n_parties, alpha=alpha, beta=alpha, seed=seed)

    sizes = np.unique(parties, return_counts=True)[1]
    assert len(sizes) == n_parties
    assert sizes.max() - sizes.min() <= 1
    again = pachinko(coarse, fine, n_parties, alpha=alpha, beta=alpha, seed=seed)
    assert parties.tolist() == again.tolist()


def coarse_labels_of(alpha):
    parties = pachinko(COARSE, FINE, 20, alpha=alpha, seed=3)
    return np.mean([len(set(COARSE[parties == name])) for name in np.unique(parties)])


def test_a_small_alpha_gives_a_party_few_coarse_labels():
    assert coarse_labels_of(0.01) < 2 < 3.9 < coarse_labels_of(100.0)


def test_draws_follow_the_laws_of_both_levels():
    """The first party of many drawings: the mean of its shares is the mean of a Dirichlet law.

    400 drawings of 30 rows; the share of a coarse label has deviation .25 / 20 at most, and four
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
    with pytest.raises(ValueError, match="must lie in"):
        pachinko(COARSE, FINE, 2, alpha=alpha, beta=beta, seed=0)


def test_more_parties_than_rows_are_refused():
    with pytest.raises(PartitionError, match="only 2 rows"):
        pachinko([0, 0], [0, 1], 3, seed=0)
