"""All methods on the same clients: tuned in the same way, and scored client by client."""

from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from experiments.knnper.federations import ClientRows
from fedneighbors import baselines
from fedneighbors.baselines._base import Baseline
from fedneighbors.errors import PartyRefused
from fedneighbors.methods.knnper.estimator import KNNPerClassifier
from fedneighbors.methods.knnper.personal._client_state import join_client

PAPER, OURS = "kNN-Per, the paper's mixture", "kNN-Per, pool"

ONE_NETWORK_METHODS = ("FedAvg", "FedAvg, local class shares", "FedAvg+", "head fine-tuning")
"""Methods that start from the same network, which is trained once for all of them."""

BASELINES = tuple(baselines.TITLES)

RATES = (0.02, 0.05, 0.1)
"""Learning rates; the best of federated averaging on held-out rows is used for all methods."""

HitCounts = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Scores:
    """Accuracy of a method.

    Parameters
    ----------
    test, train : dict of str to (int, int)
        Number of correct rows and of all rows of each client: its test rows, and the rows that its
        model was trained on.
    """

    test: HitCounts
    train: HitCounts


Chosen = dict[str, Mapping[str, Any]]


def compare_methods(
    clients: ClientRows,
    settings: Mapping[str, Any],
    *,
    chosen: Chosen | None = None,
    methods: tuple[str, ...] = (*BASELINES, PAPER, OURS),
    rates: tuple[float, ...] = RATES,
) -> tuple[dict[str, Scores], Chosen]:
    """Train, tune and score methods on the same clients.

    Parameters
    ----------
    clients : ClientRows
        All clients; the unseen ones join after training.
    settings : mapping
        Parameters shared by all methods.
    chosen : dict, optional
        Parameters chosen before on the same kind of federation, instead of tuning.
    methods : tuple of str
        Any of :data:`BASELINES`, :data:`PAPER` and :data:`OURS`.
    rates : tuple of float
        Learning rates to try.

    Returns
    -------
    scores : dict of str to Scores
    chosen : dict of str to mapping
        Parameters of each method, chosen on held-out rows of the training clients.
    """
    fitted, parameters = fit_methods(clients, settings, chosen=chosen, methods=methods, rates=rates)
    return {method: score_method(method, fitted[method], clients) for method in methods}, parameters


def fit_methods(
    clients: ClientRows,
    settings: Mapping[str, Any],
    *,
    chosen: Chosen | None = None,
    methods: tuple[str, ...] = (*BASELINES, PAPER, OURS),
    rates: tuple[float, ...] = RATES,
) -> tuple[dict[str, Any], Chosen]:
    """Return methods fitted on training clients, and their chosen settings.

    Parameters
    ----------
    clients, settings, chosen, methods, rates
        As in :func:`compare_methods`.
    """
    parameters = {} if chosen is None else dict(chosen)
    table = _training_rows(clients)
    common: dict[str, Any] = dict(settings, classes=range(clients.n_classes), standardize=False)
    if chosen is None:
        average = baselines.FedAvgClassifier(**common)
        grid = [{"learning_rate": rate} for rate in rates]
        parameters["rate"] = baselines.tune(average, *table, grid=grid).parameters
    common |= parameters["rate"]
    pool = KNNPerClassifier(combine="pool", **common).fit(table[0], table[1], parties=table[2])
    starts = None
    if chosen is None:
        averaging = baselines.FedAvgClassifier(**common)
        starts = baselines.train_start_networks(averaging, *table, final=pool)
    fitted: dict[str, Any] = dict.fromkeys((PAPER, OURS), pool)
    for method in methods:
        if method in BASELINES:
            fitted[method] = _fit_baseline(method, common, table, parameters, starts, pool)
    return fitted, parameters


def score_method(method: str, estimator: Any, clients: ClientRows) -> Scores:
    """Score a fitted method; unseen clients join with their rows.

    Parameters
    ----------
    method : str
        Name of the method.
    estimator : fitted estimator
        A result of :func:`fit_methods`; it is not changed.
    clients : ClientRows
        All clients.
    """
    if method == PAPER:
        return _score_paper_mixture(estimator, clients)
    extended = copy(estimator)  # the unseen clients are added to the copy only
    extended.clients_ = dict(estimator.clients_)
    return _score_clients(extended, clients)


def _training_rows(clients: ClientRows) -> tuple[Any, Any, Any]:
    mask = clients.fit
    return clients.x[mask], clients.y[mask], clients.owners[mask]


def _fit_baseline(
    method: str, common: Mapping[str, Any], table: Any, parameters: Chosen, starts: Any, pool: Any
) -> Any:
    """Return a fitted baseline; store its settings in ``parameters``."""
    baseline = getattr(baselines, baselines.TITLES[method])(**common)
    if method in ONE_NETWORK_METHODS:
        baseline.set_params(start=pool)
    if method in parameters:
        try:
            configured = clone(baseline).set_params(**parameters[method])
            return configured.fit(table[0], table[1], parties=table[2])
        except PartyRefused:  # the given setting diverges on these clients: tune again
            starts = None
    grid: Any = ({},) if method == "FedAvg" else None
    tuning = baselines.tune(baseline, *table, grid=grid, starts=starts)
    parameters.setdefault(method, tuning.parameters)
    return tuning.estimator


def _score_clients(estimator: Any, clients: ClientRows) -> Scores:
    """Add the unseen clients, and predict for all of them."""
    scores = Scores({}, {})
    new_rows = np.flatnonzero(~clients.test & np.isin(clients.owners, clients.unseen))
    if isinstance(estimator, Baseline):
        with suppress(PartyRefused):
            estimator.add_clients(
                clients.x[new_rows], clients.y[new_rows], clients.owners[new_rows]
            )
    for name in sorted(set(clients.owners[new_rows]) - set(estimator.clients_)):
        rows = clients.rows(name, test=False)
        with suppress(PartyRefused):  # training diverges: predict with the shared model
            estimator.add_client(name, clients.x[rows], clients.y[rows])
    for name in clients.names:
        for hits, test in ((scores.test, True), (scores.train, False)):
            rows = clients.rows(name, test=test)
            if len(rows) and len(clients.rows(name, test=False)):
                predicted = estimator.predict(clients.x[rows], parties=[name] * len(rows))
                hits[name] = (int((predicted == clients.y[rows]).sum()), len(rows))
    return scores


def _score_paper_mixture(model: KNNPerClassifier, clients: ClientRows) -> Scores:
    """Predict with the paper's mixture on the pool's network and memories."""
    features, log_probabilities = model._features_and_scores(clients.x)
    scores = Scores({}, {})
    for name in clients.names:
        train, test = clients.rows(name, test=False), clients.rows(name, test=True)
        if name in clients.unseen and len(train):
            state = join_client(
                name,
                features[train],
                log_probabilities[train],
                clients.y[train],
                overall=model.overall_,
                pool=None,
                settings=model._memory_settings,
            )
        elif len(train):
            state = replace(model.clients_[name], pool=None)
        for hits, rows in ((scores.test, test), (scores.train, train)):
            if len(rows) and len(train):
                predicted = state.predict(features[rows], log_probabilities[rows]).argmax(axis=1)
                hits[name] = (int((predicted == clients.y[rows]).sum()), len(rows))
    return scores
