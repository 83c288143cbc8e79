"""Shared model on a frozen embedding: a linear head from sums over clients, without torch.

Clients send counts, sums and products of their embedded rows by class, as integers. The sums
determine a linear discriminant analysis, or a ridge regression of numeric targets, whatever the
split of the rows into clients.
"""

import hashlib
import math
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import LinAlgError, cholesky, solve, solve_triangular, svd

from fedneighbors._limits import MAX_CELLS
from fedneighbors._typing import Array, Booleans, Floats
from fedneighbors.errors import DataError
from fedneighbors.federation._loop import Ask, Coordinator, Replies, gather, total
from fedneighbors.federation._messages import Message, message
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper._task import REGRESSION, Task
from fedneighbors.methods.knnper.personal._discriminants import (
    MAX_FEATURES,
    RIDGE,
    Discriminants,
    RandomFeatures,
    choose_n_features,
    multiply,
)
from fedneighbors.methods.knnper.personal._pool import FittedPool
from fedneighbors.methods.knnper.protocol import (
    ClientSchemaRequest,
    ReleaseRequest,
    Shared,
    check_units,
    column_units,
    fit_pool,
    release,
    scatter_discriminants,
)
from fedneighbors.neural._blueprint import FROZEN
from fedneighbors.tabular._ownership import model_lock
from fedneighbors.tabular._schema import (
    Label,
    PointMomentsReply,
    class_moments,
    covariance_within,
)

SHRINKAGE = RIDGE / (1 + RIDGE)
"""Shrinkage of covariances; the ratio of ridge and covariance of a pool's discriminants."""

NAMES = ("auto", "network", *FROZEN[:2])
"""Names of representations."""

NORMAL_LOG_SCALE = 0.622
"""Standard deviation of log(1 + |z|), with the sign of z, for normal z: the unit stays 1."""

MIN_VARIANCE = 1e-6
"""Minimum target of shrinkage; less may be rounding errors of standardized columns only."""


@message
class ClassMomentsRequest:
    """Request for counts, sums and products of embedded rows by class.

    For regression, all rows are one class, and the targets are further coordinates.

    Parameters
    ----------
    held_out : bool
        Held-out rows are not used if true.
    center, scale : float64 array of shape (n_columns,)
        Units of the columns; both empty for none. In these units, coordinates beyond 8 are clipped.
    features : RandomFeatures or None
        Random features to which rows are mapped.
    by_class : bool
        Products of each class instead of those of all rows.
    """

    held_out: bool
    center: Floats
    scale: Floats
    features: RandomFeatures | None = None
    by_class: bool = False

    reply: ClassVar[type] = PointMomentsReply

    def __post_init__(self) -> None:
        check_units(self.center, self.scale)
        if self.features is not None and self.features.n_features > MAX_FEATURES:
            raise ValueError(f"expected at most {MAX_FEATURES} random features")

    def points(self, x: Floats) -> Floats:
        """Return rows as points whose moments are summed."""
        points = (x - self.center) / self.scale if len(self.center) else x
        return points if self.features is None else self.features.transform(points)


