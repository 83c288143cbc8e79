"""The two learning tasks: classification and regression."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import DataError
from fedneighbors.federation._loop import Ask, Replies, gather, total
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.knnper._settings import ROW_KINDS, MemorySettings
from fedneighbors.methods.knnper.algorithm import (
    Neighbors,
    best_mixture,
    least_mixture,
    local_mean,
    local_means,
    local_prior,
    local_votes,
    mix,
    soften,
)
from fedneighbors.methods.knnper.memory._compressed import Memory
from fedneighbors.methods.knnper.memory._datastore import Datastore, Strategy
from fedneighbors.methods.knnper.personal._heads import HEADS
from fedneighbors.methods.knnper.personal._pool import (
    PoolTerms,
    linear_pool,
    linear_terms,
    pool,
    pool_steps,
    pool_terms,
)
from fedneighbors.methods.knnper.protocol import (
    CountsReply,
    CountsRequest,
    ScatterRequest,
    TargetsRequest,
    UnitsRequest,
)
from fedneighbors.tabular._schema import (
    Agreed,
    Label,
    Receipt,
    Schema,
    agree,
    agree_columns,
    column_moments,
    describe,
    label_positions,
    mean_and_deviation,
)

if TYPE_CHECKING:  # estimators are imported without torch
    from torch import Tensor

    from fedneighbors.neural._trainer import Objective

HEAD_SCALE = 5.0
"""Factor from outputs of heads to scores."""

NUMBER_STRATEGIES: tuple[Strategy, ...] = ("concatenate", "fixed", "fifo", "reservoir")
"""Strategies for full memories of numeric targets; drift detection needs classes."""


Values = npt.NDArray[Any]
"""Values to learn, one per row: int64 class positions, or float64 standardized targets."""

Basis = tuple[int, Floats]
"""Number of training rows, and facts about the labels or targets of all clients (``overall``)."""

Rows = Callable[[bool], npt.NDArray[np.int64]]
"""Function of a flag (omit held-out rows); returns the row positions."""


class _Task(ABC):
    """Common part of both tasks; instances have no state.

    Attributes
    ----------
    requests : tuple of type
        Messages that clients support besides those of every training.
    experts : tuple of str
        Experts of a pool, in order.
    first_weights : tuple of float
        Weights of a pool before any row is seen.
    discriminates : bool
        True if there are classes, so that scatter matrices are defined.
    magic : bytes
        First bytes of model files.
    reader : tuple of str
        Description of a saved model's task, and the estimator that loads it.
    """

    requests: ClassVar[tuple[type[Any], ...]]
    experts: ClassVar[tuple[str, ...]]
    first_weights: ClassVar[tuple[float, ...]]
    discriminates: ClassVar[bool]
    magic: ClassVar[bytes]
    reader: ClassVar[tuple[str, str]]

    @abstractmethod
    def combine(
        self, found: Neighbors, values: Values, n_outputs: int, settings: MemorySettings
    ) -> Floats:
        """Return Eq 6 of neighbors."""

    def answer(
        self,
        memory: Memory,
        keys: Floats,
        n_outputs: int,
        settings: MemorySettings,
        own: Integers | None = None,
    ) -> Floats | None:
        """Return Eq 6 for some rows; None if the memory is empty."""
        assert isinstance(memory, Datastore)  # only classification has summaries
        found = memory.nearest(np.ascontiguousarray(keys), settings.ks[0], own=own)
        if found.positions.shape[1] == 0:
            return None
        return self.combine(found, memory.labels, n_outputs, settings)

    def answers(
        self, memory: Memory, keys: Floats, n_outputs: int, settings: MemorySettings
    ) -> list[Floats | None]:
        """Compute Eq 6 for each k.

        A memory of keys is searched once, for the largest k.
        """
        if len(settings.ks) == 1 or not isinstance(memory, Datastore):
            each = [replace(settings, n_neighbors=k) for k in settings.ks]
            return [self.answer(memory, keys, n_outputs, one) for one in each]
        found = memory.nearest(np.ascontiguousarray(keys), max(settings.ks))
        if found.positions.shape[1] == 0:
            return [None] * len(settings.ks)
        labels = memory.labels
        return [self.combine(found.first(k), labels, n_outputs, settings) for k in settings.ks]


class Classification(_Task):
    """Classification task; the network returns a score for each class.

    The facts about all clients (``overall``) are the class shares, with one row added to each
    class.
    """

    requests = (CountsRequest, ScatterRequest)
    experts = ("shared model", "memory", "local prior", *HEADS)
    first_weights = (1.0, 0.5, 0.5, 0.5, 0.5, 0.5)
    discriminates = True
    magic = b"FNKNPER2"
    reader = "distinguishes classes", "KNNPerClassifier"

    @property
    def objective(self) -> "Objective":
        """Return the cross entropy."""
        from fedneighbors.neural._trainer import cross_entropy

        return cross_entropy

    def n_outputs(self, y: npt.NDArray[Any], reserved: tuple[Label, ...]) -> int:
        """Return the number of classes."""
        return len(set(np.unique(y).tolist()) | set(reserved))

    def agree(self, schemas: Mapping[str, Schema], reserved: tuple[Label, ...]) -> Agreed:
        """Return columns and classes of all clients."""
        return agree(schemas, reserved)

    def prepare(
        self, agreed: Agreed, center: Floats, scale: Floats, *, held_out: bool
    ) -> Generator[Ask, Replies, Basis]:
        """Sum the rows of each class."""
        replies = yield total(CountsRequest(agreed.classes, held_out, center, scale))
        counts = replies.summed("the class counts").counts
        n_rows = int(counts.sum())
        if n_rows < 1:
            raise DataError("the clients have no rows to train on; add rows")
        return n_rows, np.asarray((counts + 1) / (n_rows + len(counts)))

    def pool_steps(self) -> Generator[Floats, PoolTerms, Floats]:
        """Maximize the likelihood by Newton's method."""
        return pool_steps(self.first_weights)

    def describe(
        self, table: npt.NDArray[Any], y: npt.NDArray[Any], names: tuple[str, ...] | None
    ) -> Schema:
        """Return the columns, and the labels of the rows."""
        return describe(table, y, names, "target")

    def answer_counts(
        self, request: Message, y: npt.NDArray[Any], rows: Rows
    ) -> tuple[Message, Values | None]:
        """Return class counts, or store the rows' class positions."""
        if not isinstance(request, CountsRequest):
            raise Refused("unknown request")
        labels = label_positions(y, request.classes, name="target")
        own = labels[rows(request.held_out)]
        return CountsReply(np.bincount(own, minlength=len(request.classes))), labels

    def outputs(self, scores: "Tensor") -> "Tensor":
        """Return log-probabilities of the classes."""
        return scores.double().log_softmax(dim=1)

    def check_settings(self, settings: Any) -> None:
        """Accept all settings: classification supports each of them."""

    def check_overall(self, overall: Floats, classes: tuple[Label, ...]) -> None:
        """Raise unless two or more classes have positive shares."""
        if len(classes) < 2 or overall.shape != (len(classes),):
            raise ValueError("shares do not fit the classes")
        if not (np.isfinite(overall).all() and (overall > 0).all()):
            raise ValueError("class shares are out of range")

    def check_values(self, values: Values, overall: Floats) -> None:
        """Raise ValueError if a label is not a class."""
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise ValueError("labels of a memory are not classes")
        if len(values) and not 0 <= values.min() <= values.max() < len(overall):
            raise ValueError("a label is not among the classes")

    def n_classes(self, overall: Floats) -> int:
        """Return the number of classes."""
        return len(overall)

    def shares(self, net: Floats) -> Floats:
        """Return the class probabilities."""
        return np.exp(net)

    def targets(self, values: Values, n_outputs: int) -> Floats:
        """Return one-hot targets: 1 for a row's class, else 0."""
        return np.asarray(np.eye(n_outputs)[values])

    def prior(self, values: Values, overall: Floats) -> Floats:
        """Return the logarithms of the client's class shares."""
        return np.log(local_prior(values, overall))

    def stack(self, net: Floats, local: Floats, prior: Floats, heads: list[Floats]) -> Floats:
        """Return the experts' scores."""
        scaled = [HEAD_SCALE * head for head in heads]
        priors = np.broadcast_to(prior, net.shape)
        return np.stack([net, soften(local), priors, *scaled], axis=2)

    def pool(self, experts: Floats, weights: Floats) -> Floats:
        """Return the probabilities of a log-linear pool."""
        return pool(experts, weights)

    def pool_terms(self, experts: Floats, values: Values, weights: Floats) -> PoolTerms:
        """Return the terms of the likelihood."""
        return pool_terms(experts, values, weights)

    def weigh(self, local: Floats, shared: Floats, values: Values) -> tuple[float, float]:
        """Choose the weight by likelihood; return it with the error count.

        The errors are those of the mixture with that weight.
        """
        weight = best_mixture(local, shared, values)
        wrong = mix(local, shared, weight).argmax(axis=1) != values
        return weight, float(wrong.sum())

    def combine(
        self, found: Neighbors, values: Values, n_outputs: int, settings: MemorySettings
    ) -> Floats:
        """Return the class shares of the neighbors' votes."""
        kernel, sigma = settings.kernel, settings.sigma
        return local_votes(found, values, n_outputs, kernel=kernel, sigma=sigma)

    def answer(
        self,
        memory: Memory,
        keys: Floats,
        n_outputs: int,
        settings: MemorySettings,
        own: Integers | None = None,
    ) -> Floats | None:
        """Return a memory's votes, optionally weighted by class; None if empty."""
        return memory.votes(
            np.ascontiguousarray(keys),
            n_outputs,
            n_neighbors=settings.ks[0],
            kernel=settings.kernel,
            sigma=settings.sigma,
            **({} if own is None else {"own": own}),
        )


