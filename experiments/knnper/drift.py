"""Figures 4 and 14: memory strategies under a distribution shift."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from experiments.bootstrap import Interval, paired_difference
from experiments.harness import Findings, Study, run_each
from experiments.knnper.federations import Scope
from experiments.knnper.fixtures import EmbeddedClients, train_and_embed
from fedneighbors._typing import Floats, Integers, Progress
from fedneighbors.methods.knnper.algorithm import mix
from fedneighbors.methods.knnper.memory._datastore import Datastore, Strategy
from fedneighbors.methods.knnper.memory._drift import reweight
from fedneighbors.records import Figure, ResultTable, Scalar

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
INFORMED = "told of the change"
N_CLASSES = 10


@dataclass(frozen=True)
class Stream:
    """Sizes of the streams of rows, and the step of the shift.

    Parameters
    ----------
    n_steps, shift_at : int
        Number of batches, and number of batches before the shift.
    n_first, n_batch, n_test : int
        Number of rows of the initial memory, of each batch, and of each test.
    n_clients : int
        Number of clients.
    """

    n_steps: int = 60
    shift_at: int = 30
    n_first: int = 150
    n_batch: int = 6
    n_test: int = 80
    n_clients: int = 25


def _draw_rows(
    rng: np.random.Generator, shares: Floats, n: int, by_class: Sequence[Integers]
) -> Any:
    """Draw rows of the bank with given class shares."""
    return np.array([rng.choice(by_class[c]) for c in rng.choice(N_CLASSES, n, p=shares)])


@dataclass(frozen=True, eq=False)
class ClientStream:
    """Rows of one client in order of arrival.

    Parameters
    ----------
    first : int64 array of shape (n_first,)
        Rows of the initial memory.
    batches : list of int64 array of shape (n_batch,)
        Rows of each step.
    tests : list of two int64 arrays of shape (n_test,)
        Test rows before and after the change.
    shares : float64 array of shape (n_classes,)
        Class shares after the change.
    meaning : int64 array of shape (n_classes,)
        Label of each class after the change.
    """

    first: Integers
    batches: list[Integers]
    tests: list[Integers]
    shares: Floats
    meaning: Integers

    def labels(self, embedded: EmbeddedClients, rows: Integers, *, late: bool) -> Integers:
        """Return the labels of rows before or after the change."""
        classes = embedded.bank.labels[rows]
        return self.meaning[classes] if late else classes


@dataclass(frozen=True, eq=False)
class StreamResults:
    """Accuracy of the strategies on the streams of some clients.

    Parameters
    ----------
    accuracy : dict of str to float64 array of shape (n_clients, n_steps)
        Test accuracy of each strategy.
    n_false : int
        Number of detections before the change, by the strategy ``"drift"``.
    delays : list of int
        Steps from the change to the first detection, over the clients with a detection.
    n_more : int
        Number of further detections.
    n_evictions : int
        Number of evictions of all strategies.
    """

    accuracy: dict[str, Floats]
    n_false: int
    delays: list[int]
    n_more: int
    n_evictions: int


def run_streams(
    embedded: EmbeddedClients, stream: Stream, *, shift: str, seed: int
) -> StreamResults:
    """Run all strategies on the streams of clients.

    Parameters
    ----------
    embedded : EmbeddedClients
        Source of the rows.
    stream : Stream
        Sizes of the streams.
    shift : str
        ``"concept"``: the meaning of labels changes; otherwise the class shares change.
    seed : int
        Seed of the streams.
    """
    rng = np.random.default_rng(seed)
    labels, test = embedded.bank.labels, embedded.test
    rows_by_class = [
        [np.flatnonzero((labels == c) & (test == is_test)) for c in range(N_CLASSES)]
        for is_test in (False, True)
    ]
    shape = (stream.n_clients, stream.n_steps)
    accuracy: dict[str, Floats] = {name: np.zeros(shape) for name in (*STRATEGIES, INFORMED)}
    alarms: list[list[int]] = []
    n_evictions = 0
    for client in range(stream.n_clients):
        rows = _draw_stream(rng, stream, rows_by_class, shift)
        for name in STRATEGIES:
            accuracy[name][client], memory, detections = _run_strategy(embedded, stream, rows, name)
            n_evictions += memory.n_evictions
            if name == "drift":
                alarms.append([step - stream.shift_at for step in detections])
        accuracy[INFORMED][client] = _run_informed(embedded, stream, rows, shift)
    late = [[delay for delay in steps if delay >= 0] for steps in alarms]
    return StreamResults(
        accuracy=accuracy,
        n_false=sum(len(steps) for steps in alarms) - sum(len(steps) for steps in late),
        delays=[steps[0] for steps in late if steps],
        n_more=sum(len(steps[1:]) for steps in late),
        n_evictions=n_evictions,
    )


def _draw_stream(
    rng: np.random.Generator, stream: Stream, rows_by_class: Any, shift: str
) -> ClientStream:
    before, after = (rng.dirichlet(np.full(N_CLASSES, 0.3)) for _ in range(2))
    meaning = np.arange(N_CLASSES)
    if shift == "concept":
        after, meaning = before, rng.permutation(N_CLASSES)
    shares = (before, after)
    first = _draw_rows(rng, before, stream.n_first, rows_by_class[0])
    is_late = [int(step >= stream.shift_at) for step in range(stream.n_steps)]
    batches = [_draw_rows(rng, shares[late], stream.n_batch, rows_by_class[0]) for late in is_late]
    tests = [_draw_rows(rng, each, stream.n_test, rows_by_class[1]) for each in shares]
    return ClientStream(first, batches, tests, after, meaning)


def _run_strategy(
    embedded: EmbeddedClients, stream: Stream, rows: ClientStream, strategy: Strategy
) -> tuple[Floats, Datastore, list[int]]:
    """Return the accuracy per step, the memory, and detected changes."""
    keys = embedded.bank.embeddings
    capacity = stream.n_first if strategy in ("fifo", "reservoir") else None
    memory = Datastore(keys.shape[1], capacity, strategy, n_classes=N_CLASSES)
    memory.add(keys[rows.first], rows.labels(embedded, rows.first, late=False))
    accuracy, detections = np.zeros(stream.n_steps), []
    for step, batch in enumerate(rows.batches):
        late = step >= stream.shift_at
        before = memory.n_evictions + memory.n_reweighings
        memory.add(keys[batch], rows.labels(embedded, batch, late=late))
        if memory.n_evictions + memory.n_reweighings > before:
            detections.append(step)
        accuracy[step] = _accuracy(embedded, rows, memory, late=late)
    return accuracy, memory, detections


def _accuracy(
    embedded: EmbeddedClients,
    rows: ClientStream,
    memory: Datastore,
    *,
    late: bool,
    weights: Floats | None = None,
) -> float:
    """Return the test accuracy, with equal weights of memory and network."""
    test = rows.tests[int(late)]
    votes = memory.votes(embedded.keys(test), N_CLASSES, n_neighbors=10)
    assert votes is not None
    if weights is not None:
        votes = reweight(votes, weights)
    predicted = mix(votes, np.exp(embedded.scores[test]), 0.5).argmax(axis=1)
    return float((predicted == rows.labels(embedded, test, late=late)).mean())


def _run_informed(
    embedded: EmbeddedClients, stream: Stream, rows: ClientStream, shift: str
) -> Floats:
    """Return the accuracy of a memory that is informed of the shift.

    At a shift of concept it forgets all rows; after a shift of class shares it reweights votes by
    the true shares. The strategies must detect the shift themselves.
    """
    memory = Datastore(embedded.bank.embeddings.shape[1], n_classes=N_CLASSES)
    memory.add(embedded.keys(rows.first), rows.labels(embedded, rows.first, late=False))
    accuracy = np.zeros(stream.n_steps)
    for step, batch in enumerate(rows.batches):
        late, weights = step >= stream.shift_at, None
        if step == stream.shift_at and shift == "concept":
            memory.keep([])
        memory.add(embedded.keys(batch), rows.labels(embedded, batch, late=late))
        if late and shift != "concept":
            counts = np.bincount(memory.labels, minlength=N_CLASSES) + 1 / N_CLASSES
            weights = np.maximum(rows.shares, 1e-12) / (counts / counts.sum())
        accuracy[step] = _accuracy(embedded, rows, memory, late=late, weights=weights)
    return accuracy


SHIFTS = {"labels": 20, "labels, poor network": 3, "concept": 20}
"""Kinds of change, and the number of training rounds of the network."""

FULL = Scope("mnist", 20_000, 50, 20, (0, 1, 2, 3, 4))
QUICK = Scope("digits", 900, 10, 5, (0,))
SHORT = Stream(n_steps=24, shift_at=10, n_first=60, n_test=40, n_clients=3)


def _measure(scope: Scope, stream: Stream, shift: str, seed: int) -> Any:
    rounds = min(SHIFTS[shift], scope.n_rounds)
    embedded = train_and_embed(replace(scope, n_rounds=rounds), alpha=0.3, seed=seed)
    return run_streams(embedded, stream, shift=shift, seed=seed)


def _label(_scope: Scope, _stream: Stream, shift: str, seed: int) -> str:
    return f"shift of {shift}, seed {seed}"


def _work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    scope, stream = (QUICK, SHORT) if quick else (FULL, Stream())
    jobs = [(scope, stream, shift, seed + s) for shift in SHIFTS for s in scope.seeds]
    each = run_each(_measure, jobs, n_jobs=n_jobs, progress=progress, label=_label)
    by_shift = {shift: [result for job, result in zip(jobs, each, strict=True) if job[2] == shift]
                for shift in SHIFTS}  # fmt: skip
    return Findings(
        parameters={"data": scope.data, "clients": stream.n_clients, "seeds": len(scope.seeds)},
        tables=(
            _summary_table(by_shift, stream),
            _alarms_table(by_shift, stream),
            *(_curve_table(shift, found, stream) for shift, found in by_shift.items()),
        ),
        figures=tuple(_figure(shift) for shift in SHIFTS),
        notes=(
            "Network and memory have equal weights. fifo and reservoir store as many rows as the "
            "initial memory; the others are unbounded. 'told of the change' is an upper bound, not "
            "a strategy: at the shift it forgets all rows, or reweights votes by the true shares.",
        ),
    )


def _mean(found: Sequence[StreamResults], strategy: str) -> Floats:
    return np.asarray(np.mean([each.accuracy[strategy] for each in found], axis=(0, 1)))


def _drift_gain(
    found: Sequence[StreamResults], strategy: str, steps: slice, n_test: int
) -> Interval:
    """Return the accuracy gain of ``drift`` in some steps, with an interval."""

    def count_hits(accuracy: Floats) -> dict[str, tuple[int, int]]:
        n_rows = n_test * accuracy[:, steps].shape[1]
        each = np.rint(accuracy[:, steps].sum(axis=1) * n_test).astype(int)
        return {str(client): (n, n_rows) for client, n in enumerate(each.tolist())}

    return paired_difference(
        [
            (count_hits(each.accuracy["drift"]), count_hits(each.accuracy[strategy]))
            for each in found
        ]
    )


def _summary_table(by_shift: Any, stream: Stream) -> ResultTable:
    rows: list[tuple[Scalar, ...]] = []
    shift_at = stream.shift_at
    for shift, found in by_shift.items():
        for strategy in (*STRATEGIES, INFORMED):
            curve = _mean(found, strategy)
            cells = (
                curve[:shift_at].mean(),
                curve[shift_at : shift_at + 10].mean(),
                curve[-10:].mean(),
            )
            gain = _drift_gain(found, strategy, slice(shift_at, shift_at + 10), stream.n_test)
            rows.append((shift, strategy, *map(float, cells), *gain))
    return ResultTable(
        name="summary",
        title="Accuracy before the shift, in the ten steps after it, and in the last ten",
        columns=(
            "shift", "strategy", "before", "first ten after", "last ten",
            "eviction is better by", "from", "to",
        ),
        rows=tuple(rows),
        caption="Differences: first ten steps after the shift. Intervals: 95 %, paired bootstrap "
        "over clients.",
    )  # fmt: skip


def _alarms_table(by_shift: Any, stream: Stream) -> ResultTable:
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
    return ResultTable(
        name="alarms",
        title="Detections of drift",
        columns=(
            "shift", "client-steps before", "false alarms", "share", "clients", "noticed by",
            "median delay", "noticed again", "evictions",
        ),
        rows=tuple(rows),
        caption="A false alarm is a detection before the shift. The delay is the number of steps "
        "from the shift to the first alarm after it. Rows are evicted at a detected shift of "
        "concept; at a detected shift of class shares, votes are reweighted.",
    )  # fmt: skip


def _curve_table(shift: str, found: Sequence[Any], stream: Stream) -> ResultTable:
    return ResultTable(
        name=f"curve-{_slug(shift)}",
        title=f"Accuracy over time, shift of {shift}",
        columns=("step", "strategy", "accuracy"),
        rows=tuple(
            (step, strategy, float(_mean(found, strategy)[step]))
            for strategy in (*STRATEGIES, INFORMED)
            for step in range(stream.n_steps)
        ),
    )


def _slug(shift: str) -> str:
    return shift.replace(", ", "-").replace(" ", "-")


def _figure(shift: str) -> Figure:
    return Figure(
        name=_slug(shift),
        kind="line",
        title=f"Memory strategies, shift of {shift}",
        table=f"curve-{_slug(shift)}",
        x="step",
        y="accuracy",
        hue="strategy",
        caption="Figures 4 and 14 of the paper, with reservoir and drift-triggered eviction.",
    )


DRIFT = Study(
    name="knnper.drift",
    title="Distribution shift",
    description="Figures 4 and 14 of the paper, and drift-triggered eviction.",
    work=_work,
)
