"""First counts of DANN: the paper's, shared ties, a surplus, and counts by a calibrated gap.

    python benchmarks/counts.py [--queries 24] [--limit 2] [--only molecules titles places]

Needs ``FEDNEIGHBORS_DATA``. For 8 providers, k = 128, uniform and Zipf .6 splits, prints for each
way of counting, as means over the queries: objects asked in round one, and returned in both rounds,
over the true number, sum of max(true_i, 1); objects verified; and CPU seconds of the whole search,
providers included. Queries are drawn from the data. Of the molecules only those count whose search
for k over the whole table ends within the limit, in CPU seconds; the list is drawn in a fixed order
until there are enough. Counts by a calibrated gap have learned on other queries how far distances
lie above their bounds, with gaps that are only known to be larger than what was searched
(Kaplan-Meier); the surplus was chosen on other queries too.
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
from fedneighbors.methods.fedknn.algorithm import expected_counts, shared_counts
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.protocol import close_queries, dann
from fedneighbors.partition._splits import quantity_skew

K, M = 128, 8
TARGET = 1.2
LEARNED = 12


def molecules(folder):
    """Return the graphs and their metric."""
    return read_graphs(folder / "graphs" / "aids_hiv_ged.txt.gz").graphs, metric_of("graph_edit")


def titles(folder):
    """Return the titles and their metric."""
    with gzip.open(folder / "strings" / "dblp_titles_14k.txt.gz", "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in lines], metric_of("edit")


def places(folder):
    """Return the places and their metric."""
    path = folder / "spatial" / "geonames_west_africa.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [(float(row["lon"]), float(row["lat"])) for row in csv.DictReader(lines)]
    return np.array(rows), metric_of("haversine")


DATA = {"molecules": molecules, "titles": titles, "places": places}


def main():
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--queries", type=int, default=24)
    options.add_argument("--limit", type=float, default=2.0)
    options.add_argument("--only", nargs="+", choices=DATA, default=list(DATA))
    given = options.parse_args()
    folder = Path(os.environ["FEDNEIGHBORS_DATA"])
    for name in given.only:
        objects, metric = DATA[name](folder)
        chosen, gaps = choose(objects, metric, given)
        for split, factor in (("uniform", 0.0), ("Zipf .6", 0.6)):
            show(f"{name}, {split}", objects, metric, factor, chosen, ways(gaps))


def choose(objects, metric, given):
    """Return queries and the gaps learned on others.

    All searches end within the limit.
    """
    index = metric.index(objects, ranks=np.arange(len(objects)))
    chosen, gaps, tried, limited = [], [], 0, metric.name == "graph_edit"
    index.open(objects[0]).next(1)  # compile
    for place in np.random.default_rng(2024).permutation(len(objects)).tolist():
        if len(chosen) == LEARNED + given.queries:
            break
        tried += 1
        found = nearest(index.open(objects[place]), given.limit if limited else np.inf)
        if found is None:
            continue
        if len(chosen) < LEARNED:
            gaps.append(gaps_of(index.open(objects[place]).bounds(), found))
        chosen.append(place)
    rule = f", of {tried} drawn those that end within {given.limit:g} s" if limited else ""
    print(f"{metric.name}: {len(objects)} objects, {len(chosen)} queries{rule}", flush=True)
    if len(chosen) <= LEARNED:
        raise SystemExit(f"{LEARNED} queries are learned on; only {len(chosen)} were found")
    return chosen[LEARNED:], survival(*map(np.concatenate, zip(*gaps, strict=True)))


def nearest(session, limit_s):
    """Return the k nearest; None beyond the CPU limit."""
    positions, distances, start = [], [], time.process_time()
    while len(positions) < K:
        if time.process_time() - start > limit_s:
            return None
        found = session.next(K - len(positions), deadline_s=0.1)
        positions += found.positions[: found.n_certified].tolist()
        distances += found.distances[: found.n_certified].tolist()
    return np.array(positions), np.array(distances)


def gaps_of(bounds, found):
    """Return the gaps of distances to bounds, and their completeness."""
    positions, reached = found
    farthest = reached[-1]
    near = np.flatnonzero(bounds <= farthest)
    seen = np.isin(near, positions)
    distances = np.full(len(bounds), np.inf)
    distances[positions] = reached
    gaps = np.where(seen, distances[near] - bounds[near], farthest - bounds[near])
    # objects not found may be at the farthest distance: nothing is known about the last step
    return np.where(seen, gaps, np.nextafter(gaps, -1.0)), seen


def survival(gaps, seen):
    """Return ascending gaps with the share of objects up to each."""
    values = np.unique(gaps[seen])
    left, shares = 1.0, []
    for value in values:
        left *= 1 - (seen & (gaps == value)).sum() / (gaps >= value).sum()
        shares.append(1 - left)
    return values, np.array(shares)


def calibrated_counts(bounds, k, *, gaps, surplus):
    """Return counts by expected objects within the k-th distance."""
    values, shares = gaps
    steps = np.concatenate([[0.0], shares])

    def within(distance):
        return np.array(
            [
                steps[np.searchsorted(values, distance - own, side="right")].sum()
                for own in bounds.values()
            ]
        )

    low, high = 0.0, max(own[-1] for own in bounds.values() if len(own)) + values[-1]
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle).sum() < k else (low, middle)
    few, many = within(low), within(high)
    part = (k - few.sum()) / max(many.sum() - few.sum(), 1e-12)
    expected = few + min(max(part, 0.0), 1.0) * (many - few)
    wanted = expected * k / expected.sum()
    wanted = wanted + surplus * np.sqrt(wanted)
    whole = np.diff(np.floor(np.concatenate([[0.0], np.cumsum(wanted)]) + 0.5)).astype(int)
    return {name: min(max(n, 1), k) for name, n in zip(bounds, whole.tolist(), strict=True)}


def ways(gaps):
    """Return the ways of counting."""
    return {
        "paper": expected_counts,
        "shared ties": partial(shared_counts, surplus=0.0),
        "shared, surplus": shared_counts,
        "calibrated": partial(calibrated_counts, gaps=gaps, surplus=0.0),
        "calibrated, surplus": partial(calibrated_counts, gaps=gaps, surplus=0.25),
    }


def show(title, objects, metric, factor, chosen, ways):
    """Print the cost of each estimate of counts."""
    owners = quantity_skew(len(objects), M, factor=factor, seed=1)
    providers = []
    for name in sorted(set(owners.tolist())):
        rows = np.flatnonzero(owners == name)
        own = objects[rows] if isinstance(objects, np.ndarray) else [objects[i] for i in rows]
        providers.append(
            Provider(name, own, metric, decode=decode_query, ids=[str(i) for i in rows])
        )
    print(f"{title}: means over {len(chosen)} queries; medians in brackets")
    print(
        f"  {'counts':20s} {'round one':>10s} {'both rounds':>17s} {'verified':>9s} {'CPU s':>16s}"
    )
    for name, way in ways.items():
        rows = np.array([cost(objects[place], providers, way) for place in chosen])
        mean, median = rows.mean(axis=0), np.median(rows, axis=0)
        verdict = "met" if mean[0] <= TARGET else "MISSED"
        print(
            f"  {name:20s} {mean[0]:10.3f} {mean[1]:8.3f} ({median[1]:.3f}) {mean[2]:9.1f} "
            f"{mean[3]:8.3f} ({median[3]:.3f})  round one <= {TARGET}: {verdict}",
            flush=True,
        )


def cost(query, providers, way):
    """Return ratios of objects asked, verified, and CPU seconds."""
    asked = {}

    def counted(bounds, k):
        asked.update(way(bounds, k))
        return asked

    start = time.process_time()
    answer = run(dann(encode_query(query), K, name="q", estimate=counted), providers).result
    spent = time.process_time() - start
    run(close_queries(["q"]), providers)
    true = sum(max(answer.merged.owners.count(party.name), 1) for party in providers)
    first, both = sum(asked.values()), sum(answer.n_returned.values())
    return first / true, both / true, sum(answer.verified.values()), spent


if __name__ == "__main__":
    main()
