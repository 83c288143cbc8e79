"""Settings of kNN-Per's rounds and memories, checked before any request is sent."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper.algorithm import KERNELS, Kernel, median_distance
from fedneighbors.methods.knnper.memory._codes import EightBitCodec, ProductCodec
from fedneighbors.methods.knnper.memory._compressed import ClassCenters, CodedDatastore, Memory
from fedneighbors.methods.knnper.memory._datastore import STRATEGIES, Datastore, Strategy
from fedneighbors.neural._schedule import Regime, row_order

Metric = Literal["euclidean", "cosine"]

METRICS: tuple[Metric, ...] = get_args(Metric)

MemoryKind = Literal["exact", "8-bit", "product", "centers"]

MEMORY_KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)

ROW_KINDS: tuple[MemoryKind, ...] = ("exact", "8-bit", "product")
"""Memories with a key for each row; regression supports these only."""

MILESTONES = (0.6, 0.85)
"""Fractions of the rounds after which the learning rate is lowered."""

Schedule = Literal["steps", "constant", "cosine"]

SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


def is_number(value: Any) -> bool:
    """Return whether a value is a real number, and not a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_count(name: str, value: Any, *, minimum: int = 1) -> None:
    """Raise ValueError unless a parameter is an integer of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < minimum:
        raise ValueError(f"expected {name} as an integer of {minimum} or more, got {value!r}")


_KEYS = {
    "schedule": "learning_rate_schedule",
    "factor": "learning_rate_factor",
    "patience": "patience",
    "max_rounds": "max_rounds",
}
"""Parameters of kNN-Per's estimators that baselines do not have, by setting."""


@dataclass(frozen=True)
class RoundSettings:
    """Settings of federated averaging.

    Parameters
    ----------
    n_rounds : int or "plateau"
        Number of rounds; ``"plateau"`` stops when the held-out loss has not improved for
        ``patience`` rounds, at the latest after ``max_rounds``.
    participation : float
        Fraction of the clients that train in each round, in (0, 1]; at least one client does.
    regime : Regime
        Local training settings.
    seed : int
        Public seed of the row orders and of the choice of participants.
    schedule : {"steps", "constant", "cosine"}
        Learning rates over the rounds: multiplied by ``factor`` after 60 % and after 85 % of the
        rounds; constant; or half a cosine wave down to 0.
    factor : float
        Factor of the steps, in (0, 1].
    patience, max_rounds : int
        Limits for ``"plateau"``, also the rounds on which the schedule is based.
    """

    n_rounds: int | Literal["plateau"] = 50
    participation: float = 1.0
    regime: Regime = field(default_factory=Regime)
    seed: int = 0
    schedule: Schedule = "steps"
    factor: float = 0.3
    patience: int = 20
    max_rounds: int = 500

    def __post_init__(self) -> None:
        if not self.stops_at_plateau:
            check_count("n_rounds", self.n_rounds)
        check_count("patience", self.patience)
        check_count("max_rounds", self.max_rounds)
        if self.schedule not in SCHEDULES:
            raise ValueError(
                f"expected learning_rate_schedule among {SCHEDULES}, got {self.schedule!r}"
            )
        if not (is_number(self.factor) and 0 < self.factor <= 1):
            raise ValueError(f"expected learning_rate_factor in (0, 1], got {self.factor!r}")
        if not (is_number(self.participation) and 0 < self.participation <= 1):
            raise ValueError(f"expected participation above 0 up to 1, got {self.participation!r}")

    @classmethod
    def of(cls, estimator: Any, seed: int) -> "RoundSettings":
        """Return the round settings of an estimator's parameters."""
        regime = Regime(
            epochs=estimator.local_epochs,
            batch_size=estimator.batch_size,
            learning_rate=estimator.learning_rate,
            momentum=estimator.momentum,
            weight_decay=estimator.weight_decay,
        )
        keys = {name: key for name, key in _KEYS.items() if hasattr(estimator, key)}
        others = {name: getattr(estimator, key) for name, key in keys.items()}
        if not others:
            check_count("n_rounds", estimator.n_rounds)
        return cls(
            n_rounds=estimator.n_rounds,
            participation=estimator.participation,
            regime=regime,
            seed=seed,
            **others,
        )

    @property
    def stops_at_plateau(self) -> bool:
        """Return whether the held-out loss decides on the number of rounds."""
        return self.n_rounds == "plateau"

    @property
    def limit(self) -> int:
        """Return the maximum number of rounds."""
        return self.max_rounds if isinstance(self.n_rounds, str) else self.n_rounds

    def learning_rate(self, round_index: int) -> float:
        """Return the learning rate of a round, counted from 0."""
        first, progress = self.regime.learning_rate, round_index / self.limit
        if self.schedule == "cosine":
            return first * (1 + math.cos(math.pi * progress)) / 2
        if self.schedule == "constant":
            return first
        n_passed = sum(round_index >= fraction * self.limit for fraction in MILESTONES)
        return first * self.factor**n_passed

    def rates(self) -> list[tuple[float, float]]:
        """Return the learning rates in order, with their fractions of the rounds."""
        n_rounds_at = Counter(self.learning_rate(index) for index in range(self.limit))
        return [(rate, n / self.limit) for rate, n in n_rounds_at.items()]

    def participants(self, names: Sequence[str], round_index: int) -> tuple[str, ...]:
        """Return the names of a round's participants, ascending."""
        n = max(1, math.floor(self.participation * len(names) + 0.5))
        if n >= len(names):
            return tuple(sorted(names))
        order = row_order(len(names), self.seed, "participants", round_index)
        return tuple(sorted(sorted(names)[position] for position in order[:n]))


