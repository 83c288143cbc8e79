"""Choice of baseline parameters on held-out rows, with equal budgets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone

from fedneighbors.baselines._averaging import FedAvgClassifier
from fedneighbors.baselines._base import Baseline
from fedneighbors.errors import PartyRefused
from fedneighbors.methods.knnper._base import Owners
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.personal._client_state import held_out_mask
from fedneighbors.tabular._ownership import public_seed, rows_by_party

MAX_GRID = 4
"""Maximum number of candidates, the same for every baseline."""


@dataclass(frozen=True, eq=False)
class Starts:
    """Networks of federated averaging for several baselines.

    Parameters
    ----------
    chosen_on : fitted estimator
        Its network has not seen any held-out row.
    final : fitted estimator
        Its network has seen all rows.
    """

    chosen_on: Any
    final: Any


@dataclass(frozen=True, eq=False)
class Tuned:
    """A baseline fitted with the best candidate parameters.

    Parameters
    ----------
    estimator : Baseline
        Fitted on all rows.
    parameters : mapping of str to object
        Chosen parameters.
    scores : tuple of float
        Accuracy of each candidate on the held-out rows of all clients, in the order of the grid.
    """

    estimator: Any
    parameters: Mapping[str, Any]
    scores: tuple[float, ...]


def average_starts(estimator: Any, X: Any, y: Any, parties: Owners, *, final: Any = None) -> Starts:
    """Train federated averaging on training rows, and on all rows.

    The training rows are those not held out.

    Parameters
    ----------
    estimator : Baseline
        Source of the parameters of network, rounds and SGD.
    X, y : arrays of shape (n_rows, ...) and (n_rows,)
        Rows and labels of all clients.
    parties : sequence of shape (n_rows,)
        Client of each row.
    final : fitted KNNPerClassifier or baseline, optional
        Provides the network of all rows.
    """
    asked = _with_labels(estimator, y).get_params(deep=False)
    average = FedAvgClassifier(**{name: asked[name] for name in _training_parameters()})
    train = ~_held_out(estimator, parties, len(y))
    first = clone(average).fit(**_select(X, y, parties, train))
    return Starts(first, average.fit(X, y, parties=parties) if final is None else final)


def tuned(
    estimator: Any,
    X: Any,
    y: Any,
    parties: Owners,
    *,
    grid: Sequence[Mapping[str, Any]] | None = None,
    starts: Starts | None = None,
) -> Tuned:
    """Tune a baseline on held-out rows and fit it on all rows.

    Each candidate is fitted on the rows that are not held out; kNN-Per holds out the same rows to
    choose its mixtures. The first of equally good candidates is chosen. A candidate that diverges
    scores 0; if it diverges on all rows, the next best is used. Candidates that differ only after
    federated averaging share one network, so that only their own parts are trained;
    ``grid=({},)`` builds such a baseline from ``starts``.

    Parameters
    ----------
    estimator : Baseline
        Estimator to tune; not changed.
    X, y : arrays of shape (n_rows, ...) and (n_rows,)
        Rows and labels of all clients.
    parties : sequence of shape (n_rows,)
        Client of each row.
    grid : sequence of mapping, optional
        Candidate parameters; by default those of the baseline's class. A single candidate is
        used without tuning.
    starts : Starts, optional
        Networks for baselines that start from one; see :func:`average_starts`.

    Raises
    ------
    ValueError
        If there are no candidates or more than four.
    """
    candidates = tuple(estimator.grid if grid is None else grid)
    if not 1 <= len(candidates) <= MAX_GRID:
        raise ValueError(f"expected 1 to {MAX_GRID} candidates, got {len(candidates)}")
    asked = _with_labels(estimator, y)
    if not _can_share_network(asked, candidates):
        starts = None
    else:
        starts = starts or average_starts(asked, X, y, parties, final=asked.start)
        asked.set_params(start=starts.final)
    if len(candidates) == 1:
        return _fit_best(asked, candidates, X, y, parties, ())
    tried = [clone(asked).set_params(**each) for each in candidates]
    if starts is not None:
        tried = [each.set_params(start=starts.chosen_on) for each in tried]
    scores = _held_out_scores(tried, X, y, parties)
    best_first = np.argsort([-score for score in scores], kind="stable")
    return _fit_best(asked, [candidates[place] for place in best_first], X, y, parties, scores)


def _fit_best(
    asked: Any,
    candidates: Sequence[Mapping[str, Any]],
    X: Any,
    y: Any,
    parties: Owners,
    scores: tuple[float, ...],
) -> Tuned:
    """Fit the first candidate whose training on all rows converges.

    None if there is no such candidate.
    """
    diverged: PartyRefused | None = None
    for each in candidates:
        try:
            estimator = clone(asked).set_params(**each).fit(X, y, parties=parties)
        except PartyRefused as refused:
            diverged = refused
        else:
            return Tuned(estimator, dict(each), scores)
    assert diverged is not None
    raise diverged


def _held_out_scores(tried: Sequence[Any], X: Any, y: Any, parties: Owners) -> tuple[float, ...]:
    """Return the accuracy of each candidate on held-out rows."""
    held = _held_out(tried[0], parties, len(y))
    train, test = (_select(X, y, parties, rows) for rows in (~held, held))
    scores = []
    for each in tried:
        try:
            scores.append(each.fit(**train).score(**test))
        except PartyRefused:  # training has diverged
            scores.append(0.0)
    return tuple(scores)


def _held_out(asked: Any, parties: Owners, n_rows: int) -> npt.NDArray[np.bool_]:
    """Return a mask of all clients' held-out rows."""
    seed = public_seed(asked.random_state)
    settings, held = MemorySettings(validation=asked.validation, seed=seed), np.zeros(n_rows, bool)
    for name, rows in rows_by_party(parties, n_rows).items():
        places = np.arange(n_rows)[rows]
        held[places] = held_out_mask(len(places), settings, name)
    return held


def _can_share_network(asked: Any, candidates: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether candidates differ only after federated averaging."""
    names = {name for each in candidates for name in each}
    return hasattr(asked, "start") and not names & set(_training_parameters())


def _training_parameters() -> list[str]:
    """Return the parameter names of network, rounds and steps."""
    return [each.name for each in fields(Baseline)]


def _with_labels(estimator: Any, y: Any) -> Any:
    """Return a clone with all labels and one seed.

    Some labels may occur in held-out rows only.
    """
    asked = clone(estimator)
    if asked.classes is None:
        asked.set_params(classes=np.unique(y))
    return asked.set_params(random_state=public_seed(asked.random_state))


def _select(X: Any, y: Any, parties: Owners, rows: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Select rows with labels and owners, for ``fit`` and ``score``."""
    owners = None if parties is None else np.asarray(parties, dtype=object)[rows]
    return {"X": np.asarray(X)[rows], "y": np.asarray(y)[rows], "parties": owners}
