"""Attacks on FlyNN's counts: reconstruction, identification and membership inference.

The attackers know what every party knows: the plan, hence the features of each unit, and the
released counts, which are the model. The attacks show that raw counts reveal records and protected
ones do not; see ``docs/explanation/what-counts-reveal.md``.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.methods.flynn._features import population_centers
from fedneighbors.methods.flynn.algorithm import HashPlan


def reconstruct(counts: npt.NDArray[Any], plan: HashPlan) -> Floats:
    """Reconstruct the features of rows from a class's counts.

    A unit is active if its inputs are large. Hence a feature was large if it is an input of active
    units more often than of all units on average.

    Parameters
    ----------
    counts : array of shape (n_units,) or (n_releases, n_units)
        Counts of one class, raw or noised.
    plan : HashPlan
        Hash of the rows, with expansion ``"none"``, ``"mirror"`` or ``"population"``.

    Returns
    -------
    float64 array of shape (n_features,) or (n_releases, n_features)
        In the order of the standardized features. Only the direction is meaningful, see
        :func:`correlate_rows`.

    Raises
    ------
    ValueError
        If the expansion mixes features.
    """
    n_features, expansion = plan.features.n_features, plan.features.expansion
    inputs = _input_excess(counts, plan)
    if expansion == "none":
        return inputs
    if expansion == "mirror":
        return np.asarray(inputs[..., :n_features] - inputs[..., n_features:])
    if expansion == "population":
        return np.asarray(inputs.reshape(*inputs.shape[:-1], n_features, -1) @ population_centers())
    raise ValueError(
        f"expected expansion 'none', 'mirror' or 'population', got {expansion!r}; choose one of "
        "these with the parameter expand"
    )


def _input_excess(counts: npt.NDArray[Any], plan: HashPlan) -> Floats:
    """Return each input's relative excess among active units.

    This is proportional to the fraction of active units with the input, divided by the fraction of
    all units with it, minus 1.
    """
    width = plan.features.n_outputs
    sums = np.zeros((plan.n_units, width))
    np.put_along_axis(sums, plan.wiring.astype(np.int64), 1.0, axis=1)
    weights = np.asarray(counts, np.float64)
    weights = weights - weights.mean(axis=-1, keepdims=True)  # equal counts carry no information
    frequencies = np.maximum(sums.mean(axis=0), 1 / plan.n_units)
    return np.asarray(weights @ (sums / frequencies - 1))


def correlate_rows(reconstructed: Floats, x: npt.NDArray[Any], plan: HashPlan) -> Floats:
    """Return the correlation of reconstructed records with rows, over features.

    Parameters
    ----------
    reconstructed : float64 array of shape (n_features,) or (n_releases, n_features)
        Result of :func:`reconstruct`.
    x : array of shape (n_rows, n_features)
        Rows without standardization.
    plan : HashPlan
        Plan with the constants of the standardization.

    Returns
    -------
    float64 array of shape (n_rows,) or (n_releases, n_rows)
        In [-1, 1]; 0 if all features of a row or of a record are equal.
    """
    features = plan.features
    z = np.asarray(x, np.float64)
    if features.mean is not None and features.scale is not None:
        z = (z - features.mean) / features.scale
    return np.asarray(_normalize_rows(reconstructed) @ _normalize_rows(z).T)


def _normalize_rows(rows: Floats) -> Floats:
    centered = rows - rows.mean(axis=-1, keepdims=True)
    length = np.linalg.norm(centered, axis=-1, keepdims=True)
    return np.asarray(np.divide(centered, length, out=np.zeros_like(centered), where=length > 0))


def record_evidence(per_unit: Floats, active: npt.NDArray[np.integer[Any]]) -> Floats:
    """Sum the evidence that a row was counted over its active units.

    Parameters
    ----------
    per_unit : float64 array of shape (n_units,) or (n_releases, n_units)
        Evidence of each unit in the rows' class, in nats, from
        :mod:`~experiments.attacks.evidence` or :func:`sum_evidence`.
    active : int array of shape (n_rows, n_active)
        Active units of each row.

    Returns
    -------
    float64 array of shape (n_rows,) or (n_releases, n_rows)
    """
    return np.asarray(np.stack([per_unit[..., units].sum(axis=-1) for units in active], axis=-1))


def sum_evidence(counts: npt.NDArray[Any], n_rows: int, frequencies: Floats) -> Floats:
    """Return the evidence of an exact sum over unknown rows.

    If a unit is active for a row with probability q, a count of c is c / (n q) times as likely if
    the row is one of the n rows: P(Bin(n - 1, q) = c - 1) divided by P(Bin(n, q) = c).

    Parameters
    ----------
    counts : array of shape (n_units,)
        Exact counts of one class.
    n_rows : int
        Number of rows of the class.
    frequencies : float64 array of shape (n_units,)
        Fraction of rows of the class for which each unit is active, greater than 0; the attacker
        estimates it from its own rows.

    Returns
    -------
    float64 array of shape (n_units,)
        In nats; minus infinity for a count of 0, which excludes the row.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.asarray(counts, np.float64)) - np.log(n_rows * frequencies))
