"""Preprocessing before the hash: standardization with exact constants, then expansion."""

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._limits import MAX_COLUMNS
from fedneighbors._typing import Array, Floats
from fedneighbors.tabular._schema import MomentsReply, mean_and_deviation

EXPANSIONS = ("none", "mirror", "population", "thermometer", "fourier")
# ``"auto"`` selects by the number of columns, with these limits.
MAX_FOURIER_COLUMNS = 8
MAX_POPULATION_COLUMNS = 24
MAX_CHOSEN_POPULATION_COLUMNS = 50  # wider tables gain little from it, at eight times the columns
N_CENTERS = 8
N_THRESHOLDS = 7
N_WAVES = 256
LENGTH_SCALE = 0.2  # width of the Gaussian kernel, per column
_TABLE_SIZE = 1 << 16  # entries of the cosine table, which covers one turn
_AMPLITUDE = 1 << 10  # largest entry of the cosine table; all are integers


def choose_expansion(name: str | None, n_features: int) -> str:
    """Resolve the ``expand`` parameter of an estimator to an expansion name.

    Raises
    ------
    ValueError
        If ``name`` is not ``"auto"``, ``None`` or a name in ``EXPANSIONS``.

    Examples
    --------
    >>> [choose_expansion("auto", n) for n in (2, 12, 64)]
    ['fourier', 'population', 'mirror']
    """
    if name is None:
        return "none"
    if name == "auto":
        if n_features <= MAX_FOURIER_COLUMNS:
            return "fourier"
        return "population" if n_features <= MAX_POPULATION_COLUMNS else "mirror"
    if name not in EXPANSIONS:
        raise ValueError(f"expected expand 'auto', None or one of {EXPANSIONS}, got {name!r}")
    return name


def list_expansions(n_features: int) -> list[str | None]:
    """Return the expansions to choose from, that of ``"auto"`` without choice first."""
    limits = {"mirror": MAX_COLUMNS, "population": MAX_CHOSEN_POPULATION_COLUMNS}
    suitable = [kind for kind, limit in limits.items() if n_features <= limit]
    return [*dict.fromkeys([choose_expansion("auto", n_features), *suitable]), None]


def n_expanded(kind: str | None, n_features: int) -> int:
    """Return the number of columns after an expansion."""
    if kind == "fourier":
        return N_WAVES
    factor = {
        None: 1,
        "none": 1,
        "mirror": 2,
        "population": N_CENTERS,
        "thermometer": 2 * N_THRESHOLDS,
    }[kind]
    return factor * n_features


def expand(z: Array, kind: str, seed: int) -> Array:
    """Expand rows to the columns that are hashed.

    Parameters
    ----------
    z : array of shape (n_rows, n_features)
        Rows; standardized, except for the kinds ``"none"`` and ``"mirror"``.
    kind : str
        ``"none"``: z itself. ``"mirror"``: [z, -z], so that low values activate units as well as
        high ones. ``"population"``: -(z - u)**2 / 2 for 8 fixed centres u, so that a unit is a
        prototype in a random subspace. ``"thermometer"``: the indicators of z > t and z <= t for
        7 fixed thresholds t. ``"fourier"``: 256 random cosines of the whole row, which approximate
        a Gaussian kernel of width n_features / 5; for tables with few columns.
    seed : int
        Public seed of the random cosines.

    Returns
    -------
    array of shape (n_rows, n_expanded(kind, n_features))
        int16 for ``"fourier"``, uint8 for ``"thermometer"``, float64 for ``"population"``, int64
        for ``"mirror"`` of integers; else the dtype of ``z``.
    """
    if kind == "mirror":
        wide = z.astype(np.int64) if z.dtype.kind in "iu" else z
        return np.hstack([wide, -wide])
    if kind == "population":
        distance = np.asarray(z, np.float64)[:, :, None] - population_centers()
        return (distance * distance * -0.5).reshape(len(z), -1)
    if kind == "thermometer":
        above = np.asarray(z, np.float64)[:, :, None] > _normal_quantiles(N_THRESHOLDS)
        flat = above.reshape(len(z), -1)
        return np.hstack([flat, ~flat]).view(np.uint8)
    if kind == "fourier":
        return _compute_cosines(np.asarray(z, np.float64), seed)
    return z


def population_centers() -> Floats:
    """Return the centres u of the expansion ``"population"``, ascending."""
    return _normal_quantiles(N_CENTERS, middle=True)


def _normal_quantiles(n: int, *, middle: bool = False) -> Floats:
    """Return n quantiles of the standard normal at equally spaced probabilities."""
    levels = [(k + 0.5) / n if middle else (k + 1) / (n + 1) for k in range(n)]
    return np.array([NormalDist().inv_cdf(level) for level in levels])


def _compute_cosines(z: Floats, seed: int) -> npt.NDArray[np.int16]:
    """Return random Fourier features: cos(w z + b) with normal w.

    They are integers, scaled to [-1024, 1024].
    """
    frequencies, phases = _draw_waves(z.shape[1], seed)
    turns = np.tile(phases, (len(z), 1))
    for j in range(z.shape[1]):
        turns += z[:, j : j + 1] * frequencies[j]
    turns -= np.floor(turns)
    return _cosine_table()[np.minimum((turns * _TABLE_SIZE).astype(np.int64), _TABLE_SIZE - 1)]


@lru_cache(maxsize=16)  # requests choose the seed
def _draw_waves(n_features: int, seed: int) -> tuple[Floats, Floats]:
    """Draw frequencies and phases, in units of a full turn.

    The frequencies have shape (n_features, 256). The result depends only on the arguments.
    """
    words = np.random.Philox(key=seed).random_raw((n_features + 1) * N_WAVES)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    normal = [NormalDist().inv_cdf(u) for u in uniform[: n_features * N_WAVES].tolist()]
    wavelength = 2 * math.pi * LENGTH_SCALE * n_features  # the kernel widens with the dimension
    frequencies = np.array(normal).reshape(n_features, N_WAVES) / wavelength
    return frequencies, uniform[n_features * N_WAVES :]


