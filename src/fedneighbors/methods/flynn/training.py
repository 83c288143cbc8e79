"""What ``fit`` does: a federation in this process, exact or private, and the record of its run."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fedneighbors.federation.inprocess import run
from fedneighbors.federation.loop import Outcome
from fedneighbors.methods.flynn.model import FlyNNModel
from fedneighbors.methods.flynn.protocol import FlyNNParty, FlyNNSettings, coordinate
from fedneighbors.privacy.guarantees import exact
from fedneighbors.privacy.policy import Privacy
from fedneighbors.records import RunRecord, Scalar, environment
from fedneighbors.tables.owners import Holdings

__all__ = ["fit"]


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
    """Return the outcome of a private training and what it cost.

    Each party has a ledger of its own with the budget of this one training, which ends with it.
    """
    from fedneighbors.methods.flynn.private.party import PrivateFlyNNParty
    from fedneighbors.methods.flynn.private.protocol import coordinate_private
    from fedneighbors.privacy.ledger import Ledger

    unknown = set(holdings.y.tolist()) - set(privacy.classes or holdings.y.tolist())
    if unknown:
        raise ValueError(
            f"y holds labels {sorted(unknown)[:5]} that are not among the classes of privacy, "
            f"{list(privacy.classes or ())[:10]}; name all labels there"
        )
    if privacy.accounting == "paper" and privacy.n_parties is None:
        privacy = replace(privacy, n_parties=len(holdings.owned))
    with ExitStack() as stack:
        ledgers: dict[str, Ledger] = {}

        def make(name: str, *table: Any, **options: Any) -> PrivateFlyNNParty:
            ledgers[name] = stack.enter_context(Ledger(":memory:", party=name))
            ledgers[name].set_budget("table", privacy.total)
            return PrivateFlyNNParty(name, *table, privacy=privacy, ledger=ledgers[name], **options)

        parties = holdings.parties(make, n_threads=n_threads)
        masked = privacy.mechanism == "central" and len(parties) > 1
        outcome = run(
            coordinate_private(settings, privacy),
            parties,
            n_workers=n_threads,
            sums="masked" if masked else "plain",
        )
        spent = {name: str(ledger.spent("table")) for name, ledger in ledgers.items()}
    return outcome, _paid(privacy, spent)


def _paid(privacy: Privacy, spent: Mapping[str, str]) -> dict[str, Scalar]:
    """Return the privacy of a run as its record says it."""
    divided = privacy.mechanism == "paper" and privacy.accounting == "paper"
    return {
        "epsilon": float(exact(privacy.epsilon, "epsilon")),
        "delta": float(exact(privacy.delta, "delta")),
        "neighbors": f"{privacy.neighbors}, one row of one party",
        "mechanism": privacy.mechanism,
        "composition": "parties in parallel, for their rows are disjoint; releases of one add up",
        "public": ", ".join(privacy.public) or "nothing",
        "spent by each party": ", ".join(sorted(set(spent.values()))),
        "accounting": f"epsilon / {len(spent)} each, as printed" if divided else "epsilon each",
    }
