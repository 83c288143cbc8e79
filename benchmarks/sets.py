"""CPU time of nearest word sets, compared with a plain loop and a sparse matrix product.

The sets are the words of paper titles; queries are titles, also shortened, and the hard ones: words
that no title has, no word, and the 1 to 100 most frequent words. Then generated sets follow: of few
distinct elements, very long ones, of Zipf elements, and all equal. Prints the median over queries
of our milliseconds and of each peer's in the same run, the ratios, and the number of queries with
equal distances. Queries are searched one at a time. Reads the folder named by the environment
variable FEDNEIGHBORS_DATA.
"""

import heapq
import statistics
import time
from collections import Counter

import numpy as np
from scipy.sparse import csr_array

from fedneighbors.datasets._objects import read_objects
from fedneighbors.methods.fedknn.metrics._sets import JaccardMetric

REPEATS = 3
N_QUERIES = 60
K_VALUES = (1, 10, 128)
TARGETS = {"loop": 4.0, "sparse": 1.0}
LOWEST = 1.0  # ratio of the worst query


def measure_ms(task):
    """Return the median CPU milliseconds of a call and its result."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        result = task()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times), result


def search_by_loop(sets, query, k):
    """Return the smallest distances by comparing every set."""
    return heapq.nsmallest(k, (_compute_distance(query, other) for other in sets))


def _compute_distance(first, second):
    common = len(first & second)
    union = len(first) + len(second) - common
    return (union - common) / union if union else 0.0


class SparseSets:
    """Sets as rows of a sparse 0/1 matrix; sums of columns count common words."""

    def __init__(self, sets):
        """Build the matrix."""
        self.columns = {}
        assign_column = self.columns.setdefault
        columns = [assign_column(word, len(self.columns)) for item in sets for word in item]
        self.sizes = np.array([len(item) for item in sets])
        starts = np.concatenate([[0], np.cumsum(self.sizes)])
        shape = (len(sets), len(self.columns))
        rows = csr_array((np.ones(len(columns), np.int32), columns, starts), shape=shape)
        self.rows = rows.tocsc()  # only the columns of the query's words are read

    def nearest(self, query, k):
        """Return the smallest distances."""
        columns_of_query = [self.columns[word] for word in query if word in self.columns]
        common = np.asarray(self.rows[:, columns_of_query].sum(axis=1)).ravel()
        union = self.sizes + len(query) - common
        distances = np.where(union > 0, (union - common) / np.maximum(union, 1), 0.0)
        return np.sort(np.partition(distances, k - 1)[:k])


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


def main():
    """Print the tables."""
    titles = read_objects("dblp_titles_14k", "sets").items
    compare("titles", titles, draw_queries(titles), with_loop=True)
    rng = np.random.default_rng(1)
    for name, sets in generate_sets(rng):
        queries = [sets[index] for index in rng.choice(len(sets), 12, replace=False)]
        unlike = [frozenset(list(sets[0])[: len(sets[0]) // 2]), frozenset({-1}), frozenset()]
        compare(name, sets, [*queries, *unlike], with_loop=False)


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
    peers = ["loop", "sparse"] if with_loop else ["sparse"]
    for k in K_VALUES:
        times, n_equal = [], 0
        for query in queries:
            ours, found = measure_ms(lambda q=query, n=k: index.open(q).next(n))
            product, expected = measure_ms(lambda q=query, n=k: sparse.nearest(q, n))
            n_equal += found.distances.tolist() == expected.tolist()
            row = {"ours": ours, "sparse": product}
            if with_loop:
                row["loop"], distances = measure_ms(lambda q=query, n=k: search_by_loop(sets, q, n))
                n_equal -= distances != expected.tolist()
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
            f"k {k:4}  {time_texts}  {ratio_texts}; lowest ratio of a query {lowest:.2f}x "
            f"(target {LOWEST}x: {'met' if lowest >= LOWEST else 'MISSED'}); "
            f"equal {n_equal} of {len(queries)}"
        )


if __name__ == "__main__":
    main()
