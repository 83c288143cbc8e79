"""Pools of several experts (shared model, memory, local prior, heads) with common weights.

A log-linear pool, for classification, multiplies the experts' distributions, each raised to the
power of its weight. A linear pool, for regression, is a weighted sum of the experts. All clients
use the same few weights, which minimize the loss of all held-out rows; each step needs only the
sums of a gradient and of a small Hessian over the clients. Weights are not negative: an expert that
only corrects the others gets the weight 0.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls
from scipy.special import logsumexp

from fedneighbors._typing import Booleans, Floats, Integers
from fedneighbors.federation._messages import message
from fedneighbors.records import ResultTable

PRIOR_PRECISION = 1.0
"""Precision of the normal prior around the shared model alone; it has an effect for few rows."""

_MAX_STEPS = 100  # maximum number of exchanges


@dataclass(frozen=True, eq=False)
class FittedPool:
    """Experts of a pool, their weights, and the loss of held-out rows with and without each.

    Parameters
    ----------
    experts : tuple of str
        Names of the experts.
    weights : float64 array of shape (n_experts,)
        Weights of the experts, 0 or more; 0 for an expert that does not improve the others.
    loss : float
        Mean loss of all clients' held-out rows: negative log-likelihood in nats, or half the
        squared error of standardized targets. The weights are fitted on these rows.
    losses_without : float64 array of shape (n_experts,)
        The same loss of a pool without each expert, whose other weights are fitted again.
    """

    experts: tuple[str, ...]
    weights: Floats
    loss: float
    losses_without: Floats

    def __post_init__(self) -> None:
        check_weights(self.weights[None] if self.weights.ndim else self.weights, len(self.experts))
        losses = np.append(self.losses_without, self.loss)
        if len(losses) != len(self.experts) + 1 or not np.isfinite(losses).all():
            raise ValueError("expected the finite loss of a pool, and that without each expert")

    def tabulate(self) -> ResultTable:
        """Return the weights and losses as a table of a run record."""
        losses = [round(float(loss), 6) for loss in (self.loss, *self.losses_without)]
        weights = [None, *(round(float(weight), 6) for weight in self.weights)]
        names = ("none", *self.experts)
        return ResultTable(
            name="pool",
            title="Experts of the pool",
            columns=("expert", "weight", "held-out loss without it"),
            rows=tuple(zip(names, weights, losses, strict=True)),
            caption="All clients use the same weights. Each loss is that of a pool without the "
            "expert, whose other weights were fitted again on the same held-out rows; an expert "
            "of weight 0 does not improve the others.",
        )


def check_weights(weights: Floats, n_experts: int) -> None:
    """Raise ValueError unless each row of weights fits the experts."""
    if weights.ndim != 2 or weights.shape[1] != n_experts:
        raise ValueError(f"expected one weight for each of {n_experts} experts")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("expected finite weights of experts, 0 or more")


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
    used: Booleans, *, tolerance: float = 1e-9
) -> Generator[Floats, PoolTerms, tuple[Floats, float]]:
    """Find the non-negative weights of the lowest loss by Newton's method.

    The mean of their prior, and the first weights, are 1 for the first expert and 0 for the others.

    Parameters
    ----------
    used : bool array of shape (n_experts,)
        False for experts whose weight stays 0.
    tolerance : float
        Stop when the expected decrease of the loss per row is at most this.

    Yields
    ------
    float64 array of shape (n_experts,)
        Weights for which the caller sends the sum of all clients' terms. A step that increases the
        loss is halved.

    Returns
    -------
    weights : float64 array of shape (n_experts,)
    loss : float
        Mean loss per row, without the prior.
    """
    first = np.where(np.arange(len(used)) == 0, used, 0).astype(np.float64)
    weights, best, lowest, mean_loss = first, first, np.inf, 0.0
    for _ in range(_MAX_STEPS):
        terms = yield weights
        change = weights - first
        loss = terms.loss + PRIOR_PRECISION * float(change @ change) / 2
        if loss > lowest:
            weights = (weights + best) / 2
            continue
        best, lowest, mean_loss = weights, loss, terms.loss / max(terms.n_rows, 1)
        gradient = terms.gradient + PRIOR_PRECISION * change
        hessian = terms.hessian + PRIOR_PRECISION * np.eye(len(first))
        step = np.zeros(len(first))
        step[used] = _minimize(gradient[used], hessian[np.ix_(used, used)], best[used]) - best[used]
        if -float(gradient @ step + step @ hessian @ step / 2) <= tolerance * max(terms.n_rows, 1):
            break
        weights = best + step
    return best, mean_loss


def _minimize(gradient: Floats, hessian: Floats, weights: Floats) -> Floats:
    """Return the non-negative minimum of the quadratic model around ``weights``.

    With H = U'U it is the least-squares problem of U w = U weights - U'^-1 gradient.
    """
    upper = cholesky(hessian)
    goal = upper @ weights - solve_triangular(upper, gradient, trans="T")
    return np.asarray(nnls(upper, goal)[0])


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


@message
class PoolReply:
    """Losses, gradients and Hessians of pools on ``n_rows`` held-out rows.

    The three are in units of 2 to the power of -32, with one entry for each row of weights.
    """

    n_rows: int
    losses: Integers
    gradients: Integers
    hessians: Integers


@message
class PoolRequest:
    """Request for the terms of pools on held-out rows, under the first released model.

    ``weights`` has one row for each pool.
    """

    weights: Floats

    reply: ClassVar[type] = PoolReply
