"""Tables and figures of trials: costs of each algorithm."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from experiments.fedknn.measurement.trials import DELAY_S, Trial
from fedneighbors.records import Figure, ResultTable, Scalar

Key = tuple[Scalar, ...]

LATE_NOTE = (
    "A search that keeps a provider at work longer than the limit is late and counts at the limit, "
    "for every algorithm alike. Work, objects and verifications are medians over the queries that "
    "no algorithm of the line's group was late with."
)


@dataclass(frozen=True)
class Axis:
    """Varied parameter of an experiment.

    Parameters
    ----------
    name : str
        Column and label.
    of : callable
        Its value for a trial.
    """

    name: str
    of: Callable[[Trial], Scalar]


def middle(trials: Iterable[Trial], what: Callable[[Trial], float]) -> float | None:
    """Return the median of a number over trials; None without trials."""
    values = [what(trial) for trial in trials]
    return float(np.median(values)) if values else None


def overview(trials: Sequence[Trial], axis: Axis, *, delay_s: float = DELAY_S) -> ResultTable:
    """Return a line per collection, split, axis value and algorithm."""
    rows = []
    for (collection, split, value), group in grouped(trials, axis).items():
        late = {trial.query for trial in group if trial.late}
        for algorithm, own in by_algorithm(group).items():
            common = [trial for trial in own if trial.query not in late]
            latencies = [trial.latency_s(delay_s) for trial in own]
            rows.append(
                (
                    collection,
                    split,
                    value,
                    algorithm,
                    len(own),
                    sum(trial.late for trial in own),
                    float(np.mean(latencies)),
                    float(np.median(latencies)),
                    middle(common, lambda trial: trial.local_sum_s),
                    middle(common, lambda trial: trial.local_most_s),
                    middle(common, lambda trial: trial.asked),
                    middle([t for t in common if t.verified], _over_possible),
                    middle(common, lambda trial: trial.n_exchanges),
                )
            )
    return ResultTable(
        name="overview",
        title="What a search takes",
        columns=(
            "collection", "split", axis.name, "algorithm", "queries", "late", "mean_latency_s",
            "median_latency_s", "local_sum_s", "local_most_s", "objects asked",
            "verified / possible", "exchanges",
        ),
        rows=tuple(rows),
        caption=LATE_NOTE
        + f" Round trip {1e3 * delay_s:g} ms. Possible: objects whose bound is at most the k-th "
        "distance.",
    )  # fmt: skip


def _over_possible(trial: Trial) -> float:
    return trial.verified / max(trial.possible, 1)


def bars(*, title: str, caption: str) -> Figure:
    """Return the figure of an overview, with collections on the x axis."""
    return Figure(
        name="latency",
        kind="bar",
        title=title,
        table="overview",
        x="collection",
        y="mean_latency_s",
        hue="algorithm",
        log_y=True,
        caption=caption,
    )


def curves(axis: Axis, *, title: str, caption: str) -> tuple[Figure, ...]:
    """Return the figures of an overview, two for each split."""
    return tuple(
        Figure(
            name=f"{what}-{split}",
            kind="line",
            title=f"{title}, {split}",
            table=f"curves-{split}",
            x=axis.name,
            y=column,
            hue="algorithm",
            facet="collection",
            log_x=True,
            log_y=True,
            caption=caption,
        )
        for split in ("uniform", "skewed")
        for what, column in (("latency", "mean_latency_s"), ("work", "local_sum_s"))
    )


def curve_tables(table: ResultTable, axis: Axis) -> tuple[ResultTable, ...]:
    """Return the tables of these figures, one per split."""
    wanted = ("collection", axis.name, "algorithm", "mean_latency_s", "local_sum_s")
    places = [table.columns.index(name) for name in wanted]
    split = table.columns.index("split")
    return tuple(
        ResultTable(
            name=f"curves-{name}",
            title=f"Curves, {name} split",
            columns=wanted,
            rows=tuple(
                tuple(row[place] for place in places) for row in table.rows if row[split] == name
            ),
        )
        for name in ("uniform", "skewed")
    )


def grouped(trials: Iterable[Trial], axis: Axis) -> dict[Key, list[Trial]]:
    """Return the trials by collection, split and value of the axis."""
    groups: dict[Key, list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.collection, trial.split, axis.of(trial)), []).append(trial)
    return groups


def by_algorithm(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """Return the trials by algorithm."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.algorithm, []).append(trial)
    return groups


CHAMPIONS = ("dann", "dann*")
Cells = tuple[Scalar, ...]
Measured = list[tuple[Scalar, float | None]]
"""Values of the axis, and the factor at each; None where no query was in time for both."""


@dataclass(frozen=True)
class Claim:
    """Largest speed-up of DANN* in the paper.

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
) -> ResultTable:
    """Return the largest speed-ups of the champions over their rivals.

    Parameters
    ----------
    trials : sequence of Trial
        Searches of the same queries.
    axis : Axis
        Name of the varied setting.
    rivals : sequence of str
        Algorithms.
    claims : mapping
        The paper's figures, by collection and split.
    """
    pairs = _pairs(trials, axis, rivals)
    rows: list[Cells] = []
    for (collection, split, champion, rival), at in pairs.items():
        cells: Cells = ()
        for measure in (_latency, _alone, _work):
            cells += _largest([(value, measure(*pair)) for value, pair in at])
        claim = claims.get((collection, split), Claim()).over.get(rival)
        rows.append((collection, split, champion, rival, *cells, claim))
    return ResultTable(
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
