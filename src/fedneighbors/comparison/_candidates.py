"""Methods that are compared, each as a function from training rows to predictions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedneighbors._typing import Floats
from fedneighbors.comparison._scores import primary_score
from fedneighbors.comparison._table import PartyRows, Task, split

MIN_TUNING_ROWS = 20
"""With fewer rows, the first candidate of a grid is used: a held-out quarter decides nothing."""


@dataclass(frozen=True)
class Training:
    """Training rows, test rows and the task.

    Parameters
    ----------
    train, test : PartyRows
        The targets of the test rows must not be read.
    task : {"classification", "regression"}
        Kind of the targets.
    n_classes : int
        Number of classes in all rows; 0 for regression.
    seed : int
        Seed of inner splits and of models.
    """

    train: PartyRows
    test: PartyRows
    task: Task
    n_classes: int
    seed: int

    @property
    def inner(self) -> "Training":
        """Return the training rows split into training and test rows."""
        train, test = split(self.train, self.task, np.random.default_rng(self.seed))
        return Training(train, test, self.task, self.n_classes, self.seed)

    def of(self, rows: npt.NDArray[Any], tested: npt.NDArray[Any]) -> "Training":
        """Return some training and some test rows."""
        train, test = self.train.select(rows), self.test.select(tested)
        return Training(train, test, self.task, self.n_classes, self.seed)


@dataclass(frozen=True)
class Predictions:
    """Predictions for the test rows, and the exchanges of their training.

    Parameters
    ----------
    values : float64 array
        Class probabilities of shape (n_rows, n_classes), or numbers of shape (n_rows,).
    n_exchanges, n_bytes : int or None
        Exchanges of the training and bytes of their messages, over all parties; None if the
        method was computed without messages.
    """

    values: Floats
    n_exchanges: int | None = None
    n_bytes: int | None = None


Fit = Callable[[Training], Predictions]


@dataclass(frozen=True)
class Candidate:
    """A method or baseline.

    Parameters
    ----------
    name : str
        Name in tables.
    kind : {"federated", "alone", "pooled"}
        Whether parties cooperate, train alone, or would have to pool their rows.
    fits : mapping of {"classification", "regression"} to callable
        Trains and predicts.
    leaves : str
        Data that leave a party.
    budget : str
        Releases that a privacy budget can cover; empty if there is no private variant.
    module : str
        Module of an optional package that the method needs; empty for none.
    """

    name: str
    kind: Literal["federated", "alone", "pooled"]
    fits: Mapping[str, Fit]
    leaves: str
    budget: str = ""
    module: str = ""


def _pad(probabilities: Floats, codes: npt.NDArray[Any], n_classes: int) -> Floats:
    """Return probabilities with a column for every class."""
    padded = np.zeros((len(probabilities), n_classes))
    padded[:, np.asarray(codes, np.int64)] = probabilities
    return padded


def _predict(model: Any, training: Training, *args: Any) -> Floats:
    """Return a fitted model's predictions for the test rows."""
    if training.task == "regression":
        return np.asarray(model.predict(training.test.x, *args), np.float64)
    return _pad(model.predict_proba(training.test.x, *args), model.classes_, training.n_classes)


def choose(grid: Sequence[Fit], training: Training) -> Fit:
    """Return the candidate with the best primary score on held-out training rows.

    Ties go to the first candidate.
    """
    if len(grid) == 1 or len(training.train) < MIN_TUNING_ROWS:
        return grid[0]
    inner = training.inner
    scores = [primary_score(inner.test.y, fit(inner).values, inner.task) for fit in grid]
    return grid[int(np.argmax(scores))]


def _tuned(*grid: Fit) -> Fit:
    """Return a fit that chooses from a grid on held-out training rows."""

    def fit(training: Training) -> Predictions:
        return choose(grid, training)(training)

    return fit


# -- one party's rows, or pooled rows ---------------------------------------------------------


def _fit_rows(make: Callable[[], Any], training: Training) -> Predictions:
    """Train a scikit-learn model on all training rows."""
    train = training.train
    if training.task == "classification" and len(np.unique(train.y)) == 1:
        values = np.zeros((len(training.test), training.n_classes))
        values[:, train.y[0]] = 1.0
        return Predictions(values)
    return Predictions(_predict(make().fit(train.x, train.y), training))


def _scaled(model: Any) -> Callable[[], Any]:
    """Return a function that makes the model on standardized rows without missing cells."""
    filled = SimpleImputer(strategy="median", keep_empty_features=True)
    return lambda: clone(make_pipeline(filled, StandardScaler(), model))


