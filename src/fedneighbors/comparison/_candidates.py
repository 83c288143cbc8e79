"""Methods that are compared, each as a function from training rows to predictions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.comparison._scores import primary_score, row_losses
from fedneighbors.comparison._table import PartyRows, Task, split

EPSILON = 1
"""Privacy budget of the private variants."""

DELTA = 1e-5
"""Delta of kNN-Per's private variant; the others need none."""

MIN_TUNING_ROWS = 20
"""With fewer rows, the first candidate of a grid is used: a held-out quarter decides nothing."""


@dataclass(frozen=True)
class Trial:
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
    def inner(self) -> "Trial":
        """Return the training rows split into training and test rows."""
        train, test = split(self.train, self.task, np.random.default_rng(self.seed))
        return Trial(train, test, self.task, self.n_classes, self.seed)

    def of(self, rows: Array, tested: Array) -> "Trial":
        """Return some training and some test rows."""
        train, test = self.train.select(rows), self.test.select(tested)
        return Trial(train, test, self.task, self.n_classes, self.seed)


@dataclass(frozen=True)
class Predictions:
    """Predictions for the test rows, and the exchanges of the training.

    Parameters
    ----------
    values : float64 array
        Class probabilities of shape (n_rows, n_classes), or numbers of shape (n_rows,).
    n_exchanges, n_bytes : int or None
        Exchanges of the training and bytes of their messages, over all parties; None if they were
        not counted.
    """

    values: Floats
    n_exchanges: int | None = None
    n_bytes: int | None = None


Fit = Callable[[Trial], Predictions]
Make = Callable[[int], Any]
"""Function that makes a scikit-learn model for a number of rows."""


@dataclass(frozen=True)
class ComparedMethod:
    """A method or baseline.

    Parameters
    ----------
    name : str
        Name in tables.
    kind : {"federated", "private", "alone", "pooled"}
        Whether parties cooperate, cooperate under a privacy budget, train alone, or would have to
        pool their rows.
    fits : mapping of {"classification", "regression"} to callable
        Trains and predicts.
    leaves : str
        Data that leave a party.
    budget : str
        Releases that a privacy budget can cover; empty if there is no private variant.
    keeps_answers : bool
        The noise of a budget changes no prediction.
    """

    name: str
    kind: Literal["federated", "private", "alone", "pooled"]
    fits: Mapping[str, Fit]
    leaves: str
    budget: str = ""
    keeps_answers: bool = False


def _pad(probabilities: Floats, codes: Array, n_classes: int) -> Floats:
    """Return probabilities with a column for every class."""
    padded = np.zeros((len(probabilities), n_classes))
    padded[:, np.asarray(codes, np.int64)] = probabilities
    return padded


def _predict(model: Any, trial: Trial, *args: Any) -> Floats:
    """Return a fitted model's predictions for the test rows."""
    if trial.task == "regression":
        return np.asarray(model.predict(trial.test.x, *args), np.float64)
    return _pad(model.predict_proba(trial.test.x, *args), model.classes_, trial.n_classes)


def choose(grid: Sequence[Fit], trial: Trial) -> Fit:
    """Return the candidate with the best primary score on held-out training rows.

    Ties go to the first candidate.
    """
    if len(grid) == 1 or len(trial.train) < MIN_TUNING_ROWS:
        return grid[0]
    inner = trial.inner
    scores = [primary_score(inner.test.y, fit(inner).values, inner.task) for fit in grid]
    return grid[int(np.argmax(scores))]


def _tuned(*grid: Fit, few: int = 0) -> Fit:
    """Return a fit that chooses from a grid on held-out training rows.

    With fewer than MIN_TUNING_ROWS, it uses candidate ``few``.
    """

    def fit(trial: Trial) -> Predictions:
        is_few = len(trial.train) < MIN_TUNING_ROWS
        return (grid[few] if is_few else choose(grid, trial))(trial)

    return fit


# -- one party's rows, or pooled rows ---------------------------------------------------------


