"""CPU seconds of nearest neighbors of vectors against scikit-learn's trees and brute force.

Prints, for real tables of few and of many columns, the median over queries of our milliseconds and
of each peer's in the same run, one query at a time as a provider is asked, the ratio to the faster
peer, and whether all distances agree. Reads the folder named by the environment variable
FEDNEIGHBORS_DATA; run it with one thread (OMP_NUM_THREADS=1) for a fair comparison.
"""

import statistics
import time

import numpy as np
from sklearn.neighbors import NearestNeighbors

from fedneighbors.datasets import load
from fedneighbors.datasets._objects import read_objects
from fedneighbors.methods.fedknn.metrics._vectors import VectorMetric

REPEATS = 3
N_QUERIES = 20
K_VALUES = (10, 128)
METRICS = ("euclidean", "manhattan", "cosine")
LOWEST = 1.0
PEERS = {
    "euclidean": ("kd_tree", "brute"),
    "manhattan": ("kd_tree", "brute"),
    "cosine": ("brute",),  # scikit-learn's trees do not know the cosine
}


def tables():
    """Return real tables by name, from 2 to 784 columns."""
    return {
        "places as points": np.asarray(read_objects("geonames_west_africa", "places").items),
        "shuttle": load("shuttle").x,
        "letter": load("letter").x,
        "pol": load("pol").x,
        "usps": load("USPS").x,
        "mnist": load("mnist").x[:20_000],
    }


def cpu_ms(task):
    """Return the median CPU milliseconds of a call and its result."""
    spent = []
    for _ in range(REPEATS):
        start = time.process_time()
        result = task()
        spent.append(time.process_time() - start)
    return 1e3 * statistics.median(spent), result


def queries(rows):
    """Return rows of the table, every second one moved a little."""
    rng = np.random.default_rng(0)
    chosen = rows[rng.choice(len(rows), N_QUERIES, replace=False)].astype(np.float64)
    chosen[::2] += 0.01 * rows.std(axis=0) * rng.normal(size=chosen[::2].shape)
    return chosen


def row_of(name, rows, metric, k, indexes):
    """Print one line and return whether its target is met."""
    index, peers = indexes
    ours, theirs, n_right = [], {peer: [] for peer in peers}, 0
    for query in queries(rows):
        spent, found = cpu_ms(lambda q=query: index.open(q).next(k))
        ours.append(spent)
        for peer, tree in peers.items():
            spent, (far, _) = cpu_ms(lambda q=query, t=tree: t.kneighbors(q[None], k))
            theirs[peer].append(spent)
        # brute force subtracts large squares: its near-zero distances are off by their roundness
        n_right += bool(np.allclose(found.distances, far[0], rtol=1e-6, atol=1e-5 * far.max()))
    medians = {peer: statistics.median(spent) for peer, spent in theirs.items()}
    best = min(medians, key=medians.get)
    ratio = statistics.median(t / o for t, o in zip(theirs[best], ours, strict=True))
    shown = "  ".join(f"{peer} {spent:8.3f}" for peer, spent in medians.items())
    print(
        f"{name:16} {len(rows):6} x {rows.shape[1]:3}  {metric:9} {k:4} "
        f"{statistics.median(ours):8.3f}  {shown:38} {ratio:6.1f}x over {best:8} "
        f"equal {n_right} of {N_QUERIES}; {'met' if ratio >= LOWEST else 'MISSED'}"
    )


def main():
    """Print the table."""
    print(f"median CPU ms a query; target {LOWEST}x of the faster peer")
    for name, table in tables().items():
        rows = np.ascontiguousarray(table, np.float64)
        for metric in METRICS:
            if metric == "cosine" and not rows.any(axis=1).all():
                continue  # a row of zeros has no angle
            index = VectorMetric(metric).index(rows, ranks=np.arange(len(rows)))
            peers = {
                peer: NearestNeighbors(algorithm=peer, metric=metric, n_jobs=1).fit(rows)
                for peer in PEERS[metric]
            }
            index.open(rows[0]).next(1)  # compile
            for k in K_VALUES:
                row_of(name, rows, metric, k, (index, peers))


if __name__ == "__main__":
    main()
