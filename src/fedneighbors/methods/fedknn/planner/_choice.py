"""How ``algorithm="auto"`` decides: by measured costs; under privacy by public numbers alone."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedneighbors.federation._inprocess import Connected
from fedneighbors.methods.fedknn._settings import SearchSettings
from fedneighbors.methods.fedknn.planner._costs import Costs, measure
from fedneighbors.methods.fedknn.planner._plan import CANDIDATES, Plan, make_plan, star_candidate
from fedneighbors.methods.fedknn.planner._recorded import Candidate
from fedneighbors.methods.fedknn.private._noise import CountNoise

_MOST_SAMPLES = 2
_LIMIT_S = 2.0


class Chooser:
    """Chooses the algorithm of a query and remembers what was measured.

    Parameters
    ----------
    settings : SearchSettings
        Of the search.
    n_parties : int
        Of the federation.
    side_by_side : bool
        Whether the parties are at work at the same time.
    """

    def __init__(self, settings: SearchSettings, n_parties: int, *, side_by_side: bool) -> None:
        self._settings = settings
        self._n_parties = n_parties
        self._n_side_by_side = (os.cpu_count() or 1) if side_by_side else 1
        self._costs: Costs | None = None
        self._plans: dict[int, Plan] = {}

    def choose(self, federation: Connected, queries: Sequence[bytes], k: int) -> tuple[str, str]:
        """Return the algorithm for queries like these, and why.

        The first two are asked as samples where nothing was measured yet for so many neighbours.
        """
        if self._settings.algorithm != "auto":
            return self._settings.algorithm, ""
        if self._settings.privacy is not None:
            return public_choice(self._settings, self._n_parties, k)
        if self._n_parties == 1 or not queries:
            return "baseline", "there is one party, which alone has all that is near"
        if k not in self._plans:
            if self._costs is None or self._costs.k < k:
                self._costs = measure(
                    federation, queries[:_MOST_SAMPLES], k, limit_s=_LIMIT_S, apart=True
                )
            self._plans[k] = make_plan(self._costs, k, n_side_by_side=self._n_side_by_side)
        return self._plans[k].algorithm, self._plans[k].why

    def explain(self, federation: Connected, query: bytes, k: int) -> Plan:
        """Return what each algorithm is expected to take for a query, and which one would run."""
        # one after another each would see how long those before it had searched
        apart = self._settings.privacy is None
        costs = measure(federation, [query], k, limit_s=_LIMIT_S, apart=apart)
        return explained(
            self._settings, costs, k, n_parties=self._n_parties, n_side_by_side=self._n_side_by_side
        )


def explained(
    settings: SearchSettings,
    costs: Costs,
    k: int,
    *,
    n_parties: int,
    n_side_by_side: int | None = None,
) -> Plan:
    """Return a plan over all algorithms that settings allow, with the one that they would run.

    Parameters
    ----------
    settings : SearchSettings
        Of the search.
    costs : Costs
        What was measured.
    k : int
        Neighbours.
    n_parties : int
        Of the federation.
    n_side_by_side : int, optional
        How many parties can be at work at the same time; None for all.
    """
    candidates: dict[str, Candidate] = dict(_candidates(settings, n_parties, k))
    plan = make_plan(costs, k, candidates=candidates, n_side_by_side=n_side_by_side)
    if settings.algorithm != "auto":
        return replace(plan, algorithm=settings.algorithm, why="it was asked for by name")
    if settings.privacy is not None:
        algorithm, why = public_choice(settings, n_parties, k)
        return replace(plan, algorithm=algorithm, why=why)
    return plan


def public_choice(settings: SearchSettings, n_parties: int, k: int) -> tuple[str, str]:
    """Return the private algorithm, and why, by numbers that everyone knows.

    A choice by what searches cost would tell parties something of the objects of the others.
    """
    law = settings.law(n_parties=n_parties, k=k)
    shifts = law.first_shift + law.second_shift if isinstance(law, CountNoise) else 2 * law.shift
    expected = -(-k // n_parties) + shifts
    if expected < k:
        return "dann*", f"about {expected} of {k} objects are asked of a party, noise included"
    return (
        "baseline",
        f"the noise alone would ask about {expected} objects of a party, the baseline asks {k} and "
        "tells parties nothing of one another",
    )


def _candidates(settings: SearchSettings, n_parties: int, k: int) -> Mapping[str, Candidate]:
    if settings.privacy is None:
        return CANDIDATES
    law = settings.law(n_parties=n_parties, k=k)
    star = star_candidate(law.draw, grid_s=float(settings.grid_s))
    return {"baseline": CANDIDATES["baseline"], "dann*": star}
