"""A federation in this process whose parties each pay out of a ledger of their own."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import Outcome
from fedneighbors.federation._roles import Coordinator
from fedneighbors.privacy._guarantees import exact
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.records import Scalar
from fedneighbors.tabular._ownership import Holdings

R = TypeVar("R")


def run_paid(
    coordinator: Coordinator[R],
    holdings: Holdings,
    make: Callable[..., Any],
    privacy: Privacy,
    *,
    n_threads: int = 1,
) -> tuple[Outcome[R], dict[str, Scalar]]:
    """Return the outcome of a private training and what it cost, as its record says it.

    Each party has a ledger with the budget of this one training, which ends with it.

    Parameters
    ----------
    coordinator : Coordinator
        Of the training.
    holdings : Holdings
        The table and its owners.
    make : callable
        Makes a party; takes ``privacy`` and ``ledger`` beside what every party takes.
    privacy : Privacy
        The budget.
    n_threads : int
        Threads.

    Raises
    ------
    ValueError
        If a label is not among the classes that were agreed.
    """
    _check_labels(holdings, privacy)
    with ExitStack() as stack:
        ledgers: dict[str, Ledger] = {}

        def paying(name: str, *table: Any, **options: Any) -> Any:
            ledgers[name] = stack.enter_context(Ledger(":memory:", party=name))
            ledgers[name].set_budget("table", privacy.total)
            return make(name, *table, privacy=privacy, ledger=ledgers[name], **options)

        parties = holdings.parties(paying, n_threads=n_threads)
        masked = privacy.mechanism == "central" and len(parties) > 1
        outcome = run(
            coordinator, parties, n_workers=n_threads, sums="masked" if masked else "plain"
        )
        spent = {name: str(ledger.spent("table")) for name, ledger in ledgers.items()}
    return outcome, _paid(privacy, spent)


def _check_labels(holdings: Holdings, privacy: Privacy) -> None:
    unknown = set(holdings.y.tolist()) - set(privacy.classes or holdings.y.tolist())
    if unknown:
        raise ValueError(
            f"y holds labels {sorted(unknown)[:5]} that are not among the classes of privacy, "
            f"{list(privacy.classes or ())[:10]}; name all labels there"
        )


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
