"""One fit of an estimator that keeps memories: its settings, its training, what it keeps of it."""

import time
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.methods.knnper._membership import Owners, needs_torch
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.records import RunRecord, environment
from fedneighbors.tabular._ownership import Holdings, public_seed, rows_by_party


def fit_clients(
    estimator: Any,
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    parties: Owners,
    *,
    reserved: tuple[Any, ...] = (),
) -> Any:
    """Train what an estimator asks for, and give it what came of it.

    Parameters
    ----------
    estimator : estimator
        Whose parameters are read, and whose attributes ``clients_``, ``weights_``, ``overall_``,
        ``pool_`` and ``run_record_`` are set.
    x : array of shape (n_rows, ...)
        Rows.
    y : array of shape (n_rows,) or (n_rows, n_outputs)
        Labels or targets.
    parties : sequence of shape (n_rows,) or None
        Which client owns each row.
    reserved : tuple of labels
        Classes that may come later.

    Returns
    -------
    Sequence of KNNPerParty
        The clients as they were at the end of training.
    """
    seed = public_seed(estimator.random_state)
    rounds = RoundSettings.asked_by(estimator, seed)
    settings = MemorySettings.asked_by(estimator, seed)
    owned = rows_by_party(parties, len(y))
    needs_torch()
    from fedneighbors.methods.knnper._federation import federated
    from fedneighbors.neural._blueprint import Blueprint

    started, clock = datetime.now(UTC), time.perf_counter()
    outcome, network, members = federated(
        estimator,
        Holdings(x, y, owned, estimator._names()),
        rounds,
        settings,
        reserved,
        estimator._task,
    )
    shared, experts = outcome.result, estimator._task.experts
    estimator._shared, estimator._row_shape = shared, x.shape[1:]
    estimator._network = network
    estimator._memory_settings = settings
    estimator._blueprint = Blueprint.of(estimator, x.shape[1:], shared.overall.shape[-1])
    estimator.clients_ = {member.name: member.personal for member in members}
    estimator.weights_, estimator.overall_ = shared.weights, shared.overall
    weights = () if shared.pool is None else np.asarray(shared.pool).tolist()
    estimator.pool_ = dict(zip(experts, weights, strict=False))
    estimator.run_record_ = RunRecord(
        name="knnper.fit",
        parameters={
            "combine": estimator.combine,
            "n_rounds": rounds.n_rounds,
            "participation": rounds.participation,
            "n_neighbors": settings.ks[0] if len(settings.ks) == 1 else str(settings.ks),
            "clients": len(owned),
        },
        rounds=outcome.rounds,
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - clock,
        environment=environment(),
    )
    return members
