"""Parts shared by the runs of several methods: split of rows, tables with figures."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import train_test_split

from fedneighbors.metrics import reliability
from fedneighbors.records import Figure, ResultTable, Round

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
    "ReleaseRequest": "the network",
    "PoolRequest": "terms of the pool",
    "ModelRelease": "the model",
    "Finish": "calibration",
    "OriginRequest": "noised mean",
    "ClassSumsRequest": "noised class sums",
    "CellsRequest": "noised counts of cells",
    "NoisyCountRequest": "noised counts",
}
_STEPS = {  # exchanges of a masked sum
    "OpenSum": "keys",
    "DealShares": "shares of keys",
    "MaskInput": "masked",
    "Unmask": "unmasked",
}


def split_rows(
    y: npt.NDArray[Any], test_size: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the indices of training and of held-out rows.

    Stratified by class if every class has at least two rows.
    """
    _, counts = np.unique(y, return_counts=True)
    stratify = y if counts.min() > 1 else None
    training, test = train_test_split(
        np.arange(len(y)), test_size=test_size, stratify=stratify, random_state=seed
    )
    return training, test


def find_most_frequent(y: npt.NDArray[Any]) -> Any:
    """Return the most frequent label; ties go to the lowest."""
    labels, counts = np.unique(y, return_counts=True)
    return labels[np.argmax(counts)]


def tabulate_rows(y: npt.NDArray[Any], parties: npt.NDArray[Any]) -> TableAndFigure:
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


def tabulate_traffic(rounds: Sequence[Round]) -> TableAndFigure:
    """Return a table and a figure of bytes per party and round."""
    rows: list[tuple[str, str, float]] = []
    for entry in rounds:
        label = f"{entry.index + 1}. {_format_request(entry.request)}"
        for direction, sizes in (("sent", entry.upload_bytes), ("received", entry.download_bytes)):
            rows.append((label, direction, sum(sizes.values()) / max(1, len(sizes))))
    table = ResultTable(
        name="traffic",
        title="Bytes per party and round",
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
        caption="Parties send summaries and receive models; rows never leave a party.",
    )
    return table, figure


def _format_request(request: str) -> str:
    """Return the title of a request, with its step if masked."""
    name, _, step = request.partition(": ")
    title = _REQUEST_TITLES.get(re.sub("^(Public|Private|Masked)", "", name), name)
    return f"{title}: {_STEPS.get(step, step)}" if step else title


def tabulate_reliability(
    probabilities: Mapping[str, npt.NDArray[np.float64]],
    y: npt.NDArray[Any],
    classes: npt.NDArray[Any],
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
