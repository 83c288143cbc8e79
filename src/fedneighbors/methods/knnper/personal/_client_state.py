"""A client's state: memory, mixture weight, heads, and its choices."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper._task import Values, task_of
from fedneighbors.methods.knnper.algorithm import mix
from fedneighbors.methods.knnper.memory._codes import ProductCodec
from fedneighbors.methods.knnper.memory._compressed import Memory
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.methods.knnper.memory._rows import View
from fedneighbors.methods.knnper.personal._heads import HEADS, Heads, heads_held_out
from fedneighbors.methods.knnper.personal._pool import PoolTerms
from fedneighbors.neural._schedule import row_order
from fedneighbors.tabular._ownership import one_blas_thread


def held_out_rows(n_rows: int, settings: MemorySettings, name: str) -> npt.NDArray[np.bool_]:
    """Choose a client's held-out rows; none from a single row.

    Parameters
    ----------
    n_rows : int
        Number of rows.
    settings : MemorySettings
        Fraction and seed.
    name : str
        Name of the client.
    """
    n = int(np.floor(settings.validation * n_rows + 0.5))
    mask = np.zeros(n_rows, bool)
    mask[row_order(n_rows, settings.seed, "held out", name)[: max(n, int(n_rows > 1))]] = n_rows > 1
    return mask


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Outputs of each expert for a client's held-out rows.

    Parameters
    ----------
    experts : float64 array of shape (n_rows, n_outputs, n_experts)
        Outputs in the order of the task's experts.
    values : array of shape (n_rows,) or (n_rows, n_outputs)
        Classes, or standardized targets.
    weight : float
        Weight of the memory in Eq 7 (lambda), chosen on these rows only.
    settings : MemorySettings
        Settings of memory queries, with the chosen k and metric.
    overall : float64 array
        As in :class:`OwnPart`.
    """

    experts: Floats
    values: Values
    weight: float
    settings: MemorySettings
    overall: Floats

    @classmethod
    def of(
        cls,
        view: View,
        net: Floats,
        values: Values,
        held: npt.NDArray[np.bool_],
        overall: Floats,
        settings: MemorySettings,
    ) -> Self:
        """Collect every expert's output for unseen held-out rows.

        The client uses the metric and k with the lowest loss; ties go to the first metric in the
        settings, then to the first k.

        Parameters
        ----------
        view : View
            All rows of the client, under a model that has not seen the held-out ones.
        net : float64 array of shape (n_rows, n_outputs)
            Log-probabilities, or predictions, of the same model.
        values : array of shape (n_rows,) or (n_rows, n_outputs)
            Classes, or standardized targets.
        held : bool array of shape (n_rows,)
            True for held-out rows.
        overall : float64 array
            As in :class:`OwnPart`.
        settings : MemorySettings
            Settings of memory queries.
        """
        task, n_outputs = task_of(overall), net.shape[1]
        shared, truth = task.shares(net[held]), values[held]
        candidates: list[tuple[float, MemorySettings, float, Floats | None]] = []
        for metric in settings.metrics:
            near = view.in_metric(metric)
            kept = _memory(near[~held], values[~held], overall, settings)
            answers = task.answers(kept, near.embedding[held], n_outputs, settings)
            for k, local in zip(settings.ks, answers, strict=True):
                weight, loss = (0.0, 0.0) if local is None else task.weigh(local, shared, truth)
                one = replace(settings, n_neighbors=k, metric=metric)
                candidates.append((loss, one, weight, local))
        _, settings, weight, others = min(candidates, key=lambda each: each[0])
        view = view.in_metric(settings.metrics[0])
        # Search a memory of all other rows; the codec may be fitted on all.
        if settings.capacity is None and settings.memory == "exact":
            whole, own = _memory(view, values, overall, settings), np.flatnonzero(held)
            others = task.answer(whole, view.embedding[held], n_outputs, settings, own=own)
        heads = [np.zeros_like(net)] * len(HEADS)
        if settings.combine == "pool":
            heads = heads_held_out(view, task.targets(values, n_outputs))
        experts = task.stack(
            net[held],
            shared if others is None else others,
            task.prior(values[~held], overall),
            [head[held] for head in heads],
        )
        return cls(experts, truth, weight, settings, overall)

    def terms(self, weights: Floats) -> PoolTerms:
        """Return loss, gradient and Hessian of a pool's weights.

        Parameters
        ----------
        weights : float64 array of shape (n_experts,)
            Weights for which the terms are computed.
        """
        return task_of(self.overall).pool_terms(self.experts, self.values, weights)


