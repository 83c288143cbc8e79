"""Mechanisms with planted bugs, and the claims that they make all the same."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedneighbors.privacy._accounting import zcdp_to_approx
from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, PureDP, Sensitivity
from fedneighbors.privacy.audit._releases import neighboring_pairs
from fedneighbors.privacy.noise._distributed import GaussianShares, LaplaceShares
from fedneighbors.privacy.noise._mechanisms import DiscreteGaussian, DiscreteLaplace, NoisyTopK
from fedneighbors.privacy.noise._top_picks import CellWeights, TopPicks

N_CELLS = 6
ROW = Sensitivity(unit="row", neighbors="add_remove", l1=3, l2_squared=3, linf=1)
EXCHANGED = Sensitivity(unit="row", neighbors="replace_one", l1=6, l2_squared=6, linf=1)
EPSILON = PureDP(Fraction(1))
RHO = ZCDP(Fraction(1, 6))
LAPLACE = DiscreteLaplace(3)  # l1 / epsilon
GAUSSIAN = DiscreteGaussian(9)  # l2_squared / (2 rho)
PUBLIC_SEED = 20220222


@dataclass(frozen=True)
class Trial:
    """A release as a function of rows and a source of bits, its claim and the inputs to try."""

    release: object
    claim: object
    pairs: list

    def against(self, bits):
        """Return the release, drawn from a source of bits."""
        return lambda rows: self.release(rows, bits)


def noised(mechanism):
    return lambda rows, bits: mechanism.release(rows, ROW, bits=bits)


def plus(noise_of):
    """Return a release that adds noise_of(rows, bits) to the rows."""
    return lambda rows, bits: rows + noise_of(rows, bits)


def drawn(mechanism, rows, bits):
    return mechanism.noise(rows.size, bits=bits).reshape(rows.shape)


def summed(shares, n_survivors):
    def release(rows, bits):
        return rows + sum(
            shares.share(rows.size, bits=bits).reshape(rows.shape) for _ in range(n_survivors)
        )

    return release


def from_public_seed(rows, bits):
    """Release with noise from a public seed, so that every party knows it."""
    noise = LAPLACE.noise(rows.shape[1], bits=np.random.default_rng(PUBLIC_SEED).bytes)
    return rows + noise


def one_for_all_cells(rows, bits):
    return rows + LAPLACE.noise(len(rows), bits=bits)[:, None]


def last_cell_bare(rows, bits):
    noise = drawn(LAPLACE, rows, bits)
    noise[:, 0] = 0  # the loop ends one short
    return rows + noise


def floating_point(rows, bits):
    """Release with noise from ten random bits by inversion: large values are rare."""
    words = np.frombuffer(bits(2 * rows.size), np.uint16).reshape(rows.shape)
    uniform = ((words >> 6) + 1) / 1024
    sign = np.where(words & 1, 1, -1)
    return rows + np.rint(-sign * 40 * np.log(uniform)).astype(np.int64)


def sometimes_bare(rows, bits):
    noise = drawn(DiscreteLaplace(2), rows[:, :1], bits)
    noise[np.frombuffer(bits(len(rows)), np.uint8) < 20] = 0  # 8 percent
    return rows[:, :1] + noise


def bare_once_in_a_hundred(mechanism, n_cells):
    """Return a release without noise with probability 1/100."""

    def release(rows, bits):
        noise = drawn(mechanism, rows[:, :n_cells], bits)
        noise[np.frombuffer(bits(2 * len(rows)), np.uint16) < 655] = 0
        return rows[:, :n_cells] + noise

    return release


def replayed_for_a_neighbor(rows, bits):
    """Release with a generator that starts again for every table."""
    return rows + drawn(LAPLACE, rows, np.random.default_rng(PUBLIC_SEED).bytes)


def replayed_between_runs(rows, bits):
    """Release with noise that serves two runs."""
    return rows + np.repeat(drawn(LAPLACE, rows[::2], bits), 2, axis=0)[: len(rows)]


def from_short_seeds(rows, bits):
    """Release with noise from seeds of ten bits."""
    pool = drawn(LAPLACE, np.zeros((1024, rows.shape[1]), int), np.random.default_rng(1).bytes)
    return rows + pool[np.frombuffer(bits(2 * len(rows)), np.uint16) % 1024]


def with_total(rows, bits):
    """Release noised cells, and the exact number of rows."""
    return np.column_stack([rows + drawn(LAPLACE, rows, bits), rows.sum(axis=1)])


def noise_wider_for_large_counts(rows, bits):
    """Release with noise whose width is that of the table at hand."""
    wide = rows.sum(axis=1, keepdims=True) % 3 == 0
    return rows + np.where(wide, drawn(DiscreteLaplace(6), rows, bits), drawn(LAPLACE, rows, bits))


def top_k(k, scale, sensitivity=ROW):
    mechanism = NoisyTopK(k, scale)  # OpenDP's entropy: the bits are not used
    return lambda rows, bits: np.array([mechanism.release(row, sensitivity) for row in rows])


def picks(epsilon, n_picks):
    mechanism = TopPicks(epsilon, n_picks)
    return lambda rows, bits: np.array([mechanism.release(row, ROW, bits=bits) for row in rows])


ADDED = neighboring_pairs(ROW, N_CELLS)
SWAPPED = neighboring_pairs(EXCHANGED, N_CELLS)
ONE_ADDED, ONE_SWAPPED = ADDED[-1:], SWAPPED[-1:]
"""The pairs far from 0, which show most bugs; one pair takes a third of the time."""
ONE_CELL = [((31,), (30,)), ((1,), (0,))]
MOVED_ALL = [((1, 0, 0, 0), (0, 1, 1, 1)), ((3, 2, 2, 2), (2, 3, 3, 3))]
HALVES = [((1, 1, 1, 0, 0, 0), (0, 0, 0, 1, 1, 1))]
UNCLIPPED = [((9, 9, 9, 2, 2, 2), (2, 2, 2, 2, 2, 2))]
"""A row that counts seven times, where the claim allows once."""

CORRECT = {
    "laplace": Trial(noised(LAPLACE), EPSILON, ADDED),
    "laplace, replace one": Trial(noised(DiscreteLaplace(6)), EPSILON, SWAPPED),
    "gaussian": Trial(noised(GAUSSIAN), RHO, ADDED),
    "laplace shares": Trial(summed(LaplaceShares(3, 4), 4), EPSILON, ADDED),
    "laplace shares, more than needed": Trial(summed(LaplaceShares(3, 4), 6), EPSILON, ADDED),
    "gaussian shares": Trial(
        summed(GaussianShares(9, 4), 4), GaussianShares(9, 4).guarantee(ROW, N_CELLS), ADDED
    ),
    "top picks": Trial(picks(2, 2), PureDP(Fraction(2)), MOVED_ALL),
    "noisy top-k": Trial(top_k(2, 2), NoisyTopK(2, 2).guarantee(ROW), HALVES),
    "gaussian, replace one": Trial(noised(DiscreteGaussian(18)), RHO, SWAPPED),
    "gaussian, as epsilon and delta": Trial(
        noised(GAUSSIAN), ApproxDP(zcdp_to_approx(RHO.rho, "1e-5"), Fraction("1e-5")), ADDED
    ),
}
"""Mechanisms as they are: no audit may accuse them."""

PLANTED = {
    "half the noise": Trial(noised(DiscreteLaplace(Fraction(3, 2))), EPSILON, ONE_ADDED),
    "sensitivity of one cell only": Trial(noised(DiscreteLaplace(1)), EPSILON, ONE_ADDED),
    "l2 taken for l1": Trial(noised(DiscreteLaplace(Fraction(1732, 1000))), EPSILON, ONE_ADDED),
    "replace-one sold as add/remove": Trial(noised(LAPLACE), EPSILON, ONE_SWAPPED),
    "noise from the public seed": Trial(from_public_seed, EPSILON, ONE_ADDED),
    "one noise for all cells": Trial(one_for_all_cells, EPSILON, ONE_ADDED),
    "last cell bare": Trial(last_cell_bare, EPSILON, ONE_ADDED),
    "noise of one sign": Trial(plus(lambda r, b: abs(drawn(LAPLACE, r, b))), EPSILON, ONE_ADDED),
    "tails cut off": Trial(
        plus(lambda r, b: np.clip(drawn(LAPLACE, r, b), -6, 6)), EPSILON, ONE_ADDED
    ),
    "floating-point noise": Trial(floating_point, PureDP(Fraction(3, 40)), ONE_ADDED),
    "bare now and then": Trial(sometimes_bare, PureDP(Fraction(1, 2)), ONE_CELL),
    "laplace shares sized for all parties": Trial(
        summed(LaplaceShares(3, 4), 2), EPSILON, ONE_ADDED
    ),
    "variance passed as sigma": Trial(noised(DiscreteGaussian(3)), RHO, ONE_ADDED),
    "half the sigma": Trial(noised(DiscreteGaussian(Fraction(9, 4))), RHO, ONE_ADDED),
    "gaussian shares sized for all parties": Trial(
        summed(GaussianShares(9, 4), 2), GaussianShares(9, 4).guarantee(ROW, N_CELLS), ONE_ADDED
    ),
    "gaussian replace-one sold as add/remove": Trial(noised(GAUSSIAN), RHO, ONE_SWAPPED),
    "bare once in a hundred": Trial(bare_once_in_a_hundred(LAPLACE, N_CELLS), EPSILON, ONE_ADDED),
    "one count bare once in a hundred": Trial(
        bare_once_in_a_hundred(DiscreteLaplace(20), 1), PureDP(Fraction(1, 20)), ONE_CELL[:1]
    ),
    "noise replayed for a neighbor": Trial(replayed_for_a_neighbor, EPSILON, ONE_ADDED),
    "noise replayed between runs": Trial(replayed_between_runs, EPSILON, ONE_ADDED),
    "noise from seeds of ten bits": Trial(from_short_seeds, EPSILON, ONE_ADDED),
    "number of rows without noise": Trial(with_total, EPSILON, ONE_ADDED),
    "clipping missing": Trial(noised(LAPLACE), EPSILON, UNCLIPPED),
    "width of the noise from the rows": Trial(
        noise_wider_for_large_counts, EPSILON, [((5, 4, 4, 4, 4, 4), (4,) * 6)]
    ),
    "top-k costs as one pick": Trial(top_k(3, 1), NoisyTopK(1, 1).guarantee(ROW), HALVES),
}
"""Found from samples."""


@dataclass(frozen=True)
class BuggyPicks(TopPicks):
    """TopPicks with one line changed, by name."""

    bug: str = ""

    @property
    def rate(self):
        if self.bug == "selection without the factor 2":
            return self.epsilon / (2 * self.n_picks)
        if self.bug == "selection not split":
            return self.epsilon / 4
        return super().rate

    @property
    def scale(self):
        if self.bug == "half the noise":
            return self.n_picks / self.epsilon
        if self.bug == "noise not split":
            return 2 / self.epsilon
        return super().scale

    def answer(self, counts, draws):
        weights = CellWeights(counts, self.rate)
        picked = set()
        for j in range(self.n_picks):
            largest = max(range(len(counts)), key=lambda i: weights.counts[i])
            cell = largest if self.bug == "selection by the maximum" else draws.cell(weights)
            bare = self.bug == "last draw bare" and j == self.n_picks - 1
            noise = 0 if bare else draws.laplace(self.scale)
            before = weights.counts[cell]
            clipped = max(before, 0) + noise if self.bug == "clip before noise" else before + noise
            weights.change(cell, clipped if self.bug == "clip before noise" else max(clipped, 0))
            picked.add(cell)
        left = picked if self.bug != "unselected cells leaked" else range(len(counts))
        return [count if i in left else 0 for i, count in enumerate(weights.counts)]


PICKS_BUGS = [
    "half the noise",
    "noise not split",
    "last draw bare",
    "selection without the factor 2",
    "selection not split",
    "selection by the maximum",
    "unselected cells leaked",
]
"""Found by enumeration, as broken promises of privacy."""

PICKS_DEVIATIONS = ["clip before noise"]
"""Found by enumeration, as another law than the printed one (no broken promise: see the docs)."""
