"""CPU seconds of evolving clusters, compared with a plain compiled loop and MiniBatchKMeans.

Uses a generated table and resampled card payments (both 400,000 rows of 29 columns, about 200
centers). Prints medians over rounds in which the candidates take turns in one process, and the
ratios. ``loop`` is a direct implementation of Algorithm 2 with numba; ``reordered`` is the same
loop compiled with permission to reorder sums. Compilation is excluded, the estimator's checks are
included. Also prints, for one and for two threads, the wall seconds and the CPU seconds of the
calling thread: without other programs on the machine, both have the same ratio. Run
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
MIN_RATIO_LOOP, MIN_RATIO_KMEANS, MIN_RATIO_THREADS = 9.0, 10.0, 1.6
CARDS = "fedpnn/creditcard-subset-14240.csv.gz"


def compile_plain_loop(**flags):
    """Compile a direct implementation of Algorithm 2."""

    @njit(**flags)
    def cluster(x, limit, max_centers):
        n, q = x.shape
        centers, radii = np.empty((max_centers, q)), np.zeros(max_centers)
        labels, n_centers = np.empty(n, np.int64), 0
        for i in range(n):
            nearest_center, nearest_distance, target, best_reach, target_distance = (
                -1,
                np.inf,
                -1,
                np.inf,
                np.inf,
            )
            for j in range(n_centers):
                total = 0.0
                for k in range(q):
                    total += (x[i, k] - centers[j, k]) ** 2
                distance = math.sqrt(total / q)
                if distance < nearest_distance:
                    nearest_center, nearest_distance = j, distance
                if distance + radii[j] < best_reach:
                    target, best_reach, target_distance = j, distance + radii[j], distance
            if nearest_center >= 0 and nearest_distance <= radii[nearest_center]:
                target = nearest_center
            elif best_reach > limit:
                target = n_centers
                n_centers += 1
                centers[target] = x[i]
            else:
                radii[target] = 0.5 * best_reach
                for k in range(q):
                    centers[target, k] += (x[i, k] - centers[target, k]) * (
                        (target_distance - radii[target]) / target_distance
                    )
            labels[i] = target
        return centers[:n_centers], radii[:n_centers], labels

    return cluster


def draw_groups(n_rows):
    """Return rows in clusters, and a threshold that separates the clusters."""
    rng = np.random.default_rng(0)
    centers = rng.random((N_GROUPS, N_COLUMNS))
    noise = rng.normal(scale=0.05, size=(n_rows, N_COLUMNS))
    return centers[rng.integers(N_GROUPS, size=n_rows)] + noise, 0.1


def resample_payments(n_rows):
    """Return card payments, scaled to [0, 1] and resampled with noise.

    The threshold 0 is replaced by one that `find_threshold` finds.
    """
    path = Path(os.environ.get("FEDNEIGHBORS_DATA", "data")) / CARDS
    table = np.genfromtxt(path, delimiter=",", skip_header=1)[:, :N_COLUMNS]
    low, high = table.min(axis=0), table.max(axis=0)
    scaled = (table - low) / np.where(high > low, high - low, 1.0)
    rng = np.random.default_rng(0)
    noise = rng.normal(scale=0.002, size=(n_rows, N_COLUMNS))
    return scaled[rng.integers(len(scaled), size=n_rows)] + noise, 0.0


def find_threshold(x, n_centers):
    """Find a threshold that gives about ``n_centers`` centers."""
    below, above = 0.0, 1.0
    for _ in range(14):
        middle = (below + above) / 2
        n = len(evolve(x, x[:0], np.empty(0), limit=2 * middle).centers)
        below, above = (middle, above) if n > n_centers else (below, middle)
    return above


def take_turns(tasks, n_rounds, clock):
    """Return each task's median seconds; every round runs all."""
    times = {name: [] for name in tasks}
    for _ in range(n_rounds):
        for name, task in tasks.items():
            start = clock()
            task()
            times[name].append(clock() - start)
    return {name: median(seconds) for name, seconds in times.items()}


def format_ratio(ratio, target):
    """Format a ratio with its target and whether it is met."""
    return f"{ratio:5.2f}x (target {target}x: {'met' if ratio >= target else 'MISSED'})"


def compare(name, x, threshold, n_rounds):
    """Measure all candidates on one table, and print the results."""
    loop, reordered = compile_plain_loop(), compile_plain_loop(fastmath={"reassoc", "contract"})
    model = EvolvingClustering(threshold).fit(x)
    n, max_centers = len(model.centers_), 2 * len(model.centers_) + 10
    for compiled in (loop, reordered):
        compiled(x[:50], 2 * threshold, max_centers)
    # the plain loop adds squares in another order, so ties may differ
    agreement = np.mean(loop(x, 2 * threshold, max_centers)[2] == model.labels_)
    seconds = take_turns(
        {
            "ours": lambda: EvolvingClustering(threshold).fit(x),
            "loop": lambda: loop(x, 2 * threshold, max_centers),
            "reordered": lambda: reordered(x, 2 * threshold, max_centers),
            "kmeans": lambda: MiniBatchKMeans(n, random_state=0).fit(x),
            "nearest": lambda: nearest(x, model.centers_),
        },
        n_rounds,
        time.process_time,
    )
    ours = seconds["ours"]
    print(
        f"{name}: {len(x)} x {x.shape[1]}, {n} centers, {len(x) / ours / 1e6:.2f} M rows a second"
    )
    print(
        f"  CPU seconds: ours {ours:.3f}, all rows against final centers {seconds['nearest']:.3f}"
    )
    for peer, target in (
        ("loop", MIN_RATIO_LOOP),
        ("reordered", None),
        ("kmeans", MIN_RATIO_KMEANS),
    ):
        ratio = seconds[peer] / ours
        text = format_ratio(ratio, target) if target else f"{ratio:5.2f}x (no target)"
        print(f"  {peer:9} {seconds[peer]:7.3f}  {text}")
    print(f"  labels equal to the loop's: {agreement:.6f}")
    fit_tasks = {
        jobs: lambda jobs=jobs: EvolvingClustering(threshold, n_jobs=jobs).fit(x) for jobs in (1, 2)
    }
    wall_s = take_turns(fit_tasks, n_rounds, time.perf_counter)
    print(
        f"  wall seconds: one thread {wall_s[1]:.3f}, two {wall_s[2]:.3f}: "
        f"{wall_s[1] / wall_s[2]:.2f}x"
    )
    caller_s = take_turns(fit_tasks, n_rounds, time.thread_time)
    text = format_ratio(caller_s[1] / caller_s[2], MIN_RATIO_THREADS)
    print(
        f"  CPU seconds of the calling thread: one thread {caller_s[1]:.3f}, "
        f"two {caller_s[2]:.3f}: {text}"
    )


def main():
    """Measure both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="an eighth of the rows, one round")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")  # MiniBatchKMeans warns about empty clusters
    n_rows = N_ROWS // 8 if quick else N_ROWS
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, draw in {"groups": draw_groups, "payments": resample_payments}.items():
        x, threshold = draw(n_rows)
        threshold = threshold or find_threshold(x[: n_rows // 4], N_GROUPS * 0.9)
        with threadpool_limits(1):  # idle threads of k-means would use CPU time
            compare(name, x, threshold, 1 if quick else 3)


if __name__ == "__main__":
    main()
