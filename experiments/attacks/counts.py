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


def rebuild(counts: npt.NDArray[Any], plan: HashPlan) -> Floats:
    """Reconstruct the features of rows from a class's counts.

    A unit is active where its inputs are large. So a feature that the active units sum more often
    than units do in the mean was large.

    Parameters
    ----------
    counts : array of shape (n_units,) or (n_releases, n_units)
        Counts of one class, raw or noised.
    plan : HashPlan
        How rows were hashed; expansion ``"none"``, ``"mirror"`` or ``"population"``.

    Returns
    -------
    float64 array of shape (n_features,) or (n_releases, n_features)
        In the order of the standardized features. Only its direction has a meaning, see
        :func:`correlate_rows`.

    Raises
    ------
    ValueError
        If the expansion mixes features.
    """
    n_features, expansion = plan.features.n_features, plan.features.expansion
    inputs = _input_share(counts, plan)
    if expansion == "none":
        return inputs
    if expansion == "mirror":
        return np.asarray(inputs[..., :n_features] - inputs[..., n_features:])
    if expansion == "population":
        return np.asarray(inputs.reshape(*inputs.shape[:-1], n_features, -1) @ population_centers())
    raise ValueError(
        f"expected expansion 'none', 'mirror' or 'population', got {expansion!r}; train with "
        "another expand to look at what its counts reveal"
    )


def _input_share(counts: npt.NDArray[Any], plan: HashPlan) -> Floats:
    """Return each input's relative excess among active units.

    The share of active units that sum it, over the mean of all units, less 1.
    """
    width = plan.features.n_outputs
    sums = np.zeros((plan.n_units, width))
    np.put_along_axis(sums, plan.wiring.astype(np.int64), 1.0, axis=1)
    weights = np.asarray(counts, np.float64)
    weights = weights - weights.mean(axis=-1, keepdims=True)  # equal units carry no information
    usual = np.maximum(sums.mean(axis=0), 1 / plan.n_units)
    return np.asarray(weights @ (sums / usual - 1))


def correlate_rows(rebuilt: Floats, x: npt.NDArray[Any], plan: HashPlan) -> Floats:
    """Return the correlation over features of rebuilt records with rows.

    Parameters
    ----------
    rebuilt : float64 array of shape (n_features,) or (n_releases, n_features)
        From :func:`rebuild`.
    x : array of shape (n_rows, n_features)
        Rows without standardization.
    plan : HashPlan
        Rows for the constants of the standardization.

    Returns
    -------
    float64 array of shape (n_rows,) or (n_releases, n_rows)
        In [-1, 1]; 0 where all features of a row or of a rebuilt record are equal.
    """
    features = plan.features
    z = np.asarray(x, np.float64)
    if features.mean is not None and features.scale is not None:
        z = (z - features.mean) / features.scale
    return np.asarray(_unit_length(rebuilt) @ _unit_length(z).T)


def _unit_length(rows: Floats) -> Floats:
    centered = rows - rows.mean(axis=-1, keepdims=True)
    length = np.linalg.norm(centered, axis=-1, keepdims=True)
    return np.asarray(np.divide(centered, length, out=np.zeros_like(centered), where=length > 0))


def record_evidence(per_unit: Floats, active: npt.NDArray[np.integer[Any]]) -> Floats:
    """Sum the evidence that rows were counted, over their active units.

    Parameters
    ----------
    per_unit : float64 array of shape (n_units,) or (n_releases, n_units)
        Evidence of each unit in the rows' class, in nats, from
        :mod:`~experiments.attacks.evidence` or :func:`sum_evidence`.
    active : int array of shape (n_rows, n_active)
        Active units of the rows in question.

    Returns
    -------
    float64 array of shape (n_rows,) or (n_releases, n_rows)
    """
    return np.asarray(np.stack([per_unit[..., units].sum(axis=-1) for units in active], axis=-1))


def sum_evidence(counts: npt.NDArray[Any], n_rows: int, usual: Floats) -> Floats:
    """Return the evidence of an exact sum over unknown rows.

    With a row among ``n_rows``, a count of c has the probability of c - 1 in the others: c / (n q)
    times that of c without it, for a unit that is active with probability q.

    Parameters
    ----------
    counts : array of shape (n_units,)
        Exact counts of one class.
    n_rows : int
        Rows of the class.
    usual : float64 array of shape (n_units,)
        Share of rows of the class for which each unit is active, greater than 0; from rows of the
        attacker's own.

    Returns
    -------
    float64 array of shape (n_units,)
        In nats; minus infinity for units without counts, which exclude a row surely.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.asarray(counts, np.float64)) - np.log(n_rows * usual))
