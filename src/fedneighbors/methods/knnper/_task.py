"""Learning tasks: the steps that differ between classification and regression."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.special import log_softmax

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.errors import DataError
from fedneighbors.federation._loop import Ask, Replies, gather, total
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.knnper._settings import ROW_KINDS, MemorySettings
from fedneighbors.methods.knnper.algorithm import (
    Neighbors,
    least_squares_weight,
    local_mean,
    local_means,
    local_prior,
    local_votes,
    mix,
    most_accurate_weight,
    soften,
)
from fedneighbors.methods.knnper.memory._compressed import Memory
from fedneighbors.methods.knnper.memory._datastore import Datastore, Strategy
from fedneighbors.methods.knnper.personal._discriminants import ScatterRequest
from fedneighbors.methods.knnper.personal._heads import HEADS
from fedneighbors.methods.knnper.personal._pool import (
    PoolTerms,
    linear_terms,
    pool,
    pool_terms,
)
from fedneighbors.methods.knnper.protocol import (
    CountsReply,
    CountsRequest,
    TargetsRequest,
    UnitsRequest,
)
from fedneighbors.tabular._schema import (
    JointSchema,
    Label,
    Receipt,
    SchemaReply,
    agree,
    agree_columns,
    column_moments,
    describe,
    label_positions,
    mean_and_deviation,
)

if TYPE_CHECKING:  # estimators are imported without torch
    from fedneighbors.neural._trainer import Objective

HEAD_SCALE = 5.0
"""Factor that scales the outputs of heads, which are fitted to 0 and 1, to scores."""

ROW_STRATEGIES: tuple[Strategy, ...] = ("concatenate", "fixed", "fifo", "reservoir")
"""Strategies of memories with numeric targets; drift detection needs classes."""

_MAX_TARGET = 2.0**64
"""Standardized targets are clipped to this: their squares then do not overflow float64."""

Values = Array
"""Values to learn, one per row: int64 class indices, or float64 standardized targets."""

Basis = tuple[int, Floats]
"""Number of training rows, and class shares or target units of all clients (``overall``)."""

RowSelector = Callable[[bool], Integers]
"""Function of a flag (leave out held-out rows) that returns the positions of training rows."""


class _Task(ABC):
    """Base class of both tasks; instances have no state.

    Attributes
    ----------
    requests : tuple of type
        Classes of requests that clients answer for this task only.
    experts : tuple of str
        Names of a pool's experts, in order.
    has_discriminants : bool
        True if pools have a head on discriminants, which need classes.
    magic : bytes
        First bytes of model files.
    reader : tuple of str
        Description of the task and name of its estimator, for error messages.
    """

    requests: ClassVar[tuple[type[Any], ...]]
    experts: ClassVar[tuple[str, ...]]
    has_discriminants: ClassVar[bool]
    magic: ClassVar[bytes]
    reader: ClassVar[tuple[str, str]]

    @abstractmethod
    def aggregate(
        self, neighbors: Neighbors, values: Values, n_outputs: int, settings: MemorySettings
    ) -> Floats:
        """Return the neighbors' vote shares or mean targets (Eq 6)."""

    def predict(
        self,
        memory: Memory,
        keys: Floats,
        n_outputs: int,
        settings: MemorySettings,
        skip: Integers | None = None,
    ) -> Floats | None:
        """Predict rows by a memory (Eq 6); None if it is empty.

        ``keys`` are the embeddings of the rows. ``skip`` is the position of a key to leave out for
        each row; -1 for none.
        """
        assert isinstance(memory, Datastore)  # only classification has centers
        neighbors = memory.nearest(np.ascontiguousarray(keys), settings.ks[0], skip=skip)
        if neighbors.positions.shape[1] == 0:
            return None
        return self.aggregate(neighbors, memory.labels, n_outputs, settings)

    def predict_each_k(
        self, memory: Memory, keys: Floats, n_outputs: int, candidates: Sequence[MemorySettings]
    ) -> list[Floats | None]:
        """Predict rows by a memory (Eq 6) with each candidate.

        Candidates differ in k and sigma. A memory with a key for each row is searched once, for the
        largest k.
        """
        if len(candidates) == 1 or not isinstance(memory, Datastore):
            return [self.predict(memory, keys, n_outputs, each) for each in candidates]
        largest = max(each.ks[0] for each in candidates)
        neighbors = memory.nearest(np.ascontiguousarray(keys), largest)
        if neighbors.positions.shape[1] == 0:
            return [None] * len(candidates)
        labels = memory.labels
        return [
            self.aggregate(neighbors.first(each.ks[0]), labels, n_outputs, each)
            for each in candidates
        ]


