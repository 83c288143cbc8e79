"""FlyHash kernels against the best plain numpy/scipy pipeline, on the settings of the paper.

Run ``python benchmarks/flyhash.py [--quick]`` with FEDNEIGHBORS_DATA naming the data folder. Times
are CPU seconds of one thread, medians over rounds in which the candidates take turns; compilation
is excluded. The pipeline is a sparse product in blocks, argpartition and a count; the faster of its
int16 and float32 forms is the peer. The settings are those of Table 6 of "Federated Nearest
Neighbor Classification with a Colony of Fruit-Flies" (AAAI 2022); the one for Fashion-MNIST is run
on the images of MNIST.
"""

import argparse
import gzip
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
from numba import njit
from scipy.sparse import csr_array
from sklearn.datasets import load_digits

from fedneighbors.kernels.flyhash import _lanes as lanes
from fedneighbors.kernels.flyhash._bloom import accumulate, novelty
from fedneighbors.kernels.flyhash._hash import draw_wiring, winners

DATA = Path(os.environ.get("FEDNEIGHBORS_DATA", "data"))
MEASURE_MEMORY = "--measure-memory"

# name: units, inputs, winners
SETTINGS = {
    "MNIST": (217 * 784, 19, 17),
    "Fashion": (138 * 784, 82, 8),
    "Digits": (256 * 64, 19, 32),
    "Letters": (1447 * 16, 8, 221),
}


def images():
    """Return the training images of MNIST."""
    return np.load(DATA / "images" / "mnist.npz")["x_train"].reshape(-1, 784)


def letters():
    """Return the 16 features of Letters, 0 to 15."""
    with gzip.open(DATA / "tabular" / "letter.csv.gz", "rt") as lines:
        return np.loadtxt(lines, delimiter=",", skiprows=1)[:, :16].astype(np.uint8)


def rows_of(name, n_rows):
    """Return the first rows of a data set."""
    if name == "Digits":
        return load_digits().data.astype(np.uint8)[:n_rows]
    return (letters() if name == "Letters" else images())[:n_rows]


def cpu_seconds(task):
    """Measure the CPU seconds of a task."""
    start = time.process_time()
    task()
    return time.process_time() - start


def wall_seconds(task):
    """Measure the wall-clock seconds of a task."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def take_turns(tasks, n_rounds, clock=cpu_seconds):
    """Return each task's median seconds; every round runs all."""
    rounds = [{name: clock(task) for name, task in tasks.items()} for _ in range(n_rounds)]
    return {name: median(seconds[name] for seconds in rounds) for name in tasks}


def fit(x, units, n_active, labels):
    """Hash and count with the kernels."""
    counts = np.zeros((units.shape[0], 10), np.int32)
    accumulate(winners(x, units, n_active), labels, counts)
    return counts


def pipeline(x, parts, n_active, labels, n_units):
    """Count the same with scipy and numpy, up to ties.

    The product is computed by parts of the units, so that its transposition stays in the cache.
    """
    counts = np.zeros((n_units, 10), np.int32)
    columns = np.ascontiguousarray(x.T.astype(parts[0].dtype))
    sums, first = np.empty((x.shape[0], n_units), np.float32), 0
    for part in parts:
        sums[:, first : first + part.shape[0]] = (part @ columns).T
        first += part.shape[0]
    for row, label in zip(sums, labels, strict=True):
        counts[np.argpartition(row, n_units - n_active)[n_units - n_active :], label] += 1
    return counts


def sparse_parts(units, n_features, dtype, size=2_048):
    """Return the wiring as sparse matrices of ``size`` units each."""
    parts = [units[first : first + size] for first in range(0, units.shape[0], size)]
    return [
        csr_array(
            (
                np.ones(part.size, dtype),
                part.ravel().astype(np.int32),
                np.arange(part.shape[0] + 1) * part.shape[1],
            ),
            (part.shape[0], n_features),
        )
        for part in parts
    ]


