"""CPU time of nearest neighbors of vectors, compared with Faiss and scikit-learn.

The argument chooses the part; all parts run without one:

- `queries`: one query at a time through our index, compared with Faiss's flat index, on tables that
  are chosen to be hard: the median and the largest ratio.
- `searches`: the same through `FederatedNeighbors` with one party.
- `batches`: 1,000 queries in one call, compared with Faiss and with scikit-learn's brute force, or
  with NumPy's matrix product and selection for inner products.
- `predictions`: `FederatedNeighborsClassifier`, compared with `KNeighborsClassifier` on the pooled
  rows, which does no federated work.
- `lists`: long lists, tied distances and rows that bounds do not separate, compared with a sort of
  all distances by NumPy.
- `memory`: resident memory, and the time of a query, of a million rows at five parties.

Faiss is no dependency of the project: `pip install faiss-cpu`. Reads the folder named by the
environment variable FEDNEIGHBORS_DATA; run it with one thread (OMP_NUM_THREADS=1).
"""

import statistics
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from fedneighbors import FederatedNeighbors, FederatedNeighborsClassifier
from fedneighbors.datasets import load
from fedneighbors.methods.fedknn.metrics._vectors import VectorMetric

N_QUERIES, REPEATS = 12, 3
K_VALUES = (10, 128, 1_000)
METRICS = ("euclidean", "manhattan", "inner_product")
MAX_QUERY, MAX_SEARCH, MAX_BATCH_FAISS, MAX_BATCH_BRUTE = 1.1, 2.0, 1.2, 0.7
SIZES = [  # rows, columns, parties, queries
    (rows, columns, parties, 1_000)
    for rows in (100, 1_000, 10_000)
    for columns in (2, 20, 200)
    for parties in (1, 2, 20)
] + [(100_000, 64, 8, 10_000)]
LARGE = 5_000_000  # distances from which calls are repeated less often
MAX_SLOWDOWN, MAX_LIST = 2.0, 2.0


def draw_table(name, rng):
    """Return a float32 table by name."""
    n = 100_000
    match name:
        case "mixture 128":
            centers = 2 * rng.normal(size=(200, 128))
            rows = centers[rng.integers(200, size=2 * n)] + rng.normal(0, 0.5, (2 * n, 128))
        case "unit 384":
            rows = rng.normal(size=(n, 384))
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        case "one-hot 60":
            rows = np.zeros((n, 60))
            for first in range(0, 60, 6):
                rows[np.arange(n), first + rng.integers(6, size=n)] = 1
        case "equal 64":
            rows = np.ones((n, 64))
        case "heavy tails 64":
            rows = rng.standard_cauchy((n, 64))
        case "offset 64":
            rows = 1e6 + rng.normal(size=(n, 64))
        case "small 16":
            rows = rng.normal(size=(1_000, 16))
        case "mnist" | "letter" | "shuttle":
            rows = load(name).x
        case _:
            rows = rng.normal(size=(n, int(name.split()[1])))
    return np.ascontiguousarray(rows, np.float32)


TABLES = (
    "Gaussian 4", "Gaussian 8", "Gaussian 16", "Gaussian 64", "mixture 128", "unit 384",
    "Gaussian 1024", "one-hot 60", "equal 64", "heavy tails 64", "offset 64", "mnist", "letter",
    "shuttle", "small 16",
)  # fmt: skip


def draw_queries(rows, n, rng):
    """Return rows of the table; half have some noise."""
    queries = rows[rng.integers(len(rows), size=n)].astype(np.float64)
    queries[::2] += 0.3 * rows.std(axis=0, dtype=np.float64) * rng.normal(size=queries[::2].shape)
    return queries


def measure_ms(task, repeats=REPEATS):
    """Return the median CPU milliseconds of a call and its result."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        result = task()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times), result


def load_faiss():
    """Import Faiss with one thread."""
    import faiss

    faiss.omp_set_num_threads(1)
    return faiss


def build_flat(faiss, metric, rows):
    """Return Faiss's flat index of rows."""
    name = {"manhattan": "METRIC_L1", "inner_product": "METRIC_INNER_PRODUCT"}.get(metric)
    flat = faiss.IndexFlat(rows.shape[1], getattr(faiss, name or "METRIC_L2"))
    flat.add(rows)
    return flat


