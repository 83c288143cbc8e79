"""Exact distribution of a mechanism's outputs for a small input, by enumeration of all draws."""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import islice

from fedneighbors.privacy.noise._samplers import Enclosure, LaplaceLaw, cumulative, times
from fedneighbors.privacy.noise._top_picks import CellWeights, Draws

# Bits after the point of a probability. Each draw of a path rounds by one unit of 2**-128; the sum
# over millions of paths is still far below the rounding of the float64 results, 2**-53.
_PRECISION = 128
_ONE = Enclosure(1 << _PRECISION, 1 << _PRECISION)


@dataclass(frozen=True)
class ExactDistribution:
    """Bounds on the probability of each output.

    Noise beyond the reach of the enumeration may lead to any output.

    Parameters
    ----------
    low : dict of hashable to Fraction
        Lower bounds; 0 for absent outputs.
    high : dict of hashable to Fraction
        Upper bounds on the probability of an output by enumerated draws only.
    high_beyond : Fraction
        Upper bound on the probability of any draw beyond the reach.
    """

    low: dict[Hashable, Fraction]
    high: dict[Hashable, Fraction]
    high_beyond: Fraction

    def upper_bound(self, output: Hashable) -> Fraction:
        """Return an upper bound on the probability of an output.

        Parameters
        ----------
        output : hashable
            Output as returned by the mechanism.
        """
        return self.high.get(output, Fraction(0)) + self.high_beyond


@dataclass
class _Replay:
    """Draws along one path through the tree of all draws.

    The path is a list of the branch taken and the number of branches at each draw. Draws after its
    end take the first branch and extend it.
    """

    reach: int
    path: list[tuple[int, int]] = field(default_factory=list)
    depth: int = 0
    probability: Enclosure = _ONE

    def _take_branch(self, probabilities: list[Enclosure]) -> int:
        if self.depth == len(self.path):
            self.path.append((0, len(probabilities)))
        taken = self.path[self.depth][0]
        self.depth += 1
        self.probability = times(self.probability, probabilities[taken], _PRECISION)
        return taken

    def cell(self, weights: CellWeights) -> int:
        return self._take_branch(_cell_probabilities(tuple(weights.counts), weights.rate))

    def laplace(self, scale: Fraction) -> int:
        return self._take_branch(_noise_probabilities(scale, self.reach)) - self.reach

    def next_path(self) -> bool:
        """Move to the next path; return False after the last one."""
        while self.path and self.path[-1][0] + 1 == self.path[-1][1]:
            self.path.pop()
        if self.path:
            taken, branches = self.path.pop()
            self.path.append((taken + 1, branches))
        self.depth, self.probability = 0, _ONE
        return bool(self.path)


@lru_cache(maxsize=4096)  # an entry for each vector of counts on a path
def _cell_probabilities(counts: tuple[int, ...], rate: Fraction) -> list[Enclosure]:
    return CellWeights(list(counts), rate).probabilities(_PRECISION)


@lru_cache(maxsize=64)  # a mechanism draws noise of one or two scales
def _noise_probabilities(scale: Fraction, reach: int) -> list[Enclosure]:
    """Enclose P(-reach), ..., P(reach) of discrete Laplace noise."""
    sums = cumulative(LaplaceLaw(scale), _PRECISION)  # with 64 guard bits, so are the weights
    weights = islice(LaplaceLaw(scale).weights(_PRECISION + 64), reach + 1)
    one_sided = [
        Enclosure(
            (weight.low << _PRECISION) // sums.total.high,
            -(-(weight.high << _PRECISION) // sums.total.low),
        )
        for weight in weights
    ]
    return one_sided[:0:-1] + one_sided


def enumerate_outputs(program: Callable[[Draws], Hashable], *, reach: int) -> ExactDistribution:
    """Run a mechanism on every sequence of draws; sum probabilities by output.

    Parameters
    ----------
    program : callable
        Function from draws to the output of the mechanism for one input, such as
        ``lambda draws: tuple(TopPicks(1, 2).answer([3, 1, 0], draws))``.
    reach : int
        Largest absolute value of enumerated noise.

    Examples
    --------
    >>> distribution = enumerate_outputs(lambda draws: 5 + draws.laplace(Fraction(1)), reach=10)
    >>> round(float(distribution.low[5]), 6)
    0.462117
    """
    replay = _Replay(reach)
    low: dict[Hashable, int] = {}
    high: dict[Hashable, int] = {}
    while True:
        output = program(replay)
        low[output] = low.get(output, 0) + replay.probability.low
        high[output] = high.get(output, 0) + replay.probability.high
        if not replay.next_path():
            break
    unit = 1 << _PRECISION
    return ExactDistribution(
        {output: Fraction(total, unit) for output, total in low.items()},
        {output: Fraction(total, unit) for output, total in high.items()},
        max(Fraction(unit - sum(low.values()), unit), Fraction(0)),
    )


def exact_epsilon(first: ExactDistribution, second: ExactDistribution) -> float:
    """Return a lower bound on epsilon, rounded down; may be ``inf``.

    It is the largest log-ratio of the two probabilities of one output, in both directions.

    Parameters
    ----------
    first, second : ExactDistribution
        Distributions for two neighboring inputs.
    """
    ratios = [
        low / q.upper_bound(output) if q.upper_bound(output) else math.inf
        for p, q in ((first, second), (second, first))
        for output, low in p.low.items()
        if low
    ]
    largest = max(ratios, default=Fraction(1))
    # 1e-12: above the rounding of the logarithm and, for epsilons of 0.001 and more, its argument
    return math.log(largest) * (1 - 1e-12) if largest > 1 else 0.0


def exact_delta(first: ExactDistribution, second: ExactDistribution, epsilon: float) -> float:
    """Compute a lower bound on the smallest delta for an epsilon.

    With epsilon 0, it is a lower bound on the total variation distance: the distributions differ if
    it is positive.

    Parameters
    ----------
    first, second : ExactDistribution
        Distributions for two neighboring inputs.
    epsilon : float
        Epsilon, 0 or more.
    """
    # 1e-12: above the rounding of the exponential
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
