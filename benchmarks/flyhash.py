"""FlyHash kernels compared with a numpy and scipy pipeline, in the settings of the paper.

Run ``python benchmarks/flyhash.py [--quick]`` with FEDNEIGHBORS_DATA naming the data folder. Times
are CPU seconds of one thread, medians over rounds in which the candidates take turns; compilation
is excluded. The pipeline is a sparse product in blocks, argpartition and a count; the peer is the
faster of its int16 and float32 variants. The settings are those of Table 6 of "Federated Nearest
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


def read_images():
    """Return the training images of MNIST."""
    return np.load(DATA / "images" / "mnist.npz")["x_train"].reshape(-1, 784)


def read_letters():
    """Return the 16 features of Letters, 0 to 15."""
    with gzip.open(DATA / "tabular" / "letter.csv.gz", "rt") as file:
        return np.loadtxt(file, delimiter=",", skiprows=1)[:, :16].astype(np.uint8)


def read_rows(name, n_rows):
    """Return the first rows of a data set."""
    if name == "Digits":
        return load_digits().data.astype(np.uint8)[:n_rows]
    return (read_letters() if name == "Letters" else read_images())[:n_rows]


def measure_cpu_seconds(task):
    """Measure the CPU seconds of a task."""
    start = time.process_time()
    task()
    return time.process_time() - start


def measure_wall_seconds(task):
    """Measure the wall-clock seconds of a task."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def take_turns(tasks, n_rounds, clock=measure_cpu_seconds):
    """Return each task's median seconds; every round runs all."""
    rounds = [{name: clock(task) for name, task in tasks.items()} for _ in range(n_rounds)]
    return {name: median(seconds[name] for seconds in rounds) for name in tasks}


def fit(x, units, n_active, labels):
    """Hash rows and count their winners by class, with the kernels."""
    counts = np.zeros((units.shape[0], 10), np.int32)
    accumulate(winners(x, units, n_active), labels, counts)
    return counts