def compare_queries(search, flat, queries, k):
    """Return the median milliseconds of a query, and all ratios to Faiss."""
    ours, ratios = [], []
    for query in queries:
        ms, _ = measure_ms(lambda q=query: search(q, k))
        single = query[None].astype(np.float32)
        flat_ms, _ = measure_ms(lambda q=single: flat.search(q, k))
        ours.append(ms)
        ratios.append(ms / flat_ms)
    return statistics.median(ours), ratios


def report_queries(make_search, metrics, limit):
    """Print the ratios of all tables."""
    faiss, medians = load_faiss(), []
    for metric in metrics:
        for name in TABLES:
            rng = np.random.default_rng(0)
            rows = draw_table(name, rng)
            flat = build_flat(faiss, metric, rows)
            search = make_search(metric, rows)
            queries = draw_queries(rows, N_QUERIES, rng)
            search(queries[0], 1)
            for k in K_VALUES:
                ms, ratios = compare_queries(search, flat, queries, k)
                median = statistics.median(ratios)
                medians.append(median)
                print(
                    f"{metric:13} {name:14} k {k:5}  {ms:7.2f} ms  {median:5.2f}x of Faiss, at "
                    f"most {max(ratios):5.2f}x; {'met' if median <= limit else 'MISSED'}",
                    flush=True,
                )
    print(f"median over tables {statistics.median(medians):.2f}x; limit of each {limit}x")


def index_search(metric, rows):
    """Return a function that searches our index."""
    index = VectorMetric(metric).index(rows, ranks=np.arange(len(rows)))
    return lambda query, k: index.open(query).next(k)


def public_search(metric, rows):
    """Return a function that searches through the public class."""
    search = FederatedNeighbors(metric=metric, algorithm="baseline").fit(rows)
    return lambda query, k: search.kneighbors(query[None], k)


def multiply_and_select(rows, queries, k):
    """Return the rows of the largest inner products, by NumPy."""
    found = []
    for first in range(0, len(queries), 100):
        products = queries[first : first + 100] @ rows.T
        best = np.argpartition(-products, k, axis=1)[:, :k]
        order = np.take_along_axis(-products, best, axis=1).argsort(axis=1)
        found.append(np.take_along_axis(best, order, axis=1))
    return np.concatenate(found)


def compare_batch(metric, name, faiss):
    """Print the ratios of 1,000 queries in one call."""
    rng = np.random.default_rng(0)
    rows = draw_table(name, rng)
    flat = build_flat(faiss, metric, rows)
    queries = draw_queries(rows, 1_000, rng)
    small, peak = queries.astype(np.float32), float(np.abs(queries).max())
    index = VectorMetric(metric).index(rows, ranks=np.arange(len(rows)))
    brute = NearestNeighbors(n_neighbors=10, algorithm="brute", n_jobs=1).fit(rows).kneighbors
    if metric == "inner_product":
        brute = partial(multiply_and_select, rows, k=10)
    index.nearest(queries[:20], 10, peak=peak)
    ms, _ = measure_ms(lambda: index.nearest(queries, 10, peak=peak))
    flat_ms, _ = measure_ms(lambda: flat.search(small, 10), 1)
    brute_ms, _ = measure_ms(lambda: brute(small), 1)
    is_met = ms <= MAX_BATCH_FAISS * flat_ms and ms <= MAX_BATCH_BRUTE * brute_ms
    print(
        f"{metric:13} {name:14} {ms:7.0f} ms  {ms / flat_ms:5.2f}x of Faiss, "
        f"{ms / brute_ms:5.2f}x of brute force; {'met' if is_met else 'MISSED'}",
        flush=True,
    )


def report_batches():
    """Print the ratios of all tables."""
    faiss = load_faiss()
    for metric in ("euclidean", "inner_product"):
        for name in TABLES:
            compare_batch(metric, name, faiss)


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


def report_predictions():
    """Print the ratios of predictions."""
    print(f"median CPU ms of predictions, ours and pooled; target {MAX_SLOWDOWN}x")
    n_met = sum([compare_predictions(*size) for size in SIZES])
    print(f"{n_met} of {len(SIZES)} sizes met")


