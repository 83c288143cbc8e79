"""Variational Gaussian mixtures of many columns at once, for encoding numbers by modes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import digamma

from fedneighbors._typing import Floats

_MAX_GROUPS = 512  # rows of a column are condensed to at most this many weighted groups
_COLUMNS_AT_ONCE = 64  # limits the memory to 64 x 512 x 10 numbers
_MAX_ROUNDS = 100  # maximum number of variational updates
_TOLERANCE = 1e-3  # a column has converged if no weight changes by more
_SPARSITY = 1e-3  # Dirichlet parameter of the weights; empties modes that are not needed
_MIN_WEIGHT = 0.001  # modes of lower weight are dropped
_MIN_DEVIATION = 1e-4  # minimum standard deviation of a mode, relative to the column's spread


@dataclass(frozen=True, eq=False)
class Modes:
    """Gaussian modes of one column.

    Parameters
    ----------
    means, deviations : float64 arrays of shape (n_modes,)
        Means, ascending, and standard deviations, in the unit of the column.
    weights : float64 array of shape (n_modes,)
        Positive weights that add up to 1.
    """

    means: Floats
    deviations: Floats
    weights: Floats

    def __post_init__(self) -> None:
        shapes = {self.means.shape, self.deviations.shape, self.weights.shape}
        if len(shapes) > 1 or self.means.ndim != 1 or not len(self.means):
            raise ValueError("means, deviations and weights of modes differ in shape or are empty")
        positive = np.concatenate([self.deviations, self.weights])
        if not (
            np.isfinite(self.means).all() and (positive > 0).all() and (positive < np.inf).all()
        ):
            raise ValueError("modes must be finite, with positive deviations and weights")

    def posterior(self, values: Floats) -> Floats:
        """Return the probability of each mode given each value.

        Parameters
        ----------
        values : float64 array of shape (n_rows,)
            Finite values.

        Returns
        -------
        float64 array of shape (n_rows, n_modes)
            Rows add up to 1.
        """
        standard = (values[:, None] - self.means) / self.deviations
        return _softmax(np.log(self.weights / self.deviations) - 0.5 * standard * standard)


def fit_modes(columns: Sequence[Floats], *, max_modes: int = 10, min_count: int = 0) -> list[Modes]:
    """Fit a mixture of Gaussians to each column by variational inference.

    The values of a column are first condensed to weighted groups of neighboring values, which are
    smaller at both ends of the column. The updates use the means and variances of the groups, so
    that all rows are used, without sampling.

    Parameters
    ----------
    columns : sequence of float64 arrays
        Columns of at least one finite value each.
    max_modes : int
        Number of initial modes, at quantiles of the column; inference lowers the weights of those
        that are not needed.
    min_count : int
        Modes with a lower weight times the number of values are dropped, and those of a weight
        below 0.001.

    Returns
    -------
    list of Modes
        One per column; each has at least one mode.

    References
    ----------
    .. [1] Xu et al., "Modeling Tabular Data using Conditional GAN", NeurIPS 2019, section 4.2.
    .. [2] Bishop, "Pattern Recognition and Machine Learning", 2006, section 10.2.
    """
    found: list[Modes] = []
    for first in range(0, len(columns), _COLUMNS_AT_ONCE):
        block = [np.sort(column) for column in columns[first : first + _COLUMNS_AT_ONCE]]
        scales = [_center_and_spread(column) for column in block]
        scaled = [
            (column - center) / spread
            for column, (center, spread) in zip(block, scales, strict=True)
        ]
        state = _infer(_condense_columns(scaled), _initial_means(scaled, max_modes, min_count))
        found += [
            _make_modes(
                state, index, center, spread, max(_MIN_WEIGHT, min_count / len(block[index]))
            )
            for index, (center, spread) in enumerate(scales)
        ]
    return found


class _Groups(NamedTuple):
    """Groups of neighboring values of all columns, arrays of shape (n_columns, n_groups)."""

    weight: Floats
    mean: Floats
    variance: Floats


class _State(NamedTuple):
    """Posterior of all mixtures, arrays of shape (n_columns, n_modes).

    In the notation of Bishop, see :func:`fit_modes`: ``size`` is N_k, ``mean`` is m_k, ``shape``
    and ``rate`` are the parameters of the Gamma distribution of the precision.
    """

    size: Floats
    mean: Floats
    shape: Floats
    rate: Floats


def _center_and_spread(column: Floats) -> tuple[float, float]:
    """Return median and spread of a sorted column, ignoring its tails."""
    low, center, high = np.quantile(column, (0.05, 0.5, 0.95))
    for spread in (high - low, column[-1] - column[0]):
        if spread > 1e-9 * abs(center) and spread > 1e-150:
            return float(center), float(spread)
    return float(center), max(abs(float(center)), 1.0)


def _condense_columns(columns: Sequence[Floats]) -> _Groups:
    fields = [*zip(*map(_condense_column, columns), strict=True)]
    width = max(map(len, fields[0]))
    return _Groups(
        *(np.array([np.pad(part, (0, width - len(part))) for part in parts]) for parts in fields)
    )


def _condense_column(column: Floats) -> tuple[Floats, Floats, Floats]:
    """Condense a sorted column to groups, with small groups at both ends.

    Returns the weights, means and variances of the groups.
    """
    n = len(column)
    if n <= _MAX_GROUPS:
        return np.ones(n), column, np.zeros(n)
    fractions = 0.5 - 0.5 * np.cos(np.linspace(0, np.pi, _MAX_GROUPS + 1))
    starts = np.unique(np.minimum(np.round(fractions * n).astype(np.int64), n - 1))
    weight = np.diff(np.append(starts, n)).astype(np.float64)
    mean = np.add.reduceat(column, starts) / weight
    square = np.add.reduceat((column - np.repeat(mean, weight.astype(np.int64))) ** 2, starts)
    return weight, mean, square / weight


def _initial_means(columns: Sequence[Floats], max_modes: int, min_count: int) -> Floats:
    """Return initial means: distinct quantiles of each column, padded with NaN.

    The result has shape (n_columns, max_modes). A column has at most as many as it has groups of
    ``min_count`` values, so that its largest mode has as many values.
    """
    means = np.full((len(columns), max_modes), np.nan)
    for index, column in enumerate(columns):
        n_modes = min(max_modes, max(len(column) // min_count, 1)) if min_count else max_modes
        quantiles = np.unique(np.quantile(column, (np.arange(n_modes) + 0.5) / n_modes))
        means[index, : len(quantiles)] = quantiles
    return means


def _infer(groups: _Groups, means: Floats) -> _State:
    """Iterate until all weights converge; skip columns that have converged."""
    state = _initial_state(groups, means)
    active = np.arange(len(means))
    for _ in range(_MAX_ROUNDS):
        before = _State(*(part[active] for part in state))
        after = _update(_Groups(*(part[active] for part in groups)), before)
        for part, new in zip(state, after, strict=True):
            part[active] = new
        total = after.size.sum(axis=1, keepdims=True)
        changed = np.abs(after.size - before.size) > _TOLERANCE * total
        active = active[changed.any(axis=1)]
        if not len(active):
            break
    return state


def _initial_state(groups: _Groups, means: Floats) -> _State:
    present = ~np.isnan(means)
    total = groups.weight.sum(axis=1, keepdims=True)
    count = np.where(present, total / present.sum(axis=1, keepdims=True), 0.0)
    filled = np.where(present, means, 0.0)
    gaps = np.maximum(np.diff(means, axis=1, prepend=np.nan), 0)
    widths = np.fmax(np.fmax(gaps, np.roll(gaps, -1, axis=1)), 1e-2)
    shape = 1.0 + 0.5 * count
    return _State(count, filled, shape, shape * np.where(np.isnan(widths), 1.0, widths) ** 2)


def _update(groups: _Groups, state: _State) -> _State:
    """Run one variational update of all columns.

    The equations are those of Bishop, see :func:`fit_modes`: responsibilities (10.46), then the
    posteriors of the modes (10.58-10.63).
    """
    concentration = _SPARSITY + state.size
    precision = state.shape / state.rate
    offset = (
        digamma(concentration)
        + 0.5 * (digamma(state.shape) - np.log(state.rate))
        - 0.5 / np.maximum(state.size, _SPARSITY)
    )
    distance = groups.mean[:, :, None] - state.mean[:, None, :]
    distance *= distance
    logits = offset[:, None, :] - 0.5 * precision[:, None, :] * (
        distance + groups.variance[:, :, None]
    )
    responsibility = _softmax(logits)
    responsibility *= groups.weight[:, :, None]
    count = responsibility.sum(axis=1)
    positive_count = np.maximum(count, 1e-10)
    mean = np.einsum("cgk,cg->ck", responsibility, groups.mean) / positive_count
    moment = np.einsum("cgk,cg->ck", responsibility, groups.mean**2 + groups.variance)
    scatter = np.maximum(moment - positive_count * mean * mean, 0.0)
    return _State(count, mean, 1.0 + 0.5 * count, _MIN_DEVIATION**2 + 0.5 * scatter)


def _make_modes(
    state: _State, index: int, center: float, spread: float, min_weight: float
) -> Modes:
    weight = state.size[index] / state.size[index].sum()
    modes = np.flatnonzero(weight >= min(min_weight, weight.max()))
    modes = modes[np.argsort(state.mean[index][modes], kind="stable")]
    deviation = np.sqrt(state.rate[index][modes] / state.shape[index][modes])
    return Modes(
        means=center + spread * state.mean[index][modes],
        deviations=spread * np.maximum(deviation, _MIN_DEVIATION),
        weights=weight[modes] / weight[modes].sum(),
    )


def _softmax(logits: Floats) -> Floats:
    """Return the softmax over the last axis; overwrites ``logits``."""
    logits -= logits.max(axis=-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=-1, keepdims=True)
    return logits
