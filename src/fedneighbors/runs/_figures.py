"""Parts shared by the runs of several methods: tables of rows, tables with figures."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.comparison._candidates import Trial, losses_alone
from fedneighbors.comparison._scores import (
    JOINING_CAPTION,
    PARTY_METRIC,
    judge_joining,
    mean_score,
)
from fedneighbors.comparison._table import PartyRows, Task, hold_out, split_stream
from fedneighbors.metrics import reliability
from fedneighbors.records import Figure, ResultTable, Round, RunRecord, environment

TableAndFigure = tuple[ResultTable, Figure]
_REQUEST_TITLES = {
    "SchemaRequest": "columns and labels",
    "SelectionRequest": "sums of each class",
    "ConstantsRequest": "constants of columns",
    "CentersRequest": "centers",
    "MomentsRequest": "sums of columns",
    "CountRequest": "counts",
    "HitRequest": "correct predictions",
    "CountsRequest": "class counts",
    "ClassMomentsRequest": "sums and products by class",
    "LossRequest": "held-out loss",
    "TrainRequest": "one round of training",
    "ReleaseRequest": "the shared model",
    "PoolRequest": "terms of the pool",
    "ModelRelease": "the model",
    "Finish": "calibration",
    "OriginRequest": "noised mean",
    "ClassSumsRequest": "noised class sums",
    "CellsRequest": "noised counts of cells",
    "NoisyCountRequest": "noised counts",
    "ClientSchemaRequest": "columns and labels",
    "ClientMomentsRequest": "sums of columns",
    "SummarySchemaRequest": "columns",
    "SummaryRequest": "sums of columns",
    "NearestBatchRequest": "nearest rows of the held-out rows",
    "BoostingSchemaRequest": "columns and labels",
    "TargetRequest": "sums of the target",
    "RankRequest": "counts of values",
    "HistogramRequest": "histograms",
    "BoostingRelease": "the model",
}
_STEPS = {  # exchanges of a masked sum
    "OpenSum": "keys",
    "DealShares": "shares of keys",
    "MaskInput": "masked",
    "Unmask": "unmasked",
}
_MAX_ROUNDS = 50  # more are summed by request
_COUNTED = "In parentheses: the number of rounds, which are summed. "
NOT_PRIVATE = (
    "Training stayed within the privacy budget. This report is not private: scores, numbers of "
    "rows and the other methods are exact."
)


def split_rows(y: Array, test_size: float, seed: int) -> tuple[Integers, Integers]:
    """Return the indices of training and of held-out rows.

    Stratified by class if every class has at least two rows.
    """
    _, counts = np.unique(y, return_counts=True)
    stratify = y if counts.min() > 1 else None
    training, test = train_test_split(
        np.arange(len(y)), test_size=test_size, stratify=stratify, random_state=seed
    )
    return training, test


def split_rows_by_party(
    y: Array,
    parties: Array,
    test_size: float,
    seed: int,
    task: Task = "classification",
) -> tuple[Integers, Integers]:
    """Return the indices of training and of held-out rows.

    Held out is a fraction of the rows of each party, and of each class of a party, as in the first
    split of ``compare``.
    """
    groups = np.unique(parties, return_inverse=True)[1]
    if task == "classification":
        classes, codes = np.unique(y, return_inverse=True)
        groups = groups * len(classes) + codes
    is_test = hold_out(groups, test_size, split_stream(seed, 0))
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def column_medians(x: Floats) -> Floats:
    """Return the median of each column's known cells, 0 without any.

    As ``compare`` fills the cells for methods that need complete rows.
    """
    imputer = SimpleImputer(strategy="median", keep_empty_features=True).fit(x)
    return np.asarray(imputer.statistics_, np.float64)


def fill_cells(x: Array, fills: Floats | None) -> Array:
    """Return rows with values for missing cells, unchanged for None."""
    return x if fills is None else np.where(np.isnan(x), fills, x)


@dataclass(frozen=True)
class RunTable:
    """Rows of all parties, of which a run holds some out.

    Parameters
    ----------
    x : array of shape (n_rows, n_features)
        Numbers; missing cells are NaN.
    y, parties : arrays of shape (n_rows,)
        Labels, or numbers as float64; and owners.
    feature_names : sequence of str
        Column names to store in the model.
    test_size : float
        Fraction of the rows of each party to hold out, in (0, 1).
    seed : int
        Seed of the held-out rows.
    fills : float64 array of shape (n_features,), optional
        Values for missing cells, for methods that need complete rows. Models that parties train
        alone see the cells as missing.
    task : {"classification", "regression"}
        Kind of the targets.
    """

    x: Array
    y: Array
    parties: Array
    feature_names: Sequence[str]
    test_size: float = 0.25
    seed: int = 0
    fills: Floats | None = None
    task: Task = "classification"
    _start: datetime = field(default_factory=lambda: datetime.now(UTC), init=False, repr=False)

    @cached_property
    def split(self) -> tuple[Integers, Integers]:
        """Return the indices of training and of held-out rows."""
        return split_rows_by_party(self.y, self.parties, self.test_size, self.seed, self.task)

    @cached_property
    def filled(self) -> Array:
        """Return the rows with values for missing cells."""
        return fill_cells(self.x, self.fills)

    def make_record(self, name: str, parameters: Mapping[str, Any], **parts: Any) -> RunRecord:
        """Return the record of a run that began with this table."""
        return RunRecord(
            name=name,
            parameters={**parameters, "test_size": self.test_size},
            started=self._start.isoformat(timespec="seconds"),
            seconds=(datetime.now(UTC) - self._start).total_seconds(),
            environment=environment(),
            **parts,
        )


def find_most_frequent(y: Array) -> Any:
    """Return the most frequent label; ties go to the lowest."""
    labels, counts = np.unique(y, return_counts=True)
    return labels[np.argmax(counts)]


def tabulate_rows(y: Array, parties: Array) -> TableAndFigure:
    """Return a table and a figure of each party's rows by class."""
    rows = []
    for party in np.unique(parties):
        labels, counts = np.unique(y[parties == party], return_counts=True)
        n_of = dict(zip(labels.tolist(), counts.tolist(), strict=True))
        rows += [(str(party), str(label), n_of.get(label, 0)) for label in np.unique(y).tolist()]
    table = ResultTable(
        name="holdings",
        title="Rows by party and class",
        columns=("party", "class", "rows"),
        rows=tuple(rows),
    )
    figure = Figure(
        name="holdings",
        kind="stacked",
        title="Training rows of each party, by class",
        table="holdings",
        x="party",
        y="rows",
        hue="class",
        caption="Number of training rows of each class at each party.",
    )
    return table, figure


