"""Choice of an estimator's parameters on held-out rows of all clients."""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from sklearn.base import clone, is_regressor

from fedneighbors._typing import Booleans
from fedneighbors.baselines._averaging import FedAvgClassifier
from fedneighbors.baselines._base import Baseline
from fedneighbors.errors import PartyRefused
from fedneighbors.methods.knnper._base import Owners
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.personal._client_state import held_out_mask
from fedneighbors.tabular._ownership import public_seed, rows_by_party


@dataclass(frozen=True, eq=False)
class StartNetworks:
    """Two fitted networks of federated averaging, from which several baselines start.

    Parameters
    ----------
    without_held_out : fitted estimator
        Trained without the held-out rows; used to compare candidates.
    final : fitted estimator
        Trained on all rows; used to fit the chosen candidate.
    """

    without_held_out: Any
    final: Any


@dataclass(frozen=True, eq=False)
class TuningResult:
    """An estimator fitted with the best candidate parameters.

    Parameters
    ----------
    estimator : estimator
        Fitted on all rows.
    parameters : mapping of str to object
        Chosen parameters.
    scores : tuple of float
        Score of each candidate on the held-out rows of all clients, in the order of the grid: the
        accuracy, or R2 of a regressor.
    """

    estimator: Any
    parameters: Mapping[str, Any]
    scores: tuple[float, ...]


def train_start_networks(
    estimator: Any, X: Any, y: Any, parties: Owners, *, final: Any = None
) -> StartNetworks:
    """Train federated averaging without the held-out rows, and on all rows.

    Parameters
    ----------
    estimator : Baseline
        Source of the parameters of network, rounds and SGD.
    X, y : arrays of shape (n_rows, ...) and (n_rows,)
        Rows and labels of all clients.
    parties : sequence of shape (n_rows,)
        Client of each row.
    final : fitted KNNPerClassifier or baseline, optional
        Its network is used as ``final`` instead of training one.
    """
    parameters = _prepare_estimator(estimator, y).get_params(deep=False)
    average = FedAvgClassifier(**{name: parameters[name] for name in _training_parameters()})
    train = ~_held_out(estimator, parties, len(y))
    without_held_out = clone(average).fit(**_select(X, y, parties, train))
    final = average.fit(X, y, parties=parties) if final is None else final
    return StartNetworks(without_held_out, final)


def tune(
    estimator: Any,
    X: Any,
    y: Any,
    parties: Owners,
    *,
    grid: Sequence[Mapping[str, Any]] | None = None,
    starts: StartNetworks | None = None,
) -> TuningResult:
    """Tune an estimator on held-out rows and fit it on all rows.

    Each candidate is fitted on the rows that are not held out; kNN-Per holds out the same rows to
    choose its mixtures. The first of equally good candidates is chosen. A candidate that diverges
    scores 0, or minus infinity as a regressor; if the chosen candidate diverges on all rows, the
    next best is used. If candidates differ only in the training after federated averaging, they
    share one network, and only their own parts are trained; ``grid=({},)`` builds such a baseline
    from ``starts``.

    Parameters
    ----------
    estimator : estimator
        Estimator to tune; not changed. Any whose ``fit`` takes ``parties``, of the baselines or the
        methods.
    X, y : arrays of shape (n_rows, ...) and (n_rows,)
        Rows and labels of all clients.
    parties : sequence of shape (n_rows,)
        Client of each row.
    grid : sequence of mapping, optional
        Candidate parameters, such as those of :class:`sklearn.model_selection.ParameterGrid`; by
        default the attribute ``grid`` of the baselines that train networks. A single candidate is
        used without tuning.
    starts : StartNetworks, optional
        Networks for baselines that start from one; see :func:`train_start_networks`.

    Raises
    ------
    ValueError
        If there are no candidates.
    PartyRefused
        If the training of every candidate diverges.
    """
    candidates = tuple(getattr(estimator, "grid", ()) if grid is None else grid)
    if not candidates:
        name = type(estimator).__name__
        raise ValueError(f"expected candidates for {name}, got none; pass grid=[{{...}}, ...]")
    prepared = _prepare_estimator(estimator, y)
    if not _can_share_network(prepared, candidates):
        starts = None
    else:
        starts = starts or train_start_networks(prepared, X, y, parties, final=prepared.start)
        prepared.set_params(start=starts.final)
    if len(candidates) == 1:
        return _fit_best(prepared, candidates, X, y, parties, ())
    trials = [clone(prepared).set_params(**parameters) for parameters in candidates]
    if starts is not None:
        trials = [trial.set_params(start=starts.without_held_out) for trial in trials]
    scores = _held_out_scores(trials, X, y, parties)
    best_first = np.argsort([-score for score in scores], kind="stable")
    return _fit_best(prepared, [candidates[index] for index in best_first], X, y, parties, scores)


