"""CPU time of nearest word sets, compared with a plain loop and sparse matrix products.

The sets are the words of paper titles; queries are titles, also shortened, and the hard ones: words
that no title has, no word, and the 1 to 100 most frequent words. Then generated sets follow: of few
distinct elements, very long ones, of Zipf elements, all equal, and others on which the engine or
the product has little to do. Prints the median over queries of our milliseconds and of each peer's
in the same run, the ratios, also of the worst query, and the number of queries with equal
distances. The peer "sparse" is the faster one of two products for each query; among sets of equal
distance it returns any. Queries are searched one at a time, for 1, 10, 128 and all sets. Arguments
choose collections by name. Reads the folder named by the environment variable FEDNEIGHBORS_DATA.
"""

import heapq
import statistics
import sys
import time
from collections import Counter

import numpy as np
from scipy.sparse import csr_array

from fedneighbors.datasets._objects import read_objects
from fedneighbors.methods.fedknn.metrics._sets import JaccardMetric

REPEATS = 15
N_QUERIES = 60
K_VALUES = (1, 10, 128, sys.maxsize)
TARGETS = {"loop": 4.0, "sparse": 1.0}
LOWEST = 1.0  # ratio of the worst query


def measure_ms(tasks):
    """Return the median CPU milliseconds of each call, and the results."""
    times = [[] for _ in tasks]
    for _ in range(REPEATS):
        results = []
        for task, row in zip(tasks, times, strict=True):
            start = time.process_time()
            results.append(task())
            row.append(time.process_time() - start)
    return [1e3 * statistics.median(row) for row in times], results


def search_by_loop(sets, query, k):
    """Return the smallest distances by comparing every set."""
    return heapq.nsmallest(k, (_compute_distance(query, other) for other in sets))


def _compute_distance(first, second):
    common = len(first & second)
    union = len(first) + len(second) - common
    return (union - common) / union if union else 0.0


class SparseSets:
    """Sets as a sparse 0/1 matrix of elements and sets."""

    def __init__(self, sets):
        """Build the matrix."""
        self.numbers = {}
        assign_number = self.numbers.setdefault
        numbers = [assign_number(word, len(self.numbers)) for item in sets for word in item]
        self.sizes = np.array([len(item) for item in sets])
        starts = np.concatenate([[0], np.cumsum(self.sizes)])
        shape = len(sets), max(len(self.numbers), 1)
        rows = csr_array((np.ones(len(numbers), np.int32), numbers, starts), shape=shape)
        self.columns, self.transposed = rows.tocsc(), rows.T.tocsr()

    def sum_columns(self, query, k):
        """Return positions and distances; the sum of columns counts common elements."""
        numbers = [self.numbers[word] for word in query if word in self.numbers]
        common = np.asarray(self.columns[:, numbers].sum(axis=1)).ravel()
        union = self.sizes + len(query) - common
        distances = np.where(union > 0, (union - common) / np.maximum(union, 1), 0.0)
        best = np.argpartition(distances, k - 1)[:k]
        best = best[np.argsort(distances[best])]
        return best, distances[best]

    def multiply(self, query, k):
        """Return positions and distances; only sets with common elements are measured."""
        numbers = [self.numbers[word] for word in query if word in self.numbers]
        entries = np.ones(len(numbers), np.int32), numbers, [0, len(numbers)]
        products = csr_array(entries, shape=(1, self.transposed.shape[0])) @ self.transposed
        common, best = products.data, products.indices
        union = self.sizes[best] + len(query) - common
        distances = (union - common) / union
        if len(best) >= k:
            selected = np.argpartition(distances, k - 1)[:k]
            best, distances = best[selected], distances[selected]
        order = np.argsort(distances)
        best, distances = best[order], distances[order]
        if len(best) == k:
            return best, distances
        is_other = np.ones(len(self.sizes), bool)
        is_other[best] = False
        if query:
            others = np.flatnonzero(is_other)[: k - len(best)]
            rest = np.ones(len(others))
        else:
            others = np.argsort(self.sizes > 0, kind="stable")[:k]
            rest = (self.sizes[others] > 0).astype(float)
        return np.concatenate([best, others]), np.concatenate([distances, rest])


def draw_queries(sets):
    """Return sets, half of them shortened, and hard ones."""
    rng = np.random.default_rng(0)
    chosen_sets = [
        sorted(sets[index]) for index in rng.choice(len(sets), N_QUERIES - 7, replace=False)
    ]
    frequent = [word for word, _ in Counter(word for item in sets for word in item).most_common()]
    return [frozenset(words[index % 2 :]) for index, words in enumerate(chosen_sets)] + [
        frozenset({"nothing", "like", "it", "\N{SNOWMAN}"}),
        frozenset(),
        frozenset({"\N{SNOWMAN}"}),
        *(frozenset(frequent[:n]) for n in (1, 3, 10, 100)),
    ]


