"""A client's state: its memory and heads, and the k, metric and weight that it chose."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from fedneighbors._typing import Booleans, Floats
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper._task import Values, task_of
from fedneighbors.methods.knnper.algorithm import mix
from fedneighbors.methods.knnper.memory._codes import ProductCodec
from fedneighbors.methods.knnper.memory._compressed import Memory
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.methods.knnper.memory._rows import RowFeatures
from fedneighbors.methods.knnper.personal._heads import HEADS, Heads, heads_leave_one_out
from fedneighbors.methods.knnper.personal._pool import PoolTerms
from fedneighbors.neural._schedule import row_order
from fedneighbors.tabular._ownership import one_blas_thread


def held_out_mask(n_rows: int, settings: MemorySettings, name: str) -> Booleans:
    """Return a mask of a client's held-out rows.

    At least one row is held out, but none of a single row.

    Parameters
    ----------
    n_rows : int
        Number of rows.
    settings : MemorySettings
        Settings with the fraction to hold out and the seed.
    name : str
        Name of the client.
    """
    n = int(np.floor(settings.validation * n_rows + 0.5))
    mask = np.zeros(n_rows, bool)
    mask[row_order(n_rows, settings.seed, "held out", name)[: max(n, int(n_rows > 1))]] = n_rows > 1
    return mask


@dataclass(frozen=True, eq=False)
class ExpertOutputs:
    """Output of each expert for a client's held-out rows, and choices made on these rows.

    Parameters
    ----------
    experts : float64 array of shape (n_rows, n_outputs, n_experts)
        Outputs, with the experts in the order of the task's ``experts``.
    values : array of shape (n_rows,) or (n_rows, n_outputs)
        Class indices, or standardized targets.
    weight : float
        Weight of the memory in Eq 7 (lambda), chosen on these rows only.
    settings : MemorySettings
        Settings of the memory, with the chosen k and metric.
    overall : float64 array
        As in :class:`ClientState`.
    """

    experts: Floats
    values: Values
    weight: float
    settings: MemorySettings
    overall: Floats

    @classmethod
    def of(
        cls,
        features: RowFeatures,
        scores: Floats,
        values: Values,
        held_out: Booleans,
        overall: Floats,
        settings: MemorySettings,
    ) -> Self:
        """Choose k, metric and weight, and collect the experts' outputs.

        A sigma of "auto" is set for each k and metric, see :meth:`MemorySettings.for_each_k`. The
        lowest loss of the paper's mixture on held-out rows decides; ties go to the first metric
        in the settings, then to the first k.

        Parameters
        ----------
        features : RowFeatures
            Features of the client's rows, under a model that was trained without held-out rows.
        scores : float64 array of shape (n_rows, n_outputs)
            Log-probabilities, or standardized predictions, of the same model.
        values : array of shape (n_rows,) or (n_rows, n_outputs)
            Class indices, or standardized targets.
        held_out : bool array of shape (n_rows,)
            True for held-out rows.
        overall : float64 array
            As in :class:`ClientState`.
        settings : MemorySettings
            Settings of the memory, with candidates for k and metric.
        """
        task, n_outputs = task_of(overall), scores.shape[1]
        shared, y = task.predictions(scores[held_out]), values[held_out]
        candidates: list[tuple[float, MemorySettings, float, Floats | None]] = []
        for metric in settings.metrics:
            scaled = features.in_metric(metric)
            memory = _build_memory(scaled[~held_out], values[~held_out], overall, settings)
            queries = scaled.embedding[held_out]
            each_k = settings.for_each_k(memory, queries)
            outputs = task.predict_each_k(memory, queries, n_outputs, each_k)
            for candidate, local in zip(each_k, outputs, strict=True):
                weight, loss = (0.0, 0.0) if local is None else task.choose_weight(local, shared, y)
                candidates.append((loss, replace(candidate, metric=metric), weight, local))
        _, settings, weight, local = min(candidates, key=lambda each: each[0])
        features = features.in_metric(settings.metrics[0])
        # If none is evicted, the final memory contains all rows: search all but the held-out row.
        # Not for codes: a codebook fitted on all rows would depend on the held-out row.
        if settings.capacity is None and settings.memory == "exact":
            memory = _build_memory(features, values, overall, settings)
            rows = np.flatnonzero(held_out)
            local = task.predict(memory, features.embedding[rows], n_outputs, settings, rows)
        head_outputs = [np.zeros_like(scores)] * len(HEADS)
        if settings.combine == "pool":
            head_outputs = heads_leave_one_out(features, task.targets(values, n_outputs))
        experts = task.stack_experts(
            scores[held_out],
            shared if local is None else local,
            task.prior(values[~held_out], overall),
            [output[held_out] for output in head_outputs],
        )
        return cls(experts, y, weight, settings, overall)

    def terms(self, weights: Floats) -> PoolTerms:
        """Return loss, gradient and Hessian of a pool with these weights.

        Parameters
        ----------
        weights : float64 array of shape (n_experts,)
            Weights of the experts.
        """
        return task_of(self.overall).pool_terms(self.experts, self.values, weights)


@dataclass(eq=False)
class ClientState:
    """State of one client: memory, its weight, settings, and heads of a pool.

    Parameters
    ----------
    memory : Memory
        Memory with the embeddings of the client's rows.
    weight : float
        Weight of the memory in Eq 7 (lambda).
    overall : float64 array
        Class shares over all clients, shape (n_classes,), or means and standard deviations of the
        targets, shape (2, n_outputs).
    pool : float64 array of shape (n_experts,) or None
        Weights of a pool's experts; None for the paper's mixture.
    settings : MemorySettings
        Settings of the memory, with the client's k and metric.
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
        features: RowFeatures,
        values: Values,
        *,
        weight: float,
        overall: Floats,
        pool: Floats | None,
        settings: MemorySettings,
        ids: Any = None,
    ) -> Self:
        """Return the state of a client with these rows."""
        features = features.in_metric(settings.metrics[0])
        memory = _build_memory(features, values, overall, settings, ids)
        return cls(memory, weight, overall, pool, settings)

    def add(self, features: RowFeatures, values: Values, ids: Any = None) -> None:
        """Add rows to the memory, within its capacity and strategy."""
        scaled = features.in_metric(self.settings.metrics[0])
        self.memory.add(scaled.embedding, values, ids, extras=scaled.extras)
        self._refit()

    def forget(self, ids: Any) -> None:
        """Delete rows from the memory, and fit heads to the other rows."""
        self.memory.forget(ids)
        self._refit()

    def predict(self, features: RowFeatures, scores: Floats) -> Floats:
        """Return class probabilities, or standardized predictions.

        Parameters
        ----------
        features : RowFeatures
            Features of the rows to predict.
        scores : float64 array of shape (n_rows, n_outputs)
            Log-probabilities, or standardized predictions, of the shared model.
        """
        shared = self._task.predictions(scores)
        local = self._memory_outputs(features)
        if self.pool is None:
            return shared if local is None else mix(local, shared, self.weight)
        heads = [np.zeros_like(scores)] * len(HEADS)
        if self._heads is not None:
            scaled = features.in_metric(self.settings.metrics[0])
            with one_blas_thread():
                heads = self._heads.outputs(scaled)
        prior = self._task.prior(self.memory.recent_labels, self.overall)
        experts = self._task.stack_experts(scores, shared if local is None else local, prior, heads)
        return self._task.pool(experts, self.pool)

    def predict_from_memory(self, features: RowFeatures, default: Floats) -> Floats:
        """Predict rows by the memory alone; return ``default`` if it is empty."""
        local = self._memory_outputs(features)
        return default if local is None else local

    def with_codec(self, codec: ProductCodec) -> Self:
        """Return the same state with product codes instead of exact keys.

        Parameters
        ----------
        codec : ProductCodec
            Codec with an external codebook.

        Raises
        ------
        ValueError
            If the memory is not exact, or its keys have another width than the codebook.
        DataError
            If a key overflows float32.
        """
        exact = self.memory
        if type(exact) is not Datastore:
            raise ValueError(f"expected an exact memory, got a {type(exact).__name__}")
        settings = replace(self.settings, memory="product", codec=codec)
        memory = settings.new_datastore(exact.n_dimensions, exact.n_classes)
        memory.restore(exact.keys, exact.labels, exact.ids, exact.state())
        return replace(self, memory=memory, settings=settings)

    def _memory_outputs(self, features: RowFeatures) -> Floats | None:
        """Return the memory's outputs; None if it is empty."""
        keys = features.in_metric(self.settings.metrics[0]).embedding
        n_outputs = self.overall.shape[-1]
        return self._task.predict(self.memory, keys, n_outputs, self.settings)

    def _refit(self) -> None:
        """Fit the heads of a pool to the rows in the memory."""
        self._heads: Heads | None = None
        if self.pool is not None and len(self.memory):
            targets = self._task.targets(self.memory.labels, self.overall.shape[-1])
            with one_blas_thread():  # bit-identical for any number of threads
                self._heads = Heads.fit(RowFeatures(self.memory.keys, *self.memory.extras), targets)


def join_client(
    name: str,
    features: RowFeatures,
    scores: Floats,
    values: Values,
    *,
    overall: Floats,
    pool: Floats | None,
    settings: MemorySettings,
    ids: Any = None,
) -> ClientState:
    """Return the state of a client that did not train.

    k, metric and, without a pool, the weight are chosen on held-out rows. The memory is then built
    from all rows.
    """
    weight = 0.0
    if pool is None or settings.has_candidates:
        held_out = held_out_mask(len(values), settings, name)
        outputs = ExpertOutputs.of(features, scores, values, held_out, overall, settings)
        weight, settings = outputs.weight, outputs.settings
    return ClientState.of(
        features, values, weight=weight, overall=overall, pool=pool, settings=settings, ids=ids
    )


def _build_memory(
    rows: RowFeatures, values: Values, overall: Floats, settings: MemorySettings, ids: Any = None
) -> Memory:
    """Return a memory of rows, whose embeddings are in the settings' metric."""
    memory = settings.new_memory(rows.embedding.shape[1], task_of(overall).n_classes(overall))
    return memory.add(rows.embedding, values, ids, extras=rows.extras)
