"""Exact integer noise: cells per core-second, ours and OpenDP's in the same run.

Prints CPU seconds (the machine may be shared) of the median of several rounds; tables are built and
code is compiled before the clock starts. The build of each table is printed too.

Run with ``python benchmarks/noise.py``.
"""

import statistics
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from fedneighbors.privacy._guarantees import Sensitivity
from fedneighbors.privacy.noise._distributed import LaplaceShares
from fedneighbors.privacy.noise._mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    opendp_gaussian,
    opendp_laplace,
)
from fedneighbors.privacy.noise._samplers import (
    GaussianLaw,
    LaplaceLaw,
    Law,
    NegativeBinomialLaw,
    table,
)
from fedneighbors.privacy.noise._top_picks import TopPicks

N_OURS = 4_000_000
N_THEIRS = 100_000
N_ROUNDS = 5


def cells_per_second(draw: Callable[[int], object], n_cells: int) -> tuple[float, float]:
    """Return the median rate of several rounds and its range."""
    draw(1_000)
    rates = []
    for _ in range(N_ROUNDS):
        started = time.process_time()
        draw(n_cells)
        rates.append(n_cells / (time.process_time() - started))
    middle = statistics.median(rates)
    return middle, (max(rates) - min(rates)) / middle


def build_seconds(law: Law) -> float:
    """Return the CPU seconds of building a law's table."""
    started = time.process_time()
    table.__wrapped__(law)
    return time.process_time() - started


def main() -> None:
    """Print one line per mechanism."""
    laplace, gaussian, shares = DiscreteLaplace(32), DiscreteGaussian(24**2), LaplaceShares(32, 6)
    rows: list[tuple[str, Law, Callable[[int], object], Callable[[int], object]]] = [
        ("Laplace, scale 32", LaplaceLaw(Fraction(32)), lambda n: laplace.noise(n), _their_laplace),
        (
            "Gaussian, sigma 24",
            GaussianLaw(Fraction(24**2)),
            lambda n: gaussian.noise(n),
            lambda n: opendp_gaussian(Fraction(24**2), n),
        ),
        (
            "Polya share, scale 32, 1 of 6",
            NegativeBinomialLaw(Fraction(32), 6),
            lambda n: shares.share(n),
            _their_laplace,
        ),
    ]
    print(f"{'noise':32s}{'ours, M cells/s':>18s}{'OpenDP':>10s}{'ratio':>8s}{'table, ms':>11s}")
    for name, law, ours, theirs in rows:
        mine, spread = cells_per_second(ours, N_OURS)
        other, other_spread = cells_per_second(theirs, N_THEIRS)
        print(
            f"{name:32s}{mine / 1e6:11.2f} ±{spread / 2:4.0%}"
            f"{other / 1e6:8.3f} ±{other_spread / 2:3.0%}"
            f"{mine / other:6.0f}{1e3 * build_seconds(law):11.1f}"
        )
    print("OpenDP has no Polya share: it is compared with OpenDP's whole Laplace noise")
    print_picks()


def print_picks() -> None:
    """Print the CPU seconds of 600 picks from 200,000 cells."""
    one_row = Sensitivity(unit="row", neighbors="add_remove", l1=32, l2_squared=32, linf=1)
    rng = np.random.default_rng(0)
    for name, counts in (
        ("counts around 20", rng.poisson(20, 200_000)),
        ("counts up to 10**6", rng.integers(0, 10**6, 200_000)),
    ):
        started = time.process_time()
        TopPicks(Fraction(1), 600).release(counts, one_row)
        print(f"600 picks from 200,000 cells, {name}: {time.process_time() - started:.1f} s of CPU")


def _their_laplace(n_cells: int) -> object:
    return opendp_laplace(Fraction(32), n_cells)


if __name__ == "__main__":
    main()
