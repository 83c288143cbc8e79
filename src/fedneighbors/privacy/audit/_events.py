"""Events that distinguish two samples of outputs: sets of values of one output feature."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Outputs = npt.NDArray[np.int64]
Feature = Callable[[Outputs], Outputs]
"""Function from outputs of shape (n, n_cells) to columns of numbers of shape (n, n_columns)."""

Score = Callable[[npt.NDArray[np.int64], int, npt.NDArray[np.int64], int], npt.NDArray[np.float64]]
"""Score from hits among n outputs of either side (one entry per event); higher is better."""

_MAX_CELLS = 8
"""Maximum number of cells with their own features; audits use tiny vectors."""

_BINS_PER_NAT = 4
_FACTORS = np.array([1, 1_000_003, 998_244_353, 777_767_777, 433_494_437, 27_644_437, 479_001_599])


@dataclass(frozen=True)
class Event:
    """Event that an output's feature takes one of some values.

    Parameters
    ----------
    name : str
        Name of the feature.
    feature : callable
        From outputs to columns of numbers.
    place : int
        Column of the feature.
    values : int64 array
        Values, ascending.
    """

    name: str
    feature: Feature
    place: int
    values: npt.NDArray[np.int64]

    @property
    def words(self) -> str:
        """Return the event as readable text."""
        shown = ", ".join(map(str, self.values[:5].tolist()))
        more = f", ... ({len(self.values)} values)" if len(self.values) > 5 else ""
        return f"{self.name}[{self.place}] in {{{shown}{more}}}"

    def contains(self, outputs: Outputs) -> npt.NDArray[np.bool_]:
        """Return whether each output lies in the event.

        Parameters
        ----------
        outputs : int64 array of shape (n, n_cells)
            One output per row.
        """
        return np.isin(self.feature(outputs)[:, self.place], self.values)


def choose_event(p: Outputs, q: Outputs, score: Score) -> Event:
    """Find an event with high probability under p and low under q.

    One half of the outputs sorts the values of each feature by their likelihood ratio: by the
    Neyman-Pearson lemma, the best event of a feature consists of all values above some bound. The
    other half scores every bound of every feature; with the same half, features with many values
    would win by chance.

    Parameters
    ----------
    p, q : int64 arrays of shape (n, n_cells)
        Outputs that are not used for certification.
    score : callable
        Score of events, from their counts.
    """
    (sort_p, score_p), (sort_q, score_q) = np.array_split(p, 2), np.array_split(q, 2)
    best, best_score = None, -np.inf
    for name, feature in {**_FEATURES, "evidence": _evidence(sort_p, sort_q)}.items():
        scored_p, scored_q = feature(score_p), feature(score_q)
        for place, values in enumerate(_sorted_values(feature(sort_p), feature(sort_q))):
            hits = [_count_values(x[:, place], values).cumsum() for x in (scored_p, scored_q)]
            scores = score(hits[0], len(score_p), hits[1], len(score_q))
            top = int(np.argmax(scores))
            if scores[top] > best_score:
                best, best_score = (
                    Event(name, feature, place, np.sort(values[: top + 1])),
                    scores[top],
                )
    assert best is not None  # there is at least one cell
    return best


def _sorted_values(p: Outputs, q: Outputs) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the values of each column, sorted by likelihood ratio."""
    for place in range(p.shape[1]):
        values = np.unique(np.concatenate([p[:, place], q[:, place]]))
        yield values[np.argsort(-_log_ratio(values, p[:, place], q[:, place]), kind="stable")]


def _log_ratio(
    values: npt.NDArray[np.int64], p: npt.NDArray[np.int64], q: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Estimate log(P / Q) of each value.

    Half a count is added to each value.
    """
    ratio: npt.NDArray[np.float64] = np.log(
        (_count_values(p, values) + 0.5) / len(p) / (_count_values(q, values) + 0.5) * len(q)
    )
    return ratio


def _count_values(
    sample: npt.NDArray[np.int64], values: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Count the occurrences of each of some distinct values in a sample."""
    order = np.argsort(values)
    ranks = np.searchsorted(values, sample, sorter=order)
    places = order[np.minimum(ranks, len(values) - 1)]
    return np.bincount(places[values[places] == sample], minlength=len(values))


def _evidence(p: Outputs, q: Outputs) -> Feature:
    """Return the feature that sums the log-ratios of all cells.

    Bins are a quarter nat wide.

    If cells have independent noise, this is the log-ratio of the whole output.
    """
    tables = []
    for cell in range(p.shape[1]):
        values = np.unique(np.concatenate([p[:, cell], q[:, cell]]))
        tables.append((values, _log_ratio(values, p[:, cell], q[:, cell])))

    def feature(outputs: Outputs) -> Outputs:
        total = np.zeros(len(outputs))
        for cell, (values, ratios) in enumerate(tables):
            ranks = np.minimum(np.searchsorted(values, outputs[:, cell]), len(values) - 1)
            total += np.where(values[ranks] == outputs[:, cell], ratios[ranks], 0.0)
        return np.rint(_BINS_PER_NAT * total).astype(np.int64)[:, None]

    return feature


def _cells(outputs: Outputs) -> Outputs:
    return outputs[:, :_MAX_CELLS]


def _differences(outputs: Outputs) -> Outputs:
    few = _cells(outputs)
    return np.diff(few, axis=1) if few.shape[1] > 1 else few


def _sums(outputs: Outputs) -> Outputs:
    half = outputs.shape[1] // 2
    first, rest = outputs[:, :half].sum(axis=1), outputs[:, half:].sum(axis=1)
    return np.stack([first, rest, first + rest, first - rest], axis=1)


def _support(outputs: Outputs) -> Outputs:
    """Return signs and supports of the first cells and the nonzero count."""
    few = _cells(outputs)
    bit = 1 << np.arange(few.shape[1])
    return np.stack([(few > 0) @ bit, (few != 0) @ bit, (outputs != 0).sum(axis=1)], axis=1)


def _extremes(outputs: Outputs) -> Outputs:
    return np.stack([outputs.min(axis=1), outputs.max(axis=1), outputs.argmax(axis=1)], axis=1)


def _whole(outputs: Outputs) -> Outputs:
    """Map each output vector to one number.

    A collision of two vectors only makes an event coarser.
    """
    factors = np.resize(_FACTORS, outputs.shape[1]) + np.arange(outputs.shape[1])
    numbers: Outputs = (outputs * factors).sum(axis=1)
    return numbers[:, None]


_FEATURES: dict[str, Feature] = {
    "cell": _cells,
    "difference": _differences,
    "sum": _sums,
    "support": _support,
    "extreme": _extremes,
    "whole": _whole,
}
