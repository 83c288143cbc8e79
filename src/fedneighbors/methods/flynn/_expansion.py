"""What is hashed in place of the standardized features: public functions, the same at every party.

All of them are computed element by element, so that a row's bits depend neither on the rows beside
it nor on the machine.
"""

import math
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats

EXPANSIONS = ("none", "mirror", "population", "thermometer", "fourier")
LOW_DIMENSION = 8
MIDDLE_DIMENSION = 24
N_CENTRES = 8
N_THRESHOLDS = 7
N_WAVES = 256
LENGTH_SCALE = 0.2
_PHASES = 1 << 16
_AMPLITUDE = 1 << 10


def choose_expansion(wanted: str | None, n_features: int) -> str:
    """Return the expansion that an estimator's ``expand`` means.

    Raises
    ------
    ValueError
        If ``wanted`` is none of ``"auto"``, ``None`` and the names in ``EXPANSIONS``.

    Examples
    --------
    >>> [choose_expansion("auto", n) for n in (2, 12, 64)]
    ['fourier', 'population', 'mirror']
    """
    if wanted is None:
        return "none"
    if wanted == "auto":
        if n_features <= LOW_DIMENSION:
            return "fourier"
        return "population" if n_features <= MIDDLE_DIMENSION else "mirror"
    if wanted not in EXPANSIONS:
        raise ValueError(f"expected expand 'auto', None or one of {EXPANSIONS}, got {wanted!r}")
    return wanted


def n_expanded(kind: str, n_features: int) -> int:
    """Return the number of columns after an expansion."""
    if kind == "fourier":
        return N_WAVES
    factor = {
        "none": 1,
        "mirror": 2,
        "population": N_CENTRES,
        "thermometer": 2 * N_THRESHOLDS,
    }[kind]
    return factor * n_features


def expand(z: npt.NDArray[Any], kind: str, seed: int) -> npt.NDArray[Any]:
    """Return the columns to hash.

    Parameters
    ----------
    z : array of shape (n_rows, n_features)
        Rows, standardized for all but ``"none"`` and ``"mirror"`` to make sense.
    kind : str
        ``"none"``: z itself. ``"mirror"``: [z, -z], so that low values are heard as well as high
        ones. ``"population"``: -(z - u)**2 / 2 for 8 fixed centres u, so that a unit is a
        prototype in a random subspace. ``"thermometer"``: for 7 fixed thresholds t the indicators
        of z > t and of z <= t. ``"fourier"``: 256 random cosines of the whole row, which make up
        a Gaussian kernel of width n_features / 5; for few columns.
    seed : int
        Public seed of the random cosines.

    Returns
    -------
    array of shape (n_rows, n_expanded(kind, n_features))
        int16 for ``"fourier"``, uint8 for ``"thermometer"``, else numbers like ``z``.
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
        return _cosines(np.asarray(z, np.float64), seed)
    return z


def population_centers() -> Floats:
    """Return the centres u of the expansion ``"population"``, ascending."""
    return _normal_quantiles(N_CENTRES, middle=True)


def _normal_quantiles(n: int, *, middle: bool = False) -> Floats:
    """Return n quantiles of the standard normal, in equal steps of probability."""
    levels = [(k + 0.5) / n if middle else (k + 1) / (n + 1) for k in range(n)]
    return np.array([NormalDist().inv_cdf(level) for level in levels])


def _cosines(z: Floats, seed: int) -> npt.NDArray[np.int16]:
    """Return random Fourier features, cos(w z + b) with w normal, as 11-bit integers."""
    frequencies, phases = _waves(z.shape[1], seed)
    turns = np.tile(phases, (len(z), 1))
    for j in range(z.shape[1]):
        turns += z[:, j : j + 1] * frequencies[j]
    turns -= np.floor(turns)
    return _cosine_table()[np.minimum((turns * _PHASES).astype(np.int64), _PHASES - 1)]


@cache
def _waves(n_features: int, seed: int) -> tuple[Floats, Floats]:
    """Return frequencies in turns, shape (n_features, 256), and phases, from the seed alone."""
    words = np.random.Philox(key=seed).random_raw((n_features + 1) * N_WAVES)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    normal = [NormalDist().inv_cdf(u) for u in uniform[: n_features * N_WAVES].tolist()]
    wavelength = 2 * math.pi * LENGTH_SCALE * n_features  # the kernel widens with the dimension
    frequencies = np.array(normal).reshape(n_features, N_WAVES) / wavelength
    return frequencies, uniform[n_features * N_WAVES :]


@cache
def _cosine_table() -> npt.NDArray[np.int16]:
    values = [
        round(_AMPLITUDE * math.cos(2 * math.pi * (k + 0.5) / _PHASES)) for k in range(_PHASES)
    ]
    return np.array(values, np.int16)
