"""CPU time of filtered searches, compared with the same searches without a filter.

Three parties, k = 10, by the baseline. Filters leave about 1 %, half and 99 % of the objects.
Prints the median milliseconds of queries without a filter, of the first queries of different
filters, and of queries of one filter after parties have built an index of their remaining objects,
with ratios to the first. A filter that leaves 1 % is not slower than no filter. Reads the folder
named by the environment variable FEDNEIGHBORS_DATA.
"""

import statistics
import time

import numpy as np

from fedneighbors import FederatedNeighbors
from fedneighbors.datasets._objects import read_objects

N_QUERIES = 10
SHARES = (0.01, 0.5, 0.99)
RANDOM = np.random.default_rng(0)


def time_queries(search, queries, **options):
    """Return the CPU milliseconds of each query."""
    seconds = []
    for query in queries:
        start = time.process_time()
        search.kneighbors([query], 10, **options)
        seconds.append(1000 * (time.process_time() - start))
    return seconds


def measure(name, metric, objects, queries):
    """Print the times of one table."""
    columns = {"rank": RANDOM.permutation(len(objects)) / len(objects)}
    parties = np.arange(len(objects)) % 3
    search = FederatedNeighbors(metric, "baseline").fit(objects, parties=parties, columns=columns)
    time_queries(search, queries[:2])  # compiles
    time_queries(search, queries, where={"rank": {"<": SHARES[0] / 2}})
    plain = statistics.median(time_queries(search, queries))
    for share in SHARES:
        filters = [{"rank": {"<": share + i * 1e-4}} for i in range(len(queries))]
        pairs = zip(queries, filters, strict=True)
        first = statistics.median(time_queries(search, [q], where=w)[0] for q, w in pairs)
        time_queries(search, [*queries, *queries], where=filters[0])
        further = statistics.median(time_queries(search, queries, where=filters[0]))
        met = "" if share > SHARES[0] else " met" if max(first, further) <= plain else " MISSED"
        print(
            f"{name:28} {share:5.0%} left: none {plain:8.1f} ms, first {first:8.1f} ms "
            f"({first / plain:6.2f}), further {further:8.1f} ms ({further / plain:5.2f}){met}",
            flush=True,
        )


def main():
    """Print a line for each table and filter."""
    for n, width in ((20_000, 4), (20_000, 64)):
        points = RANDOM.normal(size=(n, width))
        measure(f"euclidean {n} x {width}", "euclidean", points, points[:N_QUERIES] + 0.01)
    places = np.column_stack([RANDOM.uniform(-180, 180, 50_000), RANDOM.uniform(-80, 80, 50_000)])
    measure("haversine 50000", "haversine", places, places[:N_QUERIES] + 0.1)
    titles = list(read_objects("dblp_titles_14k", "strings").items)
    measure("edit titles", "edit", titles, [title[:-2] for title in titles[:N_QUERIES]])
    words = list(read_objects("dblp_titles_14k", "sets").items)
    measure("jaccard titles", "jaccard", words, words[:N_QUERIES])


if __name__ == "__main__":
    main()