class Classification(_Task):
    """Classification task; the network returns a score for each class.

    ``overall`` are the class shares over all clients, with one row added to each class.
    """

    requests = (CountsRequest, ScatterRequest)
    experts = ("shared model", "memory", "local prior", *HEADS)
    has_discriminants = True
    magic = b"FNKNPER3"
    reader = "distinguishes classes", "KNNPerClassifier"

    @property
    def objective(self) -> "Objective":
        """Return the function that computes the cross entropy."""
        from fedneighbors.neural._trainer import cross_entropy

        return cross_entropy

    def n_outputs(self, y: Array, reserved: tuple[Label, ...]) -> int:
        """Return the number of classes: those of ``y``, and reserved ones."""
        return len(set(np.unique(y).tolist()) | set(reserved))

    def agree(self, schemas: Mapping[str, SchemaReply], reserved: tuple[Label, ...]) -> JointSchema:
        """Return the common columns and all classes of the clients."""
        return agree(schemas, reserved)

    def prepare(
        self, agreed: JointSchema, center: Floats, scale: Floats, *, held_out: bool
    ) -> Generator[Ask, Replies, Basis]:
        """Sum class counts; return the number of rows and class shares."""
        replies = yield total(CountsRequest(agreed.classes, held_out, center, scale))
        counts = replies.summed("the class counts").counts
        n_rows = int(counts.sum())
        if n_rows < 1:
            raise DataError("the clients have no rows to train on; add rows")
        return n_rows, np.asarray((counts + 1) / (n_rows + len(counts)))

    def describe(self, table: Array, y: Array, names: tuple[str, ...] | None) -> SchemaReply:
        """Return the columns, and the distinct labels of the rows."""
        return describe(table, y, names, "target")

    def answer_request(
        self, request: Message, y: Array, rows: RowSelector
    ) -> tuple[Message, Values | None]:
        """Return class counts of selected rows, and all class indices."""
        if not isinstance(request, CountsRequest):
            raise Refused("unknown request")
        labels = label_positions(y, request.classes, name="target")
        selected = labels[rows(request.held_out)]
        return CountsReply(np.bincount(selected, minlength=len(request.classes))), labels

    def outputs(self, scores: Any) -> Any:
        """Return log-probabilities of the classes; of a tensor or an array."""
        if isinstance(scores, np.ndarray):
            return log_softmax(scores, axis=1)
        return scores.double().log_softmax(dim=1)

    def check_settings(self, settings: Any) -> None:
        """Accept all settings: classification supports every memory."""

    def check_overall(self, overall: Floats, classes: tuple[Label, ...]) -> None:
        """Raise ValueError unless two or more classes have positive shares."""
        if len(classes) < 2 or overall.shape != (len(classes),):
            raise ValueError("expected two classes or more, and as many class shares")
        if not (np.isfinite(overall).all() and (overall > 0).all()):
            raise ValueError("class shares must be finite and above 0")

    def check_values(self, values: Values, overall: Floats) -> None:
        """Raise ValueError if a label is not a class."""
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise ValueError("labels of a memory are not class indices")
        if len(values) and not 0 <= values.min() <= values.max() < len(overall):
            raise ValueError("a label is not among the classes")

    def n_classes(self, overall: Floats) -> int:
        """Return the number of classes."""
        return len(overall)

    def predictions(self, scores: Floats) -> Floats:
        """Return class probabilities from log-probabilities."""
        return np.exp(scores)

    def targets(self, values: Values, n_outputs: int) -> Floats:
        """Return one-hot targets: 1 for a row's class, else 0."""
        return np.asarray(np.eye(n_outputs)[values])

    def prior(self, values: Values, overall: Floats) -> Floats:
        """Return the logarithms of the client's smoothed class shares."""
        return np.log(local_prior(values, overall))

    def stack_experts(
        self, scores: Floats, local: Floats, prior: Floats, heads: list[Floats]
    ) -> Floats:
        """Return the scores of all experts, shape (n_rows, n_classes, n_experts)."""
        scaled = [HEAD_SCALE * output for output in heads]
        priors = np.broadcast_to(prior, scores.shape)
        return np.stack([scores, soften(local), priors, *scaled], axis=2)

    def pool(self, experts: Floats, weights: Floats) -> Floats:
        """Return the probabilities of a log-linear pool."""
        return pool(experts, weights)

    def pool_terms(self, experts: Floats, values: Values, weights: Floats) -> PoolTerms:
        """Return the terms of the negative log-likelihood."""
        return pool_terms(experts, values, weights)

    def loss(self, scores: Floats, values: Values) -> float:
        """Return the negative log-likelihood of rows, in nats."""
        return -float(scores[np.arange(len(values)), values].sum())

    def choose_weight(self, local: Floats, shared: Floats, values: Values) -> tuple[float, float]:
        """Return the memory weight with the fewest errors, and their number."""
        weight = most_accurate_weight(local, shared, values)
        return weight, float((mix(local, shared, weight).argmax(axis=1) != values).sum())

    def aggregate(
        self, neighbors: Neighbors, values: Values, n_outputs: int, settings: MemorySettings
    ) -> Floats:
        """Return the class shares of the neighbors' votes."""
        kernel, sigma = settings.kernel, settings.scale
        return local_votes(neighbors, values, n_outputs, kernel=kernel, sigma=sigma)

    def predict(
        self,
        memory: Memory,
        keys: Floats,
        n_outputs: int,
        settings: MemorySettings,
        skip: Integers | None = None,
    ) -> Floats | None:
        """Return the vote shares of a memory; None if it is empty."""
        return memory.votes(
            np.ascontiguousarray(keys),
            n_outputs,
            n_neighbors=settings.ks[0],
            kernel=settings.kernel,
            sigma=settings.scale,
            **({} if skip is None else {"skip": skip}),
        )


