"""CPU time of nearest word sets, compared with a plain loop and a sparse matrix product.

The sets are the words of paper titles; queries are titles, also shortened, and the hard ones: words
that no title has, no word, and the 1 to 100 most frequent words. Prints the median over queries of
our milliseconds and of each peer's in the same run, the ratios, and the number of queries with
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


def main():
    """Print the table."""
    sets = read_objects("dblp_titles_14k", "sets").items
    start = time.process_time()
    index = JaccardMetric().index(sets, ranks=np.arange(len(sets)))
    build_s = time.process_time() - start
    start = time.process_time()
    sparse = SparseSets(sets)
    print(
        f"{len(sets)} sets of {np.mean([len(item) for item in sets]):.1f} words; built in CPU "
        f"time: ours {1e3 * build_s:.0f} ms, sparse {1e3 * (time.process_time() - start):.0f} ms"
    )
    for k in K_VALUES:
        times, n_equal = [], 0
        for query in draw_queries(sets):
            ours, found = measure_ms(lambda q=query, n=k: index.open(q).next(n))
            loop, loop_distances = measure_ms(lambda q=query, n=k: search_by_loop(sets, q, n))
            product, product_distances = measure_ms(lambda q=query, n=k: sparse.nearest(q, n))
            times.append((ours, loop, product))
            n_equal += found.distances.tolist() == loop_distances == product_distances.tolist()
        ours, loop, product = (statistics.median(column) for column in zip(*times, strict=True))
        ratios = {
            "loop": statistics.median(row[1] / row[0] for row in times),
            "sparse": statistics.median(row[2] / row[0] for row in times),
        }
        ratio_texts = ", ".join(
            f"{ratio:.1f}x over {peer} (target {TARGETS[peer]}x: "
            f"{'met' if ratio >= TARGETS[peer] else 'MISSED'})"
            for peer, ratio in ratios.items()
        )
        lowest = min(min(row[1:]) / row[0] for row in times)
        print(
            f"k {k:4}  ours {ours:.3f} ms  loop {loop:.3f} ms  sparse {product:.3f} ms  "
            f"{ratio_texts}; "
            f"lowest ratio of a query {lowest:.2f}x; equal {n_equal} of {N_QUERIES}"
        )


if __name__ == "__main__":
    main()
