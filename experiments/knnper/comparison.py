"""All methods on the clients of one crowd: tuned alike, and scored client by client."""

from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from experiments.knnper.federations import Crowd
from fedneighbors import baselines
from fedneighbors.baselines._base import Baseline
from fedneighbors.errors import PartyRefused
from fedneighbors.methods.knnper.estimator import KNNPerClassifier
from fedneighbors.methods.knnper.personal._client_state import join_client

PAPER, OURS = "kNN-Per, the paper's mixture", "kNN-Per, pool"

STARTED = ("FedAvg", "FedAvg, local class shares", "FedAvg+", "head fine-tuning")
"""Methods that make something of one network, which is trained once for all of them."""

BASELINES = tuple(baselines.TITLES)

RATES = (0.02, 0.05, 0.1)
"""Learning rates, of which federated averaging takes the best on held-out rows, for all methods."""

Right = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Scores:
    """Accuracy of a method.

    Parameters
    ----------
    test, own : dict of str to (int, int)
        For each client how many rows are right, and of how many: on its test rows, and on the rows
        from which its model comes.
    """

    test: Right
    own: Right


Chosen = dict[str, Mapping[str, Any]]


def contest(
    people: Crowd,
    settings: Mapping[str, Any],
    *,
    chosen: Chosen | None = None,
    methods: tuple[str, ...] = (*BASELINES, PAPER, OURS),
    rates: tuple[float, ...] = RATES,
) -> tuple[dict[str, Scores], Chosen]:
    """Train, tune and score methods on one crowd.

    Parameters
    ----------
    people : Crowd
        Clients, of which the unseen come after training.
    settings : mapping
        Parameters that all methods have in common.
    chosen : dict, optional
        Parameters chosen on another crowd of the kind: then nothing is tuned.
    methods : tuple of str
        Which of :data:`BASELINES`, :data:`PAPER` and :data:`OURS`.
    rates : tuple of float
        Learning rates that are tried.

    Returns
    -------
    scores : dict of str to Scores
    chosen : dict of str to mapping
        Parameters of each method, chosen on held-out rows of the training clients.
    """
    fitted, found = entrants(people, settings, chosen=chosen, methods=methods, rates=rates)
    return {method: scored(method, fitted[method], people) for method in methods}, found


def entrants(
    people: Crowd,
    settings: Mapping[str, Any],
    *,
    chosen: Chosen | None = None,
    methods: tuple[str, ...] = (*BASELINES, PAPER, OURS),
    rates: tuple[float, ...] = RATES,
) -> tuple[dict[str, Any], Chosen]:
    """Return methods fitted on training clients, and their chosen settings.

    Parameters
    ----------
    people, settings, chosen, methods, rates
        As :func:`contest` takes them.
    """
    found = {} if chosen is None else dict(chosen)
    table = _training(people)
    common: dict[str, Any] = dict(settings, classes=range(people.n_classes), standardize=False)
    if chosen is None:
        average = baselines.FedAvgClassifier(**common)
        grid = [{"learning_rate": rate} for rate in rates]
        found["rate"] = baselines.tuned(average, *table, grid=grid).parameters
    common |= found["rate"]
    pool = KNNPerClassifier(combine="pool", **common).fit(table[0], table[1], parties=table[2])
    starts = None
    if chosen is None:
        asked = baselines.FedAvgClassifier(**common)
        starts = baselines.average_starts(asked, *table, final=pool)
    fitted: dict[str, Any] = dict.fromkeys((PAPER, OURS), pool)
    for method in methods:
        if method in BASELINES:
            fitted[method] = _entrant(method, common, table, found, starts, pool)
    return fitted, found


def scored(method: str, entrant: Any, people: Crowd) -> Scores:
    """Score a fitted method; unseen clients join with their rows.

    Parameters
    ----------
    method : str
        Its name.
    entrant : fitted estimator
        As :func:`entrants` gave it; it is not changed.
    people : Crowd
        All clients.
    """
    if method == PAPER:
        return _of_the_paper(entrant, people)
    served = copy(entrant)
    served.clients_ = dict(entrant.clients_)
    return _scored(served, people)


def _training(people: Crowd) -> tuple[Any, Any, Any]:
    fitted = people.fit
    return people.x[fitted], people.y[fitted], people.owners[fitted]


def _entrant(
    method: str, common: Mapping[str, Any], table: Any, found: Chosen, starts: Any, pool: Any
) -> Any:
    """Return a fitted baseline; store its settings in ``found``."""
    baseline = getattr(baselines, baselines.TITLES[method])(**common)
    if method in STARTED:
        baseline.set_params(start=pool)
    if method in found:
        try:
            tuned = clone(baseline).set_params(**found[method])
            return tuned.fit(table[0], table[1], parties=table[2])
        except PartyRefused:  # a setting chosen elsewhere diverges here: choose again
            starts = None
    grid: Any = ({},) if method == "FedAvg" else None
    tuning = baselines.tuned(baseline, *table, grid=grid, starts=starts)
    found.setdefault(method, tuning.parameters)
    return tuning.estimator


def _scored(entrant: Any, people: Crowd) -> Scores:
    """Add the unseen clients, and predict for all of them."""
    found = Scores({}, {})
    late = np.flatnonzero(~people.test & np.isin(people.owners, people.unseen))
    if isinstance(entrant, Baseline):
        with suppress(PartyRefused):
            entrant.add_clients(people.x[late], people.y[late], people.owners[late])
    for name in sorted(set(people.owners[late]) - set(entrant.clients_)):
        rows = people.rows(name, test=False)
        with suppress(PartyRefused):  # its training diverges: it keeps the shared model
            entrant.add_client(name, people.x[rows], people.y[rows])
    for name in people.names:
        for right, test in ((found.test, True), (found.own, False)):
            rows = people.rows(name, test=test)
            if len(rows) and len(people.rows(name, test=False)):
                guess = entrant.predict(people.x[rows], parties=[name] * len(rows))
                right[name] = (int((guess == people.y[rows]).sum()), len(rows))
    return found


def _of_the_paper(model: KNNPerClassifier, people: Crowd) -> Scores:
    """Predict with the paper's mixture on the pool's network and memories."""
    view, logs = model._features_and_scores(people.x)
    found = Scores({}, {})
    for name in people.names:
        known, asked = people.rows(name, test=False), people.rows(name, test=True)
        if name in people.unseen and len(known):
            personal = join_client(
                name,
                view[known],
                logs[known],
                people.y[known],
                overall=model.overall_,
                pool=None,
                settings=model._memory_settings,
            )
        elif len(known):
            personal = replace(model.clients_[name], pool=None)
        for right, rows in ((found.test, asked), (found.own, known)):
            if len(rows) and len(known):
                guess = personal.predict(view[rows], logs[rows]).argmax(axis=1)
                right[name] = (int((guess == people.y[rows]).sum()), len(rows))
    return found
