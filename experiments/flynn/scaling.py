"""Table 7 and Figure 2: training time by number of parties."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.harness import Findings, Study
from fedneighbors._typing import Array, Progress
from fedneighbors.datasets import load
from fedneighbors.federation._messages import encode
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn.algorithm import HashPlan, count_activations, hash_with_plan
from fedneighbors.methods.flynn.protocol import CountReply
from fedneighbors.records import Figure, ResultTable

PARTIES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Case:
    """A data set with the settings of the paper's Table 6 and the times of its Table 7.

    Parameters
    ----------
    name : str
        Displayed name.
    data : str
        Name to load.
    units_per_feature : int
        m / d.
    density : float
        s / d.
    n_active : int
        Active units per row (rho). Table 6 also lists the decay, which only prediction uses.
    paper_seconds, paper_speedups : tuple of float
        The paper's run times and speed-ups with 1, 2, 4, 8 and 16 parties.
    """

    name: str
    data: str
    units_per_feature: int
    density: float
    n_active: int
    paper_seconds: tuple[float, ...]
    paper_speedups: tuple[float, ...]

    def plan(self, n_features: int, seed: int) -> HashPlan:
        """Return the hash plan of Algorithm 1, with raw features."""
        return HashPlan(
            features=FeatureMap(n_features, "none"),
            n_units=self.units_per_feature * n_features,
            n_inputs=max(1, round(self.density * n_features)),
            n_active=self.n_active,
            seed=seed,
        )


DIGITS = Case(
    "digits", "digits", 256, 0.3, 32, (3.63, 3.26, 1.84, 1.36, 1.16), (1.0, 1.11, 1.97, 2.67, 3.12)
)
LETTER = Case(
    "letter",
    "letter",
    1447,
    0.5,
    221,
    (25.72, 14.74, 7.72, 4.06, 2.91),
    (1.0, 1.75, 3.33, 6.38, 8.85),
)
MNIST = Case(
    "MNIST",
    "mnist",
    217,
    0.025,
    17,
    (1023.59, 518.85, 262.68, 163.75, 122.30),
    (1.0, 1.97, 3.90, 6.26, 8.39),
)
FASHION = Case(
    "MNIST, setting of Fashion-MNIST",
    "mnist",
    138,
    0.105,
    8,
    (1410.29, 712.98, 360.74, 241.70, 191.15),
    (1.0, 1.98, 3.91, 5.84, 7.38),
)


@dataclass(frozen=True)
class Plan:
    """Settings of one run.

    Parameters
    ----------
    cases : tuple of Case
        Data sets.
    n_repeats : int
        Repetitions of each measurement.
    max_rows : int or None
        Number of leading rows to use; None for all rows.
    """

    cases: tuple[Case, ...]
    n_repeats: int
    max_rows: int | None = None


FULL = Plan((DIGITS, LETTER, MNIST, FASHION), 3)
QUICK = Plan((DIGITS,), 3)


@dataclass(frozen=True)
class TrainingRun:
    """Times and message size of one training run.

    Parameters
    ----------
    slowest, merge : float
        CPU seconds of the slowest party, and of summing the counts.
    upload_bytes : int
        Largest reply of a party.
    is_exact : bool
        True if the sum equals the counts of one party with all rows.
    """

    slowest: float
    merge: float
    upload_bytes: int
    is_exact: bool

    @property
    def critical_path(self) -> float:
        """Return the seconds if all parties run in parallel."""
        return self.slowest + self.merge


def examine(plan: Plan, *, seed: int, progress: Progress) -> Findings:
    """Measure every case with every number of parties."""
    results: list[tuple[Case, int, list[TrainingRun]]] = []
    steps = len(plan.cases) * len(PARTIES)
    for case in plan.cases:
        x, labels = _rows(case, plan.max_rows)
        pooled = _counts(case, x, labels, int(labels.max()) + 1, seed)
        for n_parties in PARTIES:
            runs = [_train(case, x, labels, n_parties, seed, pooled) for _ in range(plan.n_repeats)]
            results.append((case, n_parties, runs))
            progress(len(results), steps, f"{case.name}, {n_parties} parties")
    return Findings(
        parameters={"repetitions": plan.n_repeats, "parties": list(PARTIES)},
        tables=(_speedups(results), _curves(results)),
        figures=(_figure(),),
        notes=_notes(results),
    )


def _rows(case: Case, max_rows: int | None) -> tuple[Array, npt.NDArray[np.int64]]:
    data = load(case.data)
    rows = data.train_test()[0] if case.data == "mnist" else data
    x, y = rows.x[:max_rows], rows.y[:max_rows]
    return x, np.unique(y, return_inverse=True)[1].astype(np.int64)


def _counts(
    case: Case, x: Array, labels: npt.NDArray[np.int64], n_classes: int, seed: int
) -> Array:
    """Count the rows' activations under the hash of a seed."""
    plan = case.plan(x.shape[1], seed)
    active = hash_with_plan(x, plan)
    return count_activations(active, labels, n_units=plan.n_units, n_classes=n_classes)


