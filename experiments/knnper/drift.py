"""Figures 4 and 14: clients whose rows change, and what their memories do about it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.harness import Findings, Study, run_each
from experiments.knnper.bootstrap import Interval, paired_difference
from experiments.knnper.crowds import Scope
from experiments.knnper.scenes import scene
from experiments.knnper.streams import (
    STRATEGIES,
    TOLD,
    Followed,
    Stream,
    followed,
)
from fedneighbors._typing import Floats, Progress
from fedneighbors.records import Figure, Scalar, Table

SHIFTS = {"labels": 20, "labels, poor network": 3, "concept": 20}
"""What changes, and for how many rounds the network was trained."""

FULL = Scope("mnist", 20_000, 50, 20, (0, 1, 2, 3, 4))
QUICK = Scope("digits", 900, 10, 5, (0,))
SHORT = Stream(n_steps=24, shift_at=10, n_first=60, n_test=40, n_clients=3)


def _measured(scope: Scope, stream: Stream, shift: str, seed: int) -> Any:
    rounds = min(SHIFTS[shift], scope.n_rounds)
    here = scene(replace(scope, n_rounds=rounds), alpha=0.3, seed=seed)
    return followed(here, stream, shift=shift, seed=seed)


def _label(_scope: Scope, _stream: Stream, shift: str, seed: int) -> str:
    return f"shift of {shift}, seed {seed}"


def _work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    scope, stream = (QUICK, SHORT) if quick else (FULL, Stream())
    jobs = [(scope, stream, shift, seed + s) for shift in SHIFTS for s in scope.seeds]
    each = run_each(_measured, jobs, n_jobs=n_jobs, progress=progress, label=_label)
    by_shift = {shift: [f for job, f in zip(jobs, each, strict=True) if job[2] == shift]
                for shift in SHIFTS}  # fmt: skip
    return Findings(
        parameters={"data": scope.data, "clients": stream.n_clients, "seeds": len(scope.seeds)},
        tables=(
            _summary(by_shift, stream),
            _alarms(by_shift, stream),
            *(_curves(shift, found, stream) for shift, found in by_shift.items()),
        ),
        figures=tuple(_figure(shift) for shift in SHIFTS),
        notes=(
            "Network and memory weigh alike. fifo and reservoir hold as many rows as a client "
            "begins with; the others are not bounded. What is told of the change is a bound, no "
            "strategy: it forgets, or weighs votes by the true shares, from the first step on.",
        ),
    )


def _mean(found: Sequence[Followed], strategy: str) -> Floats:
    return np.asarray(np.mean([each.accuracy[strategy] for each in found], axis=(0, 1)))


def _ahead(found: Sequence[Followed], strategy: str, steps: slice, n_test: int) -> Interval:
    """Return by how much eviction is better in some steps; clients are drawn anew."""

    def right(accuracy: Floats) -> dict[str, tuple[int, int]]:
        asked = n_test * accuracy[:, steps].shape[1]
        each = np.rint(accuracy[:, steps].sum(axis=1) * n_test).astype(int)
        return {str(client): (n, asked) for client, n in enumerate(each.tolist())}

    return paired_difference(
        [(right(each.accuracy["drift"]), right(each.accuracy[strategy])) for each in found]
    )


def _summary(by_shift: Any, stream: Stream) -> Table:
    rows: list[tuple[Scalar, ...]] = []
    at = stream.shift_at
    for shift, found in by_shift.items():
        for strategy in (*STRATEGIES, TOLD):
            curve = _mean(found, strategy)
            cells = (curve[:at].mean(), curve[at : at + 10].mean(), curve[-10:].mean())
            gain = _ahead(found, strategy, slice(at, at + 10), stream.n_test)
            rows.append((shift, strategy, *map(float, cells), *gain))
    return Table(
        name="summary",
        title="Accuracy before the shift, in the ten steps after it, and in the last ten",
        columns=(
            "shift", "strategy", "before", "first ten after", "last ten",
            "eviction is better by", "from", "to",
        ),
        rows=tuple(rows),
        caption="Better in the first ten steps after the shift. Intervals (95 %): clients drawn "
        "anew, the same ones for both.",
    )  # fmt: skip


def _alarms(by_shift: Any, stream: Stream) -> Table:
    rows: list[tuple[Scalar, ...]] = []
    for shift, found in by_shift.items():
        steps = len(found) * stream.n_clients * stream.shift_at
        delays = [delay for each in found for delay in each.delays]
        false, evictions = (
            sum(getattr(each, n) for each in found) for n in ("n_false", "n_evictions")
        )
        median = float(np.median(delays)) if delays else None
        clients, more = len(found) * stream.n_clients, sum(each.n_more for each in found)
        rows.append(
            (shift, steps, false, false / steps, clients, len(delays), median, more, evictions)
        )
    return Table(
        name="alarms",
        title="When drift was noticed",
        columns=(
            "shift", "client-steps before", "false alarms", "share", "clients", "noticed by",
            "median delay", "noticed again", "evictions",
        ),
        rows=tuple(rows),
        caption="A false alarm is a change told before the shift. Delays are steps to the first "
        "alarm after it. Rows are evicted where labels seem to mean other things; elsewhere votes "
        "are weighed anew.",
    )  # fmt: skip


def _curves(shift: str, found: Sequence[Any], stream: Stream) -> Table:
    return Table(
        name=f"curve-{_slug(shift)}",
        title=f"Accuracy over time, shift of {shift}",
        columns=("step", "strategy", "accuracy"),
        rows=tuple(
            (step, strategy, float(_mean(found, strategy)[step]))
            for strategy in (*STRATEGIES, TOLD)
            for step in range(stream.n_steps)
        ),
    )


def _slug(shift: str) -> str:
    return shift.replace(", ", "-").replace(" ", "-")


def _figure(shift: str) -> Figure:
    return Figure(
        name=_slug(shift),
        kind="line",
        title=f"Memories when rows change: shift of {shift}",
        table=f"curve-{_slug(shift)}",
        x="step",
        y="accuracy",
        hue="strategy",
        caption="Figures 4 and 14 of the paper, with reservoir and drift-triggered eviction.",
    )


DRIFT = Study(
    name="knnper.drift",
    title="Rows that change",
    description="Figures 4 and 14 of the paper, and drift-triggered eviction.",
    work=_work,
)
