"""Cost of several rules for the counts of DANN's first round.

    python benchmarks/counts.py [--queries 24] [--limit 2] [--only molecules titles places]

Needs ``FEDNEIGHBORS_DATA``. For 8 providers, k = 128, uniform and Zipf .6 splits, prints for each
rule, as means over the queries: the number of objects requested in round one, and returned in both
rounds, each divided by the sum over providers of max(true count, 1); the number of objects
verified; and the CPU seconds of the whole search, providers included. Queries are drawn from the
data in a fixed order. A molecule is a query only if the search for its k nearest in the whole table
ends within the limit, in CPU seconds.

The calibrated rules estimate the gaps between distances and their lower bounds on other queries.
Gaps of objects that the search did not reach are censored (Kaplan-Meier estimate). The surplus of
these rules was chosen on other queries too.
"""

import argparse
import csv
import gzip
import os
import time
from functools import partial
from pathlib import Path

import numpy as np

from fedneighbors.datasets._graphs import read_graphs
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn.algorithm import expected_counts, proportional_counts
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.protocol import close_queries, dann
from fedneighbors.partition._splits import quantity_skew

K, N_PROVIDERS = 128, 8
TARGET = 1.2
N_CALIBRATION_QUERIES = 12


def read_molecules(folder):
    """Return the graphs and their metric."""
    return read_graphs(folder / "graphs" / "aids_hiv_ged.txt.gz").graphs, metric_of("graph_edit")


