"""What the clients of a private training have spent, and what of them stays without a promise."""

from collections.abc import Iterable, Mapping
from typing import Any

from fedneighbors.privacy._guarantees import ApproxDP, Guarantee, exact
from fedneighbors.privacy._policy import Privacy
from fedneighbors.records import Scalar

NOT_COVERED = "memories, and what a client predicts from its own"


def spent_by(members: Iterable[Any]) -> dict[str, Guarantee]:
    """Return what each client's ledger has charged; nothing where there is no budget."""
    return {member.name: member.spent for member in members if hasattr(member, "spent")}


def spending(privacy: Privacy | None, members: Iterable[Any]) -> Mapping[str, Scalar]:
    """Return the privacy of a run as its record says it; empty where none was asked for.

    Parameters
    ----------
    privacy : Privacy or None
        What was asked for.
    members : iterable of clients
        After their training.
    """
    if privacy is None:
        return {}
    listed = list(members)
    spent = [each for each in spent_by(listed).values() if isinstance(each, ApproxDP)]
    plans = [member.plan for member in listed]
    return {
        "epsilon": float(exact(privacy.epsilon, "epsilon")),
        "delta": float(exact(privacy.delta, "delta")),
        "neighbors": "add_remove, one row of one client",
        "mechanism": "noised class counts and private steps of each client by itself",
        "composition": (
            "clients in parallel, for their rows are disjoint; counts and steps of one add up, its "
            "steps by the Renyi accountant of Opacus"
        ),
        "public": ", ".join(privacy.public) or "nothing",
        "largest epsilon spent": max(float(each.epsilon) for each in spent),
        "smallest noise multiplier": min(plan.noise_multiplier for plan in plans),
        "largest noise multiplier": max(plan.noise_multiplier for plan in plans),
        "not covered": NOT_COVERED,
    }
