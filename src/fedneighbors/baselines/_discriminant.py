"""Federated discriminant analysis, linear or quadratic, from class statistics of all parties."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Floats
from fedneighbors.errors import DataError
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import Coordinator, gather
from fedneighbors.methods.knnper._client import KNNPerParty
from fedneighbors.methods.knnper._frozen import (
    SHRINKAGE,
    ClassMomentsRequest,
    FrozenModel,
    LinearDiscriminants,
    ask_moments,
    cholesky_factor,
    shrink,
)
from fedneighbors.methods.knnper._task import CLASSIFICATION
from fedneighbors.methods.knnper.personal._discriminants import MAX_FEATURES, RandomFeatures
from fedneighbors.methods.knnper.protocol import ClientSchemaRequest, check_units, column_units
from fedneighbors.records import RunRecord, environment
from fedneighbors.tabular._model_file import ModelFile, ModelFileMixin, convert_file_errors
from fedneighbors.tabular._ownership import (
    Holdings,
    check_labels,
    column_names,
    one_blas_thread,
    plain_targets,
    public_seed,
    repeat_rows,
    rows_by_party,
    set_columns,
    validate_rows,
)
from fedneighbors.tabular._schema import (
    JointSchema,
    Label,
    PointMomentsReply,
    check_n_classes,
    covariance_within,
    label_array,
)

Statistics = tuple[JointSchema, tuple[Floats, Floats], ClassMomentsRequest, PointMomentsReply]


@dataclass(frozen=True, eq=False)
class DiscriminantModel(ModelFile):
    """Class densities of a discriminant analysis.

    Parameters
    ----------
    classes : tuple of labels
        Ascending.
    feature_names : tuple of str or None
        Column names, if the table has any.
    shrinkage : float
        As for the estimator.
    standardize, equal_priors : bool
        The estimator's ``standardize``, and whether its ``priors`` are ``"equal"``.
    center, scale : float64 array of shape (n_columns,)
        Units of the columns.
    features : RandomFeatures or None
        Random features to which rows are mapped.
    priors : float64 array of shape (n_classes,)
        Class priors.
    head : float64 array of shape (n_points + 1, n_classes)
        Coefficients and, in the last row, intercepts of a linear analysis; empty otherwise.
    means : float64 array of shape (n_classes, n_points)
        Means of a quadratic analysis; empty otherwise.
    factors : float64 array of shape (n_classes, n_points, n_points)
        Cholesky factors of its covariances.
    offsets : float64 array of shape (n_classes,)
        Log-densities at the means, up to a constant; empty for a linear analysis.
    """

    magic: ClassVar[bytes] = b"FNDISCR1"

    classes: tuple[Label, ...]
    feature_names: tuple[str, ...] | None
    shrinkage: float
    standardize: bool
    equal_priors: bool
    center: Floats
    scale: Floats
    features: RandomFeatures | None
    priors: Floats
    head: Floats
    means: Floats
    factors: Floats
    offsets: Floats

    def __post_init__(self) -> None:
        n, n_columns = len(self.classes), len(self.center)
        check_n_classes(n)
        check_units(self.center, self.scale)
        n_points = n_columns if self.features is None else self.features.n_features
        if n < 2 or n_columns < 1 or n_points > max(n_columns, MAX_FEATURES):
            raise ValueError("expected two classes, a column, and no more features than allowed")
        if self.feature_names is not None and len(self.feature_names) != n_columns:
            raise ValueError("the numbers of column names and columns differ")
        parts = self.priors, self.head, self.means, self.factors, self.offsets
        linear = [(n,), (n_points + 1, n), (0, 0), (0, 0, 0), (0,)]
        quadratic = [(n,), (0, 0), (n, n_points), (n, n_points, n_points), (n,)]
        if [part.shape for part in parts] not in (linear, quadratic):
            raise ValueError("classes and densities differ in shape")
        if not all(np.isfinite(part).all() for part in parts):
            raise ValueError("a parameter of a density is not finite")
        if (np.diagonal(self.factors, axis1=1, axis2=2) <= 0).any():
            raise ValueError("a covariance is not positive")

    @property
    def is_quadratic(self) -> bool:
        """Return whether each class has its own covariance."""
        return len(self.means) > 0

    def log_densities(self, x: Floats) -> Floats:
        """Return weighted log-densities up to a constant, shape (n_rows, n_classes)."""
        points = (x - self.center) / self.scale
        if self.features is not None:
            points = self.features.transform(points)
        if not self.is_quadratic:
            return np.asarray(points @ self.head[:-1] + self.head[-1])
        scores = []
        for mean, factor, offset in zip(self.means, self.factors, self.offsets, strict=True):
            whitened = solve_triangular(factor, (points - mean).T, lower=True)
            scores.append(offset - (whitened**2).sum(axis=0) / 2)
        return np.column_stack(scores)


class FederatedDiscriminantClassifier(ClassifierMixin, ModelFileMixin, BaseEstimator):  # type: ignore[misc]
    """Linear or quadratic discriminant analysis from sums over parties, without iterations.

    After the sums of columns, which give the units of the columns, and the class counts, each party
    sends its sums and products by class once. All sums are of integers, so the model does not
    depend on the split of the rows into parties. This is the idea of FedCGS [1]_ and GH-OFL [2]_,
    on rows or random features instead of the features of a pretrained network.

    Parameters
    ----------
    quadratic : bool
        A covariance for each class; False: one for all classes.
    shrinkage : float
        Weight, in [0, 1], of the identity times the mean variance in each covariance.
    n_features : int, optional
        Number of random features of a Gaussian kernel, at most 1,024, to which rows are mapped.
        None: the columns.
    standardize : bool
        Give each column mean 0 and standard deviation 1 over all parties. Otherwise columns are
        used as they are.
    priors : {"observed", "equal"}
        Class priors: the shares of the classes in the rows, or the same for all classes, so that
        rare ones are not lost.
    sums : {"plain", "masked"}
        ``"masked"`` computes the sums by secure aggregation, with the same result.
    random_state : int, RandomState or None
        Seed of the random features. It is public.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.
    priors_ : float64 array of shape (n_classes,)
        Class priors.
    model_ : DiscriminantModel
        The class densities.
    run_record_ : RunRecord
        Exchanges, bytes up and down, and seconds.

    Notes
    -----
    Coordinates are rounded to multiples of 2**-16, and those beyond 8 (standard deviations, if
    columns are standardized) are clipped to 8 before they are summed.

    References
    ----------
    .. [1] Guan, Zhou and Gu, "Capture Global Feature Statistics for One-Shot Federated Learning",
       AAAI 2025.
    .. [2] Turazza, Picone and Mamei, "The Gaussian-Head OFL Family: One-Shot Federated Learning
       from Client Global Statistics", ICLR 2026.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from fedneighbors.baselines import FederatedDiscriminantClassifier
    >>> X, y = load_wine(return_X_y=True)
    >>> cellar = ["north" if row % 3 else "south" for row in range(len(y))]
    >>> model = FederatedDiscriminantClassifier().fit(X, y, parties=cellar)
    >>> model.score(X, y) > 0.95
    True
    """

    def __init__(
        self,
        *,
        quadratic: bool = False,
        shrinkage: float = SHRINKAGE,
        n_features: int | None = None,
        standardize: bool = True,
        priors: Literal["observed", "equal"] = "observed",
        sums: Literal["plain", "masked"] = "plain",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.quadratic = quadratic
        self.shrinkage = shrinkage
        self.n_features = n_features
        self.standardize = standardize
        self.priors = priors
        self.sums = sums
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        parties: Sequence[Any] | Array | None = None,
        sample_weight: Any = None,
    ) -> Self:
        """Fit the model to the sums of all parties.

        Parameters
        ----------
        X : array or DataFrame of shape (n_rows, n_features)
            Finite numbers.
        y : array of shape (n_rows,)
            Class labels.
        parties : sequence of shape (n_rows,), optional
            Party of each row. None means one party.
        sample_weight : array-like of shape (n_rows,), optional
            Whole numbers of 0 or more: a weight of 2 equals a second copy of the row.

        Raises
        ------
        ValueError
            If a parameter is out of range, or the numbers of parties and rows differ.
        DataError
            If there are fewer than two classes, a covariance is singular, or a class of a quadratic
            analysis has a single row.
        AggregationError
            If there are too few parties for masked sums.
        """
        x, labels = validate_rows(self, X, plain_targets(y, parties), dtype=np.float64)
        check_labels(labels)
        if not 0 <= self.shrinkage <= 1:
            raise ValueError(f"expected shrinkage from 0 to 1, got {self.shrinkage!r}")
        if self.priors not in ("observed", "equal"):
            raise ValueError(f"expected priors 'observed' or 'equal', got {self.priors!r}")
        owned = repeat_rows(rows_by_party(parties, len(x)), sample_weight, x)
        started, clock = datetime.now(UTC), time.perf_counter()
        n_classes = len(np.unique(np.concatenate([labels[rows] for rows in owned.values()])))
        model = FrozenModel("rows", x.shape[1:], n_classes)
        holdings = Holdings(x, labels, owned, column_names(self))
        members = holdings.parties(KNNPerParty, n_threads=1, network=model)
        seed = public_seed(self.random_state)
        with one_blas_thread():
            outcome = run(self._coordinate(model, seed), members, sums=self.sums)
            agreed, units, request, moments = outcome.result
            weights = moments.counts if self.priors == "observed" else moments.counts > 0
            priors = weights / weights.sum()
            densities = self._fit_moments(moments, priors)
        self.classes_ = label_array(agreed.classes, like=labels)
        self._set_model(
            DiscriminantModel(
                agreed.classes,
                column_names(self),
                float(self.shrinkage),
                bool(self.standardize),
                self.priors == "equal",
                *units,
                request.features,
                priors,
                *densities,
            )
        )
        self.run_record_ = RunRecord(
            name="discriminant.fit",
            parameters={
                "quadratic": self.quadratic,
                "shrinkage": float(self.shrinkage),
                "n_features": self.n_features or 0,
                "clients": len(owned),
            },
            rounds=outcome.rounds,
            started=started.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - clock,
            environment=environment(),
        )
        return self

    def _coordinate(self, model: FrozenModel, seed: int) -> Coordinator[Statistics]:
        """Compare the schemas, agree on units, and sum moments by class."""
        replies = yield gather(ClientSchemaRequest(model.digest))
        agreed = CLASSIFICATION.agree(replies.complete("the schema").each, ())
        center, scale, rate = yield from column_units(standardize=self.standardize)
        if self.standardize:
            sent = center, scale
        else:
            center, scale = np.zeros_like(center), np.ones_like(scale)
            sent = np.empty(0), np.empty(0)
        yield from CLASSIFICATION.prepare(agreed, *sent, held_out=False)
        features = None if self.n_features is None else RandomFeatures(seed, rate, self.n_features)
        request = ClassMomentsRequest(
            False, np.empty(0), np.empty(0), features, bool(self.quadratic)
        )
        moments = yield from ask_moments(request)
        return agreed, (center, scale), request, moments

    def _fit_moments(
        self, moments: PointMomentsReply, priors: Floats
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Return head, means, factors and offsets of the class densities."""
        log_priors = np.log(priors)
        if not self.quadratic:
            fitted = LinearDiscriminants.fit(moments, shrinkage=self.shrinkage)
            head = fitted.head(log_priors, moments.counts > 0)
            head = np.vstack([fitted.directions @ head[:-1], head[-1]])
            return head, np.empty((0, 0)), np.empty((0, 0, 0)), np.empty(0)
        if moments.counts.min() < 2:
            raise DataError(
                "a class has a single row, so no covariance: use quadratic=False, or --linear on "
                "the command line"
            )
        means, factors, offsets = [], [], []
        for c, log_prior in enumerate(log_priors):
            parts = moments.counts[c : c + 1], moments.sums[c : c + 1], moments.products[c]
            (mean,), covariance = covariance_within(PointMomentsReply(*parts))
            factor = cholesky_factor(shrink(covariance, self.shrinkage))
            means.append(mean)
            factors.append(factor)
            offsets.append(log_prior - np.log(np.diag(factor)).sum())
        return np.empty((0, 0)), np.stack(means), np.stack(factors), np.array(offsets)

    def _set_model(self, model: DiscriminantModel) -> None:
        self.model_, self.priors_ = model, model.priors

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a classifier written by :meth:`save`.

        Raises
        ------
        ModelFileError
            If the file is missing, truncated or altered, or of another type or version.
        """
        model = DiscriminantModel.load(path)
        features = model.features
        estimator = cls(
            quadratic=model.is_quadratic,
            shrinkage=model.shrinkage,
            n_features=None if features is None else features.n_features,
            standardize=model.standardize,
            priors="equal" if model.equal_priors else "observed",
            random_state=0 if features is None else features.seed,
        )
        with convert_file_errors(str(path)):
            estimator.classes_ = label_array(model.classes, like=np.array(model.classes))
        set_columns(estimator, len(model.center), model.feature_names)
        estimator._set_model(model)
        return estimator

    def predict_proba(self, X: Any) -> Floats:
        """Return the class probabilities, shape (n_rows, n_classes)."""
        check_is_fitted(self)
        x = validate_rows(self, X, dtype=np.float64, reset=False)
        return np.asarray(softmax(self.model_.log_densities(x), axis=1))

    def predict(self, X: Any) -> Array:
        """Predict the most probable class; ties go to the lower class."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])
