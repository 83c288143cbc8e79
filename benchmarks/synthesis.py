"""CPU seconds and quality of the synthesizer on the majority class of Polish bankruptcy, year 1.

Run ``python benchmarks/synthesis.py [--quick]`` with FEDNEIGHBORS_DATA naming the data folder.
Uses 6,756 rows of 64 columns, missing cells filled by medians, 50 epochs, and the architecture of
Table 4 of FedPNN: generator (64, 32, 16), critic (32, 128). Times are CPU seconds of one thread,
medians over seeds. The encoding of columns is compared with scikit-learn's BayesianGaussianMixture,
fitted to one column after another (10 components, weight prior 0.001), which is timed in the same
run on a sample of the columns and scaled to all. A packaged CTGAN needs 100 s in total, with a mean
KSComplement of .649 and a mean correlation similarity of .930; the targets of both scores are
0.02 below.
"""

import argparse
import time
import warnings
from statistics import median

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture
from threadpoolctl import threadpool_limits

from fedneighbors.datasets import load
from fedneighbors.methods.fedpnn.synthesis import (
    TabularSynthesizer,
    correlation_similarity,
    ks_complement,
)
from fedneighbors.methods.fedpnn.synthesis._encoding import fit_transform
from fedneighbors.methods.fedpnn.synthesis._tabular import as_table

LAYERS = {"generator": (64, 32, 16), "critic": (32, 128)}
PEER_KSC, PEER_CORRELATION, TOLERANCE = 0.649, 0.930, 0.02
MAX_SECONDS, MAX_ENCODING_SECONDS = 30.0, 2.0


def load_majority_rows():
    """Return the surviving companies' rows, with medians for missing cells."""
    data = load("polish-bankruptcy-1year")
    return data.x[data.y == 0]


def measure_seconds(task):
    """Return the CPU seconds of a task, and its result."""
    start = time.process_time()
    result = task()
    return time.process_time() - start, result


def measure_encoding(x, n_columns):
    """Return the CPU seconds of encoding all columns, ours and the peer's."""

    def ours():
        table, _ = as_table(x)
        transform = fit_transform(table)
        return transform.matrix(*transform.codes(table, np.random.default_rng(0)))

    def peer():
        for column in range(0, x.shape[1], x.shape[1] // n_columns):
            mixture = BayesianGaussianMixture(
                n_components=10, weight_concentration_prior=1e-3, max_iter=100, random_state=0
            )
            values = x[:, column : column + 1]
            mixture.fit(values).predict_proba(values)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        peer_s = measure_seconds(peer)[0] * x.shape[1] / n_columns
    return median(measure_seconds(ours)[0] for _ in range(3)), peer_s


def measure_synthesis(x, noise, seed, epochs):
    """Return CPU seconds of fit and sample, and two mean scores."""

    def task():
        synthesizer = TabularSynthesizer(noise, **LAYERS, epochs=epochs, random_state=seed)
        return synthesizer.fit(x).sample(len(x))

    seconds, synthetic = measure_seconds(task)
    scores = ks_complement(x, synthetic)
    return seconds, float(np.mean(list(scores.values()))), correlation_similarity(x, synthetic).mean


def main():
    """Measure the encoding and the synthesizer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5 epochs, one seed, 4 columns")
    quick = parser.parse_args().quick
    x = load_majority_rows()
    ours, peer_s = measure_encoding(x, 4 if quick else 16)
    verdict = "met" if ours <= MAX_ENCODING_SECONDS else "MISSED"
    print(
        f"encoding of {x.shape[1]} columns: {ours:.2f} s (<= {MAX_ENCODING_SECONDS:.0f} s: "
        f"{verdict}), scikit-learn column by column {peer_s:.1f} s, ratio {peer_s / ours:.1f}"
    )
    measure_synthesis(x[:600], "normal", 0, 1)  # loads PyTorch
    for noise in ("normal", "mixture", "concat"):
        runs = [
            measure_synthesis(x, noise, seed, 5 if quick else 50)
            for seed in range(1 if quick else 3)
        ]
        seconds, ksc, correlation = (median(values) for values in zip(*runs, strict=True))
        is_met = (
            seconds <= MAX_SECONDS
            and ksc >= PEER_KSC - TOLERANCE
            and correlation >= PEER_CORRELATION - TOLERANCE
        )
        print(
            f"{noise}: fit and sample {seconds:.1f} s (<= {MAX_SECONDS:.0f} s), "
            f"KSComplement {ksc:.3f} (>= {PEER_KSC - TOLERANCE:.3f}), correlation similarity "
            f"{correlation:.3f} (>= {PEER_CORRELATION - TOLERANCE:.3f}): "
            f"{'met' if is_met else 'MISSED'}"
        )


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        main()
