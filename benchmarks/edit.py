"""CPU seconds of nearest neighbors by edit distance, compared with rapidfuzz.

The peer is ``rapidfuzz.process.extract``. Prints, for titles, words and windows of 1,000 bases, the
median over queries of the ratio to the peer in the same run, the lowest ratio of a single query,
and the number of queries with equal distances. Queries are strings of the table, half of them with
one replaced character, and strings unlike any of them. Reads the folder named by the environment
variable FEDNEIGHBORS_DATA.
"""

import gzip
import lzma
import os
import random
import statistics
import time
from pathlib import Path

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from fedneighbors.methods.fedknn.metrics._strings import EditMetric

REPEATS = 3
WINDOW = 1000
MIN_RATIO = 0.9
TARGETS = {
    ("titles", 10): 4, ("titles", 128): 4, ("words", 10): 4, ("words", 128): 4,
    ("windows", 40): 50,
}  # fmt: skip
N_QUERIES = {"titles": 40, "words": 20, "windows": 24}


def read_tables():
    """Return the strings of each table."""
    folder = Path(os.environ["FEDNEIGHBORS_DATA"]) / "strings"
    genomes = read_text(folder / "sarscov2_genomes.fasta.xz", lzma.open).split(">")[1:]
    bases = ["".join(genome.split("\n")[1:]) for genome in genomes]
    windows = [
        genome[start : start + WINDOW]
        for genome in bases
        for start in range(0, len(genome) - WINDOW + 1, WINDOW)
    ]
    return {
        "titles": read_text(folder / "dblp_titles_14k.txt.gz", gzip.open).splitlines(),
        "words": read_text(folder / "words_en.txt.gz", gzip.open).splitlines(),
        "windows": windows,
    }


def read_text(path, opener):
    """Return the text of a compressed file."""
    with opener(path, "rt", encoding="utf-8") as file:
        return file.read()


def draw_queries(strings, n_queries):
    """Return queries similar to strings of the table, and dissimilar ones."""
    rng = random.Random(0)
    near = rng.sample(strings, n_queries)
    for i in range(0, n_queries, 2):
        position = rng.randrange(len(near[i]))
        near[i] = near[i][:position] + rng.choice("aT ") + near[i][position + 1 :]
    alphabet = sorted({letter for string in near for letter in string})
    lengths = [1, 10, 100, 1000, 5000]
    far = ["".join(rng.choices(alphabet, k=n)) for n in lengths]
    return near, ["", *far, "\N{SNOWMAN}" * 30, near[0] * 3]


def measure_seconds(task):
    """Return the median CPU seconds of a call and its result."""
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        result = task()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds), result


def compare(index, strings, query, k):
    """Return our CPU seconds, rapidfuzz's, and whether distances are equal."""
    our_s, result = measure_seconds(lambda: index.open(query).next(k))
    peer_s, expected = measure_seconds(
        lambda: process.extract(query, strings, scorer=Levenshtein.distance, limit=k)
    )
    return our_s, peer_s, result.distances.tolist() == [row[1] for row in expected]


def main():
    """Print the table."""
    print("table    strings  k    ours ms  rapidfuzz ms  ratio  lowest near  lowest any  equal")
    for name, strings in read_tables().items():
        start = time.process_time()
        index = EditMetric().index(strings, ranks=np.arange(len(strings)))
        build_s = time.process_time() - start
        near, far = draw_queries(strings, N_QUERIES[name])
        for query in (near[0], far[-1]):
            index.open(query).next(1)  # compile
        for (table, k), target in TARGETS.items():
            if table == name:
                near_rows = [compare(index, strings, query, k) for query in near]
                far_rows = [compare(index, strings, query, k) for query in far]
                print_row(name, len(strings), k, target, near_rows, far_rows)
        print(f"{name}: index built in {build_s:.2f} CPU s")


def print_row(name, n_strings, k, target, near_rows, far_rows):
    """Print one line and whether its targets are met."""
    ratios = [peer / ours for ours, peer, _ in near_rows]
    lowest = min(peer / ours for ours, peer, _ in near_rows + far_rows)
    n_equal = sum(is_equal for _, _, is_equal in near_rows + far_rows)
    ratio = statistics.median(ratios)
    ours, peer = (
        1e3 * statistics.median(column) for column in list(zip(*near_rows, strict=True))[:2]
    )
    is_met = ratio >= target and lowest >= MIN_RATIO and n_equal == len(near_rows) + len(far_rows)
    print(
        f"{name:8} {n_strings:7} {k:4} {ours:8.2f} {peer:12.2f} {ratio:7.1f}x "
        f"{min(ratios):9.1f}x {lowest:11.1f}x  {n_equal} of {len(near_rows) + len(far_rows)}; "
        f"target {target}x, every query at least {MIN_RATIO}x: {'met' if is_met else 'MISSED'}"
    )


if __name__ == "__main__":
    main()