def fit_by_pipeline(x, parts, n_active, labels, n_units):
    """Compute the same counts with scipy and numpy, except at ties.

    The product is computed for parts of the units, so that each transposed block fits in the cache.
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


def make_sparse_parts(units, n_features, dtype, size=2_048):
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


def compare_with_pipeline(name, target, quick):
    """Compare a fit with the pipeline, which fits 128 rows only."""
    n_units, n_inputs, n_active = SETTINGS[name]
    n_rows, n_peer_rows = (1_024, 128) if quick else (4_096, 128)
    x = read_rows(name, n_rows)
    labels = np.arange(n_rows) % 10
    units = draw_wiring(784, n_units, n_inputs, 0)
    peer_rows = x[:n_peer_rows], labels[:n_peer_rows]
    parts = [make_sparse_parts(units, 784, dtype) for dtype in (np.int16, np.float32)]
    tasks = {
        "kernel": lambda: fit(x, units, n_active, labels),
        "int16": lambda: fit_by_pipeline(peer_rows[0], parts[0], n_active, peer_rows[1], n_units),
        "float32": lambda: fit_by_pipeline(peer_rows[0], parts[1], n_active, peer_rows[1], n_units),
    }
    fit(peer_rows[0], units, n_active, peer_rows[1])
    seconds = take_turns(tasks, 3 if quick else 5)
    rate = n_rows / seconds["kernel"]
    peer = n_peer_rows / min(seconds["int16"], seconds["float32"])
    yield f"{name}: fit, rows/s ({peer:.0f} with scipy)", None, rate, ">="
    yield f"{name}: fit, times the scipy pipeline", target, rate / peer, ">="


def compare_dtypes(quick):
    """Compare the times of hashing bytes and standardized floats."""
    n_units, n_inputs, n_active = SETTINGS["MNIST"]
    x = read_rows("MNIST", 1_024 if quick else 2_048)
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
        divide(seconds, "floats", "bytes"),
        "<=",
    )


def measure_hashing(name, target, quick):
    """Measure the time of hashing per row."""
    n_units, n_inputs, n_active = SETTINGS[name]
    x = read_rows(name, 1_024 if quick else 4_096)
    units = draw_wiring(x.shape[1], n_units, n_inputs, 0)
    winners(x[:64], units, n_active)
    seconds = take_turns({"kernel": lambda: winners(x, units, n_active)}, 9)["kernel"]
    yield f"{name}: hash, us/row", target, seconds / x.shape[0] * 1e6, "<="


def compare_prediction(quick):
    """Compare the time of prediction with that of hashing alone."""
    n_units, n_inputs, n_active = SETTINGS["MNIST"]
    x = read_rows("MNIST", 1_024 if quick else 2_048)
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
        yield name, target, divide(seconds, "predict", "hash"), "<="


def compare_threads(quick):
    """Compare one thread with two.

    The wall time is meaningful only with two idle cores.
    """
    n_units, n_inputs, n_active = SETTINGS["MNIST"]
    x = read_rows("MNIST", 2_048 if quick else 4_096)
    units = draw_wiring(784, n_units, n_inputs, 0)
    tasks = {n: lambda n=n: winners(x, units, n_active, n_threads=n) for n in (1, 2)}
    n_rounds = 3 if quick else 7
    wall = take_turns(tasks, n_rounds, measure_wall_seconds)
    cpu = take_turns(tasks, n_rounds)
    yield "MNIST: wall time, one thread over two", 1.8, divide(wall, 1, 2), ">="
    yield "MNIST: CPU time, two threads over one", None, divide(cpu, 2, 1), "<="


def measure_wiring():
    """Measure the time of drawing a wiring."""
    draw_wiring(784, 10, 19, 0)
    seconds = take_turns({"wiring": lambda: draw_wiring(784, 170_000, 19, 0)}, 7)["wiring"]
    yield "wiring of 170,000 units, CPU s", 0.1, seconds, "<="


def measure_memory(quick):
    """Measure the peak memory of a fit in a fresh process."""
    command = [sys.executable, __file__, MEASURE_MEMORY, "4096" if quick else "60000"]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    yield "MNIST: peak memory of a fit, MB", 500, peak / 1e3, "<="


def fit_and_print_peak(n_rows):
    """Fit in this process and print its peak memory."""
    n_units, n_inputs, n_active = SETTINGS["MNIST"]
    fit(
        read_rows("MNIST", n_rows),
        draw_wiring(784, n_units, n_inputs, 0),
        n_active,
        np.arange(n_rows) % 10,
    )
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def divide(seconds, numerator, denominator):
    """Divide one of the times by another."""
    return seconds[numerator] / seconds[denominator]


@njit
def sum_all(quantized, wiring, n_inputs, thresholds, hits, masks):
    """Compute the quantized sums of all units for 64 rows."""
    nothing_stored = np.empty(0, np.uint16)
    for start in range(0, wiring.size // n_inputs, hits.size):
        lanes._filter_chunk(
            quantized, wiring, n_inputs, nothing_stored, start, thresholds, hits, masks
        )


def measure_sums(quick):
    """Measure hashing, and the computation of quantized sums alone."""
    n_units, n_inputs, n_active = SETTINGS["MNIST"]
    x = read_rows("MNIST", 64)
    units = draw_wiring(784, n_units, n_inputs, 0)
    quantized = lanes._allocate_aligned(64 * 784)
    for lane in range(64):
        lanes._quantize(x[lane], n_inputs, lane, quantized)
    buffers = np.full(64, 65_535, np.uint16), np.empty(512, np.int64), np.empty(512, np.uint64)
    tasks = {
        "whole": lambda: winners(x, units, n_active),
        "quantized sums alone": lambda: sum_all(quantized, units.ravel(), n_inputs, *buffers),
    }
    tasks["quantized sums alone"]()
    seconds = take_turns(tasks, 5 if quick else 25)
    for name in tasks:
        yield f"MNIST: hash, {name}, us/row", None, seconds[name] / 64 * 1e6, "<="


def print_measurements(measurements):
    """Print each measurement with its target; return the number missed."""
    print(f"{'measurement':55} {'target':>9} {'measured':>9}", flush=True)
    missed = 0
    for name, target, measured, sign in measurements:
        is_met = target is None or (measured >= target if sign == ">=" else measured <= target)
        missed += not is_met
        target_text = "" if target is None else f"{sign} {target:g}"
        verdict = "" if target is None else "met" if is_met else "MISSED"
        print(f"{name:55} {target_text:>9} {measured:9.4g}  {verdict}", flush=True)
    return missed


def measure_all(quick):
    """Yield name, target, value and comparison sign of every measurement.

    Memory is measured first, because a forked process begins with the memory of its parent.
    """
    yield from measure_memory(quick)
    yield from compare_with_pipeline("MNIST", 22, quick)
    yield from compare_with_pipeline("Fashion", 16, quick)
    yield from measure_hashing("Digits", 16, quick)
    yield from measure_hashing("Letters", 19, quick)
    yield from compare_dtypes(quick)
    yield from measure_sums(quick)
    yield from compare_prediction(quick)
    yield from compare_threads(quick)
    yield from measure_wiring()


def main():
    """Print all measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument(MEASURE_MEMORY, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_memory:
        fit_and_print_peak(options.measure_memory)
        return
    missed = print_measurements(measure_all(options.quick))
    print(f"{missed} targets missed" if missed else "all targets met")


if __name__ == "__main__":
    main()
