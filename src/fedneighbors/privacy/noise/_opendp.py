"""OpenDP's samplers: noise too wide for a table of ours, and selection without values.

Its integers are asked for with 64 bits: its samplers cut at the ends of the type, which for
Python's ``int`` is taken to have 32, and cut noise hides nothing.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import MissingExtraError


def _opendp() -> Any:
    try:
        import opendp.prelude
    except ImportError:
        raise MissingExtraError("opendp", "privacy") from None
    opendp.prelude.enable_features("contrib")
    return opendp.prelude


def _at_least(x: Fraction) -> float:
    """Return the smallest float that is not below a fraction: noise may only grow."""
    nearest = float(x)
    return nearest if Fraction(nearest) >= x else math.nextafter(nearest, math.inf)


def opendp_laplace(scale: Fraction, size: int) -> npt.NDArray[np.int64]:
    """Draw discrete Laplace noise with OpenDP, from its own entropy: int64 array of (size,).

    Parameters
    ----------
    scale : Fraction
        Rounded up to a float.
    size : int
        How many values.
    """
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    return np.array(dp.m.make_laplace(*space, scale=_at_least(scale))([0] * size), np.int64)


def opendp_gaussian(variance: Fraction, size: int) -> npt.NDArray[np.int64]:
    """Draw discrete Gaussian noise with OpenDP, from its own entropy: int64 array of (size,).

    Parameters
    ----------
    variance : Fraction
        Its square root is rounded up to a float.
    size : int
        How many values.
    """
    dp = _opendp()
    sigma = math.sqrt(variance)
    while Fraction(sigma) ** 2 < variance:
        sigma = math.nextafter(sigma, math.inf)
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    return np.array(dp.m.make_gaussian(*space, scale=sigma)([0] * size), np.int64)


def top_k_measurement(k: int, scale: Fraction) -> Any:
    """Return OpenDP's measurement of noisy top-k under pure differential privacy.

    Scores may move in both directions: OpenDP's cheaper ``monotonic`` case is not claimed.

    Parameters
    ----------
    k : int
        How many cells are selected.
    scale : Fraction
        Of the noise, rounded up to a float.
    """
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.linf_distance(T="i64")
    return dp.m.make_noisy_top_k(*space, dp.max_divergence(), k=k, scale=_at_least(scale))


def opendp_top_k(values: npt.NDArray[np.int64], k: int, scale: Fraction) -> npt.NDArray[np.int64]:
    """Select k cells of a vector with OpenDP: int64 indices, the likeliest largest first.

    Parameters
    ----------
    values : int64 array of shape (n,)
        Scores.
    k : int
        How many cells.
    scale : Fraction
        Of the noise.
    """
    return np.array(top_k_measurement(k, scale)(values.tolist()), np.int64)