def tabulate_joining(
    table: RunTable, *, method: str, predict: Callable[[str], Array]
) -> ResultTable:
    """Return a table of each party's score alone and joined.

    Parameters
    ----------
    table : RunTable
        Rows and task.
    method : str
        Name of the joined model.
    predict : callable
        Returns the targets that the joined model predicts for all held-out rows at a party.
    """
    (rows, held_out), task = table.split, table.task
    x, y, parties = table.x, table.y, table.parties
    n_classes, codes = 0, y
    if task == "classification":
        classes, codes = np.unique(y, return_inverse=True)
        n_classes = len(classes)
    everything = PartyRows(x, codes, np.zeros(len(y), np.int64))
    test, truth, owners = everything.select(held_out), y[held_out], parties[held_out]
    lines = []
    for party in np.unique(parties[rows]).tolist():
        train = everything.select(rows[parties[rows] == party])
        losses = losses_alone(Trial(train, test, task, n_classes, 0))
        joined = predict(party)
        is_regression = task == "regression"
        losses[method] = (
            np.abs(joined - truth) if is_regression else (joined != truth).astype(float)
        )
        own = [values[owners == party] for values in losses.values()]
        scores = (mean_score(values, task) for values in (*own, *losses.values()))
        verdict = judge_joining(own[-1], own[:-1], task)
        lines.append((str(party), verdict, len(train), *scores))
    return ResultTable(
        name="joining",
        title=f"{PARTY_METRIC[task].capitalize()} of each party alone and joined",
        columns=(
            "party",
            "joining pays?",
            "training rows",
            *(f"{name}, own" for name in losses),
            *(f"{name}, all" for name in losses),
        ),
        rows=tuple(lines),
        caption="Boosting and kNN are trained on the party's own rows. Own: on its held-out rows; "
        "all: on those of all parties. " + JOINING_CAPTION[task],
    )