def fit_rows(make: Make, trial: Trial) -> Predictions:
    """Train a scikit-learn model on all training rows."""
    train = trial.train
    if trial.task == "classification" and len(np.unique(train.y)) == 1:
        values = np.zeros((len(trial.test), trial.n_classes))
        values[:, train.y[0]] = 1.0
        return Predictions(values)
    return Predictions(_predict(make(len(train)).fit(train.x, train.y), trial))


def _scaled(make_model: Make) -> Make:
    """Return a function that makes a model on standardized, filled rows."""

    def make(n_rows: int) -> Any:
        filled = SimpleImputer(strategy="median", keep_empty_features=True)
        return make_pipeline(filled, StandardScaler(), make_model(n_rows))

    return make


FAMILY: Mapping[str, tuple[Make, ...]] = {  # boosting, a linear model, nearest neighbours
    "classification": (
        lambda _: HistGradientBoostingClassifier(random_state=0),
        _scaled(lambda _: LogisticRegression(max_iter=1000)),
        _scaled(lambda n_rows: KNeighborsClassifier(min(15, n_rows), weights="distance")),
    ),
    "regression": (
        lambda _: HistGradientBoostingRegressor(random_state=0),
        _scaled(lambda _: Ridge()),
        _scaled(lambda n_rows: KNeighborsRegressor(min(15, n_rows), weights="distance")),
    ),
}
_ALONE = {"boosting": 0, "kNN": 2}
"""Members of a family that a party's rows are compared with before it joins."""

_CENTRAL = {  # boosting cannot split a few rows: the linear model is trained on these
    task: _tuned(*(partial(fit_rows, m) for m in family), few=1) for task, family in FAMILY.items()
}


def losses_alone(trial: Trial) -> dict[str, Floats]:
    """Return losses of test rows by boosting and kNN."""
    family = FAMILY[trial.task]
    return {
        title: row_losses(trial.test.y, fit_rows(family[member], trial).values, trial.task)
        for title, member in _ALONE.items()
    }


def _fit_alone(trial: Trial) -> Predictions:
    """Train at each party alone, for its own test rows."""
    shape = (trial.n_classes,) if trial.task == "classification" else ()
    values = np.zeros((len(trial.test), *shape))
    for party in np.unique(trial.test.parties):
        tested = trial.test.parties == party
        own = trial.of(trial.train.parties == party, tested)
        values[tested] = _CENTRAL[trial.task](own).values
    return Predictions(values)


def _fit_averaged(make: Make, trial: Trial) -> Predictions:
    """Return the mean predictions of the parties' models, weighted by rows."""
    every = np.ones(len(trial.test), bool)
    total = np.zeros(1)
    for party in np.unique(trial.train.parties):
        rows = trial.train.parties == party
        total = total + rows.sum() * fit_rows(make, trial.of(rows, every)).values
    n_parties = len(np.unique(trial.train.parties))
    return Predictions(total / len(trial.train), n_exchanges=1 if n_parties else None)


# -- methods of this package ------------------------------------------------------------------


def _transform(trial: Trial, transformer: Any) -> Trial:
    """Return the trial with columns transformed by constants of the training rows."""
    transformer.fit(trial.train.x)
    train, test = (
        replace(rows, x=transformer.transform(rows.x)) for rows in (trial.train, trial.test)
    )
    return replace(trial, train=train, test=test)


def _complete(trial: Trial) -> Trial:
    """Fill missing cells with the medians of the training rows."""
    return _transform(trial, SimpleImputer(strategy="median", keep_empty_features=True))


def reweight(probabilities: Floats, counts: Integers) -> Floats:
    """Return the probabilities of equally frequent classes for classes of these counts."""
    values = probabilities * counts
    sums = values.sum(axis=1, keepdims=True)
    return np.where(sums > 0, values / np.where(sums > 0, sums, 1), 1 / len(counts))


