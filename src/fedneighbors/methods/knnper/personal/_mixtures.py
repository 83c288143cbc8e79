"""What a client makes of the shared model for itself: memory, mixture, prior and head."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.knnper._settings import MemorySettings, Metric
from fedneighbors.methods.knnper.algorithm import best_mixture, local_votes, mixed
from fedneighbors.methods.knnper.memory._compressed import Memory
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.methods.knnper.personal._client_state import OwnPart, choice, in_metric
from fedneighbors.methods.knnper.personal._heads import HEADS, Heads, heads_held_out
from fedneighbors.methods.knnper.personal._pool import (
    PoolTerms,
    local_prior,
    pool_terms,
    pooled,
    softened,
)
from fedneighbors.neural._schedule import row_order
from fedneighbors.tabular._ownership import one_blas_thread

EXPERTS = ("shared model", "memory", "local prior", *HEADS)
"""What a pool weighs, in order."""

FIRST_WEIGHTS = (1.0, 0.5, 0.5, 0.5, 0.5, 0.5)
"""Where the weights of a pool begin."""

HEAD_SCALE = 5.0
"""What the outputs of heads are multiplied by to be scores."""


def held_out_rows(n_rows: int, settings: MemorySettings, name: str) -> npt.NDArray[np.bool_]:
    """Return which rows of a client are held out; none if it has a single one.

    Parameters
    ----------
    n_rows : int
        Its rows.
    settings : MemorySettings
        Share and seed.
    name : str
        Of the client.
    """
    n = int(np.floor(settings.validation * n_rows + 0.5))
    mask = np.zeros(n_rows, bool)
    mask[row_order(n_rows, settings.seed, "held out", name)[: max(n, int(n_rows > 1))]] = n_rows > 1
    return mask


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What a client's held-out rows say of each expert.

    Parameters
    ----------
    experts : float64 array of shape (n_rows, n_classes, n_experts)
        In the order of :data:`EXPERTS`.
    labels : int64 array of shape (n_rows,)
        Their classes.
    weight : float
        Of the memory by Eq 7, chosen on these rows alone (lambda).
    settings : MemorySettings
        How the memory is asked, with the k and the metric that these rows speak for.
    """

    experts: Floats
    labels: Integers
    weight: float
    settings: MemorySettings

    @classmethod
    def of(
        cls,
        keys: Floats,
        scores: Floats,
        labels: Integers,
        held: npt.NDArray[np.bool_],
        overall: Floats,
        settings: MemorySettings,
    ) -> "HeldOut":
        """Ask every expert for the held-out rows, none of which it has seen.

        Parameters
        ----------
        keys : float64 array of shape (n_rows, n_dimensions)
            Embeddings of all rows of the client, under a model that has not seen those held out;
            the rows themselves may stand beside them, as the settings tell.
        scores : float64 array of shape (n_rows, n_classes)
            The same model's logarithms of shares.
        labels : int64 array of shape (n_rows,)
            Classes.
        held : bool array of shape (n_rows,)
            Which rows are held out.
        overall : float64 array of shape (n_classes,)
            Shares of the classes over all clients.
        settings : MemorySettings
            How the memory is asked.
        """
        n_classes, places = scores.shape[1], np.flatnonzero(held)
        shared = np.exp(scores[held])

        def said(metric: Metric) -> list[Floats | None]:
            near = in_metric(keys, metric, settings.n_beside)
            kept = _memory(near[~held], labels[~held], settings, n_classes)
            return _votes_of_each(kept, near[held], n_classes, settings)

        def weighed(local: Floats) -> tuple[float, float]:
            weight = best_mixture(local, shared, labels[held])
            wrong = mixed(local, shared, weight).argmax(axis=1) != labels[held]
            return weight, float(wrong.sum())

        chosen = choice(settings, said=said, weighed=weighed)
        settings, local = chosen.settings, chosen.local
        keys = in_metric(keys, settings.metrics[0], settings.n_beside)
        # The pool may count on more: for every row the memory of all others is asked.
        if settings.capacity is None and settings.memory == "exact":
            whole = _memory(keys, labels, settings, n_classes)
            others = _votes(whole, keys[held], n_classes, settings, own=places)
        else:
            others = local
        heads = [np.zeros_like(scores)] * len(HEADS)
        if settings.combine == "pool":
            heads = heads_held_out(keys, np.eye(n_classes)[labels], settings)
        prior = np.log(local_prior(labels[~held], overall))
        votes = shared if others is None else others
        experts = _experts(scores[held], votes, prior, [head[held] for head in heads])
        return cls(experts, labels[held], chosen.weight, settings)

    def terms(self, weights: Floats) -> PoolTerms:
        """Return what the rows say of a pool's weights.

        Parameters
        ----------
        weights : float64 array of shape (n_experts,)
            At which the terms are taken.
        """
        return pool_terms(self.experts, self.labels, weights)


