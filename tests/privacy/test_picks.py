import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare

from fedneighbors.privacy._guarantees import PureDP, Sensitivity
from fedneighbors.privacy.audit._enumeration import enumerate_outputs
from fedneighbors.privacy.noise._top_picks import BitDraws, CellWeights, TopPicks
from tests.naive import picks as naive

ROW = Sensitivity(unit="row", neighbors="add_remove", l1=4, l2_squared=4, linf=1)
FALSE_ALARM = 1e-4  # the seeds are fixed


def distribution_of(mechanism, counts, reach):
    return enumerate_outputs(
        lambda draws: tuple(mechanism.answer(list(counts), draws)), reach=reach
    )


@pytest.mark.parametrize(
    ("epsilon", "n_picks", "counts"),
    [(4, 1, (0, 3, 1)), (4, 2, (1, 0, 2)), (2, 2, (5, 0)), (12, 3, (2, 1))],
)
def test_the_distribution_is_that_of_algorithm_2_as_printed(epsilon, n_picks, counts):
    reach = 6

    ours = distribution_of(TopPicks(epsilon, n_picks), counts, reach)

    printed = naive.released_distribution(counts, epsilon, n_picks, reach)
    assert set(ours.low) == set(printed)
    for output, mass in printed.items():
        assert math.isclose(ours.low[output], mass, rel_tol=1e-10)
        assert 0 <= ours.high[output] - ours.low[output] < Fraction(1, 10**30)
    assert math.isclose(ours.high_beyond, 1 - sum(printed.values()), rel_tol=1e-9)


def test_releases_have_the_enumerated_distribution():
    mechanism, counts, n = TopPicks(4, 2), (2, 0, 1), 20_000
    distribution = distribution_of(mechanism, counts, reach=12)
    bits = np.random.default_rng(4).bytes

    n_outputs = Counter(tuple(mechanism.release(counts, ROW, bits=bits).tolist()) for _ in range(n))

    outputs = [output for output, mass in distribution.low.items() if n * mass >= 10]
    observed = [n_outputs[output] for output in outputs]
    expected = [n * float(distribution.low[output]) for output in outputs]
    observed, expected = [*observed, n - sum(observed)], [*expected, n - sum(expected)]
    assert chisquare(observed, expected).pvalue > FALSE_ALARM


@pytest.mark.parametrize("counts", [[3], [0, 0, 7], [5, 1, 0, 2, 5]])
def test_all_prefixes_together_have_the_law_of_the_weights(counts):
    rate, n_bits = Fraction(1, 3), 12
    weights = CellWeights(counts, rate)

    n_prefixes = Counter(weights.find(prefix, n_bits) for prefix in range(1 << n_bits))

    total = sum(math.exp(rate * c) for c in counts)
    assert n_prefixes[None] <= len(counts)
    for cell, count in enumerate(counts):
        expected = (1 << n_bits) * math.exp(rate * count) / total
        assert expected - 2 <= n_prefixes[cell] <= expected


def test_a_changed_tree_equals_one_built_from_its_counts():
    rng = np.random.default_rng(6)
    weights = CellWeights([4] * 21, Fraction(1, 2))
    weights.find(0, 8)

    for _ in range(200):
        weights.change(int(rng.integers(21)), int(rng.integers(0, 60)))  # also past the reference

        fresh = CellWeights(weights.counts, Fraction(1, 2))
        prefix = int(rng.integers(1 << 40))
        assert weights.find(prefix, 40) == fresh.find(prefix, 40)


def test_weights_too_far_apart_are_refined():
    weights = CellWeights([1_000, 0, 1_001, 1_000], Fraction(1))
    weights.change(0, 0)
    for cell in (2, 3):
        weights.find(0, 8)  # the reference stays far above the remaining counts
        weights.change(cell, 0)

    cells = {BitDraws(np.random.default_rng(seed).bytes).cell(weights) for seed in range(40)}

    assert cells == {0, 1, 2, 3}  # all weigh the same; 40 draws miss one with odds of 4 (3/4)**40


def test_prefixes_at_a_cells_edge_stay_undecided():
    weights = CellWeights([0, 0, 0], Fraction(1))
    third = (1 << 128) // 3

    edge = weights.find(third, 128)
    words = iter([third >> 64, third & (1 << 64) - 1, 0, 0])
    cell = BitDraws(
        lambda n: b"".join(next(words).to_bytes(8, "little") for _ in range(n // 8))
    ).cell(weights)

    assert edge is None
    assert cell == 0  # zeros after the prefix of 1/3: just below 1/3


def test_unpicked_cells_are_zero_and_none_is_negative():
    counts = np.arange(1, 101).reshape(4, 25)

    released = TopPicks(1, 7).release(counts, ROW)

    assert released.shape == (4, 25)
    assert released.dtype == np.int64
    assert (released >= 0).all()
    assert (released > 0).sum() <= 7


def test_a_large_epsilon_picks_the_largest_count():
    counts = [3, 50, 7]

    released = TopPicks(10_000, 4).release(counts, ROW)

    assert released.tolist() == [0, 50, 0]  # odds of anything else: below exp(-1000)


def test_many_cells_of_widely_spread_counts_are_released():
    counts = np.random.default_rng(0).integers(0, 10**6, 20_000)

    released = TopPicks(1, 60).release(counts, ROW)

    picked = np.flatnonzero(released)
    assert 1 <= len(picked) <= 60
    assert counts[picked].min() > 900_000  # weights fall by exp(-416) below


@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
def test_the_cost_is_epsilon_per_unit_of_linf(neighbors):
    for linf in (1, 3):
        sensitivity = Sensitivity("row", neighbors, l1=linf, l2_squared=linf**2, linf=linf)

        assert TopPicks("0.5", 9).guarantee(sensitivity) == PureDP(Fraction(linf, 2))


def test_picks_need_cells_and_a_positive_epsilon():
    with pytest.raises(ValueError, match="expected epsilon above 0"):
        TopPicks(0, 1)
    with pytest.raises(ValueError, match="expected n_picks of 1 or more"):
        TopPicks(1, 0)
    with pytest.raises(ValueError, match="expected at least one cell"):
        TopPicks(1, 1).release(np.zeros(0, np.int64), ROW)