def generate_sets(rng):
    """Yield (name, sets) of hostile collections."""
    yield "few elements", [frozenset(rng.integers(0, 6, 4).tolist()) for _ in range(20_000)]
    yield "very long", [frozenset(rng.integers(0, 20_000, 4000).tolist()) for _ in range(500)]
    yield "Zipf", [frozenset(rng.zipf(1.2, rng.integers(1, 20)).tolist()) for _ in range(20_000)]
    yield "all equal", [frozenset(range(10))] * 20_000
    dense = rng.random((20_000, 64)) < 0.5
    yield "dense", [frozenset(np.flatnonzero(row).tolist()) for row in dense]
    yield "three common", [frozenset([0, 1, 2, 3 + 2 * i, 4 + 2 * i]) for i in range(20_000)]
    yield (
        "one of them huge",
        [frozenset(rng.integers(0, 100_000, 5 if i else 100_000).tolist()) for i in range(20_000)],
    )
    yield "rare", [frozenset(rng.integers(0, 200_000, 6).tolist()) for _ in range(200_000)]
    yield "one element", [frozenset({i % 7}) for i in range(20_000)]
    yield "empty", [frozenset({0} if i % 100 == 1 else ()) for i in range(20_000)]
    for n in (1, 10, 1_000):
        yield f"only {n}", [frozenset(rng.integers(0, 50, 5).tolist()) for _ in range(n)]


def main():
    """Print the tables."""
    names, rng = sys.argv[1:], np.random.default_rng(1)
    if not names or "titles" in names:
        titles = read_objects("dblp_titles_14k", "sets").items
        compare("titles", titles, draw_queries(titles), with_loop=True)
    for name, sets in generate_sets(rng):
        queries = [sets[index] for index in rng.integers(len(sets), size=12)]
        unlike = [frozenset(list(sets[0])[: len(sets[0]) // 2]), frozenset({-1}), frozenset()]
        long = [max(sets, key=len), frozenset(list(max(sets, key=len))[:1]), frozenset(range(100))]
        if not names or name in names:
            compare(name, sets, [*queries, *unlike, *long], with_loop=False)


def compare(name, sets, queries, *, with_loop):
    """Print the times of one collection."""
    start = time.process_time()
    index = JaccardMetric().index(sets, ranks=np.arange(len(sets)))
    build_s = time.process_time() - start
    start = time.process_time()
    sparse = SparseSets(sets)
    print(
        f"{name}: {len(sets)} sets of {np.mean([len(item) for item in sets]):.1f} elements; built "
        f"in CPU time: ours {1e3 * build_s:.0f} ms, "
        f"sparse {1e3 * (time.process_time() - start):.0f} ms"
    )
    index.open(sets[0]).next(1)  # compile
    peers = ["sparse", "loop"] if with_loop else ["sparse"]
    for k in sorted({min(k, len(sets)) for k in K_VALUES}):
        times, n_equal = [], 0
        for query in queries:
            tasks = [
                lambda q=query, n=k: index.open(q).next(n).distances,
                lambda q=query, n=k: sparse.sum_columns(q, n)[1],
                lambda q=query, n=k: sparse.multiply(q, n)[1],
            ]
            (ours, *products), (found, *others) = measure_ms(tasks)
            row = {"ours": ours, "sparse": min(products)}
            if with_loop:  # alone: it fills the caches
                (row["loop"],), more = measure_ms([lambda q=query, n=k: search_by_loop(sets, q, n)])
                others += more
            n_equal += all(np.array_equal(found, distances) for distances in others)
            times.append(row)
        medians = {key: statistics.median(row[key] for row in times) for key in ["ours", *peers]}
        ratios = {peer: statistics.median(r[peer] / r["ours"] for r in times) for peer in peers}
        lowest = min(row[peer] / row["ours"] for row in times for peer in peers)
        ratio_texts = ", ".join(
            f"{ratio:.1f}x over {peer} (target {TARGETS[peer]}x: "
            f"{'met' if ratio >= TARGETS[peer] else 'MISSED'})"
            for peer, ratio in ratios.items()
        )
        time_texts = "  ".join(f"{key} {ms:.3f} ms" for key, ms in medians.items())
        print(
            f"k {k:6}  {time_texts}  {ratio_texts}; lowest ratio of a query {lowest:.2f}x "
            f"(target {LOWEST}x: {'met' if lowest >= LOWEST else 'MISSED'}); "
            f"equal {n_equal} of {len(queries)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
