"""What one query of a search cost, and what is known of its answer."""

from collections.abc import Iterable
from dataclasses import dataclass

from fedneighbors.federation._loop import Outcome
from fedneighbors.methods.fedknn._answers import Answer

_PHASES = {
    "BoundRequest": "bounds",
    "PaddedBoundRequest": "bounds",
    "CountRequest": "counts",
    "NearestRequest": "objects",
    "PaddedNearestRequest": "objects",
}


@dataclass(frozen=True)
class QueryRecord:
    """What one query cost.

    Parameters
    ----------
    algorithm : str
        What was run.
    why : str
        Why, where it was not the caller who said so.
    exact : bool
        Whether the answer is certainly that of all objects of the federation.
    trust : str
        What keeps the broker from telling what it sees.
    answered : tuple of str
        Providers whose objects were searched.
    missing : dict of str to str
        Providers that were left out, and why.
    asked, verified : dict of str to int
        Objects that each provider returned, and whose distance it computed.
    n_rounds : int
        Exchanges until the answer was there.
    upload_bytes, download_bytes : int
        From and to all providers.
    seconds : float
        Wall time until the answer was there, the broker's own included.
    phase_seconds : dict of str to float
        Wall time of the exchanges: of ``"bounds"``, ``"counts"``, ``"objects"``.
    busy_seconds : dict of str to float
        How long each provider was at work.
    """

    algorithm: str
    why: str
    exact: bool
    trust: str
    answered: tuple[str, ...]
    missing: dict[str, str]
    asked: dict[str, int]
    verified: dict[str, int]
    n_rounds: int
    upload_bytes: int
    download_bytes: int
    seconds: float
    phase_seconds: dict[str, float]
    busy_seconds: dict[str, float]

    @classmethod
    def of(cls, outcome: Outcome[Answer], *, seconds: float, why: str = "") -> "QueryRecord":
        """Return the record of a query that has been run.

        Parameters
        ----------
        outcome : Outcome
            Of the coordinator.
        seconds : float
            Wall time of all of it.
        why : str
            Why this algorithm was chosen.
        """
        answer, rounds = outcome.result, outcome.rounds
        return cls(
            algorithm=answer.algorithm,
            why=why,
            exact=answer.exact,
            trust=answer.trust,
            answered=answer.answered,
            missing=dict(answer.missing),
            asked=dict(answer.asked),
            verified=dict(answer.verified),
            n_rounds=len(rounds),
            upload_bytes=sum(sum(r.upload_bytes.values()) for r in rounds),
            download_bytes=sum(sum(r.download_bytes.values()) for r in rounds),
            seconds=seconds,
            phase_seconds=_summed((_PHASES[r.request], r.seconds) for r in rounds),
            busy_seconds=_summed(item for r in rounds for item in r.busy_s.items()),
        )


def _summed(items: Iterable[tuple[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for name, seconds in items:
        total[name] = total.get(name, 0.0) + seconds
    return total
