"""CPU seconds of the probabilistic neural network, compared with two numpy implementations.

Prints, for 230 patterns of 29 columns in two classes and several smoothings of each kernel, the
medians of rounds in which the candidates take turns in one process, the ratios, and whether the
predicted classes are those of the loop. ``loop`` computes the log-sum-exp of each class for one row
after another; ``product`` computes the distances of blocks of rows by ``|x|^2 - 2 x.c + |c|^2``.
Compilation is excluded. Run ``python benchmarks/pnn.py [--quick]``.
"""

import argparse
import time
from statistics import median

import numpy as np
from scipy.special import logsumexp
from threadpoolctl import threadpool_limits

from fedneighbors import ProbabilisticNeuralNetwork

N_PATTERNS, N_COLUMNS, N_ROWS = 230, 29, 40_000
MIN_RATIO = 20.0
ACTIVATIONS = ("gaussian", "logistic", "cauchy")
SIGMAS = (0.02, 0.1, 0.5)
BLOCK = 4096


def draw_table(n_rows):
    """Return patterns of two overlapping classes, their labels, and rows."""
    rng = np.random.default_rng(0)
    patterns, labels = rng.random((N_PATTERNS, N_COLUMNS)), np.arange(N_PATTERNS) % 5 // 4
    x = patterns[rng.integers(N_PATTERNS, size=n_rows)]
    return patterns, labels, x + rng.normal(scale=0.2, size=x.shape)


def compute_log_kernel(squares, sigma, activation):
    """Return the logs of the kernel at squared distances."""
    u = np.sqrt(squares) / sigma
    if activation == "gaussian":
        return -0.5 * u * u
    if activation == "logistic":
        return -u - 2 * np.log1p(np.exp(-u))
    return -np.log1p(u * u)


def classify_rows(x, groups, sigma, activation):
    """Return the class of each row, computed row by row."""
    classes = np.empty(len(x), np.int64)
    for i, row in enumerate(x):
        scores = []
        for centers in groups:
            logs = compute_log_kernel(((centers - row) ** 2).mean(axis=1), sigma, activation)
            highest = logs.max()
            scores.append(highest + np.log(np.exp(logs - highest).mean()))
        classes[i] = np.argmax(scores)
    return classes


def classify_by_product(x, groups, sigma, activation):
    """Return the class of each row, computed by matrix products."""
    classes = np.empty(len(x), np.int64)
    for start in range(0, len(x), BLOCK):
        rows = x[start : start + BLOCK]
        norms = np.einsum("ij,ij->i", rows, rows)[:, None]
        scores = []
        for centers in groups:
            squares = norms - 2 * rows @ centers.T + np.einsum("ij,ij->i", centers, centers)
            logs = compute_log_kernel(np.maximum(squares / x.shape[1], 0), sigma, activation)
            scores.append(logsumexp(logs, axis=1) - np.log(len(centers)))
        classes[start : start + BLOCK] = np.argmax(scores, axis=0)
    return classes


def take_turns(tasks, n_rounds):
    """Return each task's median CPU seconds and last result."""
    times, results = {name: [] for name in tasks}, {}
    for _ in range(n_rounds):
        for name, task in tasks.items():
            start = time.process_time()
            results[name] = task()
            times[name].append(time.process_time() - start)
    return {name: median(seconds) for name, seconds in times.items()}, results


def main():
    """Print a line for each kernel and smoothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="an eighth of the rows, one round")
    quick = parser.parse_args().quick
    n_rows, n_rounds = (N_ROWS // 8, 1) if quick else (N_ROWS, 5)
    patterns, labels, x = draw_table(n_rows)
    groups = [patterns[labels == label] for label in (0, 1)]
    print(f"{n_rows} rows, {N_PATTERNS} patterns, {N_COLUMNS} columns; microseconds a row")
    for activation in ACTIVATIONS:
        for sigma in SIGMAS:
            model = ProbabilisticNeuralNetwork(sigma, activation).fit(patterns, labels)
            model.predict(x[:2])
            tasks = {
                "ours": lambda model=model: model.predict(x),
                "loop": lambda s=sigma, a=activation: classify_rows(x, groups, s, a),
                "product": lambda s=sigma, a=activation: classify_by_product(x, groups, s, a),
            }
            with threadpool_limits(1):  # idle threads of the product would use CPU time
                seconds, classes = take_turns(tasks, n_rounds)
            ours, loop, product = (1e6 * seconds[name] / n_rows for name in tasks)
            is_same = {name: np.array_equal(classes["ours"], classes[name]) for name in tasks}
            verdict = "met" if loop >= MIN_RATIO * ours and is_same["loop"] else "MISSED"
            print(
                f"{activation:8} sigma {sigma:4}: ours {ours:5.2f}, loop {loop:6.2f} "
                f"({loop / ours:5.1f}x, target {MIN_RATIO}x: {verdict}; classes "
                f"{'identical' if is_same['loop'] else 'DIFFER'}), product {product:5.2f} "
                f"({product / ours:4.1f}x)"
            )


if __name__ == "__main__":
    main()
