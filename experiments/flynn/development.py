"""Development tables of FlyNN's defaults, disjoint from every table that a result is reported on.

The real ones are sets of the data folder outside ``experiments.flynn.openml.SETS``, at most 1,500
rows of each: two tables of FedPNN, MNIST, CIFAR-10 in 8 x 8 grey squares, places (country and
kind by position) and molecules (activity by numbers of atoms and bonds). The others are generated
from a seed that no study uses.
"""

import csv
import gzip
from collections.abc import Callable

import numpy as np
from sklearn import datasets as generators

from experiments.datasets.synthetic import synthetic_binary, synthetic_real
from fedneighbors._typing import Array
from fedneighbors.datasets import load
from fedneighbors.datasets._catalog import data_folder

Rows = tuple[Array, Array]
Draw = np.random.Generator

MAX_ROWS = 1500
SEED = 9000
N_POOL = 4 * MAX_ROWS  # rows generated of a table


def load_development_set(name: str) -> Rows:
    """Return features and labels of a set in ``DEVELOPMENT_SETS``."""
    rng = np.random.default_rng(SEED)
    x, y = DEVELOPMENT_SETS[name](rng)
    keep = rng.permutation(len(y))[:MAX_ROWS]
    labels, counts = np.unique(y[keep], return_counts=True)
    keep = keep[np.isin(y[keep], labels[counts >= 10])]
    return np.asarray(x[keep], np.float64), np.unique(y[keep], return_inverse=True)[1]


def _loaded(name: str) -> Callable[[Draw], Rows]:
    def make(_rng: Draw) -> Rows:
        data = load(name)
        return data.x, data.y

    return make


def _grey_squares(_rng: Draw) -> Rows:
    with np.load(data_folder("cifar10_12k") / "images" / "cifar10_12k.npz") as content:
        x, y = content["x"], content["y"]
    grey = x.mean(axis=3).reshape(len(x), 8, 4, 8, 4).mean(axis=(2, 4))
    return grey.reshape(len(x), -1), y


def _read_lines(path: str) -> list[str]:
    with gzip.open(data_folder(path) / path, "rt", encoding="utf-8") as lines:
        return lines.read().splitlines()


def _places(label: str) -> Callable[[Draw], Rows]:
    def make(_rng: Draw) -> Rows:
        table = list(csv.DictReader(_read_lines("spatial/geonames_west_africa.csv.gz")))
        position = np.array([[float(place["lon"]), float(place["lat"])] for place in table])
        return position, np.array([place[label] for place in table])

    return make


def _molecules(_rng: Draw) -> Rows:
    counts: list[dict[str, int]] = []
    activity = []
    for line in _read_lines("graphs/aids_hiv_ged.txt.gz"):
        kind, *fields = line.split()
        if kind == "t":
            counts.append({})
            activity.append(fields[2])
        else:
            counts[-1][kind + fields[-1]] = counts[-1].get(kind + fields[-1], 0) + 1
    names = sorted({name for each in counts for name in each})
    return np.array([[each.get(name, 0) for name in names] for each in counts]), np.array(activity)


def _friedman(n_features: int, which: int) -> Callable[[Draw], Rows]:
    def make(rng: Draw) -> Rows:
        seed = int(rng.integers(1 << 31))
        if which == 1:
            x, value = generators.make_friedman1(N_POOL, n_features, noise=1.0, random_state=seed)
        else:
            x, value = generators.make_friedman2(N_POOL, noise=50.0, random_state=seed)
        return x, value < value.mean()

    return make


def _clusters(n_features: int, n_informative: int, **options: object) -> Callable[[Draw], Rows]:
    def make(rng: Draw) -> Rows:
        x, y = generators.make_classification(
            N_POOL,
            n_features,
            n_informative=n_informative,
            n_redundant=0,
            random_state=int(rng.integers(1 << 31)),
            **options,
        )
        return x, y

    return make


def _paper(n_features: int, *, binary: bool) -> Callable[[Draw], Rows]:
    def make(rng: Draw) -> Rows:
        seed = int(rng.integers(1 << 31))
        if binary:
            data = synthetic_binary(MAX_ROWS, n_features, n_ones=10, seed=seed)
        else:
            data = synthetic_real(MAX_ROWS, n_features, seed=seed)
        return data.x, data.y

    return make


def _two_normals(rng: Draw) -> Rows:
    y = rng.integers(2, size=N_POOL)
    return rng.normal(size=(N_POOL, 20)) + np.where(y, 1, -1)[:, None] * 2 / np.sqrt(20), y


def _moons(rng: Draw) -> Rows:
    x, y = generators.make_moons(N_POOL, noise=0.25, random_state=int(rng.integers(1 << 31)))
    return x, y


