"""Tables and figures of the costs of each algorithm, from measured searches (trials)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from experiments.fedknn.measurement.trials import DELAY_S, Trial
from fedneighbors.records import Figure, ResultTable, Scalar

Key = tuple[Scalar, ...]

LATE_NOTE = (
    "A search in which a provider needs more CPU seconds than the limit is late; its latency is "
    "then the limit. CPU seconds, objects, verifications and exchanges are medians over the "
    "queries on which no algorithm of the same collection, split and setting was late."
)


@dataclass(frozen=True)
class Axis:
    """Varied parameter of an experiment.

    Parameters
    ----------
    name : str
        Name of the parameter, as column of tables and label of figures.
    of : callable
        Returns the value of the parameter in a trial.
    """

    name: str
    of: Callable[[Trial], Scalar]


def middle(trials: Iterable[Trial], what: Callable[[Trial], float]) -> float | None:
    """Return the median of a number over trials; None without trials."""
    values = [what(trial) for trial in trials]
    return float(np.median(values)) if values else None


def overview(trials: Sequence[Trial], axis: Axis, *, delay_s: float = DELAY_S) -> ResultTable:
    """Return a row per collection, split, axis value and algorithm."""
    rows = []
    for (collection, split, value), group in grouped(trials, axis).items():
        late_queries = {trial.query for trial in group if trial.late}
        for algorithm, own in by_algorithm(group).items():
            common = [trial for trial in own if trial.query not in late_queries]
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
        title="Cost of a search",
        columns=(
            "collection", "split", axis.name, "algorithm", "queries", "late", "mean_latency_s",
            "median_latency_s", "local_sum_s", "local_most_s", "objects asked",
            "verified / possible", "exchanges",
        ),
        rows=tuple(rows),
        caption=LATE_NOTE
        + f" Round trip {1e3 * delay_s:g} ms. local_sum_s, local_most_s: CPU seconds of all "
        "providers and of the busiest. Objects asked: number returned by all. Verified: computed "
        "distances, without searches that did not count them. Possible: objects whose bound is at "
        "most the k-th distance.",
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
    """Return figures of latency and CPU seconds for each split."""
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
    """Return the tables of the figures of :func:`curves`, one per split."""
    wanted = ("collection", axis.name, "algorithm", "mean_latency_s", "local_sum_s")
    columns = [table.columns.index(name) for name in wanted]
    split = table.columns.index("split")
    return tuple(
        ResultTable(
            name=f"curves-{name}",
            title=f"Curves, {name} split",
            columns=wanted,
            rows=tuple(
                tuple(row[column] for column in columns) for row in table.rows if row[split] == name
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


PAPER_ALGORITHMS = ("dann", "dann*")
Cells = tuple[Scalar, ...]
Measured = list[tuple[Scalar, float | None]]
"""Values of the axis with the speed-up at each; None if on each query one of both was late."""


@dataclass(frozen=True)
class Claim:
    """Largest speed-ups of DANN* that the paper reports.

    Parameters
    ----------
    over : mapping of str to float
        Speed-up over each of the other algorithms.
    """

    over: Mapping[str, float] = field(default_factory=dict)


def speedups(
    trials: Sequence[Trial],
    axis: Axis,
    *,
    rivals: Sequence[str],
    claims: Mapping[tuple[str, str], Claim],
) -> ResultTable:
    """Return the largest speed-ups of DANN and DANN* over other algorithms.

    Parameters
    ----------
    trials : sequence of Trial
        Searches of the same queries.
    axis : Axis
        Varied parameter.
    rivals : sequence of str
        Algorithms that DANN and DANN* are compared with.
    claims : mapping
        Speed-ups that the paper reports, by collection and split.
    """
    pairs = _pairs(trials, axis, rivals)
    rows: list[Cells] = []
    for (collection, split, algorithm, rival), measured_at in pairs.items():
        cells: Cells = ()
        for measure in (_latency, _alone, _work):
            cells += _largest([(value, measure(*pair)) for value, pair in measured_at])
        claim = claims.get((collection, split), Claim()).over.get(rival)
        rows.append((collection, split, algorithm, rival, *cells, claim))
    return ResultTable(
        name="speedups",
        title="Largest speed-ups of DANN and DANN* over other algorithms",
        columns=(
            "collection", "split", "algorithm", "over", "latency, factor", f"at {axis.name}",
            "without round trips, factor", f"at that {axis.name}", "work, factor",
            f"at which {axis.name}", "paper, dann*",
        ),
        rows=tuple(rows),
        caption=f"Latency, with round trips of {1e3 * DELAY_S:g} ms and without: ratio of means, "
        "where a late search has the limit. Work: ratio of the CPU seconds of all providers, over "
        f"the queries on which neither algorithm was late. After each factor: {axis.name} at "
        "which it is reached. Paper: the largest factor in latency that it reports.",
    )  # fmt: skip


Pair = tuple[dict[int, Trial], dict[int, Trial]]
"""The trials of the algorithm that is compared with, and of DANN or DANN*, by query."""


def _pairs(
    trials: Sequence[Trial], axis: Axis, rivals: Sequence[str]
) -> dict[tuple[str, str, str, str], list[tuple[Scalar, Pair]]]:
    found: dict[tuple[str, str, str, str], list[tuple[Scalar, Pair]]] = {}
    for (collection, split, value), group in grouped(trials, axis).items():
        by_query = {
            name: {trial.query: trial for trial in trials_of_one}
            for name, trials_of_one in by_algorithm(group).items()
        }
        for algorithm in PAPER_ALGORITHMS:
            for rival in rivals:
                if {algorithm, rival} <= set(by_query):
                    key = (str(collection), str(split), algorithm, rival)
                    pair = by_query[rival], by_query[algorithm]
                    found.setdefault(key, []).append((value, pair))
    return found


def _largest(measured: Measured) -> tuple[Scalar, Scalar]:
    known = [(factor, value) for value, factor in measured if factor is not None]
    return max(known, key=lambda pair: pair[0]) if known else (None, None)


def _latency(compared: dict[int, Trial], ours: dict[int, Trial]) -> float:
    return _ratio(compared, ours, DELAY_S)


def _alone(compared: dict[int, Trial], ours: dict[int, Trial]) -> float:
    return _ratio(compared, ours, 0.0)


def _ratio(compared: dict[int, Trial], ours: dict[int, Trial], delay_s: float) -> float:
    total = sum(trial.latency_s(delay_s) for trial in compared.values())
    return total / max(sum(trial.latency_s(delay_s) for trial in ours.values()), 1e-9)


def _work(compared: dict[int, Trial], ours: dict[int, Trial]) -> float | None:
    both = [query for query in ours if not (compared[query].late or ours[query].late)]
    if not both:
        return None
    total = sum(compared[query].local_sum_s for query in both)
    return total / sum(ours[query].local_sum_s for query in both)
