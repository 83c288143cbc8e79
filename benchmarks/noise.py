"""Cells of exact integer noise per CPU second, compared with OpenDP in the same run.

Prints the median rate of several rounds. Tables are built and code is compiled before the clock
starts; the time to build each table is printed too. Run ``python benchmarks/noise.py``.
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

N_CELLS = 4_000_000
N_OPENDP_CELLS = 100_000
N_ROUNDS = 5


def measure_rate(draw: Callable[[int], object], n_cells: int) -> tuple[float, float]:
    """Return the median rate of several rounds, and its relative range."""
    draw(1_000)
    rates = []
    for _ in range(N_ROUNDS):
        start = time.process_time()
        draw(n_cells)
        rates.append(n_cells / (time.process_time() - start))
    median_rate = statistics.median(rates)
    return median_rate, (max(rates) - min(rates)) / median_rate


def measure_build(law: Law) -> float:
    """Return the CPU seconds of building a law's table."""
    start = time.process_time()
    table.__wrapped__(law)
    return time.process_time() - start


def main() -> None:
    """Print one line per mechanism."""
    laplace, gaussian, shares = DiscreteLaplace(32), DiscreteGaussian(24**2), LaplaceShares(32, 6)
    rows: list[tuple[str, Law, Callable[[int], object], Callable[[int], object]]] = [
        (
            "Laplace, scale 32",
            LaplaceLaw(Fraction(32)),
            lambda n: laplace.noise(n),
            _draw_opendp_laplace,
        ),
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
            _draw_opendp_laplace,
        ),
    ]
    print(f"{'noise':32s}{'ours, M cells/s':>18s}{'OpenDP':>10s}{'ratio':>8s}{'table, ms':>11s}")
    for name, law, draw_ours, draw_opendp in rows:
        our_rate, our_range = measure_rate(draw_ours, N_CELLS)
        opendp_rate, opendp_range = measure_rate(draw_opendp, N_OPENDP_CELLS)
        print(
            f"{name:32s}{our_rate / 1e6:11.2f} ±{our_range / 2:4.0%}"
            f"{opendp_rate / 1e6:8.3f} ±{opendp_range / 2:3.0%}"
            f"{our_rate / opendp_rate:6.0f}{1e3 * measure_build(law):11.1f}"
        )
    print("OpenDP has no Polya shares: the peer of these is OpenDP's Laplace noise")
    print_picks()


def print_picks() -> None:
    """Print the CPU seconds of 600 picks from 200,000 cells."""
    one_row = Sensitivity(unit="row", neighbors="add_remove", l1=32, l2_squared=32, linf=1)
    rng = np.random.default_rng(0)
    for name, counts in (
        ("counts around 20", rng.poisson(20, 200_000)),
        ("counts up to 10**6", rng.integers(0, 10**6, 200_000)),
    ):
        start = time.process_time()
        TopPicks(Fraction(1), 600).release(counts, one_row)
        print(f"600 picks from 200,000 cells, {name}: {time.process_time() - start:.1f} s of CPU")


def _draw_opendp_laplace(n_cells: int) -> object:
    return opendp_laplace(Fraction(32), n_cells)


if __name__ == "__main__":
    main()