def read_titles(folder):
    """Return the titles and their metric."""
    with gzip.open(folder / "strings" / "dblp_titles_14k.txt.gz", "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in lines], metric_of("edit")


def read_places(folder):
    """Return the places and their metric."""
    path = folder / "spatial" / "geonames_west_africa.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [(float(row["lon"]), float(row["lat"])) for row in csv.DictReader(lines)]
    return np.array(rows), metric_of("haversine")


DATA = {"molecules": read_molecules, "titles": read_titles, "places": read_places}


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--queries", type=int, default=24)
    parser.add_argument("--limit", type=float, default=2.0)
    parser.add_argument("--only", nargs="+", choices=DATA, default=list(DATA))
    options = parser.parse_args()
    folder = Path(os.environ["FEDNEIGHBORS_DATA"])
    for name in options.only:
        objects, metric = DATA[name](folder)
        query_ids, gaps = choose_queries(objects, metric, options)
        for split, factor in (("uniform", 0.0), ("Zipf .6", 0.6)):
            print_table(f"{name}, {split}", objects, metric, factor, query_ids, list_rules(gaps))


def choose_queries(objects, metric, options):
    """Return queries, and the gap distribution estimated on other queries.

    Graph queries are used only if their search ends within the limit.
    """
    index = metric.index(objects, ranks=np.arange(len(objects)))
    query_ids, gaps, n_drawn, has_limit = [], [], 0, metric.name == "graph_edit"
    index.open(objects[0]).next(1)  # compile
    for position in np.random.default_rng(2024).permutation(len(objects)).tolist():
        if len(query_ids) == N_CALIBRATION_QUERIES + options.queries:
            break
        n_drawn += 1
        nearest = find_nearest(
            index.open(objects[position]), options.limit if has_limit else np.inf
        )
        if nearest is None:
            continue
        if len(query_ids) < N_CALIBRATION_QUERIES:
            gaps.append(compute_gaps(index.open(objects[position]).bounds(), nearest))
        query_ids.append(position)
    limit_note = (
        f", of {n_drawn} drawn those that end within {options.limit:g} s" if has_limit else ""
    )
    print(
        f"{metric.name}: {len(objects)} objects, {len(query_ids)} queries{limit_note}", flush=True
    )
    if len(query_ids) <= N_CALIBRATION_QUERIES:
        raise SystemExit(
            f"{N_CALIBRATION_QUERIES} calibration queries are needed; "
            f"only {len(query_ids)} queries were found"
        )
    return query_ids[N_CALIBRATION_QUERIES:], estimate_gap_distribution(
        *map(np.concatenate, zip(*gaps, strict=True))
    )


def find_nearest(session, limit_s):
    """Return the k nearest; None if the CPU limit is exceeded."""
    positions, distances, start = [], [], time.process_time()
    while len(positions) < K:
        if time.process_time() - start > limit_s:
            return None
        batch = session.next(K - len(positions), deadline_s=0.1)
        positions += batch.positions[: batch.n_certified].tolist()
        distances += batch.distances[: batch.n_certified].tolist()
    return np.array(positions), np.array(distances)


def compute_gaps(bounds, nearest):
    """Return the gaps between distances and bounds, and whether each is exact."""
    positions, found_distances = nearest
    farthest = found_distances[-1]
    near_positions = np.flatnonzero(bounds <= farthest)
    is_exact = np.isin(near_positions, positions)
    distances = np.full(len(bounds), np.inf)
    distances[positions] = found_distances
    gaps = np.where(
        is_exact,
        distances[near_positions] - bounds[near_positions],
        farthest - bounds[near_positions],
    )
    # objects that were not found may be at the farthest distance too: censor just below the gap
    return np.where(is_exact, gaps, np.nextafter(gaps, -1.0)), is_exact


def estimate_gap_distribution(gaps, is_exact):
    """Return ascending gaps and the fraction of objects up to each.

    Gaps that are not exact are lower limits (Kaplan-Meier estimate).
    """
    values = np.unique(gaps[is_exact])
    remaining, fractions = 1.0, []
    for value in values:
        remaining *= 1 - (is_exact & (gaps == value)).sum() / (gaps >= value).sum()
        fractions.append(1 - remaining)
    return values, np.array(fractions)


def calibrated_counts(bounds, k, *, gaps, surplus):
    """Return the expected number of each provider's objects among the k nearest."""
    values, fractions = gaps
    cumulative = np.concatenate([[0.0], fractions])

    def count_within(distance):
        return np.array(
            [
                cumulative[np.searchsorted(values, distance - party_bounds, side="right")].sum()
                for party_bounds in bounds.values()
            ]
        )

    low, high = (
        0.0,
        max(party_bounds[-1] for party_bounds in bounds.values() if len(party_bounds)) + values[-1],
    )
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if count_within(middle).sum() < k else (low, middle)
    below, above = count_within(low), count_within(high)
    weight = (k - below.sum()) / max(above.sum() - below.sum(), 1e-12)
    expected = below + min(max(weight, 0.0), 1.0) * (above - below)
    counts = expected * k / expected.sum()
    counts = counts + surplus * np.sqrt(counts)
    rounded = np.diff(np.floor(np.concatenate([[0.0], np.cumsum(counts)]) + 0.5)).astype(int)
    return {name: min(max(n, 1), k) for name, n in zip(bounds, rounded.tolist(), strict=True)}


def list_rules(gaps):
    """Return the rules by name."""
    return {
        "paper": expected_counts,
        "divided ties": partial(proportional_counts, surplus=0.0),
        "divided ties, surplus": proportional_counts,
        "calibrated": partial(calibrated_counts, gaps=gaps, surplus=0.0),
        "calibrated, surplus": partial(calibrated_counts, gaps=gaps, surplus=0.25),
    }


def print_table(title, objects, metric, factor, query_ids, rules):
    """Print the cost of each rule."""
    owners = quantity_skew(len(objects), N_PROVIDERS, factor=factor, seed=1)
    providers = []
    for name in sorted(set(owners.tolist())):
        rows = np.flatnonzero(owners == name)
        part = objects[rows] if isinstance(objects, np.ndarray) else [objects[i] for i in rows]
        providers.append(
            Provider.of(name, part, metric, decode=decode_query, ids=[str(i) for i in rows])
        )
    print(f"{title}: means over {len(query_ids)} queries; medians in brackets")
    print(
        f"  {'counts':20s} {'round one':>10s} {'both rounds':>17s} {'verified':>9s} {'CPU s':>16s}"
    )
    for name, rule in rules.items():
        rows = np.array(
            [measure_cost(objects[position], providers, rule) for position in query_ids]
        )
        mean, median = rows.mean(axis=0), np.median(rows, axis=0)
        verdict = "met" if mean[0] <= TARGET else "MISSED"
        print(
            f"  {name:20s} {mean[0]:10.3f} {mean[1]:8.3f} ({median[1]:.3f}) {mean[2]:9.1f} "
            f"{mean[3]:8.3f} ({median[3]:.3f})  round one <= {TARGET}: {verdict}",
            flush=True,
        )


def measure_cost(query, providers, rule):
    """Return both ratios, the number of objects verified, and CPU seconds."""
    requested = {}

    def estimate_counts(bounds, k):
        requested.update(rule(bounds, k))
        return requested

    start = time.process_time()
    answer = run(dann(encode_query(query), K, name="q", estimate=estimate_counts), providers).result
    cpu_s = time.process_time() - start
    run(close_queries(["q"]), providers)
    n_true = sum(max(answer.merged.owners.count(party.name), 1) for party in providers)
    n_requested, n_returned = sum(requested.values()), sum(answer.n_returned.values())
    return n_requested / n_true, n_returned / n_true, sum(answer.verified.values()), cpu_s


if __name__ == "__main__":
    main()
