"""Mechanisms with planted bugs and the claims of correct ones, and correct mechanisms."""

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
class AuditCase:
    """A release, its claim, and the inputs and the number of outputs per input of its audit.

    The release is a function of rows and a source of bits.
    """

    release: object
    claim: object
    pairs: list
    n_samples: int = 20_000

    def seeded(self, seed):
        """Return the release with seeded noise, as a function of rows only."""
        bits = np.random.default_rng(seed).bytes
        return lambda rows: self.release(rows, bits)


def release_by(mechanism):
    return lambda rows, bits: mechanism.release(rows, ROW, bits=bits)


def add_noise(draw):
    """Return a release that adds draw(rows, bits) to the rows."""
    return lambda rows, bits: rows + draw(rows, bits)


def draw_noise(mechanism, rows, bits):
    return mechanism.noise(rows.size, bits=bits).reshape(rows.shape)


def add_shares(mechanism, n_survivors):
    def release(rows, bits):
        return rows + sum(
            mechanism.share(rows.size, bits=bits).reshape(rows.shape) for _ in range(n_survivors)
        )

    return release


def use_the_public_seed(rows, bits):
    """Release with noise from a public seed, so that every party knows it."""
    noise = LAPLACE.noise(rows.shape[1], bits=np.random.default_rng(PUBLIC_SEED).bytes)
    return rows + noise


def use_one_noise_for_all_cells(rows, bits):
    return rows + LAPLACE.noise(len(rows), bits=bits)[:, None]


def omit_the_noise_of_one_cell(rows, bits):
    noise = draw_noise(LAPLACE, rows, bits)
    noise[:, 0] = 0  # the loop ends one short
    return rows + noise


def draw_floating_point_noise(rows, bits):
    """Release with noise from ten random bits by inversion: large values are rare."""
    words = np.frombuffer(bits(2 * rows.size), np.uint16).reshape(rows.shape)
    uniform = ((words >> 6) + 1) / 1024
    sign = np.where(words & 1, 1, -1)
    return rows + np.rint(-sign * 40 * np.log(uniform)).astype(np.int64)


def omit_noise_at_random(mechanism, probability, *, n_cells=N_CELLS):
    """Return a release of the first cells, without noise with some probability."""

    def release(rows, bits):
        noise = draw_noise(mechanism, rows[:, :n_cells], bits)
        noise[np.frombuffer(bits(2 * len(rows)), np.uint16) < probability * 2**16] = 0
        return rows[:, :n_cells] + noise

    return release


def repeat_noise_for_a_neighbor(rows, bits):
    """Release with a generator that starts again for every table."""
    return rows + draw_noise(LAPLACE, rows, np.random.default_rng(PUBLIC_SEED).bytes)


def repeat_noise_in_the_next_run(rows, bits):
    """Release with noise that serves two runs."""
    return rows + np.repeat(draw_noise(LAPLACE, rows[::2], bits), 2, axis=0)[: len(rows)]


def draw_short_seeds(rows, bits):
    """Release with noise from seeds of ten bits."""
    zeros = np.zeros((1024, rows.shape[1]), int)
    noise = draw_noise(LAPLACE, zeros, np.random.default_rng(1).bytes)
    return rows + noise[np.frombuffer(bits(2 * len(rows)), np.uint16) % 1024]


def append_the_exact_total(rows, bits):
    return np.column_stack([rows + draw_noise(LAPLACE, rows, bits), rows.sum(axis=1)])


def choose_the_width_by_the_rows(rows, bits):
    is_wide = rows.sum(axis=1, keepdims=True) % 3 == 0
    wide, narrow = draw_noise(DiscreteLaplace(6), rows, bits), draw_noise(LAPLACE, rows, bits)
    return rows + np.where(is_wide, wide, narrow)


def release_top_k(k, scale, sensitivity=ROW):
    mechanism = NoisyTopK(k, scale)  # OpenDP's entropy: the bits are not used
    return lambda rows, bits: np.array([mechanism.release(row, sensitivity) for row in rows])


