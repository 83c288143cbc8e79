"""Figures 4 and 14: clients whose rows change, and what their memories do about it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from fedneighbors.methods.knnper.algorithm import local_votes, mixed
from fedneighbors.methods.knnper.memory.datastore import Datastore, Strategy
from fedneighbors.methods.knnper.studies.bootstrap import Difference, paired_difference
from fedneighbors.methods.knnper.studies.scenes import Scene, Scope, scene
from fedneighbors.records import Figure, Scalar, Table
from fedneighbors.records.jobs import run_each
from fedneighbors.records.study import Findings, Progress, Study

__all__ = ["DRIFT", "Stream", "followed"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
SHIFTS = {"labels": 20, "labels, poor network": 3, "concept": 20}
"""What changes, and for how many rounds the network was trained."""

N_CLASSES = 10


@dataclass(frozen=True)
class Stream:
    """What comes to a client, and when it changes.

    Parameters
    ----------
    n_steps, shift_at : int
        Batches in all, and before the change.
    n_first, n_batch, n_test : int
        Rows of the first memory, of a batch, and on which the memory is tested after each.
    n_clients : int
        Clients.
    """

    n_steps: int = 60
    shift_at: int = 30
    n_first: int = 150
    n_batch: int = 6
    n_test: int = 80
    n_clients: int = 25


FULL = Scope("mnist", 20_000, 50, 20, (0, 1, 2))
QUICK = Scope("digits", 900, 10, 5, (0,))
SHORT = Stream(n_steps=24, shift_at=10, n_first=60, n_test=40, n_clients=3)


def _drawn(rng: np.random.Generator, shares: Floats, n: int, by_class: Sequence[Integers]) -> Any:
    """Return rows of the bank whose classes follow shares."""
    return np.array([rng.choice(by_class[c]) for c in rng.choice(N_CLASSES, n, p=shares)])


def followed(
    here: Scene, stream: Stream, *, shift: str, seed: int
) -> tuple[dict[str, Floats], int, list[int]]:
    """Return how the strategies fare on the streams of some clients.

    Parameters
    ----------
    here : Scene
        Where rows come from.
    stream : Stream
        What comes when.
    shift : str
        ``"concept"``: what the labels mean changes; otherwise the shares of the classes do.
    seed : int
        Of the streams.

    Returns
    -------
    accuracy : dict of str to float64 array of shape (n_clients, n_steps)
        Of every strategy.
    n_false : int
        Evictions before the change.
    delays : list of int
        Steps from the change to each eviction after it.
    """
    rng = np.random.default_rng(seed)
    labels, test = here.bank.labels, here.test
    pools = [
        [np.flatnonzero((labels == c) & (test == tested)) for c in range(N_CLASSES)]
        for tested in (False, True)
    ]
    shape = (stream.n_clients, stream.n_steps)
    accuracy: dict[str, Floats] = {name: np.zeros(shape) for name in STRATEGIES}
    n_false, delays = 0, []
    for client in range(stream.n_clients):
        before, after = (rng.dirichlet(np.full(N_CLASSES, 0.3)) for _ in "ab")
        meaning = np.arange(N_CLASSES)
        if shift == "concept":
            after, meaning = before, rng.permutation(N_CLASSES)
        course = _course(rng, stream, pools, (before, after))
        for name in STRATEGIES:
            found, evicted = _memory_course(here, stream, course, meaning, name)
            accuracy[name][client] = found
            if name == "drift":
                n_false += sum(step < stream.shift_at for step in evicted)
                delays += [step - stream.shift_at for step in evicted if step >= stream.shift_at]
    return accuracy, n_false, delays


def _course(
    rng: np.random.Generator, stream: Stream, pools: Any, shares: tuple[Floats, Floats]
) -> tuple[Integers, list[Integers], list[Integers]]:
    """Return the first rows, the batches, and the test rows before and after the change."""
    first = _drawn(rng, shares[0], stream.n_first, pools[0])
    when = [int(step >= stream.shift_at) for step in range(stream.n_steps)]
    batches = [_drawn(rng, shares[late], stream.n_batch, pools[0]) for late in when]
    tests = [_drawn(rng, each, stream.n_test, pools[1]) for each in shares]
    return first, batches, tests


def _memory_course(
    here: Scene, stream: Stream, course: Any, meaning: Integers, strategy: Strategy
) -> tuple[Floats, list[int]]:
    """Return accuracy after every step, and the steps at which the past was forgotten."""
    first, batches, tests = course
    keys, labels = here.bank.embeddings, here.bank.labels
    capacity = stream.n_first if strategy in ("fifo", "reservoir") else None
    memory = Datastore(keys.shape[1], capacity, strategy, n_classes=N_CLASSES)
    memory.add(keys[first], labels[first])
    found, evicted = np.zeros(stream.n_steps), []
    for step, batch in enumerate(batches):
        late = step >= stream.shift_at
        now = meaning if late else np.arange(N_CLASSES)
        had = memory.n_evictions
        memory.add(keys[batch], now[labels[batch]])
        if memory.n_evictions > had:
            evicted.append(step)
        asked = tests[int(late)]
        near = memory.nearest(np.ascontiguousarray(keys[asked], np.float64), 10)
        votes = local_votes(near, memory.labels, N_CLASSES)
        guess = mixed(votes, np.exp(here.scores[asked]), 0.5).argmax(axis=1)
        found[step] = float((guess == now[labels[asked]]).mean())
    return found, evicted


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
            "begins with; the others are not bounded.",
        ),
    )


def _mean(found: Sequence[Any], strategy: str) -> Floats:
    return np.asarray(np.mean([accuracy[strategy] for accuracy, _, _ in found], axis=(0, 1)))


def _ahead(found: Sequence[Any], strategy: str, steps: slice, n_test: int) -> Difference:
    """Return by how much eviction is better in some steps; clients are drawn anew."""

    def right(accuracy: Floats) -> dict[str, tuple[int, int]]:
        asked = n_test * accuracy[:, steps].shape[1]
        each = np.rint(accuracy[:, steps].sum(axis=1) * n_test).astype(int)
        return {str(client): (n, asked) for client, n in enumerate(each.tolist())}

    return paired_difference(
        [(right(accuracy["drift"]), right(accuracy[strategy])) for accuracy, _, _ in found]
    )


def _summary(by_shift: Any, stream: Stream) -> Table:
    rows: list[tuple[Scalar, ...]] = []
    at = stream.shift_at
    for shift, found in by_shift.items():
        for strategy in STRATEGIES:
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
        delays = [delay for _, _, late in found for delay in late]
        false = sum(n for _, n, _ in found)
        median = float(np.median(delays)) if delays else None
        rows.append((shift, steps, false, false / steps, len(delays), median))
    return Table(
        name="alarms",
        title="When drift was noticed",
        columns=(
            "shift", "client-steps before", "false alarms", "share", "alarms after", "median delay",
        ),
        rows=tuple(rows),
        caption="A false alarm is an eviction before the shift; the delay is in steps.",
    )  # fmt: skip


def _curves(shift: str, found: Sequence[Any], stream: Stream) -> Table:
    return Table(
        name=f"curve-{_slug(shift)}",
        title=f"Accuracy over time, shift of {shift}",
        columns=("step", "strategy", "accuracy"),
        rows=tuple(
            (step, strategy, float(_mean(found, strategy)[step]))
            for strategy in STRATEGIES
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
