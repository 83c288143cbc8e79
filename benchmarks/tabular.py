"""CPU time of searches of rows with numbers and categories, over that of computing all distances.

For each table the script prints the median and the largest ratio of five queries, for several k and
for a count of the radius of the last k. Queries are rows of the table; "complete" ones have all
cells. Both searches run in turn; the time of each is the lowest of several. The target is a ratio
of at most 1.1 where bounds exclude nothing: sparse rows, outliers and equal rows. The number of
rows is the first argument, 300,000 by default. All rows are generated.
"""

import statistics
import sys
import time
from unittest import mock

import numpy as np

from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._schema_columns import CategoricalColumn, NumericColumn
from fedneighbors.methods.fedknn.metrics import _mixed, metric_of

TARGET = 1.1
N_QUERIES, N_REPEATS = 5, 7
COUNTS = (10, 128, 1000, None)


def make_tables(rng, n):
    """Yield (name, number of numeric columns, rows)."""

    def draw(n_numbers, n_categories, missing=0.0):
        rows = np.column_stack(
            [rng.random((n, n_numbers)), rng.integers(0, 3, (n, n_categories)).astype(float)]
        )
        rows[rng.random(rows.shape) < missing] = np.nan
        return n_numbers, rows

    yield "15 numbers, 5 categories", *draw(15, 5)
    yield "3 numbers", *draw(3, 0)
    yield "20 categories", *draw(0, 20)
    for missing in (0.3, 0.6, 0.9):
        yield f"15 and 5, {missing:.0%} missing", *draw(15, 5, missing)
    yield "20 categories, 90% missing", *draw(0, 20, 0.9)
    heavy = np.exp(3 * rng.standard_normal((n, 15)))
    yield "15 lognormal numbers", 15, heavy / heavy.max()
    yield "equal rows", 15, np.zeros((n, 20))


def time_search(index, query, k, radius):
    """Return the CPU seconds of a search, and the last distance."""
    session, start, last = index.open(query), time.process_time(), radius
    if k is None:
        session.count(radius)
    else:
        last = float(session.next(k).distances[-1])
    return time.process_time() - start, last


def measure(index, scan, queries, k, radii):
    """Return the ratio of each query; update the radii."""
    ratios = []
    for i, query in enumerate(queries):
        runs = [
            [time_search(one, query, k, radii[i]) for one in (index, scan)]
            for _ in range(N_REPEATS)
        ]
        radii[i] = runs[0][0][1]
        ratios.append(min(run[0][0] for run in runs) / min(run[1][0] for run in runs))
    return ratios


def main():
    """Print a line for each table and kind of query."""
    n, rng = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000, np.random.default_rng(0)
    for name, n_numbers, rows in make_tables(rng, n):
        columns = [NumericColumn(f"x{i}", 0, 1) for i in range(n_numbers)]
        words = [CategoricalColumn(f"w{i}", ("a", "b", "c")) for i in range(rows.shape[1])]
        metric = metric_of(Schema((*columns, *words[n_numbers:])))
        index = metric.index(rows, ranks=np.arange(n))
        with mock.patch.object(_mixed, "_MIN_CODED_ROWS", n + 1):
            scan = metric.index(rows, ranks=np.arange(n))
        complete = np.where(np.isnan(rows[:N_QUERIES]), 0.0, rows[:N_QUERIES])
        for kind, queries in (("rows", rows[:N_QUERIES]), ("complete", complete)):
            radii, parts, largest = [0.0] * N_QUERIES, [], 0.0
            for k in COUNTS:
                ratios = measure(index, scan, queries, k, radii)
                largest = max(largest, *ratios)
                label = "count" if k is None else f"k={k}"
                parts.append(f"{label} {statistics.median(ratios):.2f} ({max(ratios):.2f})")
            verdict = "met" if largest <= TARGET else "MISSED"
            print(f"{name:28} {kind:9} {verdict:7} {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
