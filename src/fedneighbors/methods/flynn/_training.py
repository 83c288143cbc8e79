"""What ``fit`` does: a federation in this process, exact or private, and the record of its run."""

import time
from dataclasses import replace
from datetime import UTC, datetime

from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import Outcome
from fedneighbors.methods.flynn._model import FlyNNModel
from fedneighbors.methods.flynn.protocol import FlyNNParty, FlyNNSettings, coordinate
from fedneighbors.privacy._policy import Privacy
from fedneighbors.records import RunRecord, Scalar, environment
from fedneighbors.tabular._ownership import Holdings


def fit(
    holdings: Holdings, settings: FlyNNSettings, privacy: Privacy | None, *, n_threads: int
) -> tuple[FlyNNModel, RunRecord]:
    """Return the model of all parties' rows and the record of the run that made it.

    Parameters
    ----------
    holdings : Holdings
        The table and its owners.
    settings : FlyNNSettings
        Sizes, decay, scaling, expansion.
    privacy : Privacy or None
        None trains exactly.
    n_threads : int
        Threads; the exact result does not depend on it.

    Raises
    ------
    MissingExtraError
        If privacy is wanted and the packages of the extra ``privacy`` are not installed.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    paid: dict[str, Scalar] = {}
    if privacy is None:
        parties = holdings.parties(FlyNNParty, n_threads=n_threads)
        outcome = run(coordinate(settings), parties, n_workers=n_threads)
    else:
        outcome, paid = _privately(holdings, settings, privacy, n_threads=n_threads)
    model = outcome.result
    plan = model.plan
    return model, RunRecord(
        name="flynn.fit",
        parameters={
            "n_units_": plan.n_units,
            "n_inputs_": plan.n_inputs,
            "n_active_": plan.n_active,
            "decay_": model.gamma,
            "standardize": settings.standardize,
            "expansion": plan.features.expansion,
            "class_normalized": settings.class_normalized,
            "seed": plan.seed,
        },
        rounds=outcome.rounds,
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - clock,
        environment=environment(),
        privacy=paid,
    )


def _privately(
    holdings: Holdings, settings: FlyNNSettings, privacy: Privacy, *, n_threads: int
) -> tuple[Outcome[FlyNNModel], dict[str, Scalar]]:
    """Return the outcome of a private training and what it cost."""
    from fedneighbors.methods.flynn.private._party import PrivateFlyNNParty
    from fedneighbors.methods.flynn.private.protocol import coordinate_private
    from fedneighbors.tabular._ledgers import run_paid

    if privacy.accounting == "paper" and privacy.n_parties is None:
        privacy = replace(privacy, n_parties=len(holdings.owned))
    training = coordinate_private(settings, privacy)
    return run_paid(training, holdings, PrivateFlyNNParty, privacy, n_threads=n_threads)
