"""CPU seconds of evolving clusters against a plain compiled loop and MiniBatchKMeans.

Prints, for a made table and for resampled card payments (both 400,000 rows of 29 columns, about 200
centers), the medians of rounds in which the candidates take turns in one process, and the ratios.
The plain loop is Algorithm 2 as one would write it for numba; the same with sums that the compiler
may reorder is shown too. Compilation is excluded, checks of the estimator are included. Then the
wall seconds of one and of two threads, and the CPU seconds of the calling thread: their ratio is
that of the wall seconds where nothing else wants the two cores. Run
``python benchmarks/evolving.py [--quick]``; FEDNEIGHBORS_DATA names the folder of real data.
"""

import argparse
import math
import os
import time
import warnings
from pathlib import Path
from statistics import median

import numpy as np
from numba import njit
from sklearn.cluster import MiniBatchKMeans
from threadpoolctl import threadpool_limits

from fedneighbors import EvolvingClustering
from fedneighbors.kernels.clustering._evolving import evolve, nearest

N_ROWS, N_COLUMNS, N_GROUPS = 400_000, 29, 200
OVER_LOOP, OVER_KMEANS, OVER_ONE_THREAD = 9.0, 10.0, 1.6
CARDS = "fedpnn/creditcard-subset-14240.csv.gz"


def plain_loop(**flags):
    """Compile the loop that needs no thought."""

    @njit(**flags)
    def cluster(x, limit, most):
        n, q = x.shape
        centers, radii = np.empty((most, q)), np.zeros(most)
        labels, n_centers = np.empty(n, np.int64), 0
        for i in range(n):
            near, far, place, least, there = -1, np.inf, -1, np.inf, np.inf
            for j in range(n_centers):
                total = 0.0
                for k in range(q):
                    total += (x[i, k] - centers[j, k]) ** 2
                distance = math.sqrt(total / q)
                if distance < far:
                    near, far = j, distance
                if distance + radii[j] < least:
                    place, least, there = j, distance + radii[j], distance
            if near >= 0 and far <= radii[near]:
                place = near
            elif least > limit:
                place = n_centers
                n_centers += 1
                centers[place] = x[i]
            else:
                radii[place] = 0.5 * least
                for k in range(q):
                    centers[place, k] += (x[i, k] - centers[place, k]) * (
                        (there - radii[place]) / there
                    )
            labels[i] = place
        return centers[:n_centers], radii[:n_centers], labels

    return cluster


def groups(n_rows):
    """Return clustered rows and a threshold that finds the clusters."""
    rng = np.random.default_rng(0)
    places = rng.random((N_GROUPS, N_COLUMNS))
    noise = rng.normal(scale=0.05, size=(n_rows, N_COLUMNS))
    return places[rng.integers(N_GROUPS, size=n_rows)] + noise, 0.1


def payments(n_rows):
    """Return card payments in [0, 1], resampled with noise."""
    path = Path(os.environ.get("FEDNEIGHBORS_DATA", "data")) / CARDS
    table = np.genfromtxt(path, delimiter=",", skip_header=1)[:, :N_COLUMNS]
    low, high = table.min(axis=0), table.max(axis=0)
    scaled = (table - low) / np.where(high > low, high - low, 1.0)
    rng = np.random.default_rng(0)
    noise = rng.normal(scale=0.002, size=(n_rows, N_COLUMNS))
    return scaled[rng.integers(len(scaled), size=n_rows)] + noise, 0.0


def threshold_for(x, n_centers):
    """Return a threshold with about a given number of centers."""
    below, above = 0.0, 1.0
    for _ in range(14):
        middle = (below + above) / 2
        n = len(evolve(x, x[:0], np.empty(0), limit=2 * middle).centers)
        below, above = (middle, above) if n > n_centers else (below, middle)
    return above


def take_turns(tasks, n_rounds, clock):
    """Return each task's median seconds; every round runs all."""
    spent = {name: [] for name in tasks}
    for _ in range(n_rounds):
        for name, task in tasks.items():
            start = clock()
            task()
            spent[name].append(clock() - start)
    return {name: median(seconds) for name, seconds in spent.items()}


def verdict(ratio, target):
    """Return whether a target is met, in words."""
    return f"{ratio:5.2f}x (target {target}x: {'met' if ratio >= target else 'MISSED'})"


def compare(name, x, threshold, n_rounds):
    """Print one table's lines."""
    loop, reordered = plain_loop(), plain_loop(fastmath={"reassoc", "contract"})
    model = EvolvingClustering(threshold).fit(x)
    n, room = len(model.centers_), 2 * len(model.centers_) + 10
    for compiled in (loop, reordered):
        compiled(x[:50], 2 * threshold, room)
    # the plain loop adds squares in another order, so ties may differ
    agreement = np.mean(loop(x, 2 * threshold, room)[2] == model.labels_)
    seconds = take_turns(
        {
            "ours": lambda: EvolvingClustering(threshold).fit(x),
            "loop": lambda: loop(x, 2 * threshold, room),
            "reordered": lambda: reordered(x, 2 * threshold, room),
            "kmeans": lambda: MiniBatchKMeans(n, random_state=0).fit(x),
            "ahead": lambda: nearest(x, model.centers_),
        },
        n_rounds,
        time.process_time,
    )
    ours = seconds["ours"]
    print(
        f"{name}: {len(x)} x {x.shape[1]}, {n} centers, {len(x) / ours / 1e6:.2f} M rows a second"
    )
    print(f"  CPU seconds: ours {ours:.3f}, all rows against final centers {seconds['ahead']:.3f}")
    for peer, target in (("loop", OVER_LOOP), ("reordered", None), ("kmeans", OVER_KMEANS)):
        ratio = seconds[peer] / ours
        shown = verdict(ratio, target) if target else f"{ratio:5.2f}x (no target)"
        print(f"  {peer:9} {seconds[peer]:7.3f}  {shown}")
    print(f"  labels equal to the loop's: {agreement:.6f}")
    fits = {
        jobs: lambda jobs=jobs: EvolvingClustering(threshold, n_jobs=jobs).fit(x) for jobs in (1, 2)
    }
    wall = take_turns(fits, n_rounds, time.perf_counter)
    print(f"  wall seconds: one thread {wall[1]:.3f}, two {wall[2]:.3f}: {wall[1] / wall[2]:.2f}x")
    busy = take_turns(fits, n_rounds, time.thread_time)
    shown = verdict(busy[1] / busy[2], OVER_ONE_THREAD)
    print(f"  CPU seconds of the caller: alone {busy[1]:.3f}, of two {busy[2]:.3f}: {shown}")


def main():
    """Print the lines of both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="an eighth of the rows, one round")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")  # MiniBatchKMeans on empty clusters
    n_rows = N_ROWS // 8 if quick else N_ROWS
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, table in {"groups": groups, "payments": payments}.items():
        x, threshold = table(n_rows)
        threshold = threshold or threshold_for(x[: n_rows // 4], N_GROUPS * 0.9)
        with threadpool_limits(1):  # threads of k-means would spin
            compare(name, x, threshold, 1 if quick else 3)


if __name__ == "__main__":
    main()
