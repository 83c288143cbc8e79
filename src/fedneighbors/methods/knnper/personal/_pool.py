"""Pools of several experts (shared model, memory, local prior, heads) with common weights.

A log-linear pool, for classification, multiplies the experts' distributions, each raised to the
power of its weight. All clients use the same few weights, which maximize the likelihood of all
held-out rows; each step needs only the sums of a gradient and of a small Hessian over the clients.
A linear pool, for regression, is a weighted sum of the experts; its weights have a closed form.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.linalg import solve
from scipy.special import logsumexp

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._messages import message

PRIOR_PRECISION = 1.0
"""Precision of the normal prior around the initial weights; it has an effect for few rows."""


@dataclass(frozen=True)
class PoolTerms:
    """Loss and derivatives of a pool on held-out rows; terms of several clients can be added.

    Parameters
    ----------
    n_rows : int
        Number of rows.
    loss : float
        Negative log-likelihood, in nats, or half the squared error.
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
    probabilities = np.exp(logs)
    rows = np.arange(len(labels))
    means = np.einsum("nc,nce->ne", probabilities, experts)
    centered = experts - means[:, None, :]
    return PoolTerms(
        n_rows=len(labels),
        loss=-float(logs[rows, labels].sum()),
        gradient=-centered[rows, labels].sum(axis=0),
        hessian=np.einsum("nc,nce,ncf->ef", probabilities, centered, centered),
    )


def pool_steps(
    start: Sequence[float], *, tolerance: float = 1e-9, max_steps: int = 100
) -> Generator[Floats, PoolTerms, Floats]:
    """Find the maximum-likelihood weights by Newton's method.

    Parameters
    ----------
    start : sequence of float
        Initial weights, which are also the mean of their prior.
    tolerance : float
        Stop when the expected decrease of the loss per row, in nats, is at most this.
    max_steps : int
        Maximum number of exchanges.

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
        change = weights - first
        loss = terms.loss + PRIOR_PRECISION * float(change @ change) / 2
        if loss > lowest:
            weights = (weights + best) / 2
            continue
        best, lowest = weights, loss
        gradient = terms.gradient + PRIOR_PRECISION * change
        hessian = terms.hessian + PRIOR_PRECISION * np.eye(len(first))
        step = np.asarray(solve(hessian, gradient, assume_a="pos"))
        if float(gradient @ step) / 2 <= tolerance * max(terms.n_rows, 1):
            break
        weights = weights - step
    return best


def linear_terms(experts: Floats, targets: Floats, weights: Floats) -> PoolTerms:
    """Return half the squared error of a weighted sum, gradient and Hessian.

    Parameters
    ----------
    experts : float64 array of shape (n_rows, n_outputs, n_experts)
        Output of each expert.
    targets : float64 array of shape (n_rows, n_outputs)
        Target outputs.
    weights : float64 array of shape (n_experts,)
        Weights for which the terms are computed.
    """
    residuals = experts @ weights - targets
    return PoolTerms(
        n_rows=len(targets),
        loss=float((residuals**2).sum()) / 2,
        gradient=np.einsum("noe,no->e", experts, residuals),
        hessian=np.einsum("noe,nof->ef", experts, experts),
    )


def linear_pool_steps(start: Sequence[float]) -> Generator[Floats, PoolTerms, Floats]:
    """Compute the least-squares weights in one step.

    Parameters
    ----------
    start : sequence of float
        Mean of the weights' prior, and result if there are no rows.

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


@message
class PoolReply:
    """Loss, gradient and Hessian of the pool on ``n_rows`` held-out rows.

    The three are in units of 2 to the power of -32.
    """

    n_rows: int
    loss: int
    gradient: Integers
    hessian: Integers


@message
class PoolRequest:
    """Request for the pool's terms on held-out rows, under the first released model."""

    weights: Floats

    reply: ClassVar[type] = PoolReply