def against_pipeline(name, target, quick):
    """Compare a fit with the fastest pipeline: 128 rows at once."""
    n_units, n_inputs, n_active = SETTINGS[name]
    n_rows, n_peer_rows = (1_024, 128) if quick else (4_096, 128)
    x = rows_of(name, n_rows)
    labels = np.arange(n_rows) % 10
    units = draw_wiring(784, n_units, n_inputs, 0)
    few = x[:n_peer_rows], labels[:n_peer_rows]
    parts = [sparse_parts(units, 784, dtype) for dtype in (np.int16, np.float32)]
    tasks = {
        "kernel": lambda: fit(x, units, n_active, labels),
        "int16": lambda: pipeline(few[0], parts[0], n_active, few[1], n_units),
        "float32": lambda: pipeline(few[0], parts[1], n_active, few[1], n_units),
    }
    fit(few[0], units, n_active, few[1])
    seconds = take_turns(tasks, 3 if quick else 5)
    rate = n_rows / seconds["kernel"]
    peer = n_peer_rows / min(seconds["int16"], seconds["float32"])
    yield f"{name}: fit, rows/s ({peer:.0f} with scipy)", None, rate, ">="
    yield f"{name}: fit, times the scipy pipeline", target, rate / peer, ">="


def as_floats(quick):
    """Hash rows as bytes and as standardized floats."""
    n_units, n_inputs, n_active = SETTINGS["MNIST"]
    x = rows_of("MNIST", 1_024 if quick else 2_048)
    scaled = (x - x.mean()) / x.std()
    units = draw_wiring(784, n_units, n_inputs, 0)
    tasks = {
        "bytes": lambda: winners(x, units, n_active),
        "floats": lambda: winners(scaled, units, n_active),
    }
    winners(scaled[:64], units, n_active)
    seconds = take_turns(tasks, 3)
    yield (
        "MNIST: standardized floats, time over bytes",
        None,
        ratio(seconds, "floats", "bytes"),
        "<=",
    )


def per_row(name, target, quick):
    """Measure hashing only."""
    n_units, n_inputs, n_active = SETTINGS[name]
    x = rows_of(name, 1_024 if quick else 4_096)
    units = draw_wiring(x.shape[1], n_units, n_inputs, 0)
    winners(x[:64], units, n_active)
    seconds = take_turns({"kernel": lambda: winners(x, units, n_active)}, 9)["kernel"]
    yield f"{name}: hash, us/row", target, seconds / x.shape[0] * 1e6, "<="


def prediction(quick):
    """Compare hashing and gathering with hashing only."""
    n_units, n_inputs, n_active = SETTINGS["MNIST"]
    x = rows_of("MNIST", 1_024 if quick else 2_048)
    units = draw_wiring(784, n_units, n_inputs, 0)
    for n_classes, target in ((10, 1.3), (1_000, 2.0)):
        counts = np.random.default_rng(0).integers(0, 9, (n_units, n_classes), np.int32)
        table, offsets = 0.5 ** np.arange(10), np.zeros(n_classes, np.int64)

        def predict(counts=counts, table=table, offsets=offsets):
            return novelty(winners(x, units, n_active), counts, table, offsets).argmin(axis=1)

        predict()
        tasks = {"hash": lambda: winners(x, units, n_active), "predict": predict}
        seconds = take_turns(tasks, 3 if quick else 5)
        name = f"MNIST: predict {n_classes} classes, time over hash"
        yield name, target, ratio(seconds, "predict", "hash"), "<="


def threads(quick):
    """Compare one thread with two.

    The clock is meaningful only with two free cores.
    """
    n_units, n_inputs, n_active = SETTINGS["MNIST"]
    x = rows_of("MNIST", 2_048 if quick else 4_096)
    units = draw_wiring(784, n_units, n_inputs, 0)
    tasks = {n: lambda n=n: winners(x, units, n_active, n_threads=n) for n in (1, 2)}
    n_rounds = 3 if quick else 7
    wall = take_turns(tasks, n_rounds, wall_seconds)
    spent = take_turns(tasks, n_rounds)
    yield "MNIST: wall time, one thread over two", 1.8, ratio(wall, 1, 2), ">="
    yield "MNIST: CPU time, two threads over one", None, ratio(spent, 2, 1), "<="


