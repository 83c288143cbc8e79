"""What a client makes of a shared model that predicts numbers: memory, mixture, mean and head.

All numbers are in standard units: targets less their mean over all clients, by their deviation.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.knnper._settings import ROW_KINDS, MemorySettings, Metric
from fedneighbors.methods.knnper.algorithm import least_mixture, local_means, mixed
from fedneighbors.methods.knnper.memory._datastore import Datastore, Strategy
from fedneighbors.methods.knnper.personal._client_state import OwnPart, apart, choice, in_metric
from fedneighbors.methods.knnper.personal._heads import (
    Head,
    KernelHead,
    head_held_out,
    kernel_held_out,
)
from fedneighbors.methods.knnper.personal._pool import PRIOR_PRECISION, PoolTerms
from fedneighbors.tabular._ownership import one_blas_thread

NUMBER_EXPERTS = ("shared model", "memory", "local mean", "ridge head", "kernel head")
"""What a pool of numbers weighs, in order: the ridge head sees embeddings, the kernel head rows."""

NUMBER_STRATEGIES: tuple[Strategy, ...] = ("concatenate", "fixed", "fifo", "reservoir")
"""What a full memory of targets can do; drift is told by classes."""

FIRST_WEIGHTS = (0.5, 0.5, 0.0, 0.0, 0.0)
"""What the weights of a pool would be without any rows."""


def refuse_of_classes(strategy: str, memory: str) -> None:
    """Refuse what a memory of targets cannot be.

    Parameters
    ----------
    strategy, memory : str
        As :class:`~.settings.MemorySettings` has them.

    Raises
    ------
    ValueError
        If they ask for what only classes have.
    """
    if strategy not in NUMBER_STRATEGIES:
        raise ValueError(
            f"expected strategy among {NUMBER_STRATEGIES}, got {strategy!r}; drift is told by "
            "classes"
        )
    if memory not in ROW_KINDS:
        raise ValueError(
            f"expected memory among {ROW_KINDS}, got {memory!r}; centers are of classes"
        )


def linear_terms(experts: Floats, targets: Floats, weights: Floats) -> PoolTerms:
    """Return half the squared error of a sum of experts, its gradient and its Hessian.

    Parameters
    ----------
    experts : float64 array of shape (n_rows, n_outputs, n_experts)
        What each says.
    targets : float64 array of shape (n_rows, n_outputs)
        What is right.
    weights : float64 array of shape (n_experts,)
        At which the terms are taken.
    """
    gaps = experts @ weights - targets
    return PoolTerms(
        n_rows=len(targets),
        loss=float((gaps**2).sum()) / 2,
        gradient=np.einsum("noe,no->e", experts, gaps),
        hessian=np.einsum("noe,nof->ef", experts, experts),
    )


def linear_pool() -> Generator[Floats, PoolTerms, Floats]:
    """Find the weights of least squared error, in closed form by one sum over all clients.

    They have a normal law around :data:`FIRST_WEIGHTS`, as one row in favor of them would say.

    Yields
    ------
    float64 array of shape (n_experts,)
        Weights at which the terms of all clients are wanted, as their sum.

    Returns
    -------
    float64 array of shape (n_experts,)
    """
    first = np.array(FIRST_WEIGHTS)
    terms = yield first
    hessian = terms.hessian + PRIOR_PRECISION * np.eye(len(first))
    return np.asarray(first - solve(hessian, terms.gradient, assume_a="pos"))


@dataclass(frozen=True, eq=False)
class HeldOutNumbers:
    """What a client's held-out rows say of each expert.

    Parameters
    ----------
    experts : float64 array of shape (n_rows, n_outputs, n_experts)
        In the order of :data:`NUMBER_EXPERTS`.
    targets : float64 array of shape (n_rows, n_outputs)
        What is right.
    weight : float
        Of the memory by Eq 7, chosen on these rows alone (lambda).
    settings : MemorySettings
        How the memory is asked, with the k and the metric that these rows speak for.
    """

    experts: Floats
    targets: Floats
    weight: float
    settings: MemorySettings

    @classmethod
    def of(
        cls,
        keys: Floats,
        said: Floats,
        targets: Floats,
        held: npt.NDArray[np.bool_],
        settings: MemorySettings,
    ) -> "HeldOutNumbers":
        """Ask every expert for the held-out rows, none of which it has seen.

        Parameters
        ----------
        keys : float64 array of shape (n_rows, n_dimensions)
            Embeddings of all rows of the client, under a model that has not seen those held out.
        said : float64 array of shape (n_rows, n_outputs)
            What the same model predicts.
        targets : float64 array of shape (n_rows, n_outputs)
            What is right.
        held : bool array of shape (n_rows,)
            Which rows are held out.
        settings : MemorySettings
            How the memory is asked.
        """
        shared = said[held]

        def told(metric: Metric) -> list[Floats | None]:
            near = in_metric(keys, metric, settings.n_beside)
            kept = _memory(near[~held], targets[~held], settings)
            return _means_of_each(kept, near[held], settings)

        def weighed(local: Floats) -> tuple[float, float]:
            weight = least_mixture(local, shared, targets[held])
            return weight, float(((mixed(local, shared, weight) - targets[held]) ** 2).sum())

        chosen = choice(settings, said=told, weighed=weighed)
        settings, local = chosen.settings, chosen.local
        keys = in_metric(keys, settings.metrics[0], settings.n_beside)
        others = local
        # More to count on: the memory of all other rows is asked; codes may be learned from all.
        if settings.capacity is None and settings.memory == "exact":
            whole = _memory(keys, targets, settings)
            [others] = _means_of_each(whole, keys[held], settings, own=np.flatnonzero(held))
        heads = [np.zeros_like(targets)] * 2
        if settings.combine == "pool":
            seen, rows = apart(keys, settings.n_beside)
            heads = [head_held_out(seen, targets), kernel_held_out(rows, targets)]
        mean = local_mean(targets[~held])
        experts = _experts(shared, others, mean, [head[held] for head in heads])
        return cls(experts, targets[held], chosen.weight, settings)

    def terms(self, weights: Floats) -> PoolTerms:
        """Return what the rows say of a pool's weights.

        Parameters
        ----------
        weights : float64 array of shape (n_experts,)
            At which the terms are taken.
        """
        return linear_terms(self.experts, self.targets, weights)


class PersonalNumbers(OwnPart):
    """A client's own part of a model that predicts numbers."""

    memory: Datastore

    def predict(self, keys: Floats, said: Floats) -> Floats:
        """Return the predicted targets, in standard units.

        Parameters
        ----------
        keys : float64 array of shape (n_rows, n_dimensions)
            Embeddings.
        said : float64 array of shape (n_rows, n_outputs)
            What the shared model predicts.
        """
        keys = in_metric(keys, self.settings.metrics[0], self.settings.n_beside)
        [local] = _means_of_each(self.memory, keys, self.settings)
        if self.pool is None:
            return said if local is None else mixed(local, said, self.weight)
        mean = local_mean(np.asarray(self.memory.labels).reshape(-1, said.shape[1]))
        heads = [np.zeros_like(said)] * 2
        if self._heads is not None:
            seen, rows = apart(keys, self.settings.n_beside)
            with one_blas_thread():
                heads = [self._heads[0].said(seen), self._heads[1].said(rows)]
        return np.asarray(_experts(said, local, mean, heads) @ self.pool)

    def _refit(self) -> None:
        self._heads: tuple[Head, KernelHead] | None = None
        if self.pool is not None and len(self.memory):
            seen, rows = apart(self.memory.keys, self.settings.n_beside)
            targets = self.memory.labels
            self._heads = Head.fitted(seen, targets), KernelHead.fitted(rows, targets)


