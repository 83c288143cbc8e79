"""CPU time of nearest neighbors of vectors, compared with scikit-learn's.

First, predictions of `FederatedNeighborsClassifier` for all queries in one call, compared with
`KNeighborsClassifier` fitted to the pooled rows, which does no federated work: median CPU
milliseconds, their ratio, and whether the target is met. The argument `predictions` ends the
program here.

Then single queries, compared with trees and brute force: for real tables of few and of many
columns, the median over queries of our milliseconds and of each peer's in the same run, the ratio
to the faster peer, and the number of queries with equal distances. Queries are searched one at a
time. Reads the folder named by the environment variable FEDNEIGHBORS_DATA; run it with one thread
(OMP_NUM_THREADS=1) for a fair comparison.
"""

import statistics
import sys
import time

import numpy as np
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from fedneighbors import FederatedNeighborsClassifier
from fedneighbors.datasets import load
from fedneighbors.datasets._objects import read_objects
from fedneighbors.methods.fedknn.metrics._vectors import VectorMetric

REPEATS = 3
N_QUERIES = 20
K_VALUES = (10, 128)
METRICS = ("euclidean", "manhattan", "cosine")
MIN_RATIO = 1.0
SIZES = [  # rows, columns, parties, queries
    (rows, columns, parties, 1_000)
    for rows in (100, 1_000, 10_000)
    for columns in (2, 20, 200)
    for parties in (1, 2, 20)
] + [(100_000, 64, 8, 10_000)]
LARGE = 5_000_000  # distances from which calls are repeated less often
MAX_SLOWDOWN = 2.0
PEERS = {
    "euclidean": ("kd_tree", "brute"),
    "manhattan": ("kd_tree", "brute"),
    "cosine": ("brute",),  # scikit-learn's trees do not support it
}


def load_tables():
    """Return real tables by name, from 2 to 784 columns."""
    return {
        "places as points": np.asarray(read_objects("geonames_west_africa", "places").items),
        "shuttle": load("shuttle").x,
        "letter": load("letter").x,
        "pol": load("pol").x,
        "usps": load("USPS").x,
        "mnist": load("mnist").x[:20_000],
    }


def measure_ms(task, repeats=REPEATS):
    """Return the median CPU milliseconds of a call and its result."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        result = task()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times), result


def draw_queries(rows):
    """Return rows of the table, every second one with some noise."""
    rng = np.random.default_rng(0)
    sample = rows[rng.choice(len(rows), N_QUERIES, replace=False)].astype(np.float64)
    sample[::2] += 0.01 * rows.std(axis=0) * rng.normal(size=sample[::2].shape)
    return sample


def compare(name, rows, metric, k, indexes):
    """Print the line of one table, metric and k."""
    index, peers = indexes
    our_ms, peer_ms, n_equal = [], {peer: [] for peer in peers}, 0
    for query in draw_queries(rows):
        ms, found = measure_ms(lambda q=query: index.open(q).next(k))
        our_ms.append(ms)
        for peer, tree in peers.items():
            ms, (peer_distances, _) = measure_ms(lambda q=query, t=tree: t.kneighbors(q[None], k))
            peer_ms[peer].append(ms)
        # brute force subtracts large squares, so its distances near 0 have rounding errors
        n_equal += bool(
            np.allclose(
                found.distances, peer_distances[0], rtol=1e-6, atol=1e-5 * peer_distances.max()
            )
        )
    medians = {peer: statistics.median(ms) for peer, ms in peer_ms.items()}
    fastest = min(medians, key=medians.get)
    ratio = statistics.median(t / o for t, o in zip(peer_ms[fastest], our_ms, strict=True))
    peer_times = "  ".join(f"{peer} {ms:8.3f}" for peer, ms in medians.items())
    print(
        f"{name:16} {len(rows):6} x {rows.shape[1]:3}  {metric:9} {k:4} "
        f"{statistics.median(our_ms):8.3f}  {peer_times:38} {ratio:6.1f}x over {fastest:8} "
        f"equal {n_equal} of {N_QUERIES}; {'met' if ratio >= MIN_RATIO else 'MISSED'}"
    )


def compare_predictions(n_rows, n_columns, n_parties, n_queries):
    """Print the line of one size; return whether it meets the target."""
    rng = np.random.default_rng(0)
    x, queries = rng.normal(size=(n_rows, n_columns)), rng.normal(size=(n_queries, n_columns))
    y = rng.integers(0, 3, n_rows)
    pooled = KNeighborsClassifier(5, n_jobs=1).fit(x, y)
    model = FederatedNeighborsClassifier(5).fit(x, y, parties=np.arange(n_rows) % n_parties)
    model.predict(queries[:10])  # compiles, and builds the indexes, as fit does for the peer
    repeats = REPEATS if n_rows * n_queries > LARGE else 5 * REPEATS
    ms, predicted = measure_ms(lambda: model.predict(queries), repeats)
    peer_ms, expected = measure_ms(lambda: pooled.predict(queries), repeats)
    is_met = ms <= MAX_SLOWDOWN * peer_ms
    print(
        f"{n_queries:6} on {n_rows:6} x {n_columns:3}, {n_parties:2} parties  {ms:8.1f}  "
        f"{peer_ms:8.1f}  {ms / peer_ms:6.2f}x  equal {(predicted == expected).sum()} of "
        f"{n_queries}; {'met' if is_met else 'MISSED'}",
        flush=True,
    )
    return is_met


def main():
    """Print the tables."""
    print(f"median CPU ms of predictions, ours and pooled; target {MAX_SLOWDOWN}x")
    n_met = sum([compare_predictions(*size) for size in SIZES])
    print(f"{n_met} of {len(SIZES)} sizes met")
    if sys.argv[1:] == ["predictions"]:
        return
    print(f"median CPU ms a query; target {MIN_RATIO}x of the faster peer")
    for name, table in load_tables().items():
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
                compare(name, rows, metric, k, (index, peers))


if __name__ == "__main__":
    main()
