"""What separates a vector metric from the Minkowski distance that trees and features compute.

Trees add in another order than the metric, so what they say holds up to rounding. A scale turns a
computed Minkowski distance into a safe lower bound of the metric, and a distance of the metric into
a safe radius, with a margin far above any rounding error and far below any difference that matters.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedneighbors._typing import Floats

# Squares of differences below 2**501 stay finite, and so do sums of up to 2**21 of them.
MAX_MAGNITUDE = 2.0**500

# Squares below 2**-1022 lose bits or vanish: what that does to a root is below 2**-500.
_UNDERFLOW = 2.0**-500


class Scale(Protocol):
    """Safe passage between distances in search space and distances of the metric."""

    @property
    def power(self) -> int:
        """Minkowski power of the search space, 1 or 2."""
        ...

    def lower(self, found: Floats) -> Floats:
        """Return lower bounds of the metric's distances, given search-space distances."""
        ...

    def reach(self, distance: float) -> float:
        """Return a search radius; ``lower`` of it and of all beyond exceeds ``distance``."""
        ...

    def inside(self, distance: float) -> float:
        """Return a search radius, maybe negative; all within it is within ``distance``."""
        ...


@dataclass(frozen=True)
class MinkowskiScale:
    """The scale of ``euclidean``, ``manhattan`` and, on unit vectors, ``cosine``.

    Parameters
    ----------
    power : {1, 2}
        Of the search space.
    halved_square : bool
        Whether the metric is half the square of the search distance (cosine).
    n_columns : int
        Length of the vectors: the more terms, the larger the rounding of their sum.
    """

    power: int
    halved_square: bool
    n_columns: int

    @property
    def _relative(self) -> float:
        # A sum of n terms errs by less than (n + 3) 2**-53 of itself, the metric's and the tree's
        # alike; a tree adds up to two roundings for each of its levels, of which it has fewer
        # than 200. Four times that.
        return (8 * self.n_columns + 2048) * 2.0**-53

    def lower(self, found: Floats) -> Floats:
        """Return lower bounds of the metric's distances, given search-space distances."""
        safe = np.maximum(found * (1 - self._relative) - _UNDERFLOW, 0.0)
        if self.halved_square:
            return np.asarray(safe * safe * (0.5 - self._relative))
        return safe

    def reach(self, distance: float) -> float:
        """Return a search radius; ``lower`` of it and of all beyond exceeds ``distance``."""
        if distance < 0:
            return 0.0
        plain = math.sqrt(2 * distance) if self.halved_square else distance
        return plain * (1 + 4 * self._relative) + 4 * _UNDERFLOW

    def inside(self, distance: float) -> float:
        """Return a search radius, maybe negative; all within it is within ``distance``."""
        if distance < 0:
            return -1.0
        plain = math.sqrt(2 * distance) if self.halved_square else distance
        return plain * (1 - 4 * self._relative) - 4 * _UNDERFLOW
