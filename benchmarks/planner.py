"""Fraction of cells in which the planner's choice is within 10 % of the fastest algorithm.

    python benchmarks/planner.py [--quick] [--samples 7] [--tests 7] [--no-graphs]

Needs ``FEDNEIGHBORS_DATA``. A cell is a collection (words under edit distance, places under
haversine, vectors under Euclidean distance, molecules under graph edit distance with queries of 12
or 13 atoms), a split (uniform, or Zipf .6 except for molecules), a number of providers, a number of
neighbors and a link delay. In each cell the planner measures sample queries and chooses; then every
algorithm answers other queries, and the medians are compared. There are two sets of candidates: the
baseline and DANN, and the baseline and DANN* (epsilon 1, delta 1e-6).

Providers answer one after another, so that they do not share this machine's cores, and an exchange
takes as long as its slowest provider: the latency if each provider has a machine of its own. Plans
and searches are measured in CPU seconds of the working thread, since other programs may use the
machine. The seconds for delays and for transfers at 100 Mbit/s are calculated and added. The last
table compares some cells with the wall time of worker processes that sleep for their links' delays.
"""

import argparse
import os
import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedneighbors.datasets._graphs import read_graphs
from fedneighbors.datasets._objects import read_objects
from fedneighbors.federation._inprocess import connected
from fedneighbors.federation._links import Link
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.planner._costs import LinkCost, measure
from fedneighbors.methods.fedknn.planner._plan import make_plan, star_candidate
from fedneighbors.methods.fedknn.private._noise import CountNoise
from fedneighbors.methods.fedknn.private.protocol import dann_star
from fedneighbors.methods.fedknn.protocol import baseline, close_queries, dann
from fedneighbors.partition import quantity_skew

DELAYS_S = (0.0, 0.007, 0.064, 0.243)
BYTES_PER_S = 12.5e6
MAX_K = 128
MAX_REGRET, TARGET = 1.1, 0.95
CANDIDATE_SETS = {"with DANN": ("baseline", "dann"), "with DANN*": ("baseline", "dann*")}


@dataclass
class Collection:
    """Objects of one kind, and queries that are not among them."""

    name: str
    metric: str
    objects: object
    queries: list
    splits: tuple


@dataclass
class MeasuredRun:
    """The exchanges of one search, and the CPU seconds of the broker."""

    rounds: tuple
    broker_s: float

    def seconds(self, delay_s):
        """Return the latency over a link, one machine per provider."""
        return self.broker_s + sum(
            max(
                delay_s
                + (exchange.download_bytes[name] + exchange.upload_bytes[name])
                / BYTES_PER_S
                * (delay_s > 0)
                + exchange.busy_s[name]
                for name in exchange.busy_s
            )
            for exchange in self.rounds
        )


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--tests", type=int, default=7)
    parser.add_argument("--no-graphs", action="store_true")
    options = parser.parse_args()
    start = time.perf_counter()
    collections = read_collections(options)
    cells = []
    with use_cpu_clock():
        for collection in collections:
            for split in collection.splits[: 1 if options.quick else 2]:
                for m in (4, 16) if options.quick else (4, 8, 16):
                    cells += measure_federation(collection, split, m, options)
    print_summary(cells)
    print_validation(collections, options)
    print(f"{time.perf_counter() - start:.0f} s of wall time")


@contextmanager
def use_cpu_clock():
    """Let `time.perf_counter` return the CPU time of the calling thread."""
    wall = time.perf_counter
    time.perf_counter = time.thread_time
    try:
        yield
    finally:
        time.perf_counter = wall


def read_collections(options):
    """Return the collections, with queries removed from the objects."""
    folder = Path(os.environ["FEDNEIGHBORS_DATA"])
    rng = np.random.default_rng(0)
    words = list(read_objects(folder / "strings" / "words_en.txt.gz", "strings").items)
    places = np.array(
        read_objects(folder / "spatial" / "geonames_west_africa.csv.gz", "places").items
    )
    centers = rng.normal(size=(50, 64))
    vectors = centers[rng.integers(0, 50, 20_000)] + 0.5 * rng.normal(size=(20_000, 64))
    n = options.samples + options.tests
    uniform_and_zipf = (0.0, 0.6)
    collections = [
        make_collection(
            "words", "edit", words, rng.choice(len(words), n, replace=False), uniform_and_zipf
        ),
        make_collection(
            "places",
            "haversine",
            places,
            rng.choice(len(places), n, replace=False),
            uniform_and_zipf,
        ),
        make_collection(
            "vectors",
            "euclidean",
            vectors,
            rng.choice(len(vectors), n, replace=False),
            uniform_and_zipf,
        ),
    ]
    if not options.no_graphs:
        graphs = read_graphs(folder / "graphs" / "aids_hiv_ged.txt.gz").graphs
        small_ids = [i for i, graph in enumerate(graphs) if graph.n_nodes in (12, 13)]
        query_ids = rng.choice(small_ids, n, replace=False)
        collections.append(
            make_collection("molecules", "graph_edit", graphs, query_ids, uniform_and_zipf[:1])
        )
    return collections


