"""Comparison of DANN* with the naive search over many random federations.

``python -m tests.methods.fedknn.private.campaign --federations 100000 --out FILE`` runs the
comparison and writes its counts as JSON.
"""

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np

from fedneighbors.methods.fedknn.private._noise import CountNoise, PaperNoise
from fedneighbors.methods.fedknn.private.protocol import dann_star, dann_star_as_printed
from tests.methods.fedknn.federations import KEY, BoundedLine, Federation
from tests.naive.fedknn import nearest

EPSILONS = ("0.05", "0.5", 1, 3, 8, 100)
FAILURE = 0.05


def draw_federation(rng):
    """Draw a federation with ties, skew, empty providers, loose bounds or few objects."""
    m, n, k = int(rng.integers(1, 7)), int(rng.integers(0, 40)), int(rng.integers(1, 14))
    values = np.sort(rng.integers(0, rng.choice([2, 8, 10**6]), n)).astype(float)
    kind = rng.integers(4)
    owner = [
        lambda: rng.integers(0, m, n),
        lambda: np.minimum(rng.geometric(0.6, n) - 1, m - 1),
        lambda: np.zeros(n, int),
        lambda: np.arange(n) * m // max(n, 1),
    ][kind]()
    looseness = float(rng.choice([0.0, 0.05, 0.5, 1.0]))
    return Federation(
        {f"p{i}": values[owner == i].tolist() for i in range(m)},
        float(rng.integers(0, 9)),
        k,
        BoundedLine(looseness, seed=int(rng.integers(2**31))),
    )


def draw_even_federation(rng, *, m, k, n):
    """Draw a federation with uniform distances and slightly loose bounds."""
    owner, values = rng.integers(0, m, n), np.round(rng.random(n) * 1e6, 3)
    tables = {f"p{i}": values[owner == i].tolist() for i in range(m)}
    return Federation(tables, 0.0, k, BoundedLine(0.05, seed=int(rng.integers(2**31))))


def draw_misleading_federation(rng):
    """Draw a federation with all near objects at one provider, and very loose bounds."""
    m, k = int(rng.integers(2, 9)), int(rng.integers(16, 64))
    near, far = np.arange(float(k + 20)), 1e5 + np.arange(float(k + 20))
    tables = {"p0": near.tolist()} | {f"p{i}": (far + i / 16).tolist() for i in range(1, m)}
    return Federation(tables, 0.0, k, BoundedLine(1.0, seed=int(rng.integers(2**31))))


def run_query(federation, noise, seed):
    """Return the answer, and True if it is correct."""
    bits = random.Random(seed).randbytes

    def noise_of(epoch, providers):
        return dict(zip(providers, noise.draw_all(len(providers), bits=bits), strict=True))

    if isinstance(noise, PaperNoise):
        answer = federation.search(dann_star_as_printed, noise_of=noise_of)
    else:
        is_exact = noise.promise == "exact"
        answer = federation.search(dann_star, noise_of=noise_of, always_exact=is_exact)
    merged = answer.merged
    rows = list(zip(merged.distances.tolist(), merged.owners, merged.ids, strict=True))
    return answer, rows == nearest(federation.tables, federation.query, federation.k, key=KEY)


def count_errors_of_exact(n_federations, seed=0):
    """Count answers of ``guarantee="exact"`` that are wrong, or not marked as exact."""
    rng, n_wrong = np.random.default_rng(seed), 0
    for number in range(n_federations):
        federation = draw_federation(rng)
        epsilon = EPSILONS[number % len(EPSILONS)]
        noise = CountNoise(epsilon, "1e-6", n_providers=len(federation.tables), k=federation.k)
        answer, correct = run_query(federation, noise, number)
        n_wrong += not (correct and answer.exact)
    return {"federations": n_federations, "wrong": n_wrong}


def count_errors_of_certified(n_queries, seed=1):
    """Count answers of ``guarantee="certified"``: flagged, wrong, and wrong without a flag."""
    rng, counts = np.random.default_rng(seed), Counter()
    for number in range(n_queries):
        federation = (draw_misleading_federation if number % 2 else draw_federation)(rng)
        noise = CountNoise(
            EPSILONS[number // 2 % len(EPSILONS)],
            0,
            n_providers=len(federation.tables),
            k=federation.k,
            promise="certified",
            failure=FAILURE,
        )
        answer, correct = run_query(federation, noise, number)
        counts["flagged"] += not answer.exact
        counts["wrong"] += not correct
        counts["wrong without a flag"] += answer.exact and not correct
    return {
        "queries": n_queries,
        **{key: counts[key] for key in ("flagged", "wrong", "wrong without a flag")},
    }


def count_errors_of_printed(n_queries, seed=2, *, m=8, k=128):
    """Count wrong answers of Algorithm 2 as printed, in a setting of the paper."""
    rng, n_wrong = np.random.default_rng(seed), 0
    for number in range(n_queries):
        federation = draw_even_federation(rng, m=m, k=k, n=3000)
        noise = PaperNoise(1, n_providers=m, k=k, failure=FAILURE)
        n_wrong += not run_query(federation, noise, number)[1]
    return {"queries": n_queries, "providers": m, "k": k, "wrong": n_wrong}


def measure_savings(n_queries, seed=3):
    """Return the objects requested by the baseline per object requested by DANN*."""
    ratios = {}
    for m, k in ((8, 128), (16, 128), (16, 256), (8, 64)):
        for epsilon in (1, 3, 8):
            for promise, delta in (("exact", "1e-6"), ("certified", 0)):
                rng = np.random.default_rng(seed)
                noise = CountNoise(epsilon, delta, n_providers=m, k=k, promise=promise)
                n_requested = 0
                for number in range(n_queries):
                    federation = draw_even_federation(rng, m=m, n=600 * m, k=k)
                    n_requested += sum(run_query(federation, noise, number)[0].n_returned.values())
                ratios[f"m={m} k={k} epsilon={epsilon} {promise}"] = round(
                    m * k * n_queries / n_requested, 2
                )
    return {"queries": n_queries, **ratios}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--federations", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    start = time.process_time()
    record = {
        "always exact": count_errors_of_exact(options.federations),
        "certified": count_errors_of_certified(options.queries),
        "as printed": count_errors_of_printed(max(options.queries // 25, 40)),
        "fewer objects than the baseline": measure_savings(max(options.queries // 500, 5)),
    }
    record["cpu_seconds"] = round(time.process_time() - start)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))
