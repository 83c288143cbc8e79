"""Federated discriminant analysis, linear or quadratic, from class statistics of all parties."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedneighbors._typing import Floats
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
from fedneighbors.methods.knnper.personal._discriminants import RandomFeatures
from fedneighbors.methods.knnper.protocol import ClientSchemaRequest, column_units
from fedneighbors.records import RunRecord, environment
from fedneighbors.tabular._ownership import (
    Holdings,
    column_names,
    one_blas_thread,
    public_seed,
    rows_by_party,
)
from fedneighbors.tabular._schema import (
    JointSchema,
    PointMomentsReply,
    covariance_within,
    label_array,
)

Statistics = tuple[JointSchema, tuple[Floats, Floats], ClassMomentsRequest, PointMomentsReply]


class FederatedDiscriminantClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
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

    def fit(self, X: Any, y: Any, parties: Sequence[Any] | npt.NDArray[Any] | None = None) -> Self:
        """Fit the model to the sums of all parties.

        Parameters
        ----------
        X : array or DataFrame of shape (n_rows, n_features)
            Finite numbers.
        y : array of shape (n_rows,)
            Class labels.
        parties : sequence of shape (n_rows,), optional
            Party of each row. None means one party.

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
        x, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        if not 0 <= self.shrinkage <= 1:
            raise ValueError(f"expected shrinkage from 0 to 1, got {self.shrinkage!r}")
        if self.priors not in ("observed", "equal"):
            raise ValueError(f"expected priors 'observed' or 'equal', got {self.priors!r}")
        owned = rows_by_party(parties, len(x))
        started, clock = datetime.now(UTC), time.perf_counter()
        model = FrozenModel("rows", x.shape[1:], len(np.unique(labels)))
        holdings = Holdings(x, labels, owned, column_names(self))
        members = holdings.parties(KNNPerParty, n_threads=1, network=model)
        seed = public_seed(self.random_state)
        with one_blas_thread():
            outcome = run(self._coordinate(model, seed), members, sums=self.sums)
            agreed, self._units, self._request, moments = outcome.result
            weights = moments.counts if self.priors == "observed" else moments.counts > 0
            self.priors_ = weights / weights.sum()
            self._fit_moments(moments)
        self.classes_ = label_array(agreed.classes, like=labels)
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
        if not self.standardize:
            center, scale = np.empty(0), np.empty(0)
        yield from CLASSIFICATION.prepare(agreed, center, scale, held_out=False)
        features = None if self.n_features is None else RandomFeatures(seed, rate, self.n_features)
        request = ClassMomentsRequest(
            False, np.empty(0), np.empty(0), features, bool(self.quadratic)
        )
        moments = yield from ask_moments(request)
        return agreed, (center, scale), request, moments

    def _fit_moments(self, moments: PointMomentsReply) -> None:
        """Set the parameters of the class densities."""
        log_priors = np.log(self.priors_)
        if not self.quadratic:
            fitted = LinearDiscriminants.fit(moments, shrinkage=self.shrinkage)
            head = fitted.head(log_priors, moments.counts > 0)
            self._head = np.vstack([fitted.directions @ head[:-1], head[-1]])
            return
        if moments.counts.min() < 2:
            raise DataError("a class has a single row, so no covariance; use quadratic=False")
        self._densities = []
        for c, log_prior in enumerate(log_priors):
            parts = moments.counts[c : c + 1], moments.sums[c : c + 1], moments.products[c]
            (mean,), covariance = covariance_within(PointMomentsReply(*parts))
            factor = cholesky_factor(shrink(covariance, self.shrinkage))
            offset = log_prior - np.log(np.diag(factor)).sum()
            self._densities.append((mean, factor, offset))

    def predict_proba(self, X: Any) -> Floats:
        """Return the class probabilities, shape (n_rows, n_classes)."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False)
        center, scale = self._units
        points = self._request.points((x - center) / scale if self.standardize else x)
        if not self.quadratic:
            return np.asarray(softmax(points @ self._head[:-1] + self._head[-1], axis=1))
        scores = []
        for mean, factor, offset in self._densities:
            whitened = solve_triangular(factor, (points - mean).T, lower=True)
            scores.append(offset - (whitened**2).sum(axis=0) / 2)
        return np.asarray(softmax(np.column_stack(scores), axis=1))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Predict the most probable class; ties go to the lower class."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])
