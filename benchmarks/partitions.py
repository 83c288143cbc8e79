"""CPU seconds to divide 60,000 rows among 1,000 clients, for each kind of partition.

Prints the median of each kind, and its ratio to one stable sort of the rows by class, the least
work of a partition by classes. Target: below two seconds each. One thread.
Run ``python benchmarks/partitions.py [--quick]``.
"""

import argparse
import time
from statistics import median

import numpy as np

from fedneighbors.partition import (
    dirichlet,
    iid,
    natural,
    pachinko,
    pathological_v2,
    permute_labels,
    quantity_skew,
    row_roles,
    unseen_parties,
)

N_ROWS, N_CLIENTS, MAX_S = 60_000, 1_000, 2.0


def measure_seconds(task, repeats):
    """Return the median CPU seconds of a call."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        task()
        seconds.append(time.process_time() - start)
    return median(seconds)


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one call of each")
    repeats = 1 if parser.parse_args().quick else 7
    rng = np.random.default_rng(0)
    fine = rng.integers(100, size=N_ROWS)
    y, ids = fine // 10, rng.integers(N_CLIENTS, size=N_ROWS).astype(str)
    owners = iid(N_ROWS, N_CLIENTS, seed=0)
    partitions = {
        "iid": lambda: iid(N_ROWS, N_CLIENTS, seed=0),
        "Dirichlet, alpha .3": lambda: dirichlet(y, N_CLIENTS, alpha=0.3, seed=0),
        "pathological v2": lambda: pathological_v2(y, N_CLIENTS, seed=0),
        "pachinko": lambda: pachinko(y, fine, N_CLIENTS, seed=0),
        "quantity skew": lambda: quantity_skew(N_ROWS, N_CLIENTS, factor=1.0, seed=0),
        "natural owners": lambda: natural(ids),
        "permuted labels": lambda: permute_labels(y, owners, n_groups=4, seed=0),
        "roles of rows": lambda: row_roles(owners, test=0.25, seed=0),
        "unseen parties": lambda: unseen_parties(owners, 0.2, seed=0),
    }
    sort_s = measure_seconds(lambda: np.argsort(y, kind="stable"), max(repeats, 5))
    print(f"one stable sort of {N_ROWS:,} classes: {sort_s:.4f} s")
    for name, partition in partitions.items():
        seconds = measure_seconds(partition, repeats)
        verdict = "met" if seconds < MAX_S else "MISSED"
        print(
            f"{name:22} {seconds:7.3f} s  {seconds / sort_s:7.0f} sorts  "
            f"(target < {MAX_S:g} s: {verdict})"
        )


if __name__ == "__main__":
    main()
