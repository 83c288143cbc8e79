"""FlyNN as a scikit-learn classifier, trained on one table or an in-process federation."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.errors import PrivacyError
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import Outcome
from fedneighbors.methods.flynn._features import convert_for_kernels
from fedneighbors.methods.flynn._model import FlyNNModel, narrow_counts
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.algorithm import (
    KAPPA,
    calibration_rows,
    count_activations,
    hash_with_plan,
    leave_one_out,
    log_losses,
)
from fedneighbors.methods.flynn.protocol import FlyNNParty, coordinate
from fedneighbors.privacy._policy import Privacy
from fedneighbors.records import RunRecord, Scalar, environment
from fedneighbors.tabular._model_file import ModelFileMixin
from fedneighbors.tabular._ownership import (
    Holdings,
    check_labels,
    column_names,
    encode_features,
    plain_targets,
    public_seed,
    repeat_rows,
    rows_by_party,
    set_columns,
    validate_rows,
)
from fedneighbors.tabular._schema import apply_schema, label_array, label_index, reserved_labels


def fit(
    holdings: Holdings, settings: FlyNNSettings, privacy: Privacy | None, *, n_threads: int
) -> tuple[FlyNNModel, RunRecord]:
    """Train on all parties' rows; return the model and run record.

    Parameters
    ----------
    holdings : Holdings
        The table and the owners of its rows.
    settings : FlyNNSettings
        Sizes, decay, scaling, expansion.
    privacy : Privacy or None
        Privacy terms; None trains without noise.
    n_threads : int
        Threads; the exact result does not depend on it.

    Raises
    ------
    MissingExtraError
        If ``privacy`` is set and the extra ``privacy`` is not installed.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    privacy_record: dict[str, Scalar] = {}
    if privacy is None:
        parties = holdings.parties(FlyNNParty, n_threads=n_threads)
        outcome = run(coordinate(settings), parties, n_workers=n_threads)
    else:
        outcome, privacy_record = _train_privately(holdings, settings, privacy, n_threads=n_threads)
    model = outcome.result
    plan = model.plan
    return model, RunRecord(
        name="flynn.fit",
        parameters={
            "n_units_": plan.n_units,
            "n_inputs_": plan.n_inputs,
            "n_active_": plan.n_active,
            "decay_": model.gamma,
            "standardize": settings.standardize,
            "expansion": plan.features.expansion,
            "class_normalized": model.class_normalized,
            "seed": plan.seed,
        },
        rounds=outcome.rounds,
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - clock,
        environment=environment(),
        privacy=privacy_record,
    )


def _train_privately(
    holdings: Holdings, settings: FlyNNSettings, privacy: Privacy, *, n_threads: int
) -> tuple[Outcome[FlyNNModel], dict[str, Scalar]]:
    """Run a private training; return its outcome and privacy record."""
    from fedneighbors.methods.flynn.private._party import PrivateFlyNNParty
    from fedneighbors.methods.flynn.private.protocol import coordinate_private
    from fedneighbors.tabular._private import run_private

    if privacy.accounting == "paper" and privacy.n_parties is None:
        privacy = replace(privacy, n_parties=len(holdings.owned))
    training = coordinate_private(settings, privacy)
    return run_private(training, holdings, PrivateFlyNNParty, privacy, n_threads=n_threads)