def release_picks(epsilon, n_picks):
    mechanism = TopPicks(epsilon, n_picks)
    return lambda rows, bits: np.array([mechanism.release(row, ROW, bits=bits) for row in rows])


ADD_REMOVE = neighboring_pairs(ROW, N_CELLS)
REPLACE_ONE = neighboring_pairs(EXCHANGED, N_CELLS)
ONE_ADDED, ONE_REPLACED = ADD_REMOVE[-1:], REPLACE_ONE[-1:]
"""The pairs far from 0, which show most bugs; one pair takes a third of the time."""
ONE_CELL = [((31,), (30,)), ((1,), (0,))]
ALL_CELLS = [((1, 0, 0, 0), (0, 1, 1, 1)), ((3, 2, 2, 2), (2, 3, 3, 3))]
HALVES = [((1, 1, 1, 0, 0, 0), (0, 0, 0, 1, 1, 1))]
UNCLIPPED = [((9, 9, 9, 2, 2, 2), (2, 2, 2, 2, 2, 2))]
"""A row that counts seven times, where the claim allows once."""

# audits of a claim in rho take more outputs, slow mechanisms get fewer
CORRECT = {
    "laplace": AuditCase(release_by(LAPLACE), EPSILON, ADD_REMOVE),
    "laplace, replace one": AuditCase(release_by(DiscreteLaplace(6)), EPSILON, REPLACE_ONE),
    "gaussian": AuditCase(release_by(GAUSSIAN), RHO, ADD_REMOVE, 80_000),
    "laplace shares": AuditCase(add_shares(LaplaceShares(3, 4), 4), EPSILON, ADD_REMOVE),
    "laplace shares, more than needed": AuditCase(
        add_shares(LaplaceShares(3, 4), 6), EPSILON, ADD_REMOVE
    ),
    "gaussian shares": AuditCase(
        add_shares(GaussianShares(9, 4), 4),
        GaussianShares(9, 4).guarantee(ROW, N_CELLS),
        ADD_REMOVE,
        80_000,
    ),
    "top picks": AuditCase(release_picks(2, 2), PureDP(Fraction(2)), ALL_CELLS, 3_000),
    "noisy top-k": AuditCase(release_top_k(2, 2), NoisyTopK(2, 2).guarantee(ROW), HALVES, 3_000),
    "gaussian, replace one": AuditCase(release_by(DiscreteGaussian(18)), RHO, REPLACE_ONE, 80_000),
    "gaussian, as epsilon and delta": AuditCase(
        release_by(GAUSSIAN),
        ApproxDP(zcdp_to_approx(RHO.rho, "1e-5"), Fraction("1e-5")),
        ADD_REMOVE,
    ),
}
"""Mechanisms as they are: no audit may accuse them."""