def make_collection(name, metric, objects, query_ids, splits):
    """Return a collection without the queried objects."""
    queries = [encode_query(objects[i]) for i in query_ids.tolist()]
    if isinstance(objects, np.ndarray):
        return Collection(name, metric, np.delete(objects, query_ids, axis=0), queries, splits)
    excluded = set(query_ids.tolist())
    remaining = [item for i, item in enumerate(objects) if i not in excluded]
    return Collection(name, metric, remaining, queries, splits)


def make_providers(collection, split, m):
    """Return the providers of a split."""
    owners = quantity_skew(len(collection.objects), m, factor=split, seed=0)
    providers = []
    for name in sorted(set(owners.tolist())):
        rows = np.flatnonzero(owners == name)
        provider_objects = (
            collection.objects[rows]
            if isinstance(collection.objects, np.ndarray)
            else [collection.objects[row] for row in rows.tolist()]
        )
        ids = [str(row) for row in rows.tolist()]
        metric = metric_of(collection.metric)
        providers.append(
            Provider(name, provider_objects, metric, decode=decode_query, ids=ids, key=b"0")
        )
    return providers


def list_algorithms(m, k):
    """Return the candidates of plans, and the algorithms to run."""
    draw = CountNoise(1, "1e-6", n_providers=m, k=k).draw

    def run_star(query, k, *, name):
        return dann_star(
            query, k, name=name, noise_of=lambda _, names: {name: draw() for name in names}
        )

    candidates_of_plan = {"baseline": baseline, "dann": dann, "dann*": star_candidate(draw)}
    return candidates_of_plan, {"baseline": baseline, "dann": dann, "dann*": run_star}


def add_link(costs, delay_s):
    """Add the delay and bandwidth of a link to measured costs."""
    transfer_s = 1 / BYTES_PER_S if delay_s > 0 else 0.0
    links = {
        name: LinkCost(
            link.round_trip_s + delay_s, link.download_s + transfer_s, link.upload_s + transfer_s
        )
        for name, link in costs.links.items()
    }
    return replace(costs, links=links)


def measure_federation(collection, split, m, options):
    """Plan and run a federation's cells; print a line per k."""
    samples = collection.queries[: options.samples]
    tests = collection.queries[options.samples :]
    cells = []
    with connected(make_providers(collection, split, m)) as federation:
        costs = measure(federation, samples, MAX_K)
        for k in (8, MAX_K) if options.quick else (8, 32, MAX_K):
            candidates_of_plan, algorithms = list_algorithms(m, k)
            runs_of = run_all(federation, algorithms, tests, k)
            line = f"{collection.name:<10} split {split:<4} m {m:<3} k {k:<4}"
            for delay_s in DELAYS_S:
                seconds = {
                    name: statistics.median(run.seconds(delay_s) for run in runs)
                    for name, runs in runs_of.items()
                }
                for candidate_set, names_of_set in CANDIDATE_SETS.items():
                    candidates = {name: candidates_of_plan[name] for name in names_of_set}
                    plan = make_plan(add_link(costs, delay_s), k, candidates=candidates)
                    best = min(seconds[name] for name in names_of_set)
                    regret = seconds[plan.algorithm] / best
                    expected = plan.predictions[0].total_s / seconds[plan.algorithm]
                    cells.append((collection.name, candidate_set, plan.algorithm, regret, expected))
                    line += f" {plan.algorithm:>8} {regret:4.2f}"
                line += " |"
            fastest = " ".join(f"{1e3 * run.seconds(0):.1f}" for run in select_median_runs(runs_of))
            print(f"{line} ms without link: {fastest}", flush=True)
    return cells


