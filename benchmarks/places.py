"""CPU time of nearest places on the Earth, compared with BallTree and cKDTree.

The trees are those of scikit-learn and scipy. Prints the median over queries of our milliseconds
and of each peer's in the same run, the ratios, and the number of queries whose distances agree with
BallTree's (to 1 mm) and cKDTree's (to 20 cm). Queries are searched one at a time. The cKDTree
contains unit vectors: its order is that of the sphere, and its distances are chords, which are
converted to metres here. Then prints our time for many queries, one at a time and in one batch,
over that of the bare cKDTree, which is given unit vectors and returns chords. Reads the folder
named by the environment variable FEDNEIGHBORS_DATA.
"""

import statistics
import time

import numpy as np
from scipy.spatial import cKDTree
from sklearn.neighbors import BallTree

from fedneighbors.datasets._objects import read_objects
from fedneighbors.kernels.vectors._distances import EARTH_RADIUS_M
from fedneighbors.methods.fedknn.metrics._places import HaversineMetric

REPEATS = 5
N_QUERIES = 100
K_VALUES = (1, 10, 128, 1000)
TARGET = 1.0  # relative to the faster peer
N_BARE, BARE_K = 500, (10, 128)
MAX_OVER_BARE = 1.2


def measure_ms(task):
    """Return the median CPU milliseconds of a call and its result."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        result = task()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times), result


def to_unit_vectors(places):
    """Return unit vectors of longitudes and latitudes in degrees."""
    longitude, latitude = np.radians(places).T
    cos_latitude = np.cos(latitude)
    return np.column_stack(
        [cos_latitude * np.cos(longitude), cos_latitude * np.sin(longitude), np.sin(latitude)]
    )


def draw_queries(places):
    """Return places of the table; half of them are moved."""
    rng = np.random.default_rng(0)
    queried = places[rng.choice(len(places), N_QUERIES, replace=False)]
    queried[::2] += rng.normal(scale=0.005, size=queried[::2].shape)
    return queried


def search_balltree(tree, place, k):
    """Return the distances of the nearest in metres, by BallTree."""
    ball_distances, _ = tree.query(np.radians(place[None, ::-1]), k)
    return ball_distances[0] * EARTH_RADIUS_M


def search_ckdtree(tree, place, k):
    """Return the distances of the nearest in metres, by cKDTree."""
    chords, _ = tree.query(to_unit_vectors(place[None])[0], k)
    return 2 * EARTH_RADIUS_M * np.arcsin(np.atleast_1d(chords) / 2)


def main():
    """Print the table."""
    places = np.asarray(read_objects("geonames_west_africa", "places").items)
    indexes = {}
    for name, build in {
        "ours": lambda: HaversineMetric().index(places, ranks=np.arange(len(places))),
        "BallTree": lambda: BallTree(np.radians(places[:, ::-1]), metric="haversine"),
        "cKDTree": lambda: cKDTree(to_unit_vectors(places)),
    }.items():
        start = time.process_time()
        indexes[name] = build(), time.process_time() - start
    build_times = ", ".join(
        f"{name} {1e3 * seconds:.0f} ms" for name, (_, seconds) in indexes.items()
    )
    print(f"{len(places)} places; built in CPU time: {build_times}")
    index, ball, chords = (indexes[name][0] for name in ("ours", "BallTree", "cKDTree"))
    index.open(places[0]).next(1)  # compile
    for k in K_VALUES:
        times, n_equal = [], 0
        for place in draw_queries(places):
            our_ms, found = measure_ms(lambda p=place, n=k: index.open(p).next(n))
            ball_ms, ball_distances = measure_ms(lambda p=place, n=k: search_balltree(ball, p, n))
            chord_ms, chord_distances = measure_ms(
                lambda p=place, n=k: search_ckdtree(chords, p, n)
            )
            times.append((our_ms, ball_ms, chord_ms))
            n_equal += bool(
                np.allclose(found.distances, ball_distances, rtol=0, atol=1e-3)
                and np.allclose(found.distances, chord_distances, rtol=0, atol=0.2)
            )
        our_ms, ball_ms, chord_ms = (
            statistics.median(column) for column in zip(*times, strict=True)
        )
        ratio = statistics.median(min(row[1:]) / row[0] for row in times)
        print(
            f"k {k:4}  ours {our_ms:.4f} ms  BallTree {ball_ms:.4f} ms  cKDTree {chord_ms:.4f} ms  "
            f"{ball_ms / our_ms:.1f}x over BallTree, {chord_ms / our_ms:.2f}x over cKDTree, "
            f"{ratio:.2f}x over the faster one (target {TARGET}x: "
            f"{'met' if ratio >= TARGET else 'MISSED'}); equal {n_equal} of {N_QUERIES}"
        )
    compare_bare(index, chords, places)


def compare_bare(index, tree, places):
    """Print our time over that of the bare cKDTree."""
    rng = np.random.default_rng(1)
    queried = places[rng.choice(len(places), N_BARE, replace=False)]
    queried[::2] += rng.normal(scale=0.005, size=queried[::2].shape)
    vectors = to_unit_vectors(queried)
    for k in BARE_K:
        tasks = {
            "one at a time": (
                lambda n=k: [index.open(place).next(n) for place in queried],
                lambda n=k: [tree.query(vector, n) for vector in vectors],
            ),
            "in a batch": (
                lambda n=k: index.nearest(queried, n, peak=0.0),
                lambda n=k: tree.query(vectors, n),
            ),
        }
        for name, (ours, bare) in tasks.items():
            pairs = [(measure_ms(ours)[0], measure_ms(bare)[0]) for _ in range(REPEATS)]
            columns = zip(*pairs, strict=True)
            our_us, bare_us = (1e3 * statistics.median(ms) / N_BARE for ms in columns)
            ratio = our_us / bare_us
            print(
                f"k {k:4}  {name}: ours {our_us:.1f} us a query, bare cKDTree {bare_us:.1f} us, "
                f"{ratio:.2f}x (target {MAX_OVER_BARE}x: "
                f"{'met' if ratio <= MAX_OVER_BARE else 'MISSED'})"
            )


if __name__ == "__main__":
    main()