class Regression(_Task):
    """Regression task with one or several outputs; the network returns as many.

    The facts about all clients (``overall``) are the means and standard deviations of the targets,
    from exact sums. A deviation of 0 counts as 1. Everything else is standardized: (target - mean)
    / deviation.
    """

    requests = (TargetsRequest, UnitsRequest)
    experts = ("shared model", "memory", "local mean", "ridge head", "kernel head")
    first_weights = (0.5, 0.5, 0.0, 0.0, 0.0)
    discriminates = False
    magic = b"FNKNNUM2"
    reader = "predicts numbers", "KNNPerRegressor"

    @property
    def objective(self) -> "Objective":
        """Return the squared error."""
        from fedneighbors.neural._trainer import squared_error

        return squared_error

    def n_outputs(self, y: npt.NDArray[Any], _reserved: tuple[Label, ...]) -> int:
        """Return the number of targets per row.

        Numeric targets have no classes to reserve.
        """
        return int(_table(y).shape[1])

    def agree(self, schemas: Mapping[str, Schema], _reserved: tuple[Label, ...]) -> Agreed:
        """Return the columns of all clients."""
        return agree_columns(schemas)

    def prepare(
        self, _agreed: Agreed, center: Floats, scale: Floats, *, held_out: bool
    ) -> Generator[Ask, Replies, Basis]:
        """Sum the targets and their squares, and set their units."""
        replies = yield total(TargetsRequest(held_out))
        found = replies.summed("the sums of targets")
        if found.n_rows < 1:
            raise DataError("the clients have no rows to train on; add rows")
        mean, spread = mean_and_deviation(found)
        deviation = np.where(spread > 0, spread, 1.0)
        replies = yield gather(UnitsRequest(center, scale, mean, deviation))
        replies.complete("the units of targets")
        return int(found.n_rows), np.stack([mean, deviation])

    def pool_steps(self) -> Generator[Floats, PoolTerms, Floats]:
        """Compute the least-squares weights from one sum."""
        return linear_pool(self.first_weights)

    def describe(
        self, table: npt.NDArray[Any], y: npt.NDArray[Any], names: tuple[str, ...] | None
    ) -> Schema:
        """Return the columns; nothing about the targets."""
        if y.dtype.kind not in "biuf" or not np.isfinite(y).all():
            raise Refused("a target is missing or not a finite number", "target")
        return describe(table, np.empty(0), names, "target")

    def answer_counts(
        self, request: Message, y: npt.NDArray[Any], rows: Rows
    ) -> tuple[Message, Values | None]:
        """Return sums of targets, or set the units for training."""
        targets = _table(y)
        match request:
            case TargetsRequest():
                return column_moments(targets[rows(request.held_out)]), None
            case UnitsRequest():
                return Receipt(), (targets - request.target_center) / request.target_scale
        raise Refused("unknown request")

    def outputs(self, scores: "Tensor") -> "Tensor":
        """Return the scores, which are standardized targets."""
        return scores

    def check_settings(self, settings: Any) -> None:
        """Raise ValueError for a classification-only strategy or memory."""
        if settings.strategy not in NUMBER_STRATEGIES:
            raise ValueError(
                f"expected strategy among {NUMBER_STRATEGIES}, got {settings.strategy!r}; drift "
                "detection needs classes"
            )
        if settings.memory not in ROW_KINDS:
            raise ValueError(
                f"expected memory among {ROW_KINDS}, got {settings.memory!r}; centers need classes"
            )

    def check_overall(self, overall: Floats, classes: tuple[Label, ...]) -> None:
        """Raise unless each target has a mean and a positive deviation."""
        if classes or overall.shape[0] != 2 or not overall.shape[1]:
            raise ValueError("means and deviations do not fit the targets")
        if not (np.isfinite(overall).all() and (overall[1] > 0).all()):
            raise ValueError("deviations of the targets are out of range")

    def check_values(self, values: Values, overall: Floats) -> None:
        """Raise unless targets are finite numbers of the right shape."""
        shape = (len(values), overall.shape[1])
        if values.dtype != np.float64 or values.shape != shape or not np.isfinite(values).all():
            raise ValueError(
                f"expected memory targets with {overall.shape[1]} numbers for each row"
            )

    def n_classes(self, _overall: Floats) -> None:
        """Return None: there are no classes."""

    def shares(self, net: Floats) -> Floats:
        """Return the predictions unchanged."""
        return net

    def targets(self, values: Values, _n_outputs: int) -> Floats:
        """Return the targets unchanged."""
        return values

    def prior(self, values: Values, overall: Floats) -> Floats:
        """Return the client's mean."""
        return local_mean(values.reshape(-1, overall.shape[1]))

    def stack(self, net: Floats, local: Floats, prior: Floats, heads: list[Floats]) -> Floats:
        """Return the experts' predictions; regression has no discriminants."""
        return np.stack([net, local, np.broadcast_to(prior, net.shape), *heads[:2]], axis=2)

    def pool(self, experts: Floats, weights: Floats) -> Floats:
        """Return the weighted sum of the experts."""
        return np.asarray(experts @ weights)

    def pool_terms(self, experts: Floats, values: Values, weights: Floats) -> PoolTerms:
        """Return the terms of the squared error."""
        return linear_terms(experts, values, weights)

    def weigh(self, local: Floats, shared: Floats, values: Values) -> tuple[float, float]:
        """Return the weight with the lowest squared error, and this error."""
        weight = least_mixture(local, shared, values)
        return weight, float(((mix(local, shared, weight) - values) ** 2).sum())

    def combine(
        self, found: Neighbors, values: Values, _n_outputs: int, settings: MemorySettings
    ) -> Floats:
        """Return the means of the neighbors' targets."""
        return local_means(found, values, kernel=settings.kernel, sigma=settings.sigma)


def _table(y: npt.NDArray[Any]) -> Floats:
    """Return targets as a two-dimensional table."""
    return np.asarray(y.reshape(len(y), -1), np.float64)


Task = Classification | Regression

CLASSES = Classification()
NUMBERS = Regression()


def task_of(overall: Floats) -> Task:
    """Return the task of a model.

    Parameters
    ----------
    overall : float64 array of shape (n_classes,) or (2, n_outputs)
        Facts about all clients.
    """
    return NUMBERS if overall.ndim == 2 else CLASSES