class Regression(_Task):
    """Regression task with one or several outputs; the network returns one score for each.

    ``overall`` are the means and standard deviations of the targets over all clients, from exact
    sums. A deviation of 0 counts as 1. Targets and predictions inside a federation are
    standardized: (target - mean) / deviation.
    """

    requests = (TargetsRequest, UnitsRequest)
    experts = ("shared model", "memory", "local mean", "ridge head", "kernel head")
    has_discriminants = False
    magic = b"FNKNNUM3"
    reader = "predicts numbers", "KNNPerRegressor"

    @property
    def objective(self) -> "Objective":
        """Return the function that computes the squared error."""
        from fedneighbors.neural._trainer import squared_error

        return squared_error

    def n_outputs(self, y: Array, _reserved: tuple[Label, ...]) -> int:
        """Return the number of targets per row.

        Numeric targets have no classes to reserve.
        """
        return int(_table(y).shape[1])

    def agree(self, schemas: Mapping[str, SchemaReply], _: tuple[Label, ...]) -> JointSchema:
        """Return the common columns of the clients."""
        return agree_columns(schemas)

    def prepare(
        self, _agreed: JointSchema, center: Floats, scale: Floats, *, held_out: bool
    ) -> Generator[Ask, Replies, Basis]:
        """Sum targets and squares, send their units, and return them."""
        replies = yield total(TargetsRequest(held_out))
        moments = replies.summed("the sums of targets")
        if moments.n_rows < 1:
            raise DataError("the clients have no rows to train on; add rows")
        mean, deviation = mean_and_deviation(moments)
        deviation = np.where(deviation > 0, deviation, 1.0)
        replies = yield gather(UnitsRequest(center, scale, mean, deviation))
        replies.complete("the units of targets")
        return int(moments.n_rows), np.stack([mean, deviation])

    def describe(self, table: Array, y: Array, names: tuple[str, ...] | None) -> SchemaReply:
        """Return the columns without any labels; refuse invalid targets."""
        if y.dtype.kind not in "biuf" or not np.isfinite(y).all():
            raise Refused("a target is missing or not a finite number", "target")
        return describe(table, np.empty(0), names, "target")

    def answer_request(
        self, request: Message, y: Array, rows: RowSelector
    ) -> tuple[Message, Values | None]:
        """Return sums of targets, or a receipt and the standardized targets."""
        targets = _table(y)
        match request:
            case TargetsRequest():
                return column_moments(targets[rows(request.held_out)]), None
            case UnitsRequest():
                if request.target_center.shape != targets.shape[1:]:
                    raise Refused("the units are those of another number of targets")
                with np.errstate(over="ignore"):
                    values = (targets - request.target_center) / request.target_scale
                return Receipt(), np.clip(values, -_MAX_TARGET, _MAX_TARGET)
        raise Refused("unknown request")

    def outputs(self, scores: Any) -> Any:
        """Return the scores, which are standardized targets."""
        return scores

    def check_settings(self, settings: Any) -> None:
        """Raise ValueError for a strategy or memory that needs classes."""
        if settings.strategy not in ROW_STRATEGIES:
            raise ValueError(
                f"expected strategy among {ROW_STRATEGIES}, got {settings.strategy!r}; drift "
                "detection needs classes"
            )
        if settings.memory not in ROW_KINDS:
            raise ValueError(
                f"expected memory among {ROW_KINDS}, got {settings.memory!r}; centers need classes"
            )

    def check_overall(self, overall: Floats, classes: tuple[Label, ...]) -> None:
        """Raise ValueError unless all targets have means and positive deviations."""
        if classes or overall.ndim != 2 or len(overall) != 2 or not overall.shape[1]:
            raise ValueError("expected a mean and a deviation of each target, and no classes")
        if not (np.isfinite(overall).all() and (overall[1] > 0).all()):
            raise ValueError("means of the targets must be finite, and deviations above 0")

    def check_values(self, values: Values, overall: Floats) -> None:
        """Raise ValueError unless targets are finite and of the right shape."""
        shape = (len(values), overall.shape[1])
        if values.dtype != np.float64 or values.shape != shape or not np.isfinite(values).all():
            raise ValueError(
                f"expected memory targets with {overall.shape[1]} numbers for each row"
            )

    def n_classes(self, _overall: Floats) -> None:
        """Return None: there are no classes."""

    def predictions(self, scores: Floats) -> Floats:
        """Return the predictions unchanged."""
        return scores

    def targets(self, values: Values, _n_outputs: int) -> Floats:
        """Return the targets unchanged."""
        return values

    def prior(self, values: Values, overall: Floats) -> Floats:
        """Return the mean of the client's targets, smoothed."""
        return local_mean(values.reshape(-1, overall.shape[1]))

    def stack_experts(
        self, scores: Floats, local: Floats, prior: Floats, heads: list[Floats]
    ) -> Floats:
        """Return the predictions of all experts, shape (n_rows, n_outputs, n_experts).

        The third head, on discriminants, is left out: it needs classes.
        """
        prior = np.broadcast_to(prior, scores.shape)
        return np.stack([scores, local, prior, *heads[:2]], axis=2)

    def pool(self, experts: Floats, weights: Floats) -> Floats:
        """Return the weighted sum of the experts."""
        return np.asarray(experts @ weights)

    def pool_terms(self, experts: Floats, values: Values, weights: Floats) -> PoolTerms:
        """Return the terms of the squared error."""
        return linear_terms(experts, values, weights)

    def loss(self, scores: Floats, values: Values) -> float:
        """Return half the squared error of rows."""
        return float(((scores - values) ** 2).sum()) / 2

    def choose_weight(self, local: Floats, shared: Floats, values: Values) -> tuple[float, float]:
        """Return the memory weight with the lowest squared error, and that error."""
        weight = least_squares_weight(local, shared, values)
        return weight, float(((mix(local, shared, weight) - values) ** 2).sum())

    def aggregate(
        self, neighbors: Neighbors, values: Values, _n_outputs: int, settings: MemorySettings
    ) -> Floats:
        """Return the means of the neighbors' targets."""
        return local_means(neighbors, values, kernel=settings.kernel, sigma=settings.scale)


def _table(y: Array) -> Floats:
    """Return targets as a two-dimensional table."""
    return np.asarray(y.reshape(len(y), -1), np.float64)


Task = Classification | Regression

CLASSIFICATION = Classification()
REGRESSION = Regression()


def task_of(overall: Floats) -> Task:
    """Return the task that the shape of ``overall`` indicates.

    Parameters
    ----------
    overall : float64 array of shape (n_classes,) or (2, n_outputs)
        Class shares, or means and standard deviations of the targets, over all clients.
    """
    return REGRESSION if overall.ndim == 2 else CLASSIFICATION