def select_median_runs(runs_of):
    """Return each algorithm's run of median latency."""
    return [
        sorted(runs, key=lambda run: run.seconds(0))[len(runs) // 2] for runs in runs_of.values()
    ]


def run_all(federation, algorithms, queries, k):
    """Run all algorithms on all queries.

    The first query is run once more at the start, as a warm-up.
    """
    runs_of = {name: [] for name in algorithms}
    for index, query in enumerate([queries[0], *queries]):
        for name, algorithm in algorithms.items():
            start = time.perf_counter()
            search_name = f"{name} {k} {index}"
            outcome = federation.run(algorithm(query, k, name=search_name))
            # CPU time of this thread, the broker; each provider has a thread of its own
            broker_s = time.perf_counter() - start
            federation.run(close_queries([search_name]))
            if index:
                runs_of[name].append(MeasuredRun(outcome.rounds, broker_s))
    return runs_of


def print_summary(cells):
    """Print the fraction of cells with a near-optimal plan, and the regrets."""
    for candidate_set in CANDIDATE_SETS:
        cells_of_set = [cell for cell in cells if cell[1] == candidate_set]
        fraction = float(np.mean([regret <= MAX_REGRET for _, _, _, regret, _ in cells_of_set]))
        worst = max(regret for _, _, _, regret, _ in cells_of_set)
        mean = float(np.mean([regret for _, _, _, regret, _ in cells_of_set]))
        verdict = "met" if fraction >= TARGET else "MISSED"
        print(
            f"{candidate_set}: {len(cells_of_set)} cells, {100 * fraction:.1f} % within 10 % "
            f"of the best (target >= {100 * TARGET:.0f} %: {verdict}); "
            f"mean regret {mean:.3f}, worst {worst:.2f}"
        )
        for name in dict.fromkeys(cell[0] for cell in cells_of_set):
            cells_of_collection = [cell for cell in cells_of_set if cell[0] == name]
            n_near = sum(regret <= MAX_REGRET for _, _, _, regret, _ in cells_of_collection)
            expected = np.quantile([cell[4] for cell in cells_of_collection], [0.1, 0.5, 0.9])
            n_chosen = {
                a: sum(cell[2] == a for cell in cells_of_collection)
                for a in ("baseline", "dann", "dann*")
            }
            counts = ", ".join(f"{a} {n}" for a, n in n_chosen.items() if n)
            print(
                f"  {name:<10} {n_near} of {len(cells_of_collection)}; chosen: {counts}; "
                f"predicted over measured {expected[1]:.2f} "
                f"({expected[0]:.2f} to {expected[2]:.2f})"
            )


def print_validation(collections, options):
    """Print plans and latencies of worker processes that sleep for delays."""
    print("worker processes and real sleeps, m = 4, k = 32, ms: median (and predicted)")
    for collection in collections:
        providers = make_providers(collection, 0.0, 4)
        samples = collection.queries[: options.samples]
        tests = collection.queries[options.samples :]
        candidates_of_plan, algorithms = list_algorithms(4, 32)
        with use_cpu_clock(), connected(providers) as federation:
            simulated = run_all(federation, algorithms, tests, 32)
        for delay_s in (0.007, 0.064):
            link = Link(delay_s, bytes_per_s=BYTES_PER_S)
            with connected(providers, workers="processes", link=link) as federation:
                costs = measure(federation, samples, 32, sequential=True)
                plan = make_plan(
                    costs, 32, candidates=candidates_of_plan, n_parallel=os.cpu_count()
                )
                seconds_of = {name: [] for name in algorithms}
                for index, query in enumerate([tests[0], *tests]):
                    for name, algorithm in algorithms.items():
                        start, search_name = time.perf_counter(), f"{name} {index}"
                        federation.run(algorithm(query, 32, name=search_name))
                        seconds_of[name] += [time.perf_counter() - start] if index else []
                        federation.run(close_queries([search_name]))
            expected = {p.algorithm: p.total_s for p in plan.predictions}
            rows = "; ".join(
                f"{name} {1e3 * statistics.median(seconds_of[name]):.1f} "
                f"({1e3 * expected[name]:.1f}; calculated "
                f"{1e3 * statistics.median(r.seconds(delay_s) for r in simulated[name]):.1f})"
                for name in algorithms
            )
            print(f"  {collection.name:<10} {1e3 * delay_s:>4.0f} ms: {plan.algorithm} | {rows}")


if __name__ == "__main__":
    main()