@dataclass(frozen=True, eq=False)
class FrozenModel:
    """A frozen embedding, and the form of the linear head on it.

    It takes the place of a network; its weights are the coefficients of the head.

    Parameters
    ----------
    kind : {"discriminants", "rows", "embedding"}
        Keys of memories: discriminants of all clients' rows, the rows themselves, or the outputs of
        ``function``.
    shape : tuple of int
        Shape of a row.
    n_outputs : int
        Number of scores per row.
    function : callable or transformer, optional
        Embedding of the user; a function of rows, or an object with the method ``transform``.

    Raises
    ------
    ValueError
        If the kind is unknown, or the function is missing.
    TypeError
        If ``function`` cannot be called and has no method ``transform``.
    """

    kind: str
    shape: tuple[int, ...]
    n_outputs: int
    function: Any = None
    n_tokens: ClassVar[None] = None
    reads_tokens: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.kind not in FROZEN:
            raise ValueError(f"expected a frozen embedding among {FROZEN}, got {self.kind!r}")
        if self.kind != "embedding":
            return
        if self.function is None:
            raise ValueError("expected model=, the frozen embedding: its code is not stored")
        if not (callable(self.function) or hasattr(self.function, "transform")):
            raise TypeError(
                f"expected representation among {NAMES}, a function of rows or a fitted "
                f"transformer, got {type(self.function).__name__}"
            )

    @classmethod
    def of(cls, representation: Any, shape: tuple[int, ...], n_outputs: int) -> "FrozenModel":
        """Return the model for an estimator's ``representation``.

        Raises
        ------
        ValueError
            If a text is not the name of a representation.
        TypeError
            If it is neither a text, a function nor a transformer.
        """
        if isinstance(representation, str) and representation not in NAMES:
            raise ValueError(
                f"expected representation among {NAMES}, a function of rows or a transformer, got "
                f"{representation!r}"
            )
        shape = tuple(map(int, shape))
        if isinstance(representation, str):
            return cls(representation, shape, n_outputs)
        return cls("embedding", shape, n_outputs, representation)

    @property
    def can_standardize(self) -> bool:
        """Return whether the rows are a table whose columns may be scaled."""
        return self.kind != "embedding" and len(self.shape) == 1

    @property
    def digest(self) -> str:
        """Return a digest of the kind and sizes of the model."""
        return hashlib.sha256(repr((self.kind, self.shape, self.n_outputs)).encode()).hexdigest()

    def exclusive(self) -> AbstractContextManager[Any]:
        """Return a lock that gives one thread exclusive use of the model."""
        return model_lock(self)

    def table(self, x: Array) -> Floats:
        """Return the rows, or their outputs, as a table.

        Raises
        ------
        ValueError
            If the embedding returns another number of rows, or values that are not numbers.
        DataError
            If an output is not finite.
        """
        if self.kind != "embedding":
            return np.asarray(x.reshape(len(x), math.prod(self.shape)), np.float64)
        embed: Callable[[Any], Any] = getattr(self.function, "transform", self.function)
        outputs = embed(x)
        if hasattr(outputs, "toarray"):
            outputs = outputs.toarray()
        table = np.ascontiguousarray(outputs, np.float64)
        if table.ndim != 2 or len(table) != len(x):
            raise ValueError(
                f"expected an embedding of shape ({len(x)}, n_dimensions), got {table.shape}"
            )
        if not np.isfinite(table).all():
            raise DataError("the embeddings of these rows are not finite; check the embedding")
        return table

    def inputs(self, x: Array, center: Floats, scale: Floats) -> Floats:
        """Return the rows, or their outputs, in units of columns, if any.

        For discriminants, far values are then drawn in, so that outliers do not decide directions.
        """
        table = self.table(x)
        units = (table - center) / scale if len(center) else table
        if self.kind != "discriminants" or not len(center):
            return units
        return np.asarray(np.copysign(np.log1p(np.abs(units)), units) / NORMAL_LOG_SCALE)

    def outputs(
        self, weights: Array, x: Floats, discriminants: Discriminants | None
    ) -> tuple[Floats, Floats]:
        """Return keys and scores of rows.

        Each row is rounded independently of the others.

        Parameters
        ----------
        weights : float64 array of shape ((n_dimensions + 1) * n_outputs,)
            Coefficients of the head, row by row; the last row is the intercept.
        x : float64 array of shape (n_rows, n_columns)
            Rows from :meth:`table`, in the agreed units.
        discriminants : Discriminants or None
            Projection on the discriminants of all clients, if they are the keys.

        Returns
        -------
        keys : float64 array of shape (n_rows, n_dimensions)
        scores : float64 array of shape (n_rows, n_outputs)

        Raises
        ------
        ValueError
            If the weights do not match the keys, or discriminants are missing.
        """
        keys = x
        if self.kind == "discriminants":
            if discriminants is None:
                raise ValueError("the discriminants are missing")
            keys = discriminants.transform(x)
        head = weights.reshape(-1, self.n_outputs)
        if len(head) != keys.shape[1] + 1:
            raise ValueError(f"the head has {len(head) - 1} columns, the keys {keys.shape[1]}")
        return keys, multiply(keys, head[:-1]) + head[-1]

    def moments(self, request: ClassMomentsRequest, x: Floats, values: Array) -> PointMomentsReply:
        """Return the moments of rows by class, or with their targets.

        Raises
        ------
        Refused
            If a label is not a class, or the moments would take too much memory.
        """
        if len(request.center) not in (0, x.shape[1]):
            raise Refused("the units have another number of columns")
        n_columns = x.shape[1] if request.features is None else request.features.n_features
        if (self.n_outputs if request.by_class else 1) * (n_columns + 1) ** 2 > MAX_CELLS:
            raise Refused("products of so many columns would take too much memory")
        points = request.points(x)
        if values.dtype.kind == "f":
            joined = np.hstack([points, values])
            return class_moments(joined, np.zeros(len(joined), np.int64), 1)
        if values.max(initial=0) >= self.n_outputs:
            raise Refused("a label is not among the classes")
        moments = class_moments(points, values, self.n_outputs)
        if not request.by_class:
            return moments
        ones = np.zeros(len(values), np.int64)
        products = [
            class_moments(points[values == c], ones[values == c], 1).products
            for c in range(self.n_outputs)
        ]
        return PointMomentsReply(moments.counts, moments.sums, np.stack(products))