@dataclass(eq=False, repr=False)
class FlyNNClassifier(ClassifierMixin, ModelFileMixin, BaseEstimator):  # type: ignore[misc]
    """Nearest-neighbour classifier that a federation trains exactly, by adding counts.

    Each row is hashed to a few active units. A filter per class counts the activations of each
    unit, and the class whose filter finds a new row least novel is predicted. The counts of the
    parties add up to those of the pooled table, so federated training equals pooled training bit
    for bit [1]_.

    Parameters
    ----------
    n_units : int, optional
        Number of hash units (m). None derives it from the numbers of rows and features.
    n_inputs : int, optional
        Number of inputs per unit (s). None derives it.
    n_active : int, optional
        Number of active units per row (rho). None derives it.
    decay : float, "auto" or None
        Factor per activation (gamma), in [0, 1]; with 0 only the presence of activations matters.
        None derives it from the mean load of a unit, and again after each ``partial_fit`` and
        ``unlearn``; ``"auto"`` does the same with a factor that the training rows choose.
    standardize : bool, "feature" or "global"
        Centre and scale columns; the constants come from exact sums over all parties. True
        divides all columns by one common number if their spreads are similar, otherwise each
        column by its own.
    expand : {"auto", "mirror", "population", "thermometer", "fourier"} or None
        Expansion that is hashed in place of the features; ``"auto"`` lets the training rows choose.
    class_normalized : bool or "auto"
        Weight counts by class size, so that a frequent class does not win by its size alone;
        ``"auto"`` lets the training rows choose.
    random_state : int, RandomState or None
        Seed of the hash. It is public in a federation and never used for noise.
    n_jobs : int, optional
        Number of threads. The result does not depend on it.
    privacy : Privacy, optional
        Train under differential privacy, see :class:`~fedneighbors.privacy.Privacy`. Everything
        derived from the rows is then charged to the budget; columns and labels are declared, and a
        data frame is read by ``privacy.schema``. No choice is made by training rows: ``"auto"`` is
        then a decay of None, under which rows are scored by a function suited to noised counts,
        class-normalized counts, and an expansion by the number of columns (``"fourier"`` up to 8,
        ``"population"`` up to 24, else ``"mirror"``).

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.
    counts_ : int32 array of shape (n_classes, n_units)
        The fly Bloom filters as activation counts.
    model_ : FlyNNModel
        The complete model, identical at every party of a federation.
    n_units_, n_inputs_, n_active_, decay_ : int, int, int, float
        The values used by the model.
    run_record_ : RunRecord
        Rounds, bytes up and down, seconds, and privacy spent in training.

    Notes
    -----
    Where a parameter is ``"auto"``, the values with the most correct predictions of training rows
    are chosen. Each row is predicted without its own contribution, which is subtracted from the
    counts. A federation needs one more round for it, in which each party sends the number of its
    correct predictions for every combination of values.

    With ``standardize=False, expand=None, class_normalized=False`` this is Algorithm 1 of [1]_.

    References
    ----------
    .. [1] Ram and Sinha, "Federated Nearest Neighbor Classification with a Colony of
       Fruit-Flies", AAAI 2022.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> hospital = ["north" if row % 3 else "south" for row in range(len(y))]
    >>> federated = FlyNNClassifier().fit(X, y, parties=hospital)
    >>> pooled = FlyNNClassifier().fit(X, y)
    >>> bool((federated.counts_ == pooled.counts_).all())
    True
    """

    n_units: int | None = None
    n_inputs: int | None = None
    n_active: int | None = None
    decay: float | str | None = "auto"
    standardize: bool | str = True
    expand: str | None = "auto"
    class_normalized: bool | str = "auto"
    random_state: int | np.random.RandomState | None = 0
    n_jobs: int | None = None
    privacy: Privacy | None = None
    classes_: Array = field(init=False)
    run_record_: RunRecord = field(init=False)
    model_: FlyNNModel = field(init=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(
        self,
        X: Any,
        y: Any,
        parties: Sequence[Any] | Array | None = None,
        sample_weight: Any = None,
    ) -> Self:
        """Train on a table or on a federation of its parties.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame of shape (n_rows, n_features)
            Finite numbers.
        y : array of shape (n_rows,)
            Labels.
        parties : sequence of shape (n_rows,), optional
            Owner of each row. None means one party.
        sample_weight : array of shape (n_rows,), optional
            Whole numbers: a row of weight w is learned w times. Not under a privacy budget.

        Raises
        ------
        ValueError
            If a weight is negative or fractional, or all are zero.
        """
        return self._train(X, y, parties, (), sample_weight)

    def partial_fit(
        self, X: Any, y: Any, classes: Sequence[Any] | None = None, sample_weight: Any = None
    ) -> Self:
        """Add rows to the filters.

        The first call sets sizes, standardizing constants, classes and the chosen values; later
        calls add counts.

        Parameters
        ----------
        X, y
            As for :meth:`fit`.
        classes : sequence, optional
            All labels that any call will contain; required at the first call if ``y`` lacks some.
        sample_weight
            As for :meth:`fit`.
        """
        if not hasattr(self, "model_"):
            reserved = () if classes is None else reserved_labels(classes, y)
            return self._train(X, y, None, reserved, sample_weight)
        self._check_no_noise("partial_fit")
        x, labels = self._index_labels(X, y, "partial_fit", sample_weight)
        active = hash_with_plan(x, self.model_.plan, n_threads=self._n_threads())
        counts = narrow_counts(self.model_.counts + self._count(active, labels))
        model = replace(self.model_, counts=counts)
        rows = calibration_rows(active, model.n_rows)
        novelty = leave_one_out(active[rows], labels[rows], model.filters, model.table)
        losses = model.losses + log_losses(novelty, labels[rows], self.n_active_)
        self._set_model(replace(model, losses=losses))
        return self

    def unlearn(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Remove rows from the filters exactly, as often as their weights.

        After ``partial_fit(X, y)`` and ``unlearn(X, y)`` the counts are restored bit for bit. These
        do not change: the standardizing constants, the sizes derived from the first table, the
        values chosen for ``"auto"``, the calibration, and copies of the model held by others.

        Raises
        ------
        ValueError
            If a label is unknown, or if a count would become negative; the model is unchanged.
        """
        check_is_fitted(self)
        self._check_no_noise("unlearn")
        x, labels = self._index_labels(X, y, "unlearn", sample_weight)
        active = hash_with_plan(x, self.model_.plan, n_threads=self._n_threads())
        remaining = self.model_.counts - self._count(active, labels)
        if remaining.min(initial=0) < 0:
            raise ValueError(
                "expected rows that were learned before; removing these would make a count "
                "negative. Nothing was changed: check rows and labels"
            )
        self._set_model(replace(self.model_, counts=narrow_counts(remaining)))
        return self

    def merge(self, other: "FlyNNClassifier") -> Self:
        """Add the filters of another classifier with the same hash.

        Raises
        ------
        ValueError
            If sizes, seed, standardizing constants, column names or the type of labels differ.
        """
        check_is_fitted(self)
        check_is_fitted(other)
        merged = self.model_.merge(other.model_)
        self.classes_ = label_array(merged.classes, like=self.classes_)
        self._set_model(merged)
        return self

    def predict(self, X: Any) -> Array:
        """Predict the class of lowest novelty; ties go to the lower class."""
        novelty = self._novelty(X)
        return np.asarray(self.classes_[np.argmin(novelty, axis=1)])

    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities of shape (n_rows, n_classes).

        They are a softmax of the negative novelties. Its factor minimises the log-loss of the
        training rows, each scored without its own contribution; a private model uses a constant
        factor.
        """
        novelty = self._novelty(X)
        return self.model_.probabilities(novelty)

    def decision_function(self, X: Any) -> Floats:
        """Return the negative novelty of each class; higher is better.

        Returns
        -------
        float64 array of shape (n_rows, n_classes), or (n_rows,) for two classes
            For two classes, the novelty of the first class minus that of the second.
        """
        novelty = self._novelty(X)
        return novelty[:, 0] - novelty[:, 1] if novelty.shape[1] == 2 else -novelty

    @classmethod
    def load(cls, path: str | Path) -> "FlyNNClassifier":
        """Read a classifier written by :meth:`save` or by a party after training.

        Raises
        ------
        ModelFileError
            If the file is missing, truncated, altered, not a FlyNN model or of another version.
        """
        return cls.from_model(FlyNNModel.load(path))

    @classmethod
    def from_model(cls, model: FlyNNModel) -> "FlyNNClassifier":
        """Return a fitted classifier that wraps a trained model."""
        plan = model.plan
        classifier = cls(
            n_units=plan.n_units,
            n_inputs=plan.n_inputs,
            n_active=plan.n_active,
            decay=model.gamma if model.kappa != KAPPA else model.decay,
            standardize=plan.features.scaling,
            expand=None if plan.features.expansion == "none" else plan.features.expansion,
            class_normalized=model.class_normalized,
            random_state=plan.seed,
        )
        classifier.classes_ = np.array(model.classes)
        set_columns(classifier, plan.features.n_features, model.feature_names)
        classifier._set_model(model)
        return classifier

    def _train(
        self,
        X: Any,
        y: Any,
        parties: Sequence[Any] | Array | None,
        reserved: tuple[Any, ...],
        sample_weight: Any,
    ) -> Self:
        if self.privacy is None:
            x, y = self._validate_rows(X, plain_targets(y, parties), reset=True)
            like = y
        elif sample_weight is not None:
            raise PrivacyError(
                "sample_weight would repeat a row, and the noise is sized for rows that count "
                "once; omit it, or train without privacy"
            )
        else:
            X, y = apply_schema(X, y, self.privacy)
            x = self._validate_features(X, reset=True, ensure_all_finite=False)
            like = np.array(self.privacy.classes)
        owned = repeat_rows(rows_by_party(parties, len(y)), sample_weight, x)
        holdings = Holdings(x, y, owned, column_names(self))
        model, self.run_record_ = fit(
            holdings, self._make_settings(reserved), self.privacy, n_threads=self._n_threads()
        )
        self.classes_ = label_array(model.classes, like=like)
        self._set_model(model)
        return self

    def _validate_rows(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, Array]:
        x, labels = validate_rows(self, X, y, accept_sparse="csr", dtype="numeric", reset=reset)
        check_labels(labels)
        return convert_for_kernels(x), labels

    def _check_no_noise(self, operation: str) -> None:
        if self.model_.guarantee:
            raise PrivacyError(
                f"{operation} would add exact rows to noised counts and void their guarantee "
                f"({self.model_.guarantee}); fit again, which is charged as a new release"
            )

    def _index_labels(
        self, X: Any, y: Any, operation: str, sample_weight: Any
    ) -> tuple[Any, Integers]:
        """Return repeated rows and class indices; raise if a label is unknown."""
        x, labels = self._validate_rows(X, plain_targets(y), reset=False)
        index = label_index(self.model_.classes)
        distinct, inverse = np.unique(labels, return_inverse=True)
        unknown = [label for label in distinct.tolist() if label not in index]
        if unknown:
            raise ValueError(
                f"{operation} got labels {unknown[:5]} that are not in classes_ "
                f"{list(self.model_.classes)[:10]}; name all classes at the first call"
            )
        indices = np.array([index[label] for label in distinct.tolist()], np.int64)[inverse]
        if sample_weight is None:
            return x, indices
        (rows,) = repeat_rows({"all": slice(None)}, sample_weight, x).values()
        return x[rows], indices[rows]

    def _make_settings(self, reserved: tuple[Any, ...]) -> FlyNNSettings:
        return FlyNNSettings(
            n_units=self.n_units,
            n_inputs=self.n_inputs,
            n_active=self.n_active,
            decay=self.decay,
            standardize=self.standardize,
            expand=self.expand,
            class_normalized=self.class_normalized,
            seed=public_seed(self.random_state),
            classes=reserved,
        )

    def _n_threads(self) -> int:
        return int(effective_n_jobs(self.n_jobs))

    def _count(self, active: npt.NDArray[np.int32], labels: Integers) -> npt.NDArray[np.int32]:
        return count_activations(
            active, labels, n_units=self.n_units_, n_classes=len(self.model_.classes)
        )

    def _set_model(self, model: FlyNNModel) -> None:
        self.model_ = model
        self.counts_ = model.counts.astype(np.int32).T
        self.n_units_ = model.plan.n_units
        self.n_inputs_ = model.plan.n_inputs
        self.n_active_ = model.plan.n_active
        self.decay_ = model.gamma

    def _novelty(self, X: Any) -> Floats:
        check_is_fitted(self)
        x = self._validate_features(encode_features(self, X), reset=False)
        return self.model_.novelty(x, n_threads=self._n_threads())

    def _validate_features(self, X: Any, *, reset: bool, **checks: bool) -> Any:
        x = validate_rows(self, X, accept_sparse="csr", dtype="numeric", reset=reset, **checks)
        return convert_for_kernels(x)
