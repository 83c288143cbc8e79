"""FlyNN as pure functions: hash, count, decay and score (Algorithm 1 of the paper).

Symbols of the paper: m units (``n_units``), s inputs of each (``n_inputs``), rho active units
(``n_active``), gamma (``decay``), L classes. Training keeps integer counts c instead of weights:
the fly Bloom filter of class l is w_l = gamma ** c_l, so that a federation adds counts exactly.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Booleans, Floats, Integers
from fedneighbors.kernels._exactsum import exact_moments
from fedneighbors.kernels.flyhash._bloom import accumulate, grid_hits, novelty
from fedneighbors.kernels.flyhash._hash import draw_wiring as _draw_wiring
from fedneighbors.kernels.flyhash._hash import winners
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.tabular._schema import BLOCK_ROWS, blocks, check_cells

# Default decay: for a class of mean frequency, a unit of mean load has the weight exp(-KAPPA).
# It is -log(decay) times the mean load, see ``default_decay``.
KAPPA = 0.5
MAX_UNITS = 1 << 24  # limit of the sizes that a message or a file may ask for

Active = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int32]


def draw_wiring(
    n_features: int, n_units: int, n_inputs: int, seed: int
) -> npt.NDArray[np.uint16] | npt.NDArray[np.uint32]:
    """Draw the lifting matrix M as the inputs of each unit.

    Parameters
    ----------
    n_features : int
        Columns of the hashed rows (d).
    n_units : int
        Rows of M (m).
    n_inputs : int
        Ones in each row of M (s), at most ``n_features``.
    seed : int
        Public seed of the federation (R), in [0, 2**64); a HashPlan allows [0, 2**63) only.

    Returns
    -------
    unsigned integer array of shape (n_units, n_inputs)
        Each row is a uniform random subset in ascending order (Algorithm 1, line 2). The result
        depends only on the four arguments.

    Raises
    ------
    ValueError
        If a size is out of range.
    """
    return _draw_wiring(n_features, n_units, n_inputs, seed)


def hash_rows(
    x: Array,
    wiring: Array,
    n_active: int,
    *,
    n_threads: int = 1,
    narrow: bool = True,
) -> Active:
    """Return each row's active units, the winners of M x (equation 2).

    Parameters
    ----------
    x : array of shape (n_rows, n_features)
        Finite integers or floats. The hash depends on the values, not on the dtype.
    wiring : unsigned integer array of shape (n_units, n_inputs)
        From :func:`draw_wiring`.
    n_active : int
        Number of active units (rho), at most ``n_units``.
    n_threads : int
        Threads; the result does not depend on it.
    narrow : bool
        Use faster code for small whole numbers. If False, the values do not choose the code.

    Returns
    -------
    int32 array of shape (n_rows, n_active)
        Indices of the units with the largest sums, ascending; ties go to the lower index.

    Examples
    --------
    >>> import numpy as np
    >>> hash_rows(np.array([[5, 1, 4]]), np.array([[0, 1], [0, 2], [1, 2]], np.uint16), 2)
    array([[0, 1]], dtype=int32)
    """
    return winners(x, wiring, n_active, n_threads=n_threads, narrow=narrow)


@dataclass(frozen=True, eq=False)
class HashPlan:
    """Public parameters of the hash, identical at every party.

    Parameters
    ----------
    features : FeatureMap
        Transformation of rows before hashing.
    n_units, n_inputs, n_active : int
        m, s and rho.
    seed : int
        Public seed R.

    Raises
    ------
    ValueError
        If a size or the seed is out of range.
    """

    features: FeatureMap
    n_units: int
    n_inputs: int
    n_active: int
    seed: int

    def __post_init__(self) -> None:
        width = self.features.n_outputs
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"expected a seed in [0, 2**63), got {self.seed}")
        if not 1 <= self.n_units <= MAX_UNITS:
            raise ValueError(f"expected n_units in [1, {MAX_UNITS}], got {self.n_units}")
        if not 1 <= self.n_inputs <= width:
            raise ValueError(
                f"n_inputs={self.n_inputs} does not lie in [1, {width}], the number of hashed "
                f"features ({self.features.n_features} columns, expansion "
                f"{self.features.expansion!r}); change n_inputs or expand"
            )
        if not 1 <= self.n_active <= self.n_units:
            raise ValueError(
                f"n_active={self.n_active} does not lie in [1, n_units={self.n_units}]; "
                "lower n_active or raise n_units"
            )
        check_cells("a wiring", self.n_units, self.n_inputs)

    @cached_property
    def wiring(self) -> Array:
        """Return the inputs of each unit, drawn on first use."""
        return draw_wiring(self.features.n_outputs, self.n_units, self.n_inputs, self.seed)


def hash_with_plan(
    x: Any, plan: HashPlan, *, n_threads: int = 1, same_work: bool = False
) -> Active:
    """Transform and hash the rows of a dense or sparse table.

    With ``same_work``, tables that differ in one row are hashed by the same code in the same
    shapes: rows are float64, and the last block is filled up with zeros.
    """
    parts = [
        hash_rows(
            plan.features.apply(_fill_block(block) if same_work else block),
            plan.wiring,
            plan.n_active,
            n_threads=n_threads,
            narrow=not same_work,
        )[: len(block)]
        for block in blocks(x)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, plan.n_active), np.int32)


def _fill_block(block: Array) -> Array:
    """Return a block of rows, filled up with rows of zeros."""
    return np.pad(block, ((0, BLOCK_ROWS - len(block)), (0, 0)))


def count_activations(active: Active, labels: Integers, *, n_units: int, n_classes: int) -> Counts:
    """Count the activations of each unit in each class.

    Algorithm 1, lines 3-7, with counts in place of weights.

    Returns
    -------
    int32 array of shape (n_units, n_classes)
    """
    counts = np.zeros((n_units, n_classes), np.int32)
    accumulate(active, labels, counts)
    return counts


def class_sizes(counts: npt.NDArray[np.integer[Any]], n_active: int) -> Integers:
    """Return the number of rows of each class.

    Each row adds ``n_active`` to the column of its class.
    """
    return np.asarray(counts.sum(axis=0, dtype=np.int64) // n_active)


DEFAULT_ACTIVE = 128
"""Default number of active units of a row (rho)."""


def default_sizes(n_rows: int, n_outputs: int) -> tuple[int, int, int]:
    """Return default values of n_units, n_inputs and n_active.

    The number of units grows with the number of rows; otherwise the filters of large tables would
    saturate. The constants did best in cross-validation over many tables.

    Parameters
    ----------
    n_rows : int
        Rows of all parties together.
    n_outputs : int
        Hashed features, after the expansion.
    """
    n_units = min(max(20_000, 32 * n_rows), 200_000)
    n_inputs = max(1, min(24, n_outputs // 2))
    return n_units, n_inputs, DEFAULT_ACTIVE


def default_decay(
    n_rows: int, n_units: int, n_active: int, n_classes: int, *, kappa: float = KAPPA
) -> float:
    """Return gamma = exp(-kappa L m / (n rho)).

    On average a unit is active for n rho / m rows, n rho / (L m) in each class, so the exponent of
    a unit of mean load is kappa for tables of any size.
    """
    if n_rows == 0:
        return 0.0
    return math.exp(-kappa * n_classes * n_units / (n_rows * n_active))


@dataclass(frozen=True)
class WeightTable:
    """Weight of each count in each class, as one vector that the kernel indexes.

    Parameters
    ----------
    weights : float64 array, 1-d
        ``weights[starts[l] + c]`` is the weight of count c in class l.
    starts : int64 array of shape (n_classes,)
        Index of the weight of count 0 in each class.
    """

    weights: Floats
    starts: Integers


def decay_table(
    largest: Integers,
    sizes: Integers,
    *,
    decay: float,
    class_normalized: bool,
) -> WeightTable:
    """Tabulate gamma ** c for every possible count, with 0**0 == 1.

    Parameters
    ----------
    largest : int64 array of shape (n_classes,)
        Largest count of each class.
    sizes : int64 array of shape (n_classes,)
        Rows of each class (n_l).
    decay : float
        gamma, in [0, 1].
    class_normalized : bool
        Use the exponent c * n_mean / n_l, so that a frequent class does not win by its size.
    """
    ends = np.cumsum(largest + 1)
    starts = (ends - largest - 1).astype(np.int64)
    exponents = np.arange((largest + 1).sum(), dtype=np.float64) - np.repeat(starts, largest + 1)
    if class_normalized:
        factors = sizes.sum() / (len(sizes) * np.maximum(sizes, 1))
        exponents *= np.repeat(factors, largest + 1)
    return WeightTable(np.power(decay, exponents), starts)


def compute_novelty(
    active: Active, counts: Counts, table: WeightTable, *, n_threads: int = 1
) -> Floats:
    """Compute each row's novelty for each class (Algorithm 1, line 12).

    Returns
    -------
    float64 array of shape (n_rows, n_classes)
        Between 0 and ``n_active``; the lowest is the prediction, ties to the lower class.
    """
    return novelty(active, counts, table.weights, table.starts, n_threads=n_threads)


def warmup() -> None:
    """Compile the kernels that FlyNN uses.

    Tables with more than 8,192 hashed features use another specialization of the hash, which is
    compiled at its first call.
    """
    wiring = draw_wiring(4, 8, 2, 0)
    labels = np.zeros(2, np.int64)
    for factor in (1, 1_000, 1 << 40, 0.5):  # rows that fit in bytes, int32, int64; rows of floats
        rows = np.arange(8).reshape(2, 4) * factor
        active = winners(rows, wiring, 2, ranked=True)
    counts = count_activations(active, labels, n_units=8, n_classes=1)
    largest = counts.max(axis=0).astype(np.int64)
    table = decay_table(largest, np.array([2]), decay=0.5, class_normalized=True)
    compute_novelty(active, counts, table)
    weights = table.weights[:, None]
    grid_hits(active, labels, counts, np.zeros_like(counts), weights, table.starts)
    exact_moments(np.zeros((1, 1)))


SHARPNESS_GRID: tuple[float, ...] = tuple(2.0 ** (k / 2) for k in range(-4, 25))
"""Factors beta in softmax(-beta novelty / rho), of which calibration chooses one."""

CALIBRATION_ROWS = 20_000  # large tables use a subset of between one and two times this size
_STEPS_PER_NAT = 1 << 20
_MAX_LOSS = 50.0  # nats


def leave_one_out(active: Active, labels: Integers, counts: Counts, table: WeightTable) -> Floats:
    """Compute the novelty of training rows without each row's own contribution.

    The class normalization still uses the class sizes of all rows.

    Returns
    -------
    float64 array of shape (n_rows, n_classes)
    """
    novelty = compute_novelty(active, counts, table)
    others = counts[active, labels[:, None]] - 1
    own_class = np.zeros(len(active))
    for k in range(active.shape[1]):
        own_class += table.weights[table.starts[labels] + others[:, k]]
    novelty[np.arange(len(active)), labels] = own_class
    return novelty


def calibration_rows(active: Active, n_rows: int) -> Booleans:
    """Return a mask of the rows used for calibration.

    Large tables use a subset selected by the sum of a row's active units. The selection depends
    only on the row and the total number of rows, so it is the same for every partition.

    Parameters
    ----------
    active : int32 array of shape (n, n_active)
        Hashes of one party's rows.
    n_rows : int
        Rows of all parties together.
    """
    step = max(1, n_rows // CALIBRATION_ROWS)
    return np.asarray(active.sum(axis=1, dtype=np.int64) % step == 0)


def log_losses(novelty: Floats, labels: Integers, n_active: int) -> Integers:
    """Return the log-loss for each sharpness, summed over rows.

    Integers make the sum over parties independent of their order.

    Returns
    -------
    int64 array of shape (len(SHARPNESS_GRID),)
        In units of 2**-20 nats; each row's loss is clipped at 50 nats and rounded.
    """
    result = np.zeros(len(SHARPNESS_GRID), np.int64)
    rows = np.arange(len(labels))
    for k, beta in enumerate(SHARPNESS_GRID):
        of_label = probabilities(novelty, beta, n_active)[rows, labels]
        loss = np.minimum(-np.log(np.maximum(of_label, 1e-300)), _MAX_LOSS)
        result[k] = np.rint(loss * _STEPS_PER_NAT).astype(np.int64).sum()
    return result


def choose_sharpness(losses: Integers) -> float:
    """Return the sharpness of lowest loss, the lower one on ties."""
    return SHARPNESS_GRID[int(np.argmin(losses))]


def probabilities(novelty: Floats, sharpness: float, n_active: int) -> Floats:
    """Return softmax(-sharpness * novelty / n_active) of each row.

    Examples
    --------
    >>> probabilities(np.array([[0.0, 0.0]]), 4.0, 8)
    array([[0.5, 0.5]])
    """
    logits = (novelty.min(axis=1, keepdims=True) - novelty) * (sharpness / n_active)
    weights = np.exp(logits)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


PSEUDOCOUNT = 0.5  # added to each count, as is its product with the noise's standard deviation
MIN_DEVIATIONS = 3.0  # a class is predicted if its size exceeds so many deviations of its noise


def log_score_table(counts: Counts, *, variance: float, n_active: int) -> WeightTable:
    """Return the weight in the novelty of each clipped noised count.

    The score of a row with active units i for a class is the sum of log(c_i + pseudocount) +
    intercept; the highest score wins. The intercepts place the decision boundary of two classes
    half-way between the mean scores of rows of either class, so that a frequent class does not win
    by its size; with more classes, as nearly as possible for all pairs (least squares). The means
    are estimated from the counts themselves; the bias from correlating the noise with itself is
    removed by Stein's identity, E[noise g(c + noise)] = sigma ** 2 E[g'(c + noise)].

    Parameters
    ----------
    counts : int32 array of shape (n_units, n_classes)
        Released counts; cells may be negative.
    variance : float
        Variance of the noise on each cell, above 0.
    n_active : int
        Active units of each row (rho).

    Returns
    -------
    WeightTable
        Weights for counts clipped at 0. The lowest sum over the active units is the prediction.
        A class whose estimated number of rows is at most three standard deviations of its noise is
        never predicted, unless this holds for all classes.
    """
    noisy = counts.astype(np.float64)
    pseudocount = PSEUDOCOUNT * np.sqrt(variance) + PSEUDOCOUNT
    rows = noisy.sum(axis=0) / n_active
    above = rows > MIN_DEVIATIONS * np.sqrt(len(noisy) * variance) / n_active
    intercepts = np.zeros(len(rows))
    if above.any():
        intercepts[above] = _compute_intercepts(noisy[:, above], rows[above], pseudocount, variance)
    largest = clip_counts(counts).max(axis=0)
    return _weights_from_scores(largest, pseudocount, intercepts / n_active, below_noise=~above)


def _compute_intercepts(noisy: Floats, rows: Floats, pseudocount: float, variance: float) -> Floats:
    """Return the intercepts of whole rows that best centre the decision boundaries."""
    logs = np.log(np.maximum(noisy, 0.0) + pseudocount)
    slopes = np.where(noisy > 0, 1.0 / (np.maximum(noisy, 0.0) + pseudocount), 0.0)
    mean = (noisy.T @ logs) / rows[:, None]  # [k, l]: score of class l on a row of class k
    mean[np.diag_indices(len(rows))] -= variance * slopes.sum(axis=0) / rows
    diagonal = np.diag(mean)
    # [k, l]: intercept that class k needs in excess of that of class l
    differences = (diagonal[None, :] - mean.T - diagonal[:, None] + mean) / 2
    return np.asarray(differences.mean(axis=1))


def _weights_from_scores(
    largest: Counts, pseudocount: float, intercepts: Floats, *, below_noise: Booleans
) -> WeightTable:
    """Tabulate the highest score minus the score of each count."""
    ends = np.cumsum(largest.astype(np.int64) + 1)
    starts = ends - largest - 1
    values = np.arange(ends[-1], dtype=np.float64) - np.repeat(starts, largest + 1)
    scores = np.log(values + pseudocount) + np.repeat(intercepts, largest + 1)
    weights = scores.max() - scores
    if below_noise.any() and not below_noise.all():
        weights[np.repeat(below_noise, largest + 1)] += weights.max() + 1.0
    return WeightTable(weights, starts)


def clip_counts(counts: Counts) -> Counts:
    """Clip counts at 0, the lowest count in the weight table."""
    return np.ascontiguousarray(np.maximum(counts, 0))