def _train(
    case: Case, x: Array, labels: npt.NDArray[np.int64], n_parties: int, seed: int, pooled: Array
) -> TrainingRun:
    """Measure training on evenly split rows, one party after another."""
    n_classes = pooled.shape[1]
    seconds, sizes, total = [], [], np.zeros_like(pooled)
    merge = 0.0
    for party in range(n_parties):
        rows = slice(party, None, n_parties)
        values = np.ascontiguousarray(x[rows])
        elapsed, counts = _timed(_counts, case, values, labels[rows], n_classes, seed)
        seconds.append(elapsed)
        sizes.append(len(encode(CountReply(counts.astype(np.uint16)))))
        merge += _timed(np.add, total, counts, total)[0]
    return TrainingRun(max(seconds), merge, max(sizes), bool((total == pooled).all()))


def _timed(work: Callable[..., Array], *arguments: Any) -> tuple[float, Array]:
    clock = time.process_time()
    result = work(*arguments)
    return time.process_time() - clock, result


Results = Sequence[tuple[Case, int, list[TrainingRun]]]


def _median(runs: list[TrainingRun], value_of: Callable[[TrainingRun], float]) -> float:
    return float(np.median([value_of(run) for run in runs]))


def _speedups(results: Results) -> ResultTable:
    single = {case.name: runs for case, n_parties, runs in results if n_parties == 1}
    rows: list[tuple[Any, ...]] = []
    for case, n_parties, runs in results:
        path = _median(runs, lambda run: run.critical_path)
        column = PARTIES.index(n_parties)
        speedup = _median(single[case.name], lambda run: run.critical_path) / path
        rows.append(
            (
                case.name,
                n_parties,
                path,
                case.paper_seconds[column],
                speedup,
                case.paper_speedups[column],
                _median(runs, lambda run: run.merge),
                runs[0].upload_bytes,
                all(run.is_exact for run in runs),
            )
        )
    return ResultTable(
        name="speedups",
        title="Training time by number of parties, rows split evenly",
        columns=(
            "set",
            "parties",
            "critical_path_cpu_s",
            "paper_s",
            "speed-up",
            "speed-up, paper",
            "merge_cpu_s",
            "upload_per_party_bytes",
            "equal to one party",
        ),
        rows=tuple(rows),
        caption="Critical path: hashing and counting of the slowest party, and summing the counts.",
    )


def _curves(results: Results) -> ResultTable:
    single = {case.name: runs for case, n_parties, runs in results if n_parties == 1}
    cells: list[tuple[Any, ...]] = []
    for case, n_parties, runs in results:
        single_s = _median(single[case.name], lambda run: run.critical_path)
        ours = single_s / _median(runs, lambda run: run.critical_path)
        paper = case.paper_speedups[PARTIES.index(n_parties)]
        cells += [
            (case.name, n_parties, "fedneighbors", ours),
            (case.name, n_parties, "paper", paper),
            (case.name, n_parties, "linear", float(n_parties)),
        ]
    return ResultTable(
        name="curves",
        title="Speed-up over one party",
        columns=("set", "parties", "source", "speed-up"),
        rows=tuple(cells),
    )


def _figure() -> Figure:
    return Figure(
        name="speedup",
        kind="line",
        title="Speed-up of training over a single party",
        table="curves",
        x="parties",
        y="speed-up",
        hue="source",
        facet="set",
        log_x=True,
        log_y=True,
        caption="Figure 2 of the paper.",
    )


def _notes(results: Results) -> tuple[str, ...]:
    bytes_of = {
        case.name: runs[0].upload_bytes for case, n_parties, runs in results if n_parties == 16
    }
    sizes = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in bytes_of.items())
    return (
        "Settings of the paper's Table 6. Parties run one after another on one core, so that they "
        "do not slow down one another; each party draws the hash from the public seed, hashes and "
        "counts. Times are medians of CPU time over the repetitions. The critical path is the time "
        "of a federation with one machine per party, without network and start-up. The paper's "
        "times are wall-clock times of 16 cores of one machine.",
        f"Size of the counts that a party sends once: {sizes}. It does not depend on the rows.",
        "fedneighbors.datasets does not include Fashion-MNIST and CIFAR. The setting of "
        "Fashion-MNIST is run on MNIST, whose images have the same size, and compared with the "
        "paper's times on Fashion-MNIST.",
    )


def _work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:  # noqa: ARG001
    # one process, because parallel parties would slow down one another
    return examine(QUICK if quick else FULL, seed=seed, progress=progress)


STUDY = Study(
    name="flynn.scaling",
    title="Training time over 1 to 16 parties (Table 7, Figure 2)",
    description=(
        "Time of the slowest party plus the merge for digits, letters and MNIST, with the paper's "
        "speed-ups; bytes that each party sends."
    ),
    work=_work,
)
