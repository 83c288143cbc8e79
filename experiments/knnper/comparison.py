"""All methods on the same clients: tuned in the same way, and scored client by client."""

from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from experiments.knnper.federations import ClientRows
from fedneighbors import baselines
from fedneighbors.baselines._base import Baseline
from fedneighbors.errors import PartyRefused
from fedneighbors.methods.knnper.estimator import KNNPerClassifier

PAPER, OURS = "kNN-Per, the paper's mixture", "kNN-Per, pool"
DISCRIMINANTS, DEFAULT = "kNN-Per, discriminants", "KNNPerClassifier()"

WITHOUT_NETWORK = (DISCRIMINANTS, DEFAULT)
"""Methods without network and rounds, which are not tuned: the last has all default settings."""

BASELINES = tuple(baselines.TITLES)
RIVALS = (*BASELINES, PAPER)
"""Methods that do not use discriminants by themselves."""

METHODS = (*RIVALS, OURS, *WITHOUT_NETWORK)

RATES = (0.03, 0.1, 0.3)
"""Learning rates that every method tries first."""

MORE_RATES = (0.01, 0.02, 0.05, 0.2)
"""Learning rates that methods without settings of their own try next."""

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

    test: HitCounts = field(default_factory=dict)
    train: HitCounts = field(default_factory=dict)


def add_discriminants(clients: ClientRows) -> ClientRows:
    """Append the discriminants of the training clients' rows as columns.

    They are those of :data:`DISCRIMINANTS`, in units of their standard deviation.

    Parameters
    ----------
    clients : ClientRows
        Clients with a table of numbers.
    """
    mask = clients.fit
    model = make_estimator(DISCRIMINANTS, clients, {})
    model.fit(clients.x[mask], clients.y[mask], parties=clients.owners[mask])
    keys = np.asarray(model.embed(clients.x)[0])
    deviation = keys[mask].std(axis=0)
    scaled = keys / np.where(deviation > 0, deviation, 1)
    return replace(clients, x=np.hstack([clients.x, scaled]))


def make_estimator(method: str, clients: ClientRows, settings: Mapping[str, Any]) -> Any:
    """Return the estimator of a method, not fitted.

    Parameters
    ----------
    method : str
        One of :data:`METHODS`.
    clients : ClientRows
        The clients; their classes are read.
    settings : mapping
        Parameters of networks, rounds and SGD, and the seed.
    """
    seed = settings.get("random_state", 0)
    common = {"classes": range(clients.n_classes), "random_state": seed}
    if method == DEFAULT:
        return KNNPerClassifier(**common)
    if method == DISCRIMINANTS:
        return KNNPerClassifier(representation="discriminants", combine="paper", **common)
    common |= {"standardize": False, **settings}
    if method in (PAPER, OURS):
        common |= {"representation": "network", "combine": "paper" if method == PAPER else "pool"}
        return KNNPerClassifier(**common)
    return getattr(baselines, baselines.TITLES[method])(**common)


def fit_method(
    method: str,
    clients: ClientRows,
    settings: Mapping[str, Any],
    *,
    parameters: Mapping[str, Any] | None = None,
    rates: tuple[float, ...] = RATES,
    more_rates: tuple[float, ...] = MORE_RATES,
    n_own: int = 4,
) -> tuple[Any, Mapping[str, Any]]:
    """Return a method fitted on training clients, and its chosen settings.

    Every method tries the learning rates, and then at most ``n_own`` settings of its own at the
    best of them, on held-out rows of the training clients.

    Parameters
    ----------
    method, clients, settings
        As in :func:`make_estimator`.
    parameters : mapping, optional
        Settings chosen before on the same kind of federation, instead of tuning.
    rates, more_rates : tuple of float
        Learning rates of all methods, and of those without settings of their own.
    n_own : int
        Maximum number of settings of a method's own.
    """
    estimator, mask = make_estimator(method, clients, settings), clients.fit
    table = (clients.x[mask], clients.y[mask], clients.owners[mask])
    if method in WITHOUT_NETWORK:
        return estimator.fit(*table[:2], parties=table[2]), {}
    if parameters is not None:
        with suppress(PartyRefused):  # it diverges on these clients: tune again
            configured = clone(estimator).set_params(**parameters)
            return configured.fit(*table[:2], parties=table[2]), parameters
    first = baselines.tune(estimator, *table, grid=[{"learning_rate": rate} for rate in rates])
    own = _own_settings(method, estimator, rates, more_rates)[:n_own]
    estimator.set_params(**first.parameters)
    if hasattr(estimator, "start") and not any("learning_rate" in each for each in own):
        estimator.set_params(start=first.estimator)  # trained at this rate on all rows
    second = baselines.tune(estimator, *table, grid=own)
    if max(second.scores) > max(first.scores):
        return second.estimator, {**first.parameters, **second.parameters}
    return first.estimator, first.parameters


def _own_settings(
    method: str, estimator: Any, rates: tuple[float, ...], more_rates: tuple[float, ...]
) -> tuple[Mapping[str, Any], ...]:
    """Return the settings of a method's own, or else more learning rates."""
    if method == "FedRep":
        heads = [{"head_learning_rate": rate, "tuning_epochs": 20} for rate in rates]
        return (*heads, {"head_epochs": 10, "head_learning_rate": rates[1], "tuning_epochs": 20})
    if method == "FedPer":
        heads = [{"tuning_rate": rate, "tuning_epochs": 20} for rate in rates]
        return (*heads, {"tuning_epochs": 0})
    grid = tuple(getattr(estimator, "grid", ()))
    if not grid or "learning_rate" in grid[0]:
        return tuple({"learning_rate": rate} for rate in more_rates)
    return grid


def score_method(estimator: Any, clients: ClientRows) -> Scores:
    """Score a fitted method; unseen clients join with their rows.

    Parameters
    ----------
    estimator : fitted estimator
        The method; it is not changed.
    clients : ClientRows
        All clients.
    """
    extended = copy(estimator)  # the unseen clients are added to the copy only
    extended.clients_ = dict(estimator.clients_)
    new_rows = np.flatnonzero(~clients.test & np.isin(clients.owners, clients.unseen))
    if isinstance(extended, Baseline):
        with suppress(PartyRefused):
            extended.add_clients(clients.x[new_rows], clients.y[new_rows], clients.owners[new_rows])
    for name in sorted(set(clients.owners[new_rows]) - set(extended.clients_)):
        rows = clients.rows(name, test=False)
        with suppress(PartyRefused):  # training diverges: predict with the shared model
            extended.add_client(name, clients.x[rows], clients.y[rows])
    scores = Scores()
    for name in clients.names:
        for hits, test in ((scores.test, True), (scores.train, False)):
            rows = clients.rows(name, test=test)
            if len(rows) and len(clients.rows(name, test=False)):
                predicted = extended.predict(clients.x[rows], parties=[name] * len(rows))
                hits[name] = (int((predicted == clients.y[rows]).sum()), len(rows))
    return scores