def _shells(rng: Draw) -> Rows:
    x, y = generators.make_gaussian_quantiles(
        n_samples=N_POOL, n_features=4, n_classes=4, random_state=int(rng.integers(1 << 31))
    )
    return x, y


def _rules(rng: Draw) -> Rows:
    """Draw rare classes by thresholds on two of many columns."""
    skewed = rng.lognormal(sigma=0.7, size=(N_POOL, 6))
    flags = rng.random((N_POOL, 15)) < rng.uniform(0.01, 0.3, size=15)
    y = np.zeros(N_POOL, np.int64)
    y[(skewed[:, 0] > 2.3) & (skewed[:, 1] < 1.5)] = 1
    y[(skewed[:, 0] > 3.2) & (skewed[:, 1] < 0.9) & ~flags[:, 0]] = 2
    return np.hstack([skewed, flags]), y


def _defects(rng: Draw) -> Rows:
    """Draw correlated skewed counts and a noisy rare class."""
    size = rng.normal(size=(N_POOL, 1))
    noise = rng.normal(size=(N_POOL, 20))
    x = np.rint(np.exp(1.5 + 0.9 * size + 0.5 * noise))
    risk = 1 / (1 + np.exp(2.6 - 1.2 * size[:, 0] - 0.5 * noise[:, 0]))
    return x, rng.random(N_POOL) < risk


def _mixed(rng: Draw) -> Rows:
    """Draw skewed numbers and one-hot columns with a noisy class."""
    numbers = rng.lognormal(sigma=1.0, size=(N_POOL, 4))
    categories = rng.integers(6, size=(N_POOL, 6))
    effects = rng.normal(size=(6, 6))
    logit = np.log(numbers[:, :2]).sum(axis=1) + effects[np.arange(6), categories].sum(axis=1) - 1.5
    one_hot = (categories[:, :, None] == np.arange(6)).reshape(N_POOL, -1)
    return np.hstack([numbers, one_hot]), rng.random(N_POOL) < 1 / (1 + np.exp(-logit))


def _sensors(rng: Draw) -> Rows:
    """Draw distances around a robot, whose minima decide its turn."""
    angles = np.arange(24) * 2 * np.pi / 24
    wall = rng.uniform(0, 2 * np.pi, size=(N_POOL, 1))
    near = rng.uniform(0.3, 3.0, size=(N_POOL, 1))
    x = np.minimum(near / np.maximum(np.cos(angles - wall), 0.15), 5.0)
    x *= rng.lognormal(sigma=0.1, size=x.shape)
    front, left = x[:, [23, 0, 1]].min(axis=1), x[:, 4:8].min(axis=1)
    y = np.where(front < 0.9, 0, np.where(left < 0.9, 1, np.where(left < 1.6, 2, 3)))
    return x, y


def _rare_in_noise(rng: Draw) -> Rows:
    """Draw 60 correlated columns that hardly predict a class of six percent."""
    x = rng.normal(size=(N_POOL, 8)) @ rng.normal(size=(8, 60)) + rng.normal(size=(N_POOL, 60))
    risk = 1 / (1 + np.exp(3.6 - 0.35 * (x[:, 0] + x[:, 1])))
    return x, rng.random(N_POOL) < risk


DEVELOPMENT_SETS: dict[str, Callable[[Draw], Rows]] = {
    "polish-bankruptcy-1year": _loaded("polish-bankruptcy-1year"),
    "breast-cancer-wisconsin-original": _loaded("breast-cancer-wisconsin-original"),
    "mnist": _loaded("mnist"),
    "cifar10, grey squares": _grey_squares,
    "places, country": _places("country"),
    "places, kind": _places("fclass"),
    "molecules": _molecules,
    "friedman1, 10 columns": _friedman(10, 1),
    "friedman1, 40 columns": _friedman(40, 1),
    "friedman2": _friedman(4, 2),
    "two normals": _two_normals,
    "moons": _moons,
    "shells": _shells,
    "clusters, 12 columns": _clusters(12, 8, n_classes=5, n_clusters_per_class=2),
    "clusters, 9 to 1": _clusters(20, 12, weights=[0.9], n_clusters_per_class=3),
    "clusters, 30 to 1": _clusters(30, 15, weights=[0.97], n_clusters_per_class=2),
    "clusters in 80 columns": _clusters(80, 5, n_clusters_per_class=4, class_sep=2.5),
    "clusters, noisy labels": _clusters(25, 10, n_classes=3, flip_y=0.2),
    "paper, real": _paper(30, binary=False),
    "paper, binary": _paper(60, binary=True),
    "rules": _rules,
    "defects": _defects,
    "mixed": _mixed,
    "sensors": _sensors,
    "rare in noise": _rare_in_noise,
}
