"""The exact distribution of a mechanism on a tiny input, by enumeration of all draws."""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import islice

from fedneighbors.privacy.noise._samplers import Enclosure, LaplaceLaw, cumulative, times
from fedneighbors.privacy.noise._top_picks import CellWeights, Draws

_PRECISION = 128  # bits of a probability, far below the rounding of a float
_ONE = Enclosure(1 << _PRECISION, 1 << _PRECISION)


@dataclass(frozen=True)
class ExactLaw:
    """Enclosed probabilities of all outputs; noise beyond the reach may lead to any of them.

    Parameters
    ----------
    low : dict of hashable to Fraction
        Lower bounds; 0 for absent outputs.
    high : dict of hashable to Fraction
        Upper bounds of enumerated outputs.
    high_beyond : Fraction
        Probability of a draw beyond the reach, rounded up.
    """

    low: dict[Hashable, Fraction]
    high: dict[Hashable, Fraction]
    high_beyond: Fraction

    def at_most(self, output: Hashable) -> Fraction:
        """Return an upper bound of the probability of an output.

        Parameters
        ----------
        output : hashable
            Output as returned by the mechanism.
        """
        return self.high.get(output, Fraction(0)) + self.high_beyond


@dataclass
class _Replay:
    """Draws along a path through the tree of all draws; new nodes start at the first branch."""

    reach: int
    path: list[tuple[int, int]] = field(default_factory=list)  # (branch taken, branches)
    depth: int = 0
    mass: Enclosure = _ONE

    def _branch(self, chances: list[Enclosure]) -> int:
        if self.depth == len(self.path):
            self.path.append((0, len(chances)))
        taken = self.path[self.depth][0]
        self.depth += 1
        self.mass = times(self.mass, chances[taken], _PRECISION)
        return taken

    def cell(self, weights: CellWeights) -> int:
        return self._branch(_chances_of_cells(tuple(weights.counts), weights.rate))

    def laplace(self, scale: Fraction) -> int:
        return self._branch(_chances_of_noise(scale, self.reach)) - self.reach

    def next_path(self) -> bool:
        """Move to the next path; False after the last one."""
        while self.path and self.path[-1][0] + 1 == self.path[-1][1]:
            self.path.pop()
        if self.path:
            taken, branches = self.path.pop()
            self.path.append((taken + 1, branches))
        self.depth, self.mass = 0, _ONE
        return bool(self.path)


@lru_cache(maxsize=4096)
def _chances_of_cells(counts: tuple[int, ...], rate: Fraction) -> list[Enclosure]:
    return CellWeights(list(counts), rate).probabilities(_PRECISION)


@lru_cache(maxsize=64)
def _chances_of_noise(scale: Fraction, reach: int) -> list[Enclosure]:
    """Enclose P(-reach), ..., P(reach) of discrete Laplace noise."""
    sums = cumulative(LaplaceLaw(scale), _PRECISION)
    weights = islice(LaplaceLaw(scale).weights(_PRECISION + 64), reach + 1)
    one_sided = [
        Enclosure(
            (weight.low << _PRECISION) // sums.total.high,
            -(-(weight.high << _PRECISION) // sums.total.low),
        )
        for weight in weights
    ]
    return one_sided[:0:-1] + one_sided


def enumerate_law(program: Callable[[Draws], Hashable], *, reach: int) -> ExactLaw:
    """Run a mechanism on every sequence of draws; sum output probabilities.

    Parameters
    ----------
    program : callable
        The mechanism on one input, as a function of its draws, such as
        ``lambda draws: tuple(TopPicks(1, 2).answer([3, 1, 0], draws))``.
    reach : int
        Limit of enumerated noise; the probability beyond it is ``high_beyond``.

    Examples
    --------
    >>> law = enumerate_law(lambda draws: 5 + draws.laplace(Fraction(1)), reach=10)
    >>> round(float(law.low[5]), 6)
    0.462117
    """
    replay = _Replay(reach)
    low: dict[Hashable, int] = {}
    high: dict[Hashable, int] = {}
    while True:
        output = program(replay)
        low[output] = low.get(output, 0) + replay.mass.low
        high[output] = high.get(output, 0) + replay.mass.high
        if not replay.next_path():
            break
    unit = 1 << _PRECISION
    return ExactLaw(
        {output: Fraction(mass, unit) for output, mass in low.items()},
        {output: Fraction(mass, unit) for output, mass in high.items()},
        max(Fraction(unit - sum(low.values()), unit), Fraction(0)),
    )


def exact_epsilon(first: ExactLaw, second: ExactLaw) -> float:
    """Return the largest log-ratio of probabilities of one output, in both directions.

    It is a lower bound of the true epsilon, rounded down; may be ``inf``.

    Parameters
    ----------
    first, second : ExactLaw
        Distributions for two neighboring inputs.
    """
    ratios = [
        low / q.at_most(output) if q.at_most(output) else math.inf
        for p, q in ((first, second), (second, first))
        for output, low in p.low.items()
        if low
    ]
    largest = max(ratios, default=Fraction(1))
    return math.log(largest) * (1 - 1e-12) if largest > 1 else 0.0


def exact_delta(first: ExactLaw, second: ExactLaw, epsilon: float) -> float:
    """Compute a lower bound of the smallest delta for an epsilon.

    With epsilon 0 this bounds the total variation distance from below: two distributions with a
    positive bound differ.

    Parameters
    ----------
    first, second : ExactLaw
        Distributions for two neighboring inputs.
    epsilon : float
        Epsilon, 0 or more.
    """
    factor = Fraction(math.exp(epsilon) * (1 + 1e-12)) if epsilon else Fraction(1)
    return max(
        float(
            sum(
                (
                    max(low - factor * q.high.get(output, Fraction(0)), Fraction(0))
                    for output, low in p.low.items()
                ),
                Fraction(0),
            )
            - factor * q.high_beyond
        )
        for p, q in ((first, second), (second, first))
    )