@cache
def _cosine_table() -> npt.NDArray[np.int16]:
    values = [
        round(_AMPLITUDE * math.cos(2 * math.pi * (k + 0.5) / _TABLE_SIZE))
        for k in range(_TABLE_SIZE)
    ]
    return np.array(values, np.int16)


MAX_GLOBAL_RATIO = 6.0
"""Largest ratio of a standard deviation to the median at which columns share one divisor."""

MAX_STANDARDIZED = 2.0**20
"""Standardized values are clipped to this magnitude. Beyond a million standard deviations, sums
would lose their last bits and the hash could overflow."""


def standardizer(moments: MomentsReply, scaling: bool | str = True) -> tuple[Floats, Floats]:
    """Return the mean and the divisor of each column.

    Parameters
    ----------
    moments : MomentsReply
        Moments of at least one row.
    scaling : {"feature", "global"} or True
        ``"feature"`` divides each column by its own standard deviation; ``"global"`` divides all
        columns by the root mean square of the standard deviations, which preserves the relative
        scale of columns with the same unit of measurement (pixels, spectra). True selects
        ``"global"`` if the largest standard deviation is at most six times the median, else
        ``"feature"``. Constant columns are excluded from these statistics; ``"feature"`` divides
        them by 1.

    Returns
    -------
    mean, scale : float64 arrays of shape (n_features,)
        In the unit of the columns.

    Raises
    ------
    ProtocolError
        If the moments are inconsistent.
    """
    mean, deviation = mean_and_deviation(moments)
    return mean, scales(deviation, scaling)


def scales(deviation: Floats, scaling: bool | str = True) -> Floats:
    """Return the divisor of each column, see :func:`standardizer`.

    Parameters
    ----------
    deviation : float64 array of shape (n_features,)
        Standard deviation of each column.
    scaling : {"feature", "global"} or True
        As for :func:`standardizer`.
    """
    varying = deviation[deviation > 0]
    if len(varying) == 0:
        return np.ones(len(deviation))
    similar = varying.max() <= MAX_GLOBAL_RATIO * np.median(varying)
    if scaling == "global" or (scaling is True and similar):
        common = math.sqrt(math.fsum(varying * varying) / len(varying))
        return np.full(len(deviation), common)
    return np.where(deviation > 0, deviation, 1.0)


def check_scaling(standardize: bool | str) -> None:
    """Check that ``standardize`` is a boolean, ``"feature"`` or ``"global"``."""
    if not isinstance(standardize, bool) and standardize not in ("feature", "global"):
        raise ValueError(
            f"expected standardize True, False, 'feature' or 'global', got {standardize!r}"
        )


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """Transformation of rows before hashing, identical at every party.

    Parameters
    ----------
    n_features : int
        Columns of the table.
    expansion : str
        A name in ``EXPANSIONS``.
    mean, scale : float64 arrays of shape (n_features,) or None
        z = (x - mean) / scale; None leaves z = x.
    seed : int
        Public seed of random expansions.

    Raises
    ------
    ValueError
        If the expansion is unknown, a constant is not finite, a scale is not positive, or a shape
        is wrong.
    """

    n_features: int
    expansion: str
    mean: Floats | None = None
    scale: Floats | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.n_features <= MAX_COLUMNS or not 0 <= self.seed < 2**63:
            raise ValueError(
                f"expected up to {MAX_COLUMNS} columns and a seed in [0, 2**63), got "
                f"{self.n_features} and {self.seed}"
            )
        if self.expansion not in EXPANSIONS:
            raise ValueError(f"expected an expansion among {EXPANSIONS}, got {self.expansion!r}")
        for constants in (self.mean, self.scale):
            if constants is not None and constants.shape != (self.n_features,):
                raise ValueError(
                    f"expected {self.n_features} standardizing constants, got {constants.shape}"
                )
            if constants is not None and not np.isfinite(constants).all():
                raise ValueError("expected finite standardizing constants")
        if (self.mean is None) != (self.scale is None):
            raise ValueError("expected mean and scale, or neither of them")
        if self.scale is not None and not (self.scale > 0).all():
            raise ValueError("expected positive scales")

    @property
    def n_outputs(self) -> int:
        """Return the number of columns after the expansion."""
        return n_expanded(self.expansion, self.n_features)

    @property
    def scaling(self) -> bool | str:
        """Return the ``standardize`` parameter that fits these constants."""
        if self.scale is None:
            return False
        return "global" if (self.scale == self.scale[:1]).all() else "feature"

    def apply(self, x: Array) -> Array:
        """Standardize and expand rows to shape (n_rows, n_outputs).

        Without constants and expansion, the rows keep their dtype.
        """
        z = x
        if self.mean is not None and self.scale is not None:
            with np.errstate(over="ignore"):  # overflows are clipped below
                z = (np.asarray(x, np.float64) - self.mean) / self.scale
            np.clip(z, -MAX_STANDARDIZED, MAX_STANDARDIZED, out=z)
        return expand(z, self.expansion, self.seed)


def convert_for_kernels(x: Any) -> Any:
    """Convert a table to a dtype that the kernels support."""
    if x.dtype.kind == "b":
        return x.astype(np.uint8)
    if x.dtype == np.float16:
        return x.astype(np.float32)
    if x.dtype == np.longdouble:
        return x.astype(np.float64)
    if x.dtype in (np.uint32, np.uint64):
        return x.astype(np.int64 if x.dtype == np.uint32 else np.float64)
    return x
