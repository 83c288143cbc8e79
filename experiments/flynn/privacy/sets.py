"""Data sets of the privacy study, and the measurements of one repetition."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from experiments.datasets.synthetic import synthetic_private
from experiments.flynn.privacy.releases import (
    Setting,
    choose_picks,
    exact_model,
    hash_data,
    private_model,
    score,
)
from fedneighbors._typing import Array
from fedneighbors.datasets import load
from fedneighbors.methods.flynn._features import choose_expansion
from fedneighbors.methods.flynn.estimator import FlyNNClassifier
from fedneighbors.metrics import balanced_accuracy
from fedneighbors.partition import iid
from fedneighbors.privacy._policy import Privacy

DELTA = 1e-6
N_PARTIES = 2
N_PARTIES_OF_TABLES = 8

EXACT = "no privacy"
EXACT_PRINTED = "no privacy, gamma = .9"
PICKED = "paper's mechanism"
DEFAULT_PICKS = "paper's mechanism, default T"
LOCAL = "local"
CENTRAL = "central"
TEST_ROWS = "standard error from the test rows"

DEFAULTS = "library's defaults"
SCALED = "m=300 s=3 rho=15, library's features"
_SMALLEST = Setting(300, 3, 15)

Mechanism = Literal["paper", "local", "central"]
Part = tuple[Array, Array]


@dataclass(frozen=True)
class Grid:
    """Varied settings.

    Parameters
    ----------
    epsilons : tuple of float
        Values of epsilon.
    n_picks : tuple of int
        Values of T.
    settings : tuple of Setting
        Sizes for the generated sets.
    """

    epsilons: tuple[float, ...]
    n_picks: tuple[int, ...]
    settings: tuple[Setting, ...]

    @property
    def party_epsilons(self) -> tuple[float, ...]:
        """Return the values that one of two parties may spend.

        All of epsilon, or half of it under the printed accounting.
        """
        return tuple(sorted({*self.epsilons, *(e / N_PARTIES for e in self.epsilons)}))


@dataclass(frozen=True)
class Point:
    """One score.

    Parameters
    ----------
    data, setting, line : str
        Data set, sizes and mechanism.
    seed : int
        Seed of the repetition.
    value : float
        Balanced accuracy on the test rows.
    epsilon : float
        Epsilon of a training, or of the release of one party if T was varied; 0 without privacy.
    n_picks : int
        T if it was varied, otherwise 0.
    """

    data: str
    setting: str
    line: str
    seed: int
    value: float
    epsilon: float = 0.0
    n_picks: int = 0


@dataclass(frozen=True)
class Generated:
    """Generated sets of appendix D.8; a repetition draws a new set, hash and noise.

    Parameters
    ----------
    n_rows : int
        Number of training rows.
    n_repeats : int
        Number of sets.
    """

    n_rows: int
    n_repeats: int

    @property
    def name(self) -> str:
        """Return the name of the case."""
        return f"n={self.n_rows}"

    def measure(self, grid: Grid, seed: int) -> list[Point]:
        """Measure the scores on one set."""
        train, test = synthetic_private(self.n_rows, seed=seed).train_test()
        rows = _Rows(self.name, (train.x, train.y), (test.x, test.y), seed)
        points = [point for setting in grid.settings for point in rows.score_setting(setting, grid)]
        points += rows.score_estimator(SCALED, grid, (CENTRAL,), sizes=_SMALLEST)
        return points + rows.score_estimator(DEFAULTS, grid, (DEFAULT_PICKS, LOCAL, CENTRAL))


@dataclass(frozen=True)
class Digits:
    """Images of 3 and 8; a repetition draws a new hash and noise.

    Parameters
    ----------
    data : {"mnist", "digits"}
        Name to load.
    n_repeats : int
        Repetitions.
    """

    data: str
    n_repeats: int

    @property
    def name(self) -> str:
        """Return the name of the case."""
        return f"{self.data}, 3 vs 8"

    def measure(self, grid: Grid, seed: int) -> list[Point]:
        """Measure the scores of one repetition."""
        rows = _Rows(self.name, *_load_threes_and_eights(self.data), seed)
        d = rows.train[0].shape[1]
        setting = Setting(30 * d, max(1, round(0.00625 * d)), 3 * d)
        points = rows.score_setting(setting, grid)
        return points + rows.score_estimator(DEFAULTS, grid, (DEFAULT_PICKS, LOCAL, CENTRAL))


@dataclass(frozen=True)
class RealTable:
    """A real table of 8 parties at epsilon = 1; a repetition draws a new partition, hash and noise.

    Test rows are the test part of the source, or else the last 28 % of a fixed permutation.

    Parameters
    ----------
    data : str
        Name to load.
    n_repeats : int
        Repetitions.
    fresh : bool
        True if the defaults of private training were certainly chosen without the test rows.
    """

    data: str
    n_repeats: int
    fresh: bool

    @property
    def name(self) -> str:
        """Return the name of the case."""
        return self.data

    def measure(self, _grid: Grid, seed: int) -> list[Point]:
        """Measure the scores of one repetition."""
        (x, y), (x_test, truth) = _load_split(self.data)
        owners = iid(len(y), N_PARTIES_OF_TABLES, seed=seed)
        models = {
            line: FlyNNClassifier(random_state=seed, privacy=privacy, **_fixed(x.shape[1])).fit(
                x, y, parties=owners
            )
            for line, privacy in (
                (EXACT, None),
                (CENTRAL, _add_declarations(_privacy(CENTRAL, 1.0), (x, y))),
            )
        }
        predictions = {line: model.predict(x_test) for line, model in models.items()}
        values = {
            line: balanced_accuracy(truth, predicted) for line, predicted in predictions.items()
        }
        values[TEST_ROWS] = _difference_error(truth, predictions[EXACT], predictions[CENTRAL])
        return [
            Point(self.name, DEFAULTS, line, seed, value, 0.0 if line == EXACT else 1.0)
            for line, value in values.items()
        ]


Case = Generated | Digits | RealTable


def measure(case: Case, grid: Grid, seed: int) -> list[Point]:
    """Return the scores of one repetition.

    Defined in a module so that other processes can import it.
    """
    return case.measure(grid, seed)


def _privacy(line: str, epsilon: float, n_picks: int | None = None) -> Privacy:
    mechanism: Mechanism = "paper"
    if line in (LOCAL, CENTRAL):
        mechanism = "local" if line == LOCAL else "central"
    return Privacy(
        epsilon=epsilon,
        delta=DELTA if line == CENTRAL else 0,
        mechanism=mechanism,
        n_picks=n_picks,
    )


def _add_declarations(privacy: Privacy, train: Part) -> Privacy:
    """Add the labels and ranges of the training columns as declared ones."""
    x, y = train
    ranges = x.min(axis=0), x.max(axis=0)
    return replace(privacy, classes=tuple(np.unique(y).tolist()), bounds=ranges)


@dataclass(frozen=True)
class _Rows:
    """Training and test rows of one repetition, split evenly over two parties."""

    data: str
    train: Part
    test: Part
    seed: int

    @property
    def owners(self) -> Array:
        return iid(len(self.train[1]), N_PARTIES, seed=self.seed)

    def score_setting(self, setting: Setting, grid: Grid) -> list[Point]:
        """Score all mechanisms with the paper's sizes, from one hash."""
        data = hash_data(setting, self.train, self.test, parties=self.owners, seed=self.seed)
        printed: dict[str, Any] = {"decay": setting.decay, "class_normalized": False}
        models = [
            (EXACT_PRINTED, 0.0, 0, exact_model(data, **printed)),
            (EXACT, 0.0, 0, exact_model(data)),
        ]
        for line in (LOCAL, CENTRAL):
            for epsilon in grid.epsilons:
                models.append((line, epsilon, 0, private_model(data, _privacy(line, epsilon))))
        for epsilon in grid.party_epsilons:
            for n_picks in grid.n_picks:
                privacy = _privacy(PICKED, epsilon, n_picks)
                models.append((PICKED, epsilon, n_picks, private_model(data, privacy, **printed)))
        for epsilon in grid.epsilons:
            privacy = _privacy(PICKED, epsilon)
            model = private_model(data, privacy, **printed)
            models.append((DEFAULT_PICKS, epsilon, choose_picks(data, privacy)[0], model))
        return [
            Point(self.data, setting.name, line, self.seed, score(model, data), epsilon, n_picks)
            for line, epsilon, n_picks, model in models
        ]

    def score_estimator(
        self, name: str, grid: Grid, lines: Sequence[str], *, sizes: Setting | None = None
    ) -> list[Point]:
        """Score the library's classifier, with the given or default sizes."""
        runs = [(EXACT, 0.0), *((line, e) for line in lines for e in grid.epsilons)]
        return [
            Point(
                self.data, name, line, self.seed, self._fit_and_score(line, epsilon, sizes), epsilon
            )
            for line, epsilon in runs
        ]

    def _fit_and_score(self, line: str, epsilon: float, sizes: Setting | None) -> float:
        model = FlyNNClassifier(
            n_units=sizes.n_units if sizes else None,
            n_inputs=sizes.n_inputs if sizes else None,
            n_active=sizes.n_active if sizes else None,
            random_state=self.seed,
            standardize=line == EXACT,  # the columns share one scale; noised moments cost more
            privacy=None
            if line == EXACT
            else _add_declarations(_privacy(line, epsilon), self.train),
            **_fixed(self.train[0].shape[1]),
        )
        model.fit(*self.train, parties=self.owners)
        return balanced_accuracy(self.test[1], model.predict(self.test[0]))