PLANTED = {
    "half the noise": AuditCase(release_by(DiscreteLaplace(Fraction(3, 2))), EPSILON, ONE_ADDED),
    "sensitivity of one cell only": AuditCase(release_by(DiscreteLaplace(1)), EPSILON, ONE_ADDED),
    "l2 taken for l1": AuditCase(
        release_by(DiscreteLaplace(Fraction(1732, 1000))), EPSILON, ONE_ADDED
    ),
    "replace-one claimed as add/remove": AuditCase(release_by(LAPLACE), EPSILON, ONE_REPLACED),
    "noise from the public seed": AuditCase(use_the_public_seed, EPSILON, ONE_ADDED),
    "one noise for all cells": AuditCase(use_one_noise_for_all_cells, EPSILON, ONE_ADDED),
    "one cell without noise": AuditCase(omit_the_noise_of_one_cell, EPSILON, ONE_ADDED),
    "noise of one sign": AuditCase(
        add_noise(lambda rows, bits: abs(draw_noise(LAPLACE, rows, bits))), EPSILON, ONE_ADDED
    ),
    "truncated tails": AuditCase(
        add_noise(lambda rows, bits: np.clip(draw_noise(LAPLACE, rows, bits), -6, 6)),
        EPSILON,
        ONE_ADDED,
    ),
    "floating-point noise": AuditCase(
        draw_floating_point_noise, PureDP(Fraction(3, 40)), ONE_ADDED
    ),
    "one count without noise, 8 percent": AuditCase(
        omit_noise_at_random(DiscreteLaplace(2), 0.08, n_cells=1), PureDP(Fraction(1, 2)), ONE_CELL
    ),
    "laplace shares sized for all parties": AuditCase(
        add_shares(LaplaceShares(3, 4), 2), EPSILON, ONE_ADDED
    ),
    "variance passed as sigma": AuditCase(release_by(DiscreteGaussian(3)), RHO, ONE_ADDED, 80_000),
    "half the sigma": AuditCase(
        release_by(DiscreteGaussian(Fraction(9, 4))), RHO, ONE_ADDED, 80_000
    ),
    "gaussian shares sized for all parties": AuditCase(
        add_shares(GaussianShares(9, 4), 2),
        GaussianShares(9, 4).guarantee(ROW, N_CELLS),
        ONE_ADDED,
        80_000,
    ),
    "gaussian replace-one claimed as add/remove": AuditCase(
        release_by(GAUSSIAN), RHO, ONE_REPLACED, 80_000
    ),
    "no noise once in a hundred": AuditCase(
        omit_noise_at_random(LAPLACE, 0.01), EPSILON, ONE_ADDED, 80_000
    ),
    "no noise once in a thousand": AuditCase(
        omit_noise_at_random(LAPLACE, 0.001), EPSILON, ONE_ADDED, 300_000
    ),
    "one count without noise, 1 percent": AuditCase(
        omit_noise_at_random(DiscreteLaplace(20), 0.01, n_cells=1),
        PureDP(Fraction(1, 20)),
        ONE_CELL[:1],
        400_000,
    ),
    "noise repeated for a neighbor": AuditCase(repeat_noise_for_a_neighbor, EPSILON, ONE_ADDED),
    "noise repeated in the next run": AuditCase(repeat_noise_in_the_next_run, EPSILON, ONE_ADDED),
    "noise from seeds of ten bits": AuditCase(draw_short_seeds, EPSILON, ONE_ADDED),
    "number of rows without noise": AuditCase(append_the_exact_total, EPSILON, ONE_ADDED),
    "clipping missing": AuditCase(release_by(LAPLACE), EPSILON, UNCLIPPED),
    "width of the noise from the rows": AuditCase(
        choose_the_width_by_the_rows, EPSILON, [((5, 4, 4, 4, 4, 4), (4,) * 6)]
    ),
    "top-k costs as one pick": AuditCase(
        release_top_k(3, 1), NoisyTopK(1, 1).guarantee(ROW), HALVES, 3_000
    ),
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
            omitted = self.bug == "last draw without noise" and j == self.n_picks - 1
            noise = 0 if omitted else draws.laplace(self.scale)
            before = weights.counts[cell]
            clipped = max(before, 0) + noise if self.bug == "clip before noise" else before + noise
            weights.change(cell, clipped if self.bug == "clip before noise" else max(clipped, 0))
            picked.add(cell)
        left = picked if self.bug != "unselected cells leaked" else range(len(counts))
        return [count if i in left else 0 for i, count in enumerate(weights.counts)]


PICKS_BUGS = [
    "half the noise",
    "noise not split",
    "last draw without noise",
    "selection without the factor 2",
    "selection not split",
    "selection by the maximum",
    "unselected cells leaked",
]
"""Violations of privacy, found by enumeration."""

PICKS_DEVIATIONS = ["clip before noise"]
"""Changes of the distribution, found by enumeration, that do not violate privacy: see the docs."""