def _fit_best(
    prepared: Any,
    candidates: Sequence[Mapping[str, Any]],
    X: Any,
    y: Any,
    parties: Owners,
    scores: tuple[float, ...],
) -> TuningResult:
    """Fit the first candidate whose training on all rows does not diverge.

    If all diverge, the last exception is raised.
    """
    diverged: PartyRefused | None = None
    for parameters in candidates:
        try:
            estimator = clone(prepared).set_params(**parameters).fit(X, y, parties=parties)
        except PartyRefused as refused:
            diverged = refused
        else:
            return TuningResult(estimator, dict(parameters), scores)
    assert diverged is not None
    raise diverged


def _held_out_scores(trials: Sequence[Any], X: Any, y: Any, parties: Owners) -> tuple[float, ...]:
    """Return the accuracy of each candidate on held-out rows."""
    held_out = _held_out(trials[0], parties, len(y))
    train, test = (_select(X, y, parties, rows) for rows in (~held_out, held_out))
    scores = []
    for trial in trials:
        try:
            scores.append(_call(trial.fit(**train).score, test))
        except PartyRefused:  # training has diverged
            scores.append(-math.inf if is_regressor(trial) else 0.0)
    return tuple(scores)


def _call(function: Any, arguments: Mapping[str, Any]) -> Any:
    """Call a function; omit ``parties`` if it has no such parameter."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in arguments.items() if name in known})


def _held_out(prepared: Any, parties: Owners, n_rows: int) -> Booleans:
    """Return a mask of all clients' held-out rows."""
    fraction = getattr(prepared, "validation", MemorySettings.validation)
    seed = public_seed(getattr(prepared, "random_state", 0))
    settings = MemorySettings(validation=fraction, seed=seed)
    mask = np.zeros(n_rows, bool)
    for name, rows in rows_by_party(parties, n_rows).items():
        indices = np.arange(n_rows)[rows]
        mask[indices] = held_out_mask(len(indices), settings, name)
    return mask


def _can_share_network(prepared: Any, candidates: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether candidates differ only after federated averaging."""
    names = {name for each in candidates for name in each}
    return hasattr(prepared, "start") and not names & set(_training_parameters())


def _training_parameters() -> list[str]:
    """Return the names of the parameters that all baselines share."""
    return [each.name for each in fields(Baseline)]


def _prepare_estimator(estimator: Any, y: Any) -> Any:
    """Return a clone with ``classes`` and an integer seed.

    Some labels may occur only in held-out rows, so ``classes`` are those of all rows.
    """
    prepared = clone(estimator)
    parameters = prepared.get_params(deep=False)
    if parameters.get("classes", ()) is None:
        prepared.set_params(classes=np.unique(y))
    if "random_state" in parameters:
        prepared.set_params(random_state=public_seed(parameters["random_state"]))
    return prepared


def _select(X: Any, y: Any, parties: Owners, rows: Booleans) -> dict[str, Any]:
    """Select rows with labels and owners, for ``fit`` and ``score``."""
    owners = None if parties is None else np.asarray(parties, dtype=object)[rows]
    return {"X": np.asarray(X)[rows], "y": np.asarray(y)[rows], "parties": owners}