def _fit_estimator(
    estimator: Any,
    trial: Trial,
    *,
    personal: bool = False,
    balanced: bool = False,
    pooled: bool = False,
) -> Predictions:
    """Train an estimator of this package over the parties.

    Parameters
    ----------
    estimator : estimator
        Its clone is fitted.
    trial : Trial
        Rows and task.
    personal : bool
        The model depends on the party of a row.
    balanced : bool
        The model treats all classes as equally frequent: its probabilities are multiplied by the
        classes' frequencies in the training rows.
    pooled : bool
        Train on the pooled rows, which is faster: the model is the same bit for bit.
    """
    train, test = trial.train, trial.test
    model = clone(estimator).fit(train.x, train.y, parties=None if pooled else train.parties)
    values = _predict(model, trial, *([test.parties] if personal else []))
    if balanced:
        values = reweight(values, np.bincount(train.y, minlength=trial.n_classes))
    rounds = getattr(getattr(model, "run_record_", None), "rounds", None)
    if rounds is None:
        return Predictions(values)
    if pooled:
        return Predictions(values, len(rounds))
    n_bytes = sum(
        sum(one.upload_bytes.values()) + sum(one.download_bytes.values()) for one in rounds
    )
    return Predictions(values, len(rounds), n_bytes)


def _flynn(trial: Trial) -> Predictions:
    from fedneighbors.methods.flynn import FlyNNClassifier

    return _fit_estimator(FlyNNClassifier(), _complete(trial))


def _fedpnn(trial: Trial) -> Predictions:
    from fedneighbors.methods.fedpnn import FedPNNClassifier

    classes = np.unique(trial.train.y).tolist()
    return _fit_estimator(FedPNNClassifier(classes=classes), trial, balanced=True)


def _private(trial: Trial, *, name: str) -> Predictions:
    """Train FlyNN, FedPNN or kNN-Per under a privacy budget.

    The classes, and the columns' ranges in the training rows, are treated as declared.
    """
    from fedneighbors.methods.fedpnn import FedPNNClassifier
    from fedneighbors.methods.flynn import FlyNNClassifier
    from fedneighbors.methods.knnper import KNNPerClassifier
    from fedneighbors.privacy import Privacy

    trial = _transform(_complete(trial), MinMaxScaler((-1, 1), clip=True))
    privacy = Privacy(EPSILON, classes=tuple(range(trial.n_classes)), bounds=(-1, 1))
    if name == "FlyNN":  # noised means and deviations would take a part of the budget
        return _fit_estimator(FlyNNClassifier(standardize=False, privacy=privacy), trial)
    if name == "kNN-Per":
        private = KNNPerClassifier(privacy=replace(privacy, delta=DELTA))
        return _fit_estimator(private, trial, personal=True)
    bounds = np.tile([-1.0, 1.0], (trial.train.x.shape[1], 1))
    privacy = replace(privacy, bounds=None)
    return _fit_estimator(FedPNNClassifier(privacy=privacy, bounds=bounds), trial, balanced=True)


def _knnper(trial: Trial, **settings: str) -> Predictions:
    from fedneighbors.methods.knnper import KNNPerClassifier, KNNPerRegressor

    make = KNNPerRegressor if trial.task == "regression" else KNNPerClassifier
    return _fit_estimator(make(**settings), _complete(trial), personal=True)


def list_estimators(name: str, trial: Trial) -> list[Any]:
    """Return the estimators of a method, from which held-out training rows choose."""
    from fedneighbors import baselines
    from fedneighbors.methods import fedknn

    kind = "Regressor" if trial.task == "regression" else "Classifier"
    if name == "federated boosting":
        return [getattr(baselines, f"FederatedBoosting{kind}")()]
    if name == "kNN search":
        make = getattr(fedknn, f"FederatedNeighbors{kind}")
        n_neighbors = [min(k, len(trial.train)) for k in (5, 15, 45)]
        return [make(k, weights="distance", standardize=True) for k in n_neighbors]
    settings: list[dict[str, Any]] = [{}, {"quadratic": True}, {"n_features": 500}]
    classes, counts = np.unique(trial.inner.train.y, return_counts=True)
    if counts.min() < 2 or len(classes) < len(np.unique(trial.train.y)):
        del settings[1]  # a covariance needs two rows of a class
    return [baselines.FederatedDiscriminantClassifier(**values) for values in settings]


