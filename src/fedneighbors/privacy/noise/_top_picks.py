"""Step DP() of FlyNN's Algorithm 2: pick cells by the exponential mechanism and add noise."""

import math
import os
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers
from fedneighbors.privacy._guarantees import PureDP, Sensitivity
from fedneighbors.privacy.noise._mechanisms import DiscreteLaplace, integers, positive
from fedneighbors.privacy.noise._samplers import (
    BitSource,
    Enclosure,
    draw_words,
    powers_of_exp,
    times,
)

# Bits of a weight: the first 128 bits of a draw, and 64 for rounding and for weights below 1.
_PRECISION = 192

_HEADROOM = 8
"""Distance of the reference above the largest count, times the rate.

All weights must be computed again when a count exceeds the reference. The noise of a pick has the
scale 1 / (2 rate): the distance is 16 scales, which one pick exceeds with probability exp(-16) / 2.
The largest weight is exp(-8), which costs 12 bits of its precision.
"""


class CellWeights:
    """Weights of all cells in a binary tree; a draw or a change costs O(log n).

    The weight of a cell is exp(-rate * (reference - count)), for a reference above all counts. It
    is enclosed between two integers in units of 2**-precision. Node 1 of the tree is the sum of all
    cells, node i has the children 2 i and 2 i + 1, cell i is node ``width + i``.

    Parameters
    ----------
    counts : list of int
        One per cell.
    rate : Fraction
        Exponent per unit of count, above 0.
    """

    def __init__(self, counts: list[int], rate: Fraction) -> None:
        self.counts = list(counts)
        self.rate = rate
        self._precision = _PRECISION
        self._lows: list[int] = []
        self._highs: list[int] = []

    def change(self, cell: int, count: int) -> None:
        """Set the count of a cell.

        Parameters
        ----------
        cell : int
            Position of the cell.
        count : int
            New count.
        """
        self.counts[cell] = count
        if not self._lows:  # the next draw builds the tree
            return
        if count > self._reference:
            self._lows = []  # all weights change
            return
        node = self._width + cell
        self._lows[node], self._highs[node] = self._weight(count)
        while node > 1:
            node //= 2
            self._lows[node] = self._lows[2 * node] + self._lows[2 * node + 1]
            self._highs[node] = self._highs[2 * node] + self._highs[2 * node + 1]

    def find(self, prefix: int, n_bits: int) -> int | None:
        """Find the cell that all U with a prefix select, or None.

        The weights, in the order of the cells, divide the interval from 0 to their sum. U selects
        the cell whose part contains U times the sum.

        Parameters
        ----------
        prefix : int
            First bits of U, a number in [0, 1).
        n_bits : int
            Number of these bits.
        """
        if not self._lows:
            self._build()
        lows, highs = self._lows, self._highs
        least, most = prefix * lows[1], (prefix + 1) * highs[1]
        low_before = high_before = 0
        node = 1
        while node < self._width:
            node *= 2
            low_edge, high_edge = low_before + lows[node], high_before + highs[node]
            if least >= high_edge << n_bits:
                low_before, high_before = low_edge, high_edge
                node += 1
            elif most > low_edge << n_bits:  # the edge may lie within the prefix
                return None
        return node - self._width

    def refine(self) -> None:
        """Double the precision of every weight."""
        self._precision *= 2
        self._lows = []

    def probabilities(self, precision: int) -> list[Enclosure]:
        """Enclose the probability of every cell, in units of 2**-precision.

        Parameters
        ----------
        precision : int
            Bits after the point.
        """
        if not self._lows:
            self._build()
        leaves = range(self._width, self._width + len(self.counts))
        return [
            Enclosure(
                (self._lows[leaf] << precision) // self._highs[1],
                -(-(self._highs[leaf] << precision) // self._lows[1]),
            )
            for leaf in leaves
        ]

    def _build(self) -> None:
        self._reference = max(self.counts) + math.ceil(_HEADROOM / self.rate)
        n_powers = (self._reference - min(self.counts)).bit_length()  # bits of a distance
        self._powers = powers_of_exp(self.rate, max(n_powers, 1), self._precision)
        self._weights: dict[int, Enclosure] = {}  # cache, by count
        self._width = width = 1 << (len(self.counts) - 1).bit_length()
        weights = [self._weight(count) for count in self.counts]
        padding = [0] * (width - len(weights))
        self._lows = [0] * width + [weight.low for weight in weights] + padding
        self._highs = [0] * width + [weight.high for weight in weights] + padding
        for node in range(width - 1, 0, -1):
            self._lows[node] = self._lows[2 * node] + self._lows[2 * node + 1]
            self._highs[node] = self._highs[2 * node] + self._highs[2 * node + 1]

    def _weight(self, count: int) -> Enclosure:
        """Multiply powers of exp(-rate), one per bit of the distance."""
        cached = self._weights.get(count)
        if cached is not None:
            return cached
        distance = self._reference - count
        while len(self._powers) < distance.bit_length():  # a count fell below all earlier ones
            last = self._powers[-1]
            self._powers.append(times(last, last, self._precision))
        weight = Enclosure(1 << self._precision, 1 << self._precision)
        for i in range(distance.bit_length()):
            if distance >> i & 1:
                weight = times(weight, self._powers[i], self._precision)
        self._weights[count] = weight
        return weight


class Draws(Protocol):
    """Random draws of a mechanism, or their enumeration for an exact audit."""

    def cell(self, weights: CellWeights) -> int:
        """Draw a cell with probability proportional to its weight."""

    def laplace(self, scale: Fraction) -> int:
        """Draw discrete Laplace noise."""


@dataclass(frozen=True)
class BitDraws:
    """Exact draws from random bits.

    Parameters
    ----------
    bits : callable
        Source of random bytes.
    """

    bits: BitSource

    def cell(self, weights: CellWeights) -> int:
        """Draw a cell with 128 bits, and more if necessary.

        Each step also doubles the precision of the weights. With n cells, 128 bits leave about one
        draw in 2**128 / n undecided.

        Parameters
        ----------
        weights : CellWeights
            Weights of all cells.
        """
        prefix, n_bits = 0, 0
        while True:
            first, second = draw_words(2, self.bits).tolist()
            prefix, n_bits = prefix << 128 | first << 64 | second, n_bits + 128
            cell = weights.find(prefix, n_bits)
            if cell is not None:
                return cell
            weights.refine()

    def laplace(self, scale: Fraction) -> int:
        """Draw discrete Laplace noise.

        Parameters
        ----------
        scale : Fraction
            Scale of the noise.
        """
        return int(DiscreteLaplace(scale).noise(1, bits=self.bits)[0])


@dataclass(frozen=True)
class TopPicks:
    """Noisy counts of the picked cells, zero elsewhere, as printed in [1]_.

    A pick draws a cell with probability proportional to exp(epsilon c / 4T) (line 19) and replaces
    its count by max(c + noise, 0) with discrete Laplace noise of scale 2T / epsilon (line 20); a
    later pick may draw it again. Cells that are never picked become 0 (line 24).

    Cost: if no count changes by more than linf, one pick by the exponential mechanism costs 2 linf
    epsilon / 4T and its noise linf epsilon / 2T; T adaptive picks add up to linf epsilon. A
    repeated pick starts from a released value. Setting the other cells to zero is post-processing.

    Parameters
    ----------
    epsilon : Fraction
        Epsilon above 0, for counts that change by at most one.
    n_picks : int
        Number of cells drawn (T), with repetition.

    Raises
    ------
    ValueError
        If epsilon is not above 0 or there are no picks.

    References
    ----------
    .. [1] Ram and Sinha, "Federated Nearest Neighbor Classification with a Colony of
       Fruit-Flies", AAAI 2022, Algorithm 2, lines 14-29.

    Examples
    --------
    >>> one_row = Sensitivity(unit="row", neighbors="add_remove", l1=3, l2_squared=3, linf=1)
    >>> TopPicks(epsilon=1, n_picks=5).guarantee(one_row)
    PureDP(epsilon=Fraction(1, 1))
    """

    epsilon: Fraction
    n_picks: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive(self.epsilon, "epsilon"))
        if self.n_picks < 1:
            raise ValueError(f"expected n_picks of 1 or more, got {self.n_picks}")
        DiscreteLaplace(self.scale)  # raises here, before any charge, if the scale is too large

    @property
    def rate(self) -> Fraction:
        """Return the exponent per unit of count (line 19)."""
        return self.epsilon / (4 * self.n_picks)

    @property
    def scale(self) -> Fraction:
        """Return the scale of the noise on a picked cell (line 20)."""
        return 2 * self.n_picks / self.epsilon

    def guarantee(self, sensitivity: Sensitivity) -> PureDP:
        """Return the cost of one release: epsilon times linf.

        Parameters
        ----------
        sensitivity : Sensitivity
            Sensitivity of the vector of counts.
        """
        return PureDP(self.epsilon * sensitivity.linf)

    def release(
        self, values: npt.ArrayLike, sensitivity: Sensitivity, *, bits: BitSource = os.urandom
    ) -> Integers:
        """Return the picked counts with noise, zero elsewhere.

        Parameters
        ----------
        values : integer array of any shape
            Counts of all classes and units.
        sensitivity : Sensitivity
            Sensitivity of that vector.
        bits : callable
            Source of random bytes.

        Returns
        -------
        int64 array of the same shape

        Raises
        ------
        TypeError
            If the values are not integers.
        ValueError
            If there are no cells, or a value is beyond
            :data:`~fedneighbors.privacy.noise._mechanisms.MAX_VALUE`.
        """
        vector = integers(values, sensitivity)
        if vector.size == 0:
            raise ValueError("expected at least one cell to pick from, got none")
        released = self.answer(vector.ravel().tolist(), BitDraws(bits))
        return np.array(released, np.int64).reshape(vector.shape)

    def answer(self, counts: list[int], draws: Draws) -> list[int]:
        """Return the released counts for given draws; an audit enumerates the draws.

        Parameters
        ----------
        counts : list of int
            One per cell.
        draws : Draws
            Source of the random choices.
        """
        weights = CellWeights(counts, self.rate)
        picked = set()
        for _ in range(self.n_picks):  # lines 18-23
            cell = draws.cell(weights)
            weights.change(cell, max(weights.counts[cell] + draws.laplace(self.scale), 0))
            picked.add(cell)
        return [count if i in picked else 0 for i, count in enumerate(weights.counts)]  # line 24
