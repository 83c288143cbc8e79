"""Pools of shared model, memory, local prior and local heads, with weights for all clients.

A log-linear pool, for classification, multiplies the experts' distributions, each raised to the
power of its weight. All clients share the few weights, which are fitted by likelihood on held-out
rows; a step needs only the sums of a gradient and of a small Hessian over the clients. A linear
pool, for regression, adds the weighted experts; its weights have a closed form.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve
from scipy.special import logsumexp

from fedneighbors._typing import Floats, Integers

PRIOR_PRECISION = 1.0
"""Precision of the prior around the initial weights; it matters for very few rows."""


@dataclass(frozen=True)
class PoolTerms:
    """Statistics of a client's held-out rows for the pool's weights; sums over clients.

    Parameters
    ----------
    n_rows : int
        Number of rows.
    loss : float
        Negative log-likelihood, in nats.
    gradient : float64 array of shape (n_experts,)
        Gradient of the loss.
    hessian : float64 array of shape (n_experts, n_experts)
        Hessian of the loss; positive semidefinite.
    """

    n_rows: int
    loss: float
    gradient: Floats
    hessian: Floats


def pool(experts: Floats, weights: Floats) -> Floats:
    """Return the pool's distribution of each row.

    Parameters
    ----------
    experts : float64 array of shape (n_rows, n_classes, n_experts)
        Finite scores, such as log-probabilities.
    weights : float64 array of shape (n_experts,)
        Weights of the experts.

    Returns
    -------
    float64 array of shape (n_rows, n_classes)
        Rows sum to 1.
    """
    return np.exp(_log_pool(experts, weights))


def _log_pool(experts: Floats, weights: Floats) -> Floats:
    scores = experts @ weights
    return np.asarray(scores - logsumexp(scores, axis=1, keepdims=True))


def pool_terms(experts: Floats, labels: Integers, weights: Floats) -> PoolTerms:
    """Return loss, gradient and Hessian of a client's held-out rows.

    Parameters
    ----------
    experts : float64 array of shape (n_rows, n_classes, n_experts)
        As in :func:`pool`.
    labels : int64 array of shape (n_rows,)
        Class of each row.
    weights : float64 array of shape (n_experts,)
        Weights for which the terms are computed.
    """
    logs = _log_pool(experts, weights)
    shares = np.exp(logs)
    rows = np.arange(len(labels))
    means = np.einsum("nc,nce->ne", shares, experts)
    gaps = experts - means[:, None, :]
    return PoolTerms(
        n_rows=len(labels),
        loss=-float(logs[rows, labels].sum()),
        gradient=-gaps[rows, labels].sum(axis=0),
        hessian=np.einsum("nc,nce,ncf->ef", shares, gaps, gaps),
    )


def pool_steps(
    start: Sequence[float], *, tolerance: float = 1e-9, max_steps: int = 100
) -> Generator[Floats, PoolTerms, Floats]:
    """Find the maximum-likelihood weights by Newton's method.

    Parameters
    ----------
    start : sequence of float
        Initial weights, and the center of their normal prior, which counts as one row.
    tolerance : float
        Stop when the expected decrease of the loss per row is smaller, in nats.
    max_steps : int
        Maximum number of steps.

    Yields
    ------
    float64 array of shape (n_experts,)
        Weights for which the caller sends the sum of all clients' terms. A step that increases the
        loss is halved.

    Returns
    -------
    float64 array of shape (n_experts,)
    """
    first = np.asarray(start, dtype=np.float64)
    weights, best, lowest = first, first, np.inf
    for _ in range(max_steps):
        terms = yield weights
        away = weights - first
        loss = terms.loss + PRIOR_PRECISION * float(away @ away) / 2
        if loss > lowest:
            weights = (weights + best) / 2
            continue
        best, lowest = weights, loss
        gradient = terms.gradient + PRIOR_PRECISION * away
        hessian = terms.hessian + PRIOR_PRECISION * np.eye(len(first))
        step = np.asarray(solve(hessian, gradient, assume_a="pos"))
        if float(gradient @ step) / 2 <= tolerance * max(terms.n_rows, 1):
            break
        weights = weights - step
    return best


def linear_terms(experts: Floats, targets: Floats, weights: Floats) -> PoolTerms:
    """Return a sum of experts' half squared error, gradient and Hessian.

    Parameters
    ----------
    experts : float64 array of shape (n_rows, n_outputs, n_experts)
        Output of each expert.
    targets : float64 array of shape (n_rows, n_outputs)
        Target outputs.
    weights : float64 array of shape (n_experts,)
        Weights for which the terms are computed.
    """
    gaps = experts @ weights - targets
    return PoolTerms(
        n_rows=len(targets),
        loss=float((gaps**2).sum()) / 2,
        gradient=np.einsum("noe,no->e", experts, gaps),
        hessian=np.einsum("noe,nof->ef", experts, experts),
    )


def linear_pool(start: Sequence[float]) -> Generator[Floats, PoolTerms, Floats]:
    """Compute the least-squares weights in closed form.

    Needs one sum over all clients.

    Parameters
    ----------
    start : sequence of float
        Weights without any rows. The prior is a normal distribution around them, worth one row.

    Yields
    ------
    float64 array of shape (n_experts,)
        Weights for which the caller sends the sum of all clients' terms.

    Returns
    -------
    float64 array of shape (n_experts,)
    """
    first = np.array(start)
    terms = yield first
    hessian = terms.hessian + PRIOR_PRECISION * np.eye(len(first))
    return np.asarray(first - solve(hessian, terms.gradient, assume_a="pos"))
