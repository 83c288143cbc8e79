"""Latency of ``eager`` relative to the best of the baseline, DANN and HuFu+.

    PYTHONPATH=. python benchmarks/eager.py COLLECTION [--rows 3000] [--queries 10] [--k 16 128]
        [--m 8 16] [--limit 20]

Needs ``FEDNEIGHBORS_DATA`` for all collections but SYN. A cell is a split (uniform, Zipf .6, or
clustered: similar objects at one provider), a number of providers, k and a round trip. Providers
answer one after another in one thread; work, deadlines included, is counted in CPU seconds, and an
exchange takes as long as its slowest provider plus the link (20 Mbit/s). ``bound`` is the latency
of a single exchange that knows the k-th distance and tie beforehand: no exact search is faster.
Queries that exceed the limit under any algorithm are left out and counted. ``eager`` runs with the
parameters of ``auto``, which has seen one query before.

The constants of ``eager`` were tuned on the prototype's recordings of SYN (seed 0) and genomes. SYN
is generated with another seed here.
"""

import argparse
import itertools
import os
import statistics
import time
from unittest import mock

import numpy as np

from experiments.fedknn.measurement.collections import Collection, generate_syn, load_collection
from experiments.fedknn.measurement.replay import replay
from fedneighbors.federation._links import Link
from fedneighbors.federation._loop import Outcome
from fedneighbors.methods.fedknn._eager import eager
from fedneighbors.methods.fedknn._planning import Planner
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn._radius import hufu_plus
from fedneighbors.methods.fedknn.estimator import FederatedNeighbors
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.protocol import (
    ActiveProviders,
    FinishRequest,
    NearestRequest,
    baseline,
    certify_answer,
    dann,
    read_parts,
)
from fedneighbors.partition import quantity_skew
from fedneighbors.records import Round

SETTINGS = (("uniform", 8), ("skewed", 8), ("clustered", 8), ("uniform", 16), ("skewed", 16))
ROUND_TRIPS_S = (0.007, 0.064, 0.243)
BYTES_PER_S = 2.5e6
SETTINGS_OF_SEARCH = FederatedNeighbors()._settings(0.0)
RIVALS = ("baseline", "dann", "hufu+")


def load(name, n_rows):
    """Return a collection of at most ``n_rows`` objects."""
    if name == "SYN":
        return generate_syn(n_rows, seed=1)
    if name == "vectors":
        points = np.random.default_rng(1).standard_normal((n_rows, 32))
        return Collection("vectors", "euclidean", points, "", 0.0)
    return load_collection(name).sample(n_rows, seed=1)


def sort_key(item):
    """Return a size or coordinate that similar objects share."""
    if isinstance(item, np.ndarray):
        return float(item[0])
    return len(item) if isinstance(item, str) else len(item.node_labels) + len(item.edges)


def split(objects, name, m):
    """Return the owner of each object."""
    owners = quantity_skew(len(objects), m, factor=0.6 if name == "skewed" else 0.0, seed=0)
    if name == "clustered":
        order = np.argsort([sort_key(item) for item in objects], kind="stable")
        owners = np.asarray(owners)
        owners[order] = np.sort(owners)
    return owners


def search_knowing(query, k, place, *, name):
    """Search in one exchange, given the place of the k-th object."""
    active = ActiveProviders()
    replies = yield active.ask(NearestRequest(name, query, k, *place))
    parts, verified = read_parts(replies, "bound", active=active, cutoff=place[0], tie=place[1])
    return certify_answer(parts, verified, k, algorithm="bound", active=active)


def measure(coordinator, providers, name, limit_s):
    """Return the costs of a search in CPU seconds; None if late."""
    with mock.patch.object(time, "monotonic", time.thread_time):
        costs = replay(coordinator, providers, limit_s=limit_s)
    for provider in providers:
        provider.answer(FinishRequest((name,)))
    return costs if costs.answer is not None else None


def observe(planner, answer, k, round_trip_s):
    """Pass an answer and its round trip to a planner."""
    record = Round(0, "EagerRequest", "gather", {}, {}, round_trip_s, {}, {"": 0.0})
    planner.run(lambda _: Outcome(answer, (record,)), SETTINGS_OF_SEARCH, b"", k, ledger=None)