def tabulate_traffic(rounds: Sequence[Round]) -> TableAndFigure:
    """Return a table and a figure of bytes per party and round.

    Many rounds are summed by request.
    """
    sums: dict[tuple[str, str], float] = {}
    are_many = len(rounds) > _MAX_ROUNDS
    n_of = Counter(entry.request for entry in rounds)
    for entry in rounds:
        title = _format_request(entry.request)
        label = f"{title} ({n_of[entry.request]:,})" if are_many else f"{entry.index + 1}. {title}"
        for direction, sizes in (("sent", entry.upload_bytes), ("received", entry.download_bytes)):
            key = label, direction
            sums[key] = sums.get(key, 0.0) + sum(sizes.values()) / max(1, len(sizes))
    rows = [(*key, size) for key, size in sums.items()]
    table = ResultTable(
        name="traffic",
        title="Bytes per party and request" if are_many else "Bytes per party and round",
        columns=("round", "direction", "bytes"),
        rows=tuple(rows),
    )
    figure = Figure(
        name="traffic",
        kind="bar",
        title="Bytes between a party and the coordinator",
        table="traffic",
        x="round",
        y="bytes",
        hue="direction",
        caption=(_COUNTED if are_many else "") + "Parties send summaries and receive models or "
        "rows to predict; training rows never leave a party.",
    )
    return table, figure


def _format_request(request: str) -> str:
    """Return the title of a request, with its step if masked."""
    name, _, step = request.partition(": ")
    title = _REQUEST_TITLES.get(re.sub("^(Public|Private|Masked)", "", name), name)
    return f"{title}: {_STEPS.get(step, step)}" if step else title


def tabulate_reliability(
    probabilities: Mapping[str, Floats],
    y: Array,
    classes: Array,
) -> TableAndFigure:
    """Return a table and a figure of observed against predicted frequencies."""
    rows = []
    for method, proba in probabilities.items():
        curve = reliability(proba, y, classes)
        rows += [
            (method, float(confidence), float(accuracy), _half_width(accuracy, count), int(count))
            for confidence, accuracy, count in zip(
                curve.confidence, curve.accuracy, curve.counts, strict=True
            )
            if count
        ]
    table = ResultTable(
        name="reliability",
        title="Calibration on the test rows",
        columns=("method", "predicted probability", "observed frequency", "half-width", "rows"),
        rows=tuple(rows),
    )
    figure = Figure(
        name="reliability",
        kind="reliability",
        title="Reliability of the probabilities",
        table="reliability",
        x="predicted probability",
        y="observed frequency",
        hue="method",
        error="half-width",
        diagonal=True,
        caption="On the diagonal, predictions with a probability of 80 % are right in 80 % of the "
        "cases. Bars are 95 % confidence intervals, which are wide for few rows.",
    )
    return table, figure


def _half_width(fraction: float, n_rows: int) -> float:
    """Return the half-width of a fraction's 95 % confidence interval.

    By the method of Agresti and Coull: two successes and two failures are added.
    """
    total = n_rows + 4
    adjusted = (fraction * n_rows + 2) / total
    return float(1.96 * np.sqrt(adjusted * (1 - adjusted) / total))