@dataclass(eq=False)
class OwnPart:
    """A client's part of a model.

    Parameters
    ----------
    memory : Memory
        Rows in the embedding of the shared model.
    weight : float
        Weight of the memory in Eq 7 (lambda).
    overall : float64 array
        Facts about all clients: class shares of shape (n_classes,), or means and standard
        deviations of the targets of shape (2, n_outputs).
    pool : float64 array of shape (n_experts,) or None
        Weights of the experts; None for the paper's mixture.
    settings : MemorySettings
        Settings of memory queries, with the client's k and metric.
    """

    memory: Memory
    weight: float
    overall: Floats
    pool: Floats | None
    settings: MemorySettings

    def __post_init__(self) -> None:
        self._task = task_of(self.overall)
        self._refit()

    @classmethod
    def of(
        cls,
        view: View,
        values: Values,
        *,
        weight: float,
        overall: Floats,
        pool: Floats | None,
        settings: MemorySettings,
        ids: Any = None,
    ) -> Self:
        """Return the state of a client with these rows."""
        near = view.in_metric(settings.metrics[0])
        return cls(_memory(near, values, overall, settings, ids), weight, overall, pool, settings)

    def add(self, view: View, values: Values, ids: Any = None) -> None:
        """Add rows to the memory, within its capacity and strategy."""
        near = view.in_metric(self.settings.metrics[0])
        self.memory.add(near.embedding, values, ids, extras=near.extras)
        self._refit()

    def forget(self, ids: Any) -> None:
        """Delete rows from the memory and everything derived from it."""
        self.memory.forget(ids)
        self._refit()

    def predict(self, view: View, net: Floats) -> Floats:
        """Return class probabilities, or standardized targets.

        Parameters
        ----------
        view : View
            Rows to predict.
        net : float64 array of shape (n_rows, n_outputs)
            Log-probabilities, or predictions, of the shared model.
        """
        shared = self._task.shares(net)
        local = self._local(view)
        if self.pool is None:
            return shared if local is None else mix(local, shared, self.weight)
        heads = [np.zeros_like(net)] * len(HEADS)
        if self._heads is not None:
            near = view.in_metric(self.settings.metrics[0])
            with one_blas_thread():
                heads = self._heads.outputs(near)
        prior = self._task.prior(self.memory.recent_labels, self.overall)
        experts = self._task.stack(net, shared if local is None else local, prior, heads)
        return self._task.pool(experts, self.pool)

    def votes(self, view: View, otherwise: Floats) -> Floats:
        """Return the memory's outputs, or ``otherwise`` if it is empty."""
        local = self._local(view)
        return otherwise if local is None else local

    def with_codec(self, codec: ProductCodec) -> Self:
        """Return the same state with product codes instead of keys.

        Parameters
        ----------
        codec : ProductCodec
            Codec with a codebook fitted on other rows.

        Raises
        ------
        ValueError
            If the memory is not exact, or has other columns than the codebook.
        DataError
            If a key overflows float32.
        """
        before = self.memory
        if type(before) is not Datastore:
            raise ValueError(f"expected an exact memory, got a {type(before).__name__}")
        settings = replace(self.settings, memory="product", codec=codec)
        memory = settings.new_datastore(before.n_dimensions, before.n_classes)
        memory.restore(before.keys, before.labels, before.ids, before.state())
        return replace(self, memory=memory, settings=settings)

    def _local(self, view: View) -> Floats | None:
        """Return the memory's outputs; None if it is empty."""
        keys = view.in_metric(self.settings.metrics[0]).embedding
        n_outputs = self.overall.shape[-1]
        return self._task.answer(self.memory, keys, n_outputs, self.settings)

    def _refit(self) -> None:
        """Fit the heads to the rows of the memory."""
        self._heads: Heads | None = None
        if self.pool is not None and len(self.memory):
            targets = self._task.targets(self.memory.labels, self.overall.shape[-1])
            with one_blas_thread():  # the same bits for any number of threads
                self._heads = Heads.fit(View(self.memory.keys, *self.memory.extras), targets)


def join_client(
    name: str,
    view: View,
    net: Floats,
    values: Values,
    *,
    overall: Floats,
    pool: Floats | None,
    settings: MemorySettings,
    ids: Any = None,
) -> OwnPart:
    """Return the state of a client that did not train.

    Its mixture is chosen on a part of its rows; its memory is then built from all.
    """
    weight = 0.0
    if pool is None or settings.has_candidates:
        held = held_out_rows(len(values), settings, name)
        found = HeldOut.of(view, net, values, held, overall, settings)
        weight, settings = found.weight, found.settings
    return OwnPart.of(
        view, values, weight=weight, overall=overall, pool=pool, settings=settings, ids=ids
    )


def _memory(
    view: View, values: Values, overall: Floats, settings: MemorySettings, ids: Any = None
) -> Memory:
    """Return the memory of rows in the metric of the settings."""
    memory = settings.new_memory(view.embedding.shape[1], task_of(overall).n_classes(overall))
    return memory.add(view.embedding, values, ids, extras=view.extras)
