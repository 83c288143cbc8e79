"""How much faster DANN and DANN* are than their rivals, beside what the paper says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from experiments.fedknn.summaries import Axis, by_algorithm, grouped
from experiments.fedknn.trials import DELAY_S, Trial
from fedneighbors.records import Scalar, Table

CHAMPIONS = ("dann", "dann*")
Cells = tuple[Scalar, ...]
Measured = list[tuple[Scalar, float | None]]
"""Values of the axis, and the factor at each; None where no query was in time for both."""


@dataclass(frozen=True)
class Claim:
    """How much faster DANN* is in the paper, at most.

    Parameters
    ----------
    over : mapping of str to float
        Factor over each rival.
    """

    over: Mapping[str, float] = field(default_factory=dict)


def speedups(
    trials: Sequence[Trial],
    axis: Axis,
    *,
    rivals: Sequence[str],
    claims: Mapping[tuple[str, str], Claim],
) -> Table:
    """Return how much faster the champions are than their rivals, where that is most.

    Parameters
    ----------
    trials : sequence of Trial
        Searches of the same queries.
    axis : Axis
        What varies.
    rivals : sequence of str
        Algorithms.
    claims : mapping
        What the paper says, by collection and split.
    """
    pairs = _pairs(trials, axis, rivals)
    rows: list[Cells] = []
    for (collection, split, champion, rival), at in pairs.items():
        cells: Cells = ()
        for measure in (_latency, _alone, _work):
            cells += _largest([(value, measure(*pair)) for value, pair in at])
        claim = claims.get((collection, split), Claim()).over.get(rival)
        rows.append((collection, split, champion, rival, *cells, claim))
    return Table(
        name="speedups",
        title="Largest speed-up of DANN and DANN* over their rivals",
        columns=(
            "collection", "split", "algorithm", "over", "latency, factor", f"at {axis.name}",
            "without round trips, factor", f"at that {axis.name}", "work, factor",
            f"at which {axis.name}", "paper, dann*",
        ),
        rows=tuple(rows),
        caption="Latency, with round trips of 64 ms and without: ratio of the means, late searches "
        "at the limit. Work: ratio of the CPU seconds of all providers together, over the queries "
        "that neither was late with. The paper gives the largest factor in latency.",
    )  # fmt: skip


Pair = tuple[dict[int, Trial], dict[int, Trial]]
"""The trials of a rival and of a champion, by query."""


def _pairs(
    trials: Sequence[Trial], axis: Axis, rivals: Sequence[str]
) -> dict[tuple[str, str, str, str], list[tuple[Scalar, Pair]]]:
    found: dict[tuple[str, str, str, str], list[tuple[Scalar, Pair]]] = {}
    for (collection, split, value), group in grouped(trials, axis).items():
        own = {
            name: {trial.query: trial for trial in some}
            for name, some in by_algorithm(group).items()
        }
        for champion in CHAMPIONS:
            for rival in rivals:
                if {champion, rival} <= set(own):
                    place = (str(collection), str(split), champion, rival)
                    found.setdefault(place, []).append((value, (own[rival], own[champion])))
    return found


def _largest(measured: Measured) -> tuple[Scalar, Scalar]:
    known = [(factor, value) for value, factor in measured if factor is not None]
    return max(known, key=lambda pair: pair[0]) if known else (None, None)


def _latency(slow: dict[int, Trial], fast: dict[int, Trial]) -> float:
    return _ratio(slow, fast, DELAY_S)


def _alone(slow: dict[int, Trial], fast: dict[int, Trial]) -> float:
    return _ratio(slow, fast, 0.0)


def _ratio(slow: dict[int, Trial], fast: dict[int, Trial], delay_s: float) -> float:
    theirs = sum(trial.latency_s(delay_s) for trial in slow.values())
    return theirs / max(sum(trial.latency_s(delay_s) for trial in fast.values()), 1e-9)


def _work(slow: dict[int, Trial], fast: dict[int, Trial]) -> float | None:
    both = [query for query in fast if not (slow[query].late or fast[query].late)]
    if not both:
        return None
    theirs = sum(slow[query].local_sum_s for query in both)
    return theirs / sum(fast[query].local_sum_s for query in both)
