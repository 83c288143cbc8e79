"""Cells with weights exp(rate * count), drawn exactly: a tree of enclosed partial sums."""

import math
from fractions import Fraction

from fedneighbors.privacy.noise_enclosures import Enclosure, powers_of_exp, times

__all__ = ["CellWeights"]

_PRECISION = 192

_HEADROOM = 8
"""How far above the largest count the reference lies, in exponents: noise rarely lifts a count past
it, and the weights of all cells need not change with every new largest count."""


class CellWeights:
    """The weights of all cells, in a binary tree, so that one draw and one change cost O(log n).

    Weights are relative to a reference above all counts: a cell weighs
    exp(-rate * (reference - count)), between two integers in units of 2**-precision. Node 1 of the
    tree sums all cells, node i has the children 2 i and 2 i + 1, cell i is node ``width + i``.

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
        """Give a cell another count.

        Parameters
        ----------
        cell : int
            Which one.
        count : int
            Its new count.
        """
        self.counts[cell] = count
        if not self._lows:
            return
        if count > self._reference:
            self._lows = []  # all weights change: the next draw builds the tree anew
            return
        node = self._width + cell
        self._lows[node], self._highs[node] = self._weight(count)
        while node > 1:
            node //= 2
            self._lows[node] = self._lows[2 * node] + self._lows[2 * node + 1]
            self._highs[node] = self._highs[2 * node] + self._highs[2 * node + 1]

    def find(self, prefix: int, n_bits: int) -> int | None:
        """Find the cell of all U that begin with a prefix; None if they do not agree.

        U times the sum of all weights falls into the share of one cell, in the order of the cells.

        Parameters
        ----------
        prefix : int
            First bits of U, a number in [0, 1).
        n_bits : int
            How many they are.
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
            elif most > low_edge << n_bits:
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
        reach = (self._reference - min(self.counts)).bit_length()
        self._powers = powers_of_exp(self.rate, max(reach, 1), self._precision)
        self._known: dict[int, Enclosure] = {}
        self._width = width = 1 << (len(self.counts) - 1).bit_length()
        weights = [self._weight(count) for count in self.counts]
        padding = [0] * (width - len(weights))
        self._lows = [0] * width + [weight.low for weight in weights] + padding
        self._highs = [0] * width + [weight.high for weight in weights] + padding
        for node in range(width - 1, 0, -1):
            self._lows[node] = self._lows[2 * node] + self._lows[2 * node + 1]
            self._highs[node] = self._highs[2 * node] + self._highs[2 * node + 1]

    def _weight(self, count: int) -> Enclosure:
        """Multiply the powers of exp(-rate) that make up the distance to the reference."""
        known = self._known.get(count)
        if known is not None:
            return known
        distance = self._reference - count
        while len(self._powers) < distance.bit_length():
            last = self._powers[-1]
            self._powers.append(times(last, last, self._precision))
        weight = Enclosure(1 << self._precision, 1 << self._precision)
        for i in range(distance.bit_length()):
            if distance >> i & 1:
                weight = times(weight, self._powers[i], self._precision)
        self._known[count] = weight
        return weight