class Personal(OwnPart):
    """A client's own part of a model that tells classes apart."""

    def predict_proba(self, keys: Floats, scores: Floats) -> Floats:
        """Return the shares of the classes.

        Parameters
        ----------
        keys : float64 array of shape (n_rows, n_dimensions)
            Embeddings.
        scores : float64 array of shape (n_rows, n_classes)
            The shared model's logarithms of shares.
        """
        shared = np.exp(scores)
        keys = in_metric(keys, self.settings.metrics[0], self.settings.n_beside)
        local = _votes(self.memory, keys, len(self.overall), self.settings)
        if self.pool is None:
            return shared if local is None else mixed(local, shared, self.weight)
        prior = np.log(local_prior(self.memory.recent_labels, self.overall))
        heads = [np.zeros_like(scores)] * len(HEADS)
        if self._heads is not None:
            with one_blas_thread():
                heads = self._heads.said(keys)
        votes = shared if local is None else local
        return pooled(_experts(scores, votes, prior, heads), self.pool)

    def votes(self, keys: Floats, otherwise: Floats) -> Floats:
        """Return what the memory says alone, and ``otherwise`` where it is empty."""
        keys = in_metric(keys, self.settings.metrics[0], self.settings.n_beside)
        local = _votes(self.memory, keys, len(self.overall), self.settings)
        return otherwise if local is None else local

    def _refit(self) -> None:
        self._heads: Heads | None = None
        if self.pool is not None and len(self.memory):
            labels = np.eye(len(self.overall))[self.memory.labels]
            self._heads = Heads.fitted(self.memory.keys, labels, self.settings)


def personalized(
    keys: Floats,
    labels: Integers,
    *,
    weight: float,
    overall: Floats,
    pool: Floats | None,
    settings: MemorySettings,
    ids: Any = None,
) -> Personal:
    """Return what a client with these rows makes of the shared model."""
    keys = in_metric(keys, settings.metrics[0], settings.n_beside)
    memory = _memory(keys, labels, settings, len(overall), ids)
    return Personal(memory, weight, overall, pool, settings)


def joined(
    name: str,
    keys: Floats,
    scores: Floats,
    labels: Integers,
    *,
    overall: Floats,
    pool: Floats | None,
    settings: MemorySettings,
    ids: Any = None,
    choose: Callable[..., Any] = HeldOut.of,
    make: Callable[..., Any] = personalized,
) -> Any:
    """Return what a client makes of a shared model that has seen none of its rows.

    Its mixture is chosen on a share of them, and its memory is then built from all. Where numbers
    are predicted, ``choose`` and ``make`` are those of :class:`~.targets.numbers.Numbers`.
    """
    weight = 0.0
    if pool is None or settings.has_candidates:
        held = held_out_rows(len(labels), settings, name)
        found = choose(keys, scores, labels, held, overall, settings)
        weight, settings = found.weight, found.settings
    return make(keys, labels, weight=weight, overall=overall, pool=pool, settings=settings, ids=ids)


def _memory(
    keys: Floats, labels: Integers, settings: MemorySettings, n_classes: int, ids: Any = None
) -> Memory:
    return settings.new_memory(keys.shape[1], n_classes).add(keys, labels, ids)


def _votes_of_each(
    memory: Memory, keys: Floats, n_classes: int, settings: MemorySettings
) -> list[Floats | None]:
    """Return Eq 6 for each k; where the memory is of keys, by one search for the largest."""
    each = [replace(settings, n_neighbors=k) for k in settings.ks]
    if len(each) == 1 or not isinstance(memory, Datastore):
        return [_votes(memory, keys, n_classes, one) for one in each]
    found = memory.nearest(np.ascontiguousarray(keys), max(settings.ks))
    if found.positions.shape[1] == 0:
        return [None] * len(each)
    law: dict[str, Any] = {"kernel": settings.kernel, "sigma": settings.sigma}
    return [local_votes(found.first(k), memory.labels, n_classes, **law) for k in settings.ks]


def _votes(
    memory: Memory,
    keys: Floats,
    n_classes: int,
    settings: MemorySettings,
    own: Integers | None = None,
) -> Floats | None:
    """Return Eq 6 for some rows; None where the memory has nothing to say."""
    left_out = {} if own is None else {"own": own}
    return memory.votes(
        np.ascontiguousarray(keys),
        n_classes,
        n_neighbors=settings.ks[0],
        kernel=settings.kernel,
        sigma=settings.sigma,
        **left_out,
    )


def _experts(scores: Floats, votes: Floats, prior: Floats, heads: Sequence[Floats]) -> Floats:
    """Return the experts' scores side by side."""
    scaled = [HEAD_SCALE * head for head in heads]
    return np.stack(
        [scores, softened(votes), np.broadcast_to(prior, scores.shape), *scaled], axis=2
    )