def draw_lists(rng):
    """Return name, metric, rows, query, neighbors and parties."""
    n = 20_000
    normal = rng.normal(size=(n, 16))
    unit = rng.normal(size=(n, 64))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    sparse, binary = ((rng.random((n, m)) < p).astype(float) for m, p in ((200, 0.02), (12, 0.5)))
    outlier = np.vstack([normal[1:], np.full((1, 16), 1e12)])
    return [
        ("all rows", "euclidean", normal, normal[:1], n, 1),
        ("all rows", "euclidean", normal, normal[:1], n, 8),
        ("half of the rows", "manhattan", normal, normal[:1], n // 2, 8),
        ("tied products", "inner_product", sparse, sparse[:1], 500, 1),
        ("tied distances", "manhattan", binary, binary[:1], n // 2, 1),
        ("squares that underflow", "euclidean", normal * 1e-310, normal[:1] * 1e-310, 500, 1),
        ("center of a sphere", "euclidean", unit, unit.mean(axis=0)[None], 10, 1),
        ("one row far away", "euclidean", outlier, normal[:1], 500, 1),
    ]


def sort_distances(metric, rows, query, k):
    """Return the nearest rows of a sort of all distances."""
    if metric == "inner_product":
        distances = -(rows @ query[0])
    else:
        distances = cdist(query, rows, "cityblock" if metric == "manhattan" else metric)[0]
    return np.argsort(distances, kind="stable")[:k]


def report_lists():
    """Print the ratios to a sort."""
    print(f"median CPU ms of a query, and of a sort of all distances; target {MAX_LIST}x")
    for name, metric, rows, query, k, n_parties in draw_lists(np.random.default_rng(0)):
        search = FederatedNeighbors(metric=metric, algorithm="baseline")
        search.fit(rows, parties=np.arange(len(rows)) % n_parties)
        search.kneighbors(query, k)
        ms, _ = measure_ms(partial(search.kneighbors, query, k), 5 * REPEATS)
        sort_ms, _ = measure_ms(partial(sort_distances, metric, rows, query, k), 5 * REPEATS)
        print(
            f"{name:22} {metric:13} k {k:6}, {n_parties} parties  {ms:7.2f}  {sort_ms:7.2f}  "
            f"{ms / sort_ms:6.2f}x; {'met' if ms <= MAX_LIST * sort_ms else 'MISSED'}",
            flush=True,
        )


def read_memory(field):
    """Return a memory size of this process, in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def report_memory():
    """Print memory as multiples of the table."""
    rng, n = np.random.default_rng(0), 1_000_000
    small = rng.normal(size=(3_000, 128))
    FederatedNeighbors(algorithm="baseline").fit(small).kneighbors(small[:1])  # compiles
    before = read_memory("VmRSS")
    rows = np.empty((n, 128), np.float32)
    for first in range(0, n, 10_000):
        rows[first : first + 10_000] = rng.normal(size=(10_000, 128))
    search = FederatedNeighbors(algorithm="baseline").fit(rows, parties=np.arange(n) % 5)
    resident, peak = read_memory("VmRSS") - before, read_memory("VmHWM") - before
    queries, times = rng.normal(size=(N_QUERIES, 1, 128)), []
    for query in queries:
        start = time.perf_counter()
        search.kneighbors(query, 128)
        times.append(1e3 * (time.perf_counter() - start))
    print(
        f"resident {resident / rows.nbytes:.2f}x of the table (target 2.0x), peak "
        f"{peak / rows.nbytes:.2f}x (target 2.6x), the table itself included; a query of k = 128 "
        f"takes {statistics.median(times):.0f} ms (target 100 ms)"
    )


PARTS = {
    "queries": lambda: report_queries(index_search, METRICS, MAX_QUERY),
    "searches": lambda: report_queries(public_search, ("euclidean",), MAX_SEARCH),
    "batches": report_batches,
    "predictions": report_predictions,
    "lists": report_lists,
    "memory": report_memory,
}


def main():
    """Print the parts."""
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()