def choose_estimator(estimators: Sequence[Any], trial: Trial) -> Any:
    """Return the estimator with the best primary score on held-out training rows."""
    fits: list[Fit] = [partial(_fit_estimator, each, pooled=True) for each in estimators]
    return estimators[fits.index(choose(fits, trial))]


def _shared_model(trial: Trial, *, name: str, pooled: bool) -> Predictions:
    """Train a method with one model in its best setting."""
    if name != "federated boosting":
        trial = _complete(trial)
    estimators = list_estimators(name, trial)
    return _fit_estimator(choose_estimator(estimators, trial), trial, pooled=pooled)


def _network(trial: Trial, *, name: str) -> Predictions:
    from fedneighbors import baselines

    estimator = getattr(baselines, name)()
    return _fit_estimator(estimator, _complete(trial), personal=True)


def _both(fit: Fit) -> dict[str, Fit]:
    return {"classification": fit, "regression": fit}


def private_name(name: str) -> str:
    """Return the name of a method's private variant."""
    return f"{name}, epsilon {EPSILON}"


_NETWORK = "a network's parameters after each round"
CANDIDATES = (
    ComparedMethod("alone", "alone", _both(_fit_alone), "nothing"),
    ComparedMethod("pooled rows", "pooled", _CENTRAL, "all rows"),
    ComparedMethod(
        "averaged linear models",
        "federated",
        {task: partial(_fit_averaged, family[1]) for task, family in FAMILY.items()},
        "a model of own rows",
    ),
    ComparedMethod(
        "averaged boosting",
        "federated",
        {task: partial(_fit_averaged, family[0]) for task, family in FAMILY.items()},
        "a model of own rows",
    ),
    ComparedMethod(
        "discriminant analysis",
        "federated",
        {
            "classification": partial(_shared_model, name="discriminant analysis", pooled=False),
        },
        "sums and products of columns, for each class",
    ),
    ComparedMethod(
        "kNN-Per, discriminants",
        "federated",
        {"classification": partial(_knnper, representation="discriminants")},
        "sums and products of columns, for each class",
    ),
    ComparedMethod(
        "FlyNN",
        "federated",
        {"classification": _flynn},
        "activation counts of each class",
        "counts",
    ),
    ComparedMethod(
        "FedPNN",
        "federated",
        {"classification": _fedpnn},
        "group means of columns, centers of at least five rows",
        "centers and constants",
    ),
    ComparedMethod(
        "kNN search",
        "federated",
        _both(partial(_shared_model, name="kNN search", pooled=True)),
        "distances and labels of the nearest rows",
        "counts",
        keeps_answers=True,
    ),
    ComparedMethod(
        "federated boosting",
        "federated",
        _both(partial(_shared_model, name="federated boosting", pooled=True)),
        "counts of values; sums of gradients by bin, for each node of each tree",
    ),
    ComparedMethod(
        "FedAvg",
        "federated",
        {"classification": partial(_network, name="FedAvgClassifier")},
        _NETWORK,
    ),
    ComparedMethod(
        "kNN-Per",
        "federated",
        _both(partial(_knnper, representation="network", combine="paper")),
        _NETWORK,
        "gradients",
    ),
    ComparedMethod(
        "Ditto",
        "federated",
        {"classification": partial(_network, name="DittoClassifier")},
        _NETWORK,
    ),
    ComparedMethod(
        "kNN-Per, pool",
        "federated",
        {"classification": partial(_knnper, representation="network", combine="pool")},
        _NETWORK + ", class sums and products",
    ),
    *(
        ComparedMethod(
            private_name(name),
            "private",
            {"classification": partial(_private, name=name)},
            "noised sums",
        )
        for name in ("FlyNN", "FedPNN", "kNN-Per")
    ),
)
"""Candidates, roughly from the fastest to the slowest."""