def _fixed(n_features: int) -> dict[str, Any]:
    """Return the parameters of private training, for all lines."""
    return {
        "decay": None,
        "class_normalized": True,
        "expand": choose_expansion("auto", n_features),
    }


def _load_threes_and_eights(name: str) -> tuple[Part, Part]:
    """Return training and test part.

    Without a split of the source, every fourth row is for testing.
    """
    data = load(name)
    labels = data.y.astype(np.int64)
    selected = (labels == 3) | (labels == 8)
    if data.n_train is None:
        is_test = np.arange(len(labels)) % 4 == 0
    else:
        is_test = np.arange(len(labels)) >= data.n_train
    x, y = data.x, labels
    return (
        (x[selected & ~is_test], y[selected & ~is_test]),
        (x[selected & is_test], y[selected & is_test]),
    )


def _load_split(name: str) -> tuple[Part, Part]:
    data = load(name)
    if data.n_train is not None:
        train, test = data.train_test()
        return (train.x, train.y), (test.x, test.y)
    order = np.random.default_rng(1).permutation(len(data.y))
    train_rows, test_rows = np.split(order, [round(0.72 * len(order))])
    return (data.x[train_rows], data.y[train_rows]), (data.x[test_rows], data.y[test_rows])


def _difference_error(truth: Array, first: Array, second: Array) -> float:
    """Return the standard error of a difference in balanced accuracy."""
    differences = (second == truth).astype(np.float64) - (first == truth)
    by_class = [differences[truth == label] for label in np.unique(truth)]
    return float(np.sqrt(sum(g.var() / len(g) for g in by_class)) / len(by_class))
