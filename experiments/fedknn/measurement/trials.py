"""Measurements of one search as numbers that can be serialized and tabulated."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

REFERENCES = ("baseline", "hufu", "hufu+", "dann", "dann*")
"""Algorithms with exact answers, in the order in which they serve as a reference."""

BYTES_PER_S = 12.5e6
"""Bandwidth of every link, 100 Mbit/s; the paper states none."""

DELAY_S = 0.064
"""Round trip between broker and providers; the paper's average latency."""


@dataclass(frozen=True)
class Trial:
    """One search.

    Parameters
    ----------
    collection, split, algorithm : str
        Collection, its split, and the algorithm.
    n_objects, n_parties, k, query : int
        Objects of all providers, providers, neighbors, and the row of the query.
    late : bool
        True if the search reached the limit; it has no measurements then.
    limit_s : float
        CPU seconds that a query may take: the slowest providers of all exchanges together.
    answer : str
        Digest of the distances of the answer; empty if late.
    n_exchanges : int
        Number of exchanges with the providers.
    way_s : float
        Sum over the exchanges of the slowest provider's seconds for work and transfer.
    search_s, bounds_s : float
        The same for work only, and for work on lower bounds only.
    broker_s, carrying_s : float
        CPU seconds of the coordinator, and of encoding and decoding its messages.
    local_sum_s, local_most_s : float
        CPU seconds of all providers, and of the busiest.
    asked, verified : int
        Objects that all providers returned, and objects that they verified; the latter is 0 if it
        was not counted.
    wanted_first, wanted_second : int
        Objects requested from all providers in the first round and in the second.
    possible : int
        Objects whose bound is at most the k-th distance; every search by bounds verifies them.
    farthest : float
        The k-th distance.
    """

    collection: str
    split: str
    n_objects: int
    n_parties: int
    k: int
    algorithm: str
    query: int
    late: bool
    limit_s: float
    answer: str
    n_exchanges: int = 0
    way_s: float = 0.0
    search_s: float = 0.0
    bounds_s: float = 0.0
    broker_s: float = 0.0
    carrying_s: float = 0.0
    local_sum_s: float = 0.0
    local_most_s: float = 0.0
    asked: int = 0
    wanted_first: int = 0
    wanted_second: int = 0
    verified: int = 0
    possible: int = 0
    farthest: float = 0.0

    def latency_s(self, delay_s: float = DELAY_S) -> float:
        """Return the seconds from query to answer.

        Raises
        ------
        ValueError
            If the search was late.
        """
        if self.late:
            raise ValueError("a late search has no latency; leave it out")
        return self.way_s + self.broker_s + self.carrying_s + self.n_exchanges * delay_s

    def to_bytes(self) -> bytes:
        """Return the trial as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Trial":
        """Return the trial from JSON."""
        return cls(**json.loads(raw))


def drop_late_queries(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials of the queries on which no algorithm was late.

    Parameters
    ----------
    trials : iterable of Trial
        Searches with the same collection, split and parameters.
    """
    trials = list(trials)
    late = {trial.query for trial in trials if trial.late}
    return [trial for trial in trials if trial.query not in late]


def count_wrong(searches: Iterable[Trial], trials: Iterable[Trial]) -> int:
    """Return the number of answers that differ from those of exact algorithms.

    Late searches, and queries on which all exact algorithms were late, are not counted.

    Parameters
    ----------
    searches : iterable of Trial
        Searches to check.
    trials : iterable of Trial
        Searches of all algorithms with the same collection, split and parameters.
    """
    exact = [t for t in trials if t.algorithm in REFERENCES and not t.late]
    exact.sort(key=lambda trial: -REFERENCES.index(trial.algorithm))
    answers = {trial.query: trial.answer for trial in exact}  # the last of several counts
    return sum(t.answer != answers.get(t.query, t.answer) for t in searches if not t.late)