@dataclass(frozen=True)
class MemorySettings:
    """Settings of the clients' memories.

    Parameters
    ----------
    n_neighbors : int or tuple of int
        Number of nearest neighbors (k); from a tuple, each client chooses one.
    metric : {"euclidean", "cosine"} or tuple of these
        Distance of keys; from a tuple, each client chooses one.
    kernel : {"paper", "gaussian", "uniform"}
        Weight of a neighbor at distance d: ``exp(-d / sigma)``, ``exp(-d^2 / (2 sigma^2))`` or 1.
    sigma : float or "auto"
        Scale of the distances in the kernel; with ``"auto"``, each client uses the median distance
        of its held-out rows from their k-th nearest key.
    capacity : int, optional
        Maximum number of keys in a memory.
    strategy : {"concatenate", "fixed", "fifo", "reservoir", "drift"}
        Handling of new rows by a memory: see :class:`~.memory._datastore.Datastore`.
    memory : {"exact", "8-bit", "product", "centers"}
        Stored form of keys: exact; one byte per coordinate and eight for the scale of a key; 16
        codebook indices of four bits; or one center per nine rows of a class.
    combine : {"paper", "pool"}
        Combination of memory and shared model: one weight per client for its memory (paper), or a
        pool of several experts with common weights for all clients (pool).
    validation : float
        Fraction of each client's rows held out to choose k, the metric and the weights of the
        memory or of the pool, in (0, 1).
    seed : int
        Public seed of the held-out rows and of the reservoirs.
    codec : ProductCodec, optional
        Product codec shared by all clients, from ``share_codebook``. None: each memory fits its own
        codebook.
    """

    n_neighbors: int | tuple[int, ...] = 10
    metric: Metric | tuple[Metric, ...] = "euclidean"
    kernel: Kernel = "paper"
    sigma: float | Literal["auto"] = 1.0
    capacity: int | None = None
    strategy: Strategy = "concatenate"
    memory: MemoryKind = "exact"
    combine: Literal["paper", "pool"] = "paper"
    validation: float = 0.2
    seed: int = 0
    codec: ProductCodec | None = field(default=None, repr=False)

    @property
    def ks(self) -> tuple[int, ...]:
        """Return the candidates for k, in order."""
        return self.n_neighbors if isinstance(self.n_neighbors, tuple) else (self.n_neighbors,)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the candidates for the metric, in order."""
        return self.metric if isinstance(self.metric, tuple) else (self.metric,)

    @property
    def uses_rows(self) -> bool:
        """Return whether a pool needs the rows themselves, not only embeddings."""
        return self.combine == "pool" and self.memory == "exact"

    @property
    def has_candidates(self) -> bool:
        """Return whether clients choose k, the metric or the scale."""
        return len(self.ks) * len(self.metrics) > 1 or self.sigma == "auto"

    @property
    def scale(self) -> float:
        """Return sigma as the number that a client has chosen."""
        assert not isinstance(self.sigma, str)
        return self.sigma

    def for_each_k(self, memory: Memory, queries: Floats) -> "list[MemorySettings]":
        """Return the settings for each k, with sigma as a number.

        Parameters
        ----------
        memory : Memory
            Memory without the queries.
        queries : float64 array of shape (n_queries, n_dimensions)
            Embeddings of held-out rows, in the metric of the memory.
        """
        each = [replace(self, n_neighbors=k) for k in self.ks]
        if self.sigma != "auto":
            return each
        distances = memory.nearest(np.ascontiguousarray(queries), max(self.ks)).distances
        return [replace(one, sigma=median_distance(distances, one.ks[0])) for one in each]

    @classmethod
    def of(cls, estimator: Any, seed: int) -> "MemorySettings":
        """Return the memory settings of an estimator's parameters."""
        settings = [each.name for each in fields(cls) if each.name != "seed"]
        names = [name for name in settings if hasattr(estimator, name)]
        return cls(**{name: getattr(estimator, name) for name in names}, seed=seed)

    def new_memory(self, n_dimensions: int, n_classes: int | None) -> Memory:
        """Create an empty memory.

        ``n_classes`` is None for numeric targets, for which the task refuses ``"centers"``.
        """
        if self.memory == "centers" and n_classes is not None:
            return ClassCenters(n_dimensions, n_classes, random_state=self.seed)
        return self.new_datastore(n_dimensions, n_classes)

    def new_datastore(self, n_dimensions: int, n_classes: int | None = None) -> Datastore:
        """Create an empty memory with one key per row.

        ``n_classes`` is None for numeric targets.
        """
        arguments = (n_dimensions, self.capacity, self.strategy, self.seed, n_classes)
        if self.memory == "exact":
            return Datastore(*arguments)
        if self.memory == "8-bit":
            return CodedDatastore(*arguments, codec=EightBitCodec(n_dimensions))
        return CodedDatastore(*arguments, codec=self.codec or ProductCodec(16, 4, self.seed))

    def __post_init__(self) -> None:
        for name in ("n_neighbors", "metric"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        for k in self.ks or (0,):  # an empty tuple is refused like k = 0
            check_count("n_neighbors", k)
        if not self.metrics or not set(self.metrics) <= set(METRICS):
            raise ValueError(f"expected metric among {METRICS}, got {self.metric!r}")
        choices: dict[str, tuple[str, ...]] = {
            "kernel": KERNELS,
            "strategy": STRATEGIES,
            "memory": MEMORY_KINDS,
            "combine": ("paper", "pool"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"expected {name} among {allowed}, got {getattr(self, name)!r}")
        if self.sigma != "auto" and not (is_number(self.sigma) and 0 < self.scale < math.inf):
            raise ValueError(f'expected sigma above 0 or "auto", got {self.sigma!r}')
        if self.sigma != "auto":
            object.__setattr__(self, "sigma", float(self.sigma))  # files distinguish 1 and 1.0
        if self.capacity is not None:
            check_count("capacity", self.capacity)
        if self.memory == "centers" and (self.capacity, self.strategy) != (None, "concatenate"):
            raise ValueError(
                "memory='centers' does not store rows, so none can be evicted; leave capacity at "
                f"None and strategy at 'concatenate', got {self.capacity!r} and {self.strategy!r}"
            )
        if self.codec is not None and (self.memory != "product" or self.codec.book is None):
            raise ValueError(
                f"codec needs a shared codebook and memory='product', got memory={self.memory!r}"
            )
        if not (is_number(self.validation) and 0 < self.validation < 1):
            raise ValueError(f"expected validation between 0 and 1, got {self.validation!r}")


_WITHOUT_NETWORK = {
    *(each.name for each in fields(MemorySettings)),
    *("representation", "standardize", "sums", "random_state", "classes"),
}
"""Parameters of estimators that have an effect if no network is trained."""


def choose_defaults(estimator: Any) -> tuple[Any, Any]:
    """Return ``representation`` and ``combine``, with a choice in place of "auto".

    Discriminants and a pool, which need no torch, unless a parameter of networks is set or targets
    are numbers; PAPER.md names the development sets that decided. ``combine`` follows the
    representation.
    """
    representation, combine = estimator.representation, estimator.combine
    if isinstance(representation, str) and representation == "auto":
        wants_network = any(
            getattr(estimator, each.name) != each.default
            for each in fields(estimator)
            if each.name not in _WITHOUT_NETWORK
        )
        has_classes = estimator._task.has_discriminants
        representation = "network" if wants_network or not has_classes else "discriminants"
    if combine == "auto":
        is_text = isinstance(representation, str)
        combine = "pool" if is_text and representation == "discriminants" else "paper"
    return representation, combine
