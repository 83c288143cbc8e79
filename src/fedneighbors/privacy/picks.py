"""The DP() step of FlyNN's Algorithm 2: cells picked by the exponential mechanism, then noised."""

import os
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedneighbors.privacy.guarantees import PureDP, Sensitivity
from fedneighbors.privacy.mechanisms import DiscreteLaplace, integers, positive
from fedneighbors.privacy.noise import BitSource, draw_words
from fedneighbors.privacy.picks_weights import CellWeights

__all__ = ["BitDraws", "Draws", "TopPicks"]


class Draws(Protocol):
    """The random draws of a mechanism: real ones for a release, all of them for an exact audit."""

    def cell(self, weights: CellWeights) -> int:
        """Draw a cell with probability proportional to its weight."""

    def laplace(self, scale: Fraction) -> int:
        """Draw discrete Laplace noise."""


@dataclass(frozen=True)
class BitDraws:
    """Draws of exactly their laws, from random bits.

    Parameters
    ----------
    bits : callable
        Source of random bytes.
    """

    bits: BitSource

    def cell(self, weights: CellWeights) -> int:
        """Draw a cell: 128 bits at first; while they do not decide, more bits, finer weights.

        Parameters
        ----------
        weights : CellWeights
            Of all cells.
        """
        prefix, n_bits = 0, 0
        while True:
            first, second = draw_words(2, self.bits).tolist()
            prefix, n_bits = prefix << 128 | first << 64 | second, n_bits + 128
            found = weights.find(prefix, n_bits)
            if found is not None:
                return found
            weights.refine()

    def laplace(self, scale: Fraction) -> int:
        """Draw discrete Laplace noise.

        Parameters
        ----------
        scale : Fraction
            Its scale.
        """
        return int(DiscreteLaplace(scale).noise(1, bits=self.bits)[0])


@dataclass(frozen=True)
class TopPicks:
    """Noised counts of the cells that were picked, zero elsewhere, line by line as printed [1]_.

    A pick draws a cell with probability proportional to exp(epsilon c / 4T) (line 19) and replaces
    its count by max(c + noise, 0), the noise being discrete Laplace of scale 2T / epsilon (line
    20); a later pick may draw it again. What was never picked becomes 0 (line 24).

    The cost: where no count moves by more than linf, one pick by the exponential mechanism costs
    2 linf epsilon / 4T and its noise linf epsilon / 2T; T adaptive picks add up to linf epsilon. A
    repeated pick starts from a released value. Setting the rest to zero follows from the output.

    Parameters
    ----------
    epsilon : Fraction
        Above 0, for counts that move by at most one.
    n_picks : int
        How many cells are drawn (T), with repeats.

    Raises
    ------
    ValueError
        If epsilon is not above 0 or there is no pick.

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
        DiscreteLaplace(self.scale)  # refuses a width that no sampler bears, before any charge

    @property
    def rate(self) -> Fraction:
        """Exponent per unit of count (line 19)."""
        return self.epsilon / (4 * self.n_picks)

    @property
    def scale(self) -> Fraction:
        """Scale of the noise on a picked cell (line 20)."""
        return 2 * self.n_picks / self.epsilon

    def guarantee(self, sensitivity: Sensitivity) -> PureDP:
        """Return the cost of one release: epsilon times linf.

        Parameters
        ----------
        sensitivity : Sensitivity
            Of the vector of counts.
        """
        return PureDP(self.epsilon * sensitivity.linf)

    def release(
        self, values: npt.ArrayLike, sensitivity: Sensitivity, *, bits: BitSource = os.urandom
    ) -> npt.NDArray[np.int64]:
        """Return the picked counts with noise, zero elsewhere.

        Parameters
        ----------
        values : integer array of any shape
            Counts of all classes and units.
        sensitivity : Sensitivity
            Of that vector.
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
            If there is no cell, or a value is beyond
            :data:`~fedneighbors.privacy.mechanisms.LARGEST_VALUE`.
        """
        vector = integers(values, sensitivity)
        if vector.size == 0:
            raise ValueError("expected one cell or more to pick from, got none")
        released = self.answer(vector.ravel().tolist(), BitDraws(bits))
        return np.array(released, np.int64).reshape(vector.shape)

    def answer(self, counts: list[int], draws: Draws) -> list[int]:
        """Return the released counts, given the draws: what an exact audit enumerates.

        Parameters
        ----------
        counts : list of int
            One per cell.
        draws : Draws
            Where random choices come from.
        """
        weights = CellWeights(counts, self.rate)
        picked = set()
        for _ in range(self.n_picks):  # lines 18-23
            cell = draws.cell(weights)
            weights.change(cell, max(weights.counts[cell] + draws.laplace(self.scale), 0))
            picked.add(cell)
        return [count if i in picked else 0 for i, count in enumerate(weights.counts)]  # line 24
