"""Private training of an in-process federation, and its run record."""

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fedneighbors.methods.fedpnn.private._model import PrivateFedPNNModel
from fedneighbors.methods.fedpnn.private._party import PrivateFedPNNParty
from fedneighbors.methods.fedpnn.private._release import public_bounds
from fedneighbors.methods.fedpnn.private.protocol import check_privacy, coordinate_private
from fedneighbors.privacy._policy import Privacy
from fedneighbors.records import RunRecord, environment
from fedneighbors.tabular._ownership import Holdings
from fedneighbors.tabular._private import run_private

_ALLOWED = ("privacy", "bounds", "share", "random_state", "n_jobs")


def check_private_parameters(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Check that only parameters of private training are set.

    Raises
    ------
    ValueError
        If other parameters differ from their defaults. Private training has no clusters to which
        they could apply, and its server does not hold out rows to score the model on.
    """
    changed = [name for name in given if name not in _ALLOWED and given[name] is not defaults[name]]
    unsupported = [name for name in changed if given[name] != defaults[name]]
    if unsupported:
        raise ValueError(
            f"private training takes no {', '.join(unsupported)}: it sums noised vectors instead "
            "of clustering; leave them at their defaults, and list labels in Privacy(classes=...)"
        )


def with_bounds(privacy: Privacy, bounds: Any, n_features: int) -> Privacy:
    """Return the privacy settings with validated public bounds.

    Parameters
    ----------
    privacy : Privacy
        Settings; ``privacy.bounds`` are used if ``bounds`` is None.
    bounds : array of shape (n_features, 2) or None
        Lowest and highest value of each column.
    n_features : int
        Number of columns.

    Raises
    ------
    ValueError
        If bounds are missing, given twice, or of the wrong shape.
    """
    if bounds is not None:
        if privacy.bounds is not None:
            raise ValueError("bounds are given twice, as an argument and in privacy; leave one out")
        pairs = np.asarray(bounds, np.float64)
        if pairs.shape != (n_features, 2):
            raise ValueError(
                f"expected bounds of shape ({n_features}, 2), lowest and highest value of each "
                f"column, got shape {pairs.shape}"
            )
        privacy = replace(privacy, bounds=(tuple(pairs[:, 0]), tuple(pairs[:, 1])))
    public_bounds(privacy, n_features)
    return privacy


def fit_privately(
    holdings: Holdings, privacy: Privacy, bounds: Any
) -> tuple[PrivateFedPNNModel, RunRecord]:
    """Train under differential privacy; return the model and the run record.

    Parameters
    ----------
    holdings : Holdings
        The table and its owners.
    privacy : Privacy
        Budget, mechanism, and public information.
    bounds : array of shape (n_features, 2) or None
        Public lowest and highest value of each column, if not in ``privacy``.

    Raises
    ------
    ValueError
        If bounds or classes were not declared.
    MissingExtraError
        If the packages of the extra ``privacy`` are not installed.
    """
    terms = with_bounds(privacy, bounds, holdings.x.shape[1])
    check_privacy(terms)
    started, clock = datetime.now(UTC), time.perf_counter()
    outcome, spent = run_private(coordinate_private(terms), holdings, PrivateFedPNNParty, terms)
    model = outcome.result
    return model, RunRecord(
        name="fedpnn.fit",
        parameters={"n_centers_": len(model.neurons.positions), "sigma_": model.neurons.sigma},
        rounds=outcome.rounds,
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - clock,
        environment=environment(),
        privacy=spent,
    )