def drawing():
    """Measure the drawing of the wiring."""
    draw_wiring(784, 10, 19, 0)
    seconds = take_turns({"wiring": lambda: draw_wiring(784, 170_000, 19, 0)}, 7)["wiring"]
    yield "wiring of 170,000 units, CPU s", 0.1, seconds, "<="


def memory(quick):
    """Fit in a fresh process and take its peak."""
    command = [sys.executable, __file__, MEASURE_MEMORY, "4096" if quick else "60000"]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    yield "MNIST: peak memory of a fit, MB", 500, peak / 1e3, "<="


def fit_and_print_peak(n_rows):
    """Fit in this process and print its peak memory."""
    n_units, n_inputs, n_active = SETTINGS["MNIST"]
    fit(
        rows_of("MNIST", n_rows),
        draw_wiring(784, n_units, n_inputs, 0),
        n_active,
        np.arange(n_rows) % 10,
    )
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def ratio(seconds, numerator, denominator):
    """Divide two of the times."""
    return seconds[numerator] / seconds[denominator]


@njit
def sum_all(lines, wiring, n_inputs, thresholds, hits, masks):
    """Compute the quantized sums of all units for 64 rows."""
    nothing_stored = np.empty(0, np.uint16)
    for start in range(0, wiring.size // n_inputs, hits.size):
        lanes._filter_chunk(lines, wiring, n_inputs, nothing_stored, start, thresholds, hits, masks)


def breakdown(quick):
    """Print the share of quantized sums in the hashing time."""
    n_units, n_inputs, n_active = SETTINGS["MNIST"]
    x = rows_of("MNIST", 64)
    units = draw_wiring(784, n_units, n_inputs, 0)
    lines = lanes._allocate_aligned(64 * 784)
    for lane in range(64):
        lanes._quantize(x[lane], n_inputs, lane, lines)
    notes = np.full(64, 65_535, np.uint16), np.empty(512, np.int64), np.empty(512, np.uint64)
    tasks = {
        "whole": lambda: winners(x, units, n_active),
        "quantized sums alone": lambda: sum_all(lines, units.ravel(), n_inputs, *notes),
    }
    tasks["quantized sums alone"]()
    seconds = take_turns(tasks, 5 if quick else 25)
    for name in tasks:
        yield f"MNIST: hash, {name}, us/row", None, seconds[name] / 64 * 1e6, "<="


def report(lines):
    """Print each figure with its target; return the misses."""
    print(f"{'figure':55} {'target':>9} {'measured':>9}", flush=True)
    missed = 0
    for name, target, measured, sense in lines:
        met = target is None or (measured >= target if sense == ">=" else measured <= target)
        missed += not met
        goal = "" if target is None else f"{sense} {target:g}"
        verdict = "" if target is None else "met" if met else "MISSED"
        print(f"{name:55} {goal:>9} {measured:9.4g}  {verdict}", flush=True)
    return missed


def figures(quick):
    """Yield name, target, measured value and sense of every figure.

    Memory comes first: a child's peak begins at what its parent held when it forked.
    """
    yield from memory(quick)
    yield from against_pipeline("MNIST", 22, quick)
    yield from against_pipeline("Fashion", 16, quick)
    yield from per_row("Digits", 16, quick)
    yield from per_row("Letters", 19, quick)
    yield from as_floats(quick)
    yield from breakdown(quick)
    yield from prediction(quick)
    yield from threads(quick)
    yield from drawing()


def main():
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument(MEASURE_MEMORY, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_memory:
        fit_and_print_peak(options.measure_memory)
        return
    missed = report(figures(options.quick))
    print(f"{missed} targets missed" if missed else "all targets met")


if __name__ == "__main__":
    main()