class _Nearest(KNeighborsClassifier):  # type: ignore[misc]
    """k nearest neighbours; k is at most the number of rows."""

    def fit(self, X: Any, y: Any) -> Any:
        """Store the rows."""
        self.n_neighbors = min(self.n_neighbors, len(y))
        return super().fit(X, y)


class _NearestMean(KNeighborsRegressor):  # type: ignore[misc]
    """Mean of the k nearest neighbours; k is at most the number of rows."""

    def fit(self, X: Any, y: Any) -> Any:
        """Store the rows."""
        self.n_neighbors = min(self.n_neighbors, len(y))
        return super().fit(X, y)


_FAMILY: Mapping[str, tuple[Callable[[], Any], ...]] = {
    "classification": (
        partial(HistGradientBoostingClassifier, random_state=0),
        _scaled(LogisticRegression(max_iter=1000)),
        _scaled(_Nearest(15, weights="distance")),
    ),
    "regression": (
        partial(HistGradientBoostingRegressor, random_state=0),
        _scaled(Ridge()),
        _scaled(_NearestMean(15, weights="distance")),
    ),
}
_CENTRAL = {
    task: _tuned(*(partial(_fit_rows, m) for m in family)) for task, family in _FAMILY.items()
}


def _fit_alone(training: Training) -> Predictions:
    """Train the best of the family at each party, for its own test rows."""
    shape = (training.n_classes,) if training.task == "classification" else ()
    values = np.zeros((len(training.test), *shape))
    for party in np.unique(training.test.parties):
        tested = training.test.parties == party
        own = training.of(training.train.parties == party, tested)
        values[tested] = _CENTRAL[training.task](own).values
    return Predictions(values)


def _fit_averaged(make: Callable[[], Any], training: Training) -> Predictions:
    """Average the predictions of models that each party trains alone, weighted by rows."""
    every = np.ones(len(training.test), bool)
    total = np.zeros(1)
    for party in np.unique(training.train.parties):
        rows = training.train.parties == party
        total = total + rows.sum() * _fit_rows(make, training.of(rows, every)).values
    n_parties = len(np.unique(training.train.parties))
    return Predictions(total / len(training.train), n_exchanges=1 if n_parties else None)


# -- methods of this package ------------------------------------------------------------------


def _complete(training: Training) -> Training:
    """Fill missing cells with the medians of the training rows."""
    fill = SimpleImputer(strategy="median", keep_empty_features=True).fit(training.train.x)
    train, test = training.train, training.test
    return Training(
        PartyRows(fill.transform(train.x), train.y, train.parties),
        PartyRows(fill.transform(test.x), test.y, test.parties),
        training.task,
        training.n_classes,
        training.seed,
    )


def _fit_estimator(
    estimator: Any,
    training: Training,
    *,
    personal: bool = False,
    balanced: bool = False,
    scaled: bool = False,
) -> Predictions:
    """Train an estimator of this package over the parties.

    Parameters
    ----------
    estimator : estimator
        Its clone is fitted.
    training : Training
        Rows and task.
    personal : bool
        The model depends on the party of a row.
    balanced : bool
        The model treats all classes as equally frequent: its probabilities are multiplied by the
        classes' frequencies in the training rows.
    scaled : bool
        Standardize the columns by means and variances of all training rows.
    """
    train, test = training.train, training.test
    if scaled:
        scaler = StandardScaler().fit(train.x)
        train = PartyRows(scaler.transform(train.x), train.y, train.parties)
        test = PartyRows(scaler.transform(test.x), test.y, test.parties)
        training = Training(train, test, training.task, training.n_classes, training.seed)
    model = clone(estimator).fit(train.x, train.y, parties=train.parties)
    values = _predict(model, training, *([test.parties] if personal else []))
    if balanced:
        values = values * np.bincount(train.y, minlength=training.n_classes)
        sums = values.sum(axis=1, keepdims=True)
        values = np.where(sums > 0, values / np.where(sums > 0, sums, 1), 1 / training.n_classes)
    rounds = getattr(getattr(model, "run_record_", None), "rounds", None)
    if rounds is None:
        return Predictions(values)
    n_bytes = sum(
        sum(one.upload_bytes.values()) + sum(one.download_bytes.values()) for one in rounds
    )
    return Predictions(values, len(rounds), n_bytes)


def _flynn(training: Training) -> Predictions:
    from fedneighbors.methods.flynn import FlyNNClassifier

    grid = [FlyNNClassifier(), FlyNNClassifier(class_normalized=False)]
    return _tuned(*(partial(_fit_estimator, each) for each in grid))(_complete(training))


