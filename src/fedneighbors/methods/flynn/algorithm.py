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

from fedneighbors._typing import Floats
from fedneighbors.kernels._exactsum import exact_moments
from fedneighbors.kernels.flyhash._bloom import accumulate, grid_hits, novelty
from fedneighbors.kernels.flyhash._hash import draw_wiring as _draw_wiring
from fedneighbors.kernels.flyhash._hash import winners
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.tabular._schema import blocks

# Default decay: for a class of mean frequency, a unit of mean load has the weight exp(-KAPPA).
# Only this product of decay and load matters, see ``default_decay``.
KAPPA = 0.5
MAX_UNITS = 1 << 24

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
        Public seed of the federation (R), in [0, 2**64).

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
    x: npt.NDArray[Any], wiring: npt.NDArray[Any], n_active: int, *, n_threads: int = 1
) -> Active:
    """Return the active units of each row.

    These are the winners of M x (equation 2).

    Parameters
    ----------
    x : array of shape (n_rows, n_features)
        Finite integers or floats. The hash depends on the values, not on the dtype.
    wiring : unsigned integer array of shape (n_units, n_inputs)
        From :func:`draw_wiring`.
    n_active : int
        Winners (rho), at most ``n_units``.
    n_threads : int
        Threads; the result does not depend on it.

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
    return winners(x, wiring, n_active, n_threads=n_threads)


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

    @cached_property
    def wiring(self) -> npt.NDArray[Any]:
        """Return the inputs of each unit, drawn on first use."""
        return draw_wiring(self.features.n_outputs, self.n_units, self.n_inputs, self.seed)


def hash_table(x: Any, plan: HashPlan, *, n_threads: int = 1) -> Active:
    """Hash the rows of a dense or sparse table block by block."""
    parts = [
        hash_rows(plan.features.apply(block), plan.wiring, plan.n_active, n_threads=n_threads)
        for block in blocks(x)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, plan.n_active), np.int32)


def count_rows(
    active: Active, labels: npt.NDArray[np.int64], *, n_units: int, n_classes: int
) -> Counts:
    """Count the activations of each unit in each class.

    Algorithm 1, lines 3-7, with counts in place of weights.

    Returns
    -------
    int32 array of shape (n_units, n_classes)
    """
    counts = np.zeros((n_units, n_classes), np.int32)
    accumulate(active, labels, counts)
    return counts


def class_sizes(counts: npt.NDArray[np.integer[Any]], n_active: int) -> npt.NDArray[np.int64]:
    """Return the number of rows of each class.

    Each row adds ``n_active`` to the column of its class.
    """
    return np.asarray(counts.sum(axis=0, dtype=np.int64) // n_active)


def default_sizes(n_rows: int, n_outputs: int) -> tuple[int, int, int]:
    """Return default values of n_units, n_inputs and n_active.

    The number of units grows with the rows because the filters of large tables would saturate.
    The constants did best in cross-validation over many tables.

    Parameters
    ----------
    n_rows : int
        Rows of all parties together.
    n_outputs : int
        Hashed features, after the expansion.
    """
    n_units = min(max(20_000, 32 * n_rows), 200_000)
    n_inputs = max(1, min(24, n_outputs // 2))
    return n_units, n_inputs, 128


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
class DecayTable:
    """Weight of each count in each class, as one vector for the kernel's gather.

    Parameters
    ----------
    weights : float64 array, 1-d
        ``weights[offsets[l] + c]`` is the weight of count c in class l.
    offsets : int64 array of shape (n_classes,)
        Start of the weights of each class.
    """

    weights: Floats
    offsets: npt.NDArray[np.int64]


def decay_table(
    largest: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    *,
    decay: float,
    class_normalized: bool,
) -> DecayTable:
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
    offsets = (ends - largest - 1).astype(np.int64)
    exponents = np.arange(ends[-1], dtype=np.float64) - np.repeat(offsets, largest + 1)
    if class_normalized:
        slopes = sizes.sum() / (len(sizes) * np.maximum(sizes, 1))
        exponents *= np.repeat(slopes, largest + 1)
    return DecayTable(np.power(decay, exponents), offsets)


def score_rows(active: Active, counts: Counts, table: DecayTable, *, n_threads: int = 1) -> Floats:
    """Compute the novelty of each row for each class.

    Algorithm 1, line 12.

    Returns
    -------
    float64 array of shape (n_rows, n_classes)
        Between 0 and ``n_active``; the lowest is the prediction, ties to the lower class.
    """
    return novelty(active, counts, table.weights, table.offsets, n_threads=n_threads)


def warmup() -> None:
    """Compile the kernels that FlyNN uses.

    Tables with more than 8,192 hashed features use another specialization of the hash, which is
    compiled at its first call.
    """
    wiring = draw_wiring(4, 8, 2, 0)
    labels = np.zeros(2, np.int64)
    for largest_value in (1, 1_000, 1 << 40, 0.5):  # rows of bytes, int32, int64 and floats
        rows = np.arange(8).reshape(2, 4) * largest_value
        active = winners(rows, wiring, 2, ranked=True)
    counts = count_rows(active, labels, n_units=8, n_classes=1)
    largest = counts.max(axis=0).astype(np.int64)
    table = decay_table(largest, np.array([2]), decay=0.5, class_normalized=True)
    score_rows(active, counts, table)
    weights = table.weights[:, None]
    grid_hits(active, labels, counts, np.zeros_like(counts), weights, table.offsets)
    exact_moments(np.zeros((1, 1)))


SHARPNESS: tuple[float, ...] = tuple(2.0 ** (k / 2) for k in range(-4, 25))
"""Grid of factors beta in softmax(-beta novelty / rho)."""

ENOUGH_ROWS = 20_000
_UNIT = 1 << 20
_MAX_LOSS = 50.0


def leave_one_out(
    active: Active, labels: npt.NDArray[np.int64], counts: Counts, table: DecayTable
) -> Floats:
    """Compute the novelty of training rows without each row's own contribution.

    The class normalization still uses the class sizes of all rows.

    Returns
    -------
    float64 array of shape (n_rows, n_classes)
    """
    scores = score_rows(active, counts, table)
    others = counts[active, labels[:, None]] - 1
    own = np.zeros(len(active))
    for k in range(active.shape[1]):
        own += table.weights[table.offsets[labels] + others[:, k]]
    scores[np.arange(len(active)), labels] = own
    return scores


def calibration_rows(active: Active, n_rows: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows used for calibration.

    Large tables use a subset selected by hash. The selection depends only on the row and the
    total number of rows, so it is the same for every partition.

    Parameters
    ----------
    active : int32 array of shape (n, n_active)
        Hashes of one party's rows.
    n_rows : int
        Rows of all parties together.
    """
    step = max(1, n_rows // ENOUGH_ROWS)
    return np.asarray(active.sum(axis=1, dtype=np.int64) % step == 0)


def log_losses(
    scores: Floats, labels: npt.NDArray[np.int64], n_active: int
) -> npt.NDArray[np.int64]:
    """Return the summed log-loss for each sharpness.

    Integers make the sum over parties independent of their order.

    Returns
    -------
    int64 array of shape (len(SHARPNESS),)
        In units of 2**-20 nats; each row's loss is clipped at 50 nats and rounded.
    """
    result = np.zeros(len(SHARPNESS), np.int64)
    rows = np.arange(len(labels))
    for k, beta in enumerate(SHARPNESS):
        chosen = probabilities(scores, beta, n_active)[rows, labels]
        loss = np.minimum(-np.log(np.maximum(chosen, 1e-300)), _MAX_LOSS)
        result[k] = np.rint(loss * _UNIT).astype(np.int64).sum()
    return result


def choose_sharpness(losses: npt.NDArray[np.int64]) -> float:
    """Return the sharpness of lowest loss, the lower one on ties."""
    return SHARPNESS[int(np.argmin(losses))]


def probabilities(scores: Floats, sharpness: float, n_active: int) -> Floats:
    """Return softmax(-sharpness * novelty / n_active) of each row.

    Examples
    --------
    >>> probabilities(np.array([[0.0, 0.0]]), 4.0, 8)
    array([[0.5, 0.5]])
    """
    logits = (scores.min(axis=1, keepdims=True) - scores) * (sharpness / n_active)
    weights = np.exp(logits)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


FLOOR = 0.5  # multiple of sigma added to each count
CLEAR = 3.0  # standard deviations by which a class must exceed the noise to be predicted


def log_table(counts: npt.NDArray[np.int32], *, variance: float, n_active: int) -> DecayTable:
    """Return the novelty that each clipped noised count contributes.

    The score of a row with active units i for a class is the sum of log(c_i + floor) + offset.
    For each pair of classes, the offsets place the decision boundary half-way between the mean
    scores of rows of either class, so that a frequent class does not win by its size. The means are
    estimated from the counts themselves; the bias from correlating the noise with itself is
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
    DecayTable
        Weights for counts clipped at 0. The lowest sum over the active units is the prediction.
        Classes that do not exceed the noise by three standard deviations are never predicted,
        unless no class does.
    """
    noisy = counts.astype(np.float64)
    floor = FLOOR * np.sqrt(variance) + 0.5
    rows = noisy.sum(axis=0) / n_active
    clear = rows > CLEAR * np.sqrt(len(noisy) * variance) / n_active
    offsets = np.zeros(len(rows))
    if clear.any():
        offsets[clear] = _offsets(noisy[:, clear], rows[clear], floor, variance) / n_active
    return _laid_out(np.maximum(counts, 0).max(axis=0), floor, offsets, unclear=~clear)


def _offsets(noisy: Floats, rows: Floats, floor: float, variance: float) -> Floats:
    """Return the offset per class that centres its pairwise decision boundaries."""
    logs = np.log(np.maximum(noisy, 0.0) + floor)
    slopes = np.where(noisy > 0, 1.0 / (np.maximum(noisy, 0.0) + floor), 0.0)
    mean = (noisy.T @ logs) / rows[:, None]  # [k, l]: score of class l on a row of class k
    mean[np.diag_indices(len(rows))] -= variance * slopes.sum(axis=0) / rows
    own = np.diag(mean)
    lacking = (own[None, :] - mean.T - own[:, None] + mean) / 2
    return np.asarray(lacking.mean(axis=1))


def _laid_out(
    largest: npt.NDArray[np.int32], floor: float, offsets: Floats, *, unclear: npt.NDArray[np.bool_]
) -> DecayTable:
    ends = np.cumsum(largest.astype(np.int64) + 1)
    starts = ends - largest - 1
    values = np.arange(ends[-1], dtype=np.float64) - np.repeat(starts, largest + 1)
    scores = np.log(values + floor) + np.repeat(offsets, largest + 1)
    novelty = scores.max() - scores
    if unclear.any() and not unclear.all():
        novelty[np.repeat(unclear, largest + 1)] += novelty.max() + 1.0
    return DecayTable(novelty, starts)


def clip_counts(counts: npt.NDArray[np.int32]) -> Counts:
    """Clip counts at 0, the lowest count in the weight table."""
    return np.ascontiguousarray(np.maximum(counts, 0))