def local_mean(targets: Floats) -> Floats:
    """Return a client's mean, with one row added that lies at the mean of all clients.

    Parameters
    ----------
    targets : float64 array of shape (n_rows, n_outputs)
        In standard units.
    """
    return np.asarray(targets.sum(axis=0) / (len(targets) + 1))


def personalized_numbers(
    keys: Floats,
    targets: Floats,
    *,
    weight: float,
    overall: Floats,
    pool: Floats | None,
    settings: MemorySettings,
    ids: Any = None,
) -> PersonalNumbers:
    """Return what a client with these rows makes of the shared model."""
    keys = in_metric(keys, settings.metrics[0], settings.n_beside)
    memory = _memory(keys, targets, settings, ids)
    return PersonalNumbers(memory, weight, overall, pool, settings)


def _memory(keys: Floats, targets: Floats, settings: MemorySettings, ids: Any = None) -> Datastore:
    return settings.new_datastore(keys.shape[1]).add(keys, targets, ids)


def _means_of_each(
    memory: Any, keys: Floats, settings: MemorySettings, own: Integers | None = None
) -> list[Floats | None]:
    """Return the means of the neighbors' targets for each k, by one search for the largest.

    None where the memory has nothing to say.
    """
    found = memory.nearest(np.ascontiguousarray(keys), max(settings.ks), own=own)
    if found.positions.shape[1] == 0:
        return [None] * len(settings.ks)
    law: dict[str, Any] = {"kernel": settings.kernel, "sigma": settings.sigma}
    return [local_means(found.first(k), memory.labels, **law) for k in settings.ks]


def _experts(said: Floats, local: Floats | None, mean: Floats, heads: Sequence[Floats]) -> Floats:
    """Return what the experts say side by side; an empty memory says what the model says."""
    means = np.broadcast_to(mean, said.shape)
    return np.stack([said, said if local is None else local, means, *heads], axis=2)