def shrink(covariance: Floats, amount: float) -> Floats:
    """Compute a covariance shrunk towards a multiple of the identity.

    The multiple is the mean variance, as in Ledoit and Wolf (2004).

    Parameters
    ----------
    covariance : float64 array of shape (n_columns, n_columns)
        Symmetric matrix.
    amount : float
        Weight of the identity, in [0, 1].
    """
    n = len(covariance)
    mean = max(float(np.trace(covariance)) / n, MIN_VARIANCE)
    return np.asarray((1 - amount) * covariance + amount * mean * np.eye(n))


def cholesky_factor(covariance: Floats) -> Floats:
    """Return the lower Cholesky factor; raise DataError if there is none."""
    try:
        return np.asarray(cholesky(covariance, lower=True))
    except LinAlgError as error:
        raise DataError(
            "a covariance matrix is singular: columns depend on one another; use shrinkage"
        ) from error


@dataclass(frozen=True, eq=False)
class LinearDiscriminants:
    """Regularized linear discriminant analysis of summed moments.

    Parameters
    ----------
    directions : float64 array of shape (n_columns, n_discriminants)
        Directions that contain all differences of class means, in descending order of their ratio
        of scatter between classes to scatter within; the covariance within classes, shrunk, is the
        identity along them.
    center : float64 array of shape (n_discriminants,)
        Projected mean of all rows.
    means : float64 array of shape (n_present, n_discriminants)
        Projected means of the classes with rows, less the center.
    """

    directions: Floats
    center: Floats
    means: Floats

    @classmethod
    def fit(cls, moments: PointMomentsReply, *, shrinkage: float) -> "LinearDiscriminants":
        """Return the analysis for the moments of at least one row."""
        means, within = covariance_within(moments)
        counts = moments.counts[moments.counts > 0]
        center = counts @ means / counts.sum()
        factor = cholesky_factor(shrink(within, shrinkage))
        weighted = (means - center).T * np.sqrt(counts)
        left = svd(solve_triangular(factor, weighted, lower=True), full_matrices=False)[0]
        n = min(max(len(means) - 1, 1), len(within))
        directions = np.ascontiguousarray(solve_triangular(factor.T, left[:, :n]))
        return cls(directions, center @ directions, (means - center) @ directions)

    def head(self, log_priors: Floats, present: Booleans) -> Floats:
        """Return the coefficients whose softmax is the posterior.

        A class without rows has no coefficients. Its intercept is so low that a class with rows is
        more probable everywhere.

        Parameters
        ----------
        log_priors : float64 array of shape (n_classes,)
            Logarithms of the class priors.
        present : bool array of shape (n_classes,)
            True for classes with rows.

        Returns
        -------
        float64 array of shape (n_discriminants + 1, n_classes)
            The last row is the intercept.
        """
        half_squares = (self.means**2).sum(axis=1) / 2
        head = np.zeros((self.directions.shape[1] + 1, len(present)))
        head[:-1, present] = self.means.T
        head[-1] = log_priors - half_squares.max(initial=0.0)
        head[-1, present] = log_priors[present] - half_squares - self.means @ self.center
        return head


def ridge_head(moments: PointMomentsReply, n_outputs: int, *, shrinkage: float) -> Floats:
    """Return the coefficients of a ridge regression from joint moments.

    Parameters
    ----------
    moments : PointMomentsReply
        Moments of rows, whose last coordinates are the targets.
    n_outputs : int
        Number of targets.
    shrinkage : float
        Shrinkage of the covariance of the other coordinates.

    Returns
    -------
    float64 array of shape (n_columns + 1, n_outputs)
        The last row is the intercept.
    """
    (mean,), covariance = covariance_within(moments)
    n = len(mean) - n_outputs
    coefficients = solve(shrink(covariance[:n, :n], shrinkage), covariance[:n, n:], assume_a="pos")
    return np.vstack([coefficients, mean[n:] - mean[:n] @ coefficients])