def measure_query(collection, providers, planners, row, k, numbers, limit_s):
    """Return the seconds and the work of each algorithm."""
    query = encode_query(collection.objects[row])
    step = {"step": collection.step}
    searches = {
        "dann": lambda name: dann(query, k, name=name),
        "hufu+": lambda name: hufu_plus(query, k, name=name, **step),
        "baseline": lambda name: baseline(query, k, name=name),
    }
    for round_trip_s, planner in planners.items():
        pace = planner.pace(k)
        searches["eager", round_trip_s] = lambda name, pace=pace: eager(
            query, k, name=name, pace=pace
        )
    seconds, work, place = {}, {}, None
    for kind, search in searches.items():
        name = f"query {next(numbers)}"
        costs = measure(search(name), providers, name, limit_s)
        if costs is None:
            return None
        place = costs.answer.merged.sort_key(k)
        work[kind] = sum(costs.local_s.values())
        trips = ROUND_TRIPS_S if isinstance(kind, str) else kind[1:]
        for round_trip_s in trips:
            label = kind if isinstance(kind, str) else kind[0]
            seconds[label, round_trip_s] = costs.seconds(Link(round_trip_s, BYTES_PER_S))
    for round_trip_s, planner in planners.items():
        observe(planner, costs.answer, k, round_trip_s)
    name = f"query {next(numbers)}"
    costs = measure(search_knowing(query, k, place, name=name), providers, name, limit_s)
    for round_trip_s in ROUND_TRIPS_S:
        seconds["bound", round_trip_s] = costs.seconds(Link(round_trip_s, BYTES_PER_S))
    return seconds, work


def main():
    """Measure all cells of a collection and print their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collection")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--queries", type=int, default=10)
    parser.add_argument("--k", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--m", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--limit", type=float, default=20.0)
    options = parser.parse_args()
    collection, numbers = load(options.collection, options.rows), itertools.count()
    print(f"{collection.name}: {len(collection.objects)} objects, {os.cpu_count()} cores")
    ratios = []
    settings = [setting for setting in SETTINGS if setting[1] in options.m]
    for (split_name, m), k in itertools.product(settings, options.k):
        owners = np.asarray(split(collection.objects, split_name, m))
        metric, providers = metric_of(collection.metric), []
        for owner in sorted(set(owners.tolist())):
            objects = [collection.objects[row] for row in np.flatnonzero(owners == owner)]
            providers.append(Provider.of(str(owner), objects, metric, decode=decode_query))
        sizes = {provider.name: provider.size(None) for provider in providers}
        planners = {trip_s: Planner(sizes, shares_cores=False) for trip_s in ROUND_TRIPS_S}
        found = [
            measure_query(collection, providers, planners, row, k, numbers, options.limit)
            for row in range(1 + options.queries)
        ][1:]
        done = [one for one in found if one is not None]
        if not done:
            print(f"{split_name} m={m} k={k}: all queries are late", flush=True)
            continue
        text = []
        for round_trip_s in ROUND_TRIPS_S:
            means = {
                name: statistics.fmean(seconds[name, round_trip_s] for seconds, _ in done)
                for name in (*RIVALS, "eager", "bound")
            }
            best = min(RIVALS, key=means.get)
            ratios.append(means["eager"] / means[best])
            work = sum(work["eager", round_trip_s] for _, work in done)
            work /= sum(work["dann"] for _, work in done)
            text.append(
                f"{1e3 * round_trip_s:.0f} ms: {ratios[-1]:.2f} of {best}, "
                f"{means['eager'] / means['bound']:.2f} of bound, work {work:.2f} of dann"
            )
        late = len(found) - len(done)
        print(f"{split_name} m={m} k={k} ({late} late): " + "; ".join(text), flush=True)
    print(
        f"{len(ratios)} cells: at most 1.1 in {np.mean(np.array(ratios) <= 1.1):.0%}, largest "
        f"{max(ratios):.2f}, geometric mean {statistics.geometric_mean(ratios):.2f}"
    )


if __name__ == "__main__":
    main()
