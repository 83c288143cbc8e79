"""CPU seconds of nearest places on the Earth against scikit-learn's BallTree and scipy's cKDTree.

Prints the median over queries of our milliseconds and of each peer's in the same run, one query at
a time as a provider is asked, the ratio, and whether all distances agree to a millimetre. The
cKDTree holds unit vectors: its order is that of the sphere, its distances are chords, which are
turned into metres here. Reads the folder named by the environment variable FEDNEIGHBORS_DATA.
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


def cpu_ms(task):
    """Return the median CPU milliseconds of a call and its result."""
    spent = []
    for _ in range(REPEATS):
        start = time.process_time()
        result = task()
        spent.append(time.process_time() - start)
    return 1e3 * statistics.median(spent), result


def on_sphere(places):
    """Return unit vectors of longitudes and latitudes in degrees."""
    longitude, latitude = np.radians(places).T
    level = np.cos(latitude)
    return np.column_stack([level * np.cos(longitude), level * np.sin(longitude), np.sin(latitude)])


def queries(places):
    """Return places of the table, every second one some hundred metres off."""
    rng = np.random.default_rng(0)
    chosen = places[rng.choice(len(places), N_QUERIES, replace=False)]
    chosen[::2] += rng.normal(scale=0.005, size=chosen[::2].shape)
    return chosen


def by_ball(tree, place, k):
    """Return metres of the nearest by scikit-learn's tree."""
    far, _ = tree.query(np.radians(place[None, ::-1]), k)
    return far[0] * EARTH_RADIUS_M


def by_chords(tree, place, k):
    """Return metres of the nearest by a tree of unit vectors."""
    chords, _ = tree.query(on_sphere(place[None])[0], k)
    return 2 * EARTH_RADIUS_M * np.arcsin(np.atleast_1d(chords) / 2)


def main():
    """Print the table."""
    places = np.asarray(read_objects("geonames_west_africa", "places").items)
    built = {}
    for name, build in {
        "ours": lambda: HaversineMetric().index(places, ranks=np.arange(len(places))),
        "BallTree": lambda: BallTree(np.radians(places[:, ::-1]), metric="haversine"),
        "cKDTree": lambda: cKDTree(on_sphere(places)),
    }.items():
        start = time.process_time()
        built[name] = build(), time.process_time() - start
    told = ", ".join(f"{name} {1e3 * spent:.0f} ms" for name, (_, spent) in built.items())
    print(f"{len(places)} places; built in CPU time: {told}")
    index, ball, chords = (built[name][0] for name in ("ours", "BallTree", "cKDTree"))
    index.open(places[0]).next(1)  # compile
    for k in K_VALUES:
        spent, n_right = [], 0
        for place in queries(places):
            ours, found = cpu_ms(lambda p=place, n=k: index.open(p).next(n))
            theirs, far = cpu_ms(lambda p=place, n=k: by_ball(ball, p, n))
            chord, near = cpu_ms(lambda p=place, n=k: by_chords(chords, p, n))
            spent.append((ours, theirs, chord))
            n_right += bool(
                np.allclose(found.distances, far, rtol=0, atol=1e-3)
                and np.allclose(found.distances, near, rtol=0, atol=0.2)
            )
        ours, theirs, chord = (statistics.median(column) for column in zip(*spent, strict=True))
        ratios = [min(row[1:]) / row[0] for row in spent]
        print(
            f"k {k:4}  ours {ours:.4f} ms  BallTree {theirs:.4f} ms  cKDTree {chord:.4f} ms  "
            f"{theirs / ours:.1f}x over BallTree, {chord / ours:.2f}x over cKDTree, "
            f"{statistics.median(ratios):.2f}x over the faster one; equal {n_right} of {N_QUERIES}"
        )


if __name__ == "__main__":
    main()