def _fedpnn(training: Training) -> Predictions:
    from fedneighbors.methods.fedpnn import FedPNNClassifier

    classes = np.unique(training.train.y).tolist()
    return _fit_estimator(FedPNNClassifier(classes=classes), training, balanced=True)


def _search(training: Training) -> Predictions:
    from fedneighbors.methods.fedknn import (
        FederatedNeighborsClassifier,
        FederatedNeighborsRegressor,
    )

    is_regression = training.task == "regression"
    make = FederatedNeighborsRegressor if is_regression else FederatedNeighborsClassifier
    n_rows = len(training.train)
    grid = [make(min(k, n_rows), weights="distance") for k in (5, 15, 45)]
    return _tuned(*(partial(_fit_estimator, each, scaled=True) for each in grid))(
        _complete(training)
    )


def _knnper(training: Training, **settings: str) -> Predictions:
    from fedneighbors.methods.knnper import KNNPerClassifier, KNNPerRegressor

    make = KNNPerRegressor if training.task == "regression" else KNNPerClassifier
    return _fit_estimator(make(**settings), _complete(training), personal=True)


def _boosting(training: Training) -> Predictions:
    from fedneighbors.baselines import FederatedBoostingClassifier, FederatedBoostingRegressor

    is_regression = training.task == "regression"
    make = FederatedBoostingRegressor if is_regression else FederatedBoostingClassifier
    return _fit_estimator(make(), training)


def _discriminant(training: Training) -> Predictions:
    from fedneighbors.baselines import FederatedDiscriminantClassifier

    grid = [
        FederatedDiscriminantClassifier(),
        FederatedDiscriminantClassifier(quadratic=True),
        FederatedDiscriminantClassifier(n_features=500),
    ]
    return _tuned(*(partial(_fit_estimator, each) for each in grid))(_complete(training))


def _network(training: Training, *, name: str) -> Predictions:
    from fedneighbors import baselines

    estimator = getattr(baselines, name)()
    return _fit_estimator(estimator, _complete(training), personal=True)


def _both(fit: Fit) -> dict[str, Fit]:
    return {"classification": fit, "regression": fit}


_NETWORK = "a network's parameters after each round"

CANDIDATES = (
    Candidate("alone", "alone", _both(_fit_alone), "nothing"),
    Candidate("pooled rows", "pooled", _CENTRAL, "all rows"),
    Candidate(
        "averaged linear models",
        "federated",
        {task: partial(_fit_averaged, family[1]) for task, family in _FAMILY.items()},
        "a model of own rows",
    ),
    Candidate(
        "averaged boosting",
        "federated",
        {task: partial(_fit_averaged, family[0]) for task, family in _FAMILY.items()},
        "a model of own rows",
    ),
    Candidate(
        "discriminant analysis",
        "federated",
        {"classification": _discriminant},
        "sums and products of columns, for each class",
    ),
    Candidate(
        "kNN-Per, discriminants",
        "federated",
        {"classification": partial(_knnper, representation="discriminants")},
        "sums and products of columns, for each class",
    ),
    Candidate(
        "FlyNN",
        "federated",
        {"classification": _flynn},
        "activation counts of each class",
        "counts",
    ),
    Candidate(
        "FedPNN",
        "federated",
        {"classification": _fedpnn},
        "group means of columns, centers of at least five rows",
        "centers and constants",
    ),
    Candidate(
        "kNN search",
        "federated",
        _both(_search),
        "distances and labels of the nearest rows",
        "counts",
    ),
    Candidate(
        "federated boosting",
        "federated",
        _both(_boosting),
        "counts of values; sums of gradients by bin, for each node of each tree",
    ),
    Candidate(
        "FedAvg",
        "federated",
        {"classification": partial(_network, name="FedAvgClassifier")},
        _NETWORK,
        module="torch",
    ),
    Candidate(
        "kNN-Per",
        "federated",
        _both(partial(_knnper, combine="paper")),
        _NETWORK,
        "gradients",
        "torch",
    ),
    Candidate(
        "Ditto",
        "federated",
        {"classification": partial(_network, name="DittoClassifier")},
        _NETWORK,
        module="torch",
    ),
    Candidate(
        "kNN-Per, pool",
        "federated",
        {"classification": partial(_knnper, combine="pool")},
        _NETWORK + ", class sums and products",
        module="torch",
    ),
)
"""Candidates, roughly from the fastest to the slowest."""