def in_units(head: Floats, center: Floats, scale: Floats) -> Floats:
    """Convert a head for columns in units to one for columns without."""
    coefficients = head[:-1] / scale[:, None]
    return np.vstack([coefficients, head[-1] - center @ coefficients])


def coordinate_frozen(
    settings: MemorySettings,
    model: FrozenModel,
    task: Task,
    *,
    standardize: bool = False,
    reserved: tuple[Label, ...] = (),
    opening: Message | None = None,
) -> Coordinator[Shared]:
    """Compute a head on a frozen embedding, and choose mixtures.

    Mixtures are chosen on held-out rows; the final head and memories use all rows.

    Parameters
    ----------
    settings : MemorySettings
        Settings of the clients' memories; its seed is that of random features.
    model : FrozenModel
        Embedding of all clients.
    task, standardize, reserved, opening
        As in :func:`~.protocol.coordinate`.

    Yields
    ------
    Ask
        Schema; sums of columns; class counts, or sums and units of targets; moments by class
        without held-out rows; the model for choosing mixtures; the pool's terms; class counts, or
        sums and units of targets, of all rows; moments of all rows; the final model.

    Returns
    -------
    Shared

    Raises
    ------
    SchemaMismatch, PartyMissing, DataError
        As in :func:`~.protocol.coordinate`.
    """
    replies = yield gather(opening or ClientSchemaRequest(model.digest))
    agreed = task.agree(replies.complete("the schema").each, reserved)
    mean, deviation, rate = yield from column_units(standardize=standardize)
    center, scale = (mean, deviation) if standardize else (np.empty(0), np.empty(0))
    units = (np.empty(0), np.empty(0)) if standardize else (mean, deviation)
    pool: FittedPool | None = None
    seen: Discriminants | None
    for held_out in (True, False):
        n_rows, overall = yield from task.prepare(agreed, center, scale, held_out=held_out)
        if model.kind == "discriminants":
            random = RandomFeatures(settings.seed, rate, choose_n_features(n_rows))
            weights, seen = yield from _discriminant_head(random, overall, held_out=held_out)
        else:
            weights = yield from _column_head(task, units, overall, held_out=held_out)
            needs_scatter = settings.uses_rows and task.has_discriminants
            features = (settings.seed, rate) if needs_scatter else None
            seen = yield from scatter_discriminants(features, overall, n_rows, held_out=held_out)
        yield from release(ReleaseRequest(weights, overall, not held_out, pool, seen))
        if held_out and settings.combine == "pool":
            pool = yield from fit_pool(task.experts)
    return Shared(weights, agreed.classes, overall, pool, center, scale, agreed, seen)


def ask_moments(request: ClassMomentsRequest) -> Generator[Ask, Replies, PointMomentsReply]:
    """Return the moments of all clients."""
    replies = yield total(request)
    moments: PointMomentsReply = replies.summed("the moments of classes")
    return moments


def _discriminant_head(
    random: RandomFeatures, overall: Floats, *, held_out: bool
) -> Generator[Ask, Replies, tuple[Floats, Discriminants]]:
    """Return the head on discriminants of random features, and these."""
    moments = yield from ask_moments(
        ClassMomentsRequest(held_out, np.empty(0), np.empty(0), random)
    )
    fitted = LinearDiscriminants.fit(moments, shrinkage=SHRINKAGE)
    head = fitted.head(np.log(overall), moments.counts > 0)
    return head.ravel(), Discriminants(random, fitted.directions)


def _column_head(
    task: Task, units: tuple[Floats, Floats], overall: Floats, *, held_out: bool
) -> Generator[Ask, Replies, Floats]:
    """Return the head on columns.

    ``units`` are empty if the columns are in units.
    """
    moments = yield from ask_moments(ClassMomentsRequest(held_out, *units))
    if task is REGRESSION:
        head = ridge_head(moments, overall.shape[1], shrinkage=SHRINKAGE)
    else:
        fitted = LinearDiscriminants.fit(moments, shrinkage=SHRINKAGE)
        own = fitted.head(np.log(overall), moments.counts > 0)
        head = np.vstack([fitted.directions @ own[:-1], own[-1]])
    return (in_units(head, *units) if len(units[0]) else head).ravel()
