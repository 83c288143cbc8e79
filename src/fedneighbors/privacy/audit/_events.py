"""Events that distinguish two samples of outputs.

An event is a set of values of one feature, a number computed from the output.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedneighbors._typing import Booleans, Floats, Integers

Outputs = Integers
Feature = Callable[[Outputs], Outputs]
"""Function from outputs of shape (n, n_cells) to features of shape (n, n_columns)."""

Score = Callable[[Integers, int, Integers, int], Floats]
"""Function from the hits and the number of outputs under p, then under q, to scores.

Hits and scores have one entry per event; the highest score is the best."""

_MAX_CELLS = 8
"""Maximum number of cells with features of their own; audits use short vectors. The 2**8 sets of
nonzero cells are few enough to be observed several times each."""

_N_BINS = 64
"""Bins of equal frequency of a feature with more values: enough outputs fall into each bin to sort
the bins by likelihood ratio, where single values would be sorted by chance."""

_N_CUTS = 128
"""Cuts of a feature that are scored. Half of them are spaced evenly, half geometrically, so that
few values of a large likelihood ratio are an event of their own."""

_MAX_DIRECT = 1 << 12
"""Maximum range of values that are counted directly; longer arrays would not fit into caches."""

_BINS_PER_NAT = 4
"""Bins of the evidence, a sum of log-ratios: within a bin, likelihood ratios differ by a factor of
exp(1/4) at most, and a loss of a few nats has few enough bins to fill each with outputs."""

# Six primes of different size and 1: sums of small values times these factors rarely coincide.
_FACTORS = np.array([1, 1_000_003, 998_244_353, 777_767_777, 433_494_437, 27_644_437, 479_001_599])


@dataclass(frozen=True)
class Event:
    """Set of outputs of which one feature has one of several values.

    Parameters
    ----------
    name : str
        Name of the feature.
    feature : callable
        Function from outputs to columns of features.
    column : int
        Column that is compared.
    values : int64 array
        Values of the event, ascending.
    """

    name: str
    feature: Feature
    column: int
    values: Integers

    @property
    def description(self) -> str:
        """Return the event as text, with its first five values."""
        shown = ", ".join(map(str, self.values[:5].tolist()))
        more = f", ... ({len(self.values)} values)" if len(self.values) > 5 else ""
        return f"{self.name}[{self.column}] in {{{shown}{more}}}"

    def contains(self, outputs: Outputs) -> Booleans:
        """Return whether each output is in the event.

        Parameters
        ----------
        outputs : int64 array of shape (n, n_cells)
            One output per row.
        """
        return np.isin(self.feature(outputs)[:, self.column], self.values)


Known = tuple[Outputs, Outputs]
"""Exact values, without noise, of the vectors behind the two outputs."""


def choose_event(p: Outputs, q: Outputs, score: Score, known: Known | None = None) -> Event:
    """Find an event with high probability under p and low under q.

    By the Neyman-Pearson lemma, the best events of a feature are the sets of values whose
    likelihood ratio is above a cut. One half of the outputs sorts the values of each feature by
    their likelihood ratio. The other half scores cuts of every feature; with the same half,
    features with many values would win by chance.

    Parameters
    ----------
    p, q : int64 arrays of shape (n, n_cells)
        Outputs that are not used for certification.
    score : callable
        Score of events from their hits.
    known : pair of int64 arrays of shape (n_cells,), optional
        Exact values, to which outputs are compared.
    """
    (sort_p, score_p), (sort_q, score_q) = np.array_split(p, 2), np.array_split(q, 2)
    best, best_score = None, -np.inf
    for name, feature in _features(sort_p, sort_q, known):
        scored_p, scored_q = feature(score_p), feature(score_q)
        for column, values in enumerate(_sorted_values(feature(sort_p), feature(sort_q))):
            cuts = _cuts(len(values))
            hits = [
                _count_values(x[:, column], values).cumsum()[cuts] for x in (scored_p, scored_q)
            ]
            # as many hits as the certifying outputs, twice those that score, are expected to have
            scores = score(2 * hits[0], 2 * len(score_p), 2 * hits[1], 2 * len(score_q))
            top = int(np.argmax(scores))
            if scores[top] > best_score:
                best, best_score = (
                    Event(name, feature, column, np.sort(values[: cuts[top] + 1])),
                    scores[top],
                )
    assert best is not None  # there is at least one cell
    return best


def _cuts(n_values: int) -> Outputs:
    """Return the positions of the cuts among sorted values."""
    if n_values <= _N_CUTS:
        return np.arange(n_values)
    geometric = np.geomspace(1, n_values, _N_CUTS // 2) - 1
    return np.unique([*np.linspace(0, n_values - 1, _N_CUTS // 2), *geometric]).astype(np.int64)


def _features(p: Outputs, q: Outputs, known: Known | None) -> Iterator[tuple[str, Feature]]:
    """Yield all features by name; those with many values also in bins."""
    features = {**_FEATURES, "evidence": _evidence(p, q)}
    if known is not None:
        features |= {"match": partial(_matches, known), "nearness": partial(_nearness, known)}
    for name, feature in features.items():
        yield name, feature
        values = np.concatenate([feature(p), feature(q)])
        if name != "whole" and np.ptp(values, axis=0).max() >= _N_BINS:
            edges = np.quantile(values, np.arange(1, _N_BINS) / _N_BINS, axis=0)
            yield f"bin of {name}", partial(_bins, feature, edges)


def _bins(feature: Feature, edges: Floats, outputs: Outputs) -> Outputs:
    """Return the bin of each column of a feature."""
    columns = feature(outputs).T
    return np.stack([np.searchsorted(*each) for each in zip(edges.T, columns, strict=True)], axis=1)


def _matches(known: Known, outputs: Outputs) -> Outputs:
    """Count the cells that equal the exact values.

    All cells are counted, and those in which the exact values differ. An output without noise
    equals one of them in every cell, however rarely it is released.
    """
    moved = known[0] != known[1]
    equal = [outputs == exact for exact in known]
    return np.stack([e[:, cells].sum(axis=1) for e in equal for cells in (slice(None), moved)], 1)


def _nearness(known: Known, outputs: Outputs) -> Outputs:
    """Compare the distances to both exact values.

    Up to a factor, the differences in L1 and in squared L2 norm are the log-ratios of Laplace and
    of Gaussian noise.
    """
    a, b = known
    l1 = np.abs(outputs - b).sum(axis=1) - np.abs(outputs - a).sum(axis=1)
    return np.stack([l1, (2 * outputs - a - b) @ (a - b)], axis=1)


def _sorted_values(p: Outputs, q: Outputs) -> Iterator[Integers]:
    """Yield the values of each column by descending likelihood ratio."""
    for column in range(p.shape[1]):
        values = np.unique(np.concatenate([p[:, column], q[:, column]]))
        yield values[np.argsort(-_log_ratio(values, p[:, column], q[:, column]), kind="stable")]


def _log_ratio(values: Integers, p: Integers, q: Integers) -> Floats:
    """Estimate log(P / Q) of each value.

    Half a count is added to each value, so that values observed on one side only stay finite.
    """
    ratio: Floats = np.log(
        (_count_values(p, values) + 0.5) / len(p) / (_count_values(q, values) + 0.5) * len(q)
    )
    return ratio


def _count_values(sample: Integers, values: Integers) -> Integers:
    """Count how often each of several distinct values occurs in a sample."""
    low, high = int(values.min()), int(values.max())
    if high - low < _MAX_DIRECT:  # an array of counts by value is faster than a search
        inside = sample[(sample >= low) & (sample <= high)] - low
        return np.bincount(inside, minlength=high - low + 1)[values - low]
    order = np.argsort(values)
    ranks = np.searchsorted(values, sample, sorter=order)
    indices = order[np.minimum(ranks, len(values) - 1)]  # the only value that can be equal
    return np.bincount(indices[values[indices] == sample], minlength=len(values))


def _evidence(p: Outputs, q: Outputs) -> Feature:
    """Return the feature that sums the log-ratios of all cells, in bins.

    If the noise of the cells is independent, it is the log-ratio of the whole output.
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
    cells = _cells(outputs)
    return np.diff(cells, axis=1) if cells.shape[1] > 1 else cells  # one cell has no differences


def _sums(outputs: Outputs) -> Outputs:
    half = outputs.shape[1] // 2
    first, rest = outputs[:, :half].sum(axis=1), outputs[:, half:].sum(axis=1)
    return np.stack([first, rest, first + rest, first - rest], axis=1)


def _support(outputs: Outputs) -> Outputs:
    """Return the positive cells, the nonzero cells and the latter's number."""
    cells = _cells(outputs)
    bits = 1 << np.arange(cells.shape[1])  # one bit per cell: a set of cells is one number
    return np.stack([(cells > 0) @ bits, (cells != 0) @ bits, (outputs != 0).sum(axis=1)], axis=1)


def _extremes(outputs: Outputs) -> Outputs:
    return np.stack([outputs.min(axis=1), outputs.max(axis=1), outputs.argmax(axis=1)], axis=1)


def _whole(outputs: Outputs) -> Outputs:
    """Map each output vector to one number.

    Two vectors with the same number only make the event coarser. So does overflow of int64.
    """
    # np.arange makes the factors differ where np.resize repeats them
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
